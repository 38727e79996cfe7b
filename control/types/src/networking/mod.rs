//! `networking.internal.knative.dev`: the kinds by which the parts of Knative exchange network configuration.

pub mod certificate;
pub mod ingress;
pub mod serverless_service;

use crate::kind_registry::KindEntry;

pub const GROUP: &str = "networking.internal.knative.dev";
pub const VERSION: &str = "v1alpha1";

/// The rows of the kinds of networking.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<certificate::Certificate>(),
        KindEntry::of::<ingress::Ingress>().with_warnings(ingress::warnings),
        KindEntry::of::<serverless_service::ServerlessService>(),
    ]
}
