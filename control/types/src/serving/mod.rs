//! `serving.knative.dev/v1`: Service, Configuration, Revision, Route and their parts.

pub mod annotations;
pub mod cluster_domain_claim;
pub mod configuration;
pub mod domain_mapping;
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

pub const GROUP: &str = "serving.knative.dev";
pub const VERSION: &str = "v1";
