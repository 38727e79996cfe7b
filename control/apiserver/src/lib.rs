#![forbid(unsafe_code)]
//! The API server: verbs, admission, access, and the store with its watches.
//!
//! It knows the kinds as rows of a registry, and no controller.

pub mod access;
pub mod api;
pub mod cross_origin;
pub mod expiry;
pub mod store;
pub mod streaming;
