//! `serving.knative.dev/v1`: Service, Configuration, Revision, Route and what they are made of.

pub mod annotations;
pub mod autoscaler_settings;
pub mod cluster_domain_claim;
pub mod configuration;
pub mod domain_mapping;
mod env;
pub mod gc_settings;
mod pod;
pub mod resources;
pub mod revision;
pub mod route;
mod schemas;
mod security;
pub mod service;
pub mod spare_instances;
pub mod stream_timeouts;
pub mod template;
pub mod traffic;
pub mod traffic_policy;
pub mod volumes;

pub const GROUP: &str = "serving.knative.dev";
pub const VERSION: &str = "v1";
