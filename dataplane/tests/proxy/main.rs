//! The proxy with its sockets: every test runs on the kernel's ring and on simulated machines.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod afresh;
mod answers;
mod bodies;
mod cut;
mod house;
mod idle;
mod judged;
mod life;
mod manners;
mod places;
mod sharing;
mod streams;
mod tls;
mod tunnels;
mod whole;
