//! `autoscaling.internal.knative.dev/v1alpha1`: the scaling of a Revision, for users and tools.
//!
//! The autoscaler uses the Revision's own plan; these objects show it under upstream's names.

pub mod metric;
pub mod pod_autoscaler;

pub const GROUP: &str = "autoscaling.internal.knative.dev";
pub const VERSION: &str = "v1alpha1";
