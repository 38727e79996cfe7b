//! The API as its clients see it: over the router, and through kube's client.
// A test that cannot go on says so by a panic, in its helpers too.
#![allow(clippy::unwrap_used)]

mod access;
mod client;
mod concurrency;
mod costs;
mod crash_recovery;
mod custom;
mod definitions;
mod deletion;
mod events_v1;
mod get_and_list;
mod malformed_objects;
mod malformed_requests;
mod managed_fields;
mod nulls;
mod reviews;
mod schemas;
mod server_side_apply;
mod settings;
mod sources;
mod storage_only_kinds;
mod support;
mod timeouts;
mod verb_matrix;
mod verb_matrix_bench;
mod verb_matrix_kinds;
mod verbs;
mod watch;
