//! `autoscaling.internal.knative.dev/v1alpha1`: the scaling of a Revision, for users and tools.
//!
//! The autoscaler uses the Revision's own plan; these objects show it under upstream's names.

pub mod metric;
pub mod pod_autoscaler;

use crate::kind_registry::KindEntry;

pub const GROUP: &str = "autoscaling.internal.knative.dev";
pub const VERSION: &str = "v1alpha1";

/// The rows of the kinds of autoscaling.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![KindEntry::of::<pod_autoscaler::PodAutoscaler>(), KindEntry::of::<metric::Metric>()]
}
