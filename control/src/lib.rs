#![forbid(unsafe_code)]
//! Control: kinds, API server, controllers, scaler, instance runtimes, publish.
//!
//! Compiles objects into `dataplane::table` and listens to `dataplane::signal`. Never on a request's path.

pub mod autoscaler;
pub mod controllers;
pub mod dns;
pub mod event_recorder;
pub mod manifests;
pub mod publish;
pub mod runtime;

pub use apiserver::{access, api, cross_origin, expiry, store};
pub(crate) use support::{blocking, child_name, compressed, sha256, worker_threads};
pub use support::{bounded_file, clock};
pub use types::{self as kinds, kind_registry, schema};
