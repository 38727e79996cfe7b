#![forbid(unsafe_code)]
//! The API server: verbs, admission, access, and the store with its watches.
//!
//! It sees kinds as rows of a registry, and does not depend on any controller.

pub mod access;
pub mod api;
pub mod cross_origin;
pub mod expiry;
pub mod instance_usage;
pub mod request_memory;
pub mod store;
pub mod streaming;
