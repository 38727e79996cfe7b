#![forbid(unsafe_code)]
//! Control: kinds, API server, controllers, scaler, instance runtimes, publish.
//!
//! Compiles objects into `dataplane::table` and listens to `dataplane::signal`. Never on a request's path.

pub mod access;
pub mod api;
pub mod autoscaler;
pub mod controllers;
pub mod cross_origin;
pub mod dns;
pub mod event_recorder;
pub mod expiry;
pub mod manifests;
pub mod publish;
pub mod runtime;
pub mod store;

pub(crate) use support::{blocking, child_name, compressed, sha256, worker_threads};
pub use support::{bounded_file, clock};
pub(crate) use types::items;
pub use types::{self as kinds, kind_registry, schema};
