#![forbid(unsafe_code)]
//! Control: kinds, API server, controllers, scaler, instance runtimes, publish.
//!
//! Compiles objects into `dataplane::table` and listens to `dataplane::signal`. Never on a request's path.

pub mod access;
pub mod api;
pub mod bounded;
mod cel;
mod child_name;
pub mod clock;
pub mod controllers;
pub mod cross_origin;
pub mod events_recorder;
pub mod expiry;
mod fingerprint;
pub mod fleet;
mod hand;
mod hands;
mod items;
pub mod kind;
pub mod kinds;
pub mod manifests;
pub mod names;
mod nulls;
mod packed;
mod problems;
pub mod publish;
pub mod runtime;
pub mod schema;
pub mod store;
mod strict;
