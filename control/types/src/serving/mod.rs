//! `serving.knative.dev/v1`: Service, Configuration, Revision, Route and their parts.

pub mod annotations;
pub mod cluster_domain_claim;
pub mod configuration;
pub mod domain_mapping;
pub mod durable_requests;
pub mod revision;
pub mod revision_spec;
pub mod route;
mod schemas;
pub mod service;
pub mod spare_instances;
pub mod stream_timeouts;
pub mod template;
pub mod traffic;
pub mod traffic_policy;

use crate::kind_registry::KindEntry;

pub const GROUP: &str = "serving.knative.dev";
pub const VERSION: &str = "v1";

/// The rows of the kinds of serving.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<service::Service>().with_warnings(revision_spec::warnings),
        KindEntry::of::<configuration::Configuration>().with_warnings(revision_spec::warnings),
        KindEntry::of::<revision::Revision>(),
        KindEntry::of::<route::Route>(),
        KindEntry::of::<domain_mapping::DomainMapping>(),
        KindEntry::of::<cluster_domain_claim::ClusterDomainClaim>(),
    ]
}
