#![forbid(unsafe_code)]
//! Control: kinds, API server, controllers, scaler, instance runtimes, publish.
//!
//! Compiles objects into `dataplane::table` and listens to `dataplane::signal`. Never on a request's path.

pub mod access;
pub mod api;
pub mod autoscaler;
mod blocking;
pub mod bounded_file;
mod bounded_regex;
mod cel;
mod child_name;
pub mod clock;
mod compressed;
pub mod controllers;
pub mod cross_origin;
pub mod dns;
pub mod event_recorder;
pub mod expiry;
mod field_errors;
mod items;
pub mod kind_registry;
pub mod kinds;
pub mod manifests;
mod nulls;
pub mod publish;
pub mod runtime;
pub mod schema;
mod sha256;
pub mod store;
mod strict_deserializer;
mod worker_threads;
