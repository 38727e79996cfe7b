#![forbid(unsafe_code)]
//! Control: kinds, API server, controllers, autoscaler, instance runtimes, publisher of tables.
//!
//! Compiles objects into `contract::table` and listens to `contract::signal`. Never on a request's path. Each part is its own
//! crate; this one only re-exports them to the program.

pub use apiserver::{access, api, cross_origin, expiry, request_memory, store, streaming};
pub use controllers::{event_recorder, manifests, publish};
pub use runtime::dns;
pub use support::{bounded_file, clock, names, nearest};
pub use types::{self as kinds, kind_registry, schema};
pub use {autoscaler, controllers, runtime};
