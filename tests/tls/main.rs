//! TLS for clients, through the built binary: `--https` and `--tls-cert`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bodies;
mod client;
mod domain_mapping;
mod handshakes;
mod ingress;
mod reload;
