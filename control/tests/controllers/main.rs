#![expect(clippy::unwrap_used, reason = "a panic in a test is a failed test")]
//! The controllers over the in-process API, with scripted instances and access to the published tables.

mod control_plane;
mod eventing;
mod field_managers;
mod flows;
mod hosts;
mod messaging;
mod pods;
mod references;
mod remote_api_server;
mod restart;
mod rollout;
mod serving;
mod settings;
mod sources;
mod unresolved_destinations;
