//! The API as its clients see it: over the router, and through kube's client.
// A test that cannot go on says so by a panic, in its helpers too.
#![allow(clippy::unwrap_used)]

mod access;
mod applying;
mod client;
mod costs;
mod crowds;
mod custom;
mod definitions;
mod describing;
mod golden;
mod golden_bench;
mod golden_kinds;
mod hostile;
mod housekeeping;
mod leaving;
mod news;
mod nulls;
mod owning;
mod patience;
mod reading;
mod reviews;
mod settings;
mod shapes;
mod sources;
mod support;
mod surviving;
mod verbs;
mod watching;
