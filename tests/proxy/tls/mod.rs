//! TLS for clients, to instances and to subscribers, through the built binary: `--https`, `--tls-cert`, `--route …=https://…`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod acme;
mod automatic;
mod backends;
mod bodies;
mod challenges;
pub(crate) mod client;
mod domain_mapping;
mod events;
mod faults;
mod handshakes;
mod ingress;
mod inside;
mod instances;
mod reload;
mod static_routes;
mod subscribers;
