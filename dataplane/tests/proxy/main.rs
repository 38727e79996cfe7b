//! The proxy with its sockets: every test runs on the kernel's ring and on simulated machines.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod answers;
mod bodies;
mod cut;
mod external_authorization;
mod fixture;
mod http2_io;
mod http2_responses;
mod idle;
mod life;
mod queueing;
mod retries;
mod route_filters;
mod sharing;
mod streams;
mod tls;
mod traffic_policy;
mod tunnels;
mod whole;
