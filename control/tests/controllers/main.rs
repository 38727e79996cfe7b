#![expect(clippy::unwrap_used, reason = "a panic in a test is a failed test")]
//! The controllers over the in-process API, with scripted instances and the published tables in sight.

mod eventing;
mod flows;
mod follow;
mod hosts;
mod house;
mod lost;
mod messaging;
mod owners;
mod pods;
mod references;
mod restart;
mod rollout;
mod serving;
mod settings;
mod sources;
