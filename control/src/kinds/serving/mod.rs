//! `serving.knative.dev/v1`: Service, Configuration, Revision, Route and what they are made of.

pub mod annotations;
pub mod autoscaler;
pub mod configuration;
pub mod domain_claim;
pub mod domain_mapping;
mod env;
pub mod gc;
pub mod manners;
mod pod;
pub mod resources;
pub mod revision;
pub mod route;
mod schemas;
mod security;
pub mod service;
pub mod spares;
pub mod stream_timeouts;
pub mod template;
pub mod traffic;
pub mod volumes;

pub const GROUP: &str = "serving.knative.dev";
pub const VERSION: &str = "v1";
