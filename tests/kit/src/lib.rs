//! Fixtures for the promises that the built binary keeps, and the load that benches put on it.
//!
//! Everything in here is code of its own: it never uses our ring, proxy, log or API crates, so that
//! the system under test is measured and judged by something else. Servers and the load generator
//! run on monoio (those of HTTP/2 on tokio), one thread each; the clients of tests are plain blocking sockets.
//!
//! Fixtures panic when they cannot do their work: a panic in a fixture is a failed test, and its
//! message says what was waited for.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the crate is test code; a panic is a failed test")]

pub mod api;
pub mod appliance;
pub mod crowd;
pub mod event;
pub mod flakey;
pub mod http;
pub mod http2;
pub mod kingress;
pub mod load;
pub mod manifest;
pub mod message;
pub mod proxy;
pub mod pulse;
mod runtime;
pub mod scene;
pub mod server;
pub mod sink;
pub mod tls;
pub mod upstream;
pub mod wait;

pub use api::Api;
pub use appliance::{Appliance, Ports, Setup};
pub use event::Event;
pub use http::{Call, Connection};
pub use message::{Request, Response};
pub use pulse::Pulse;
pub use sink::{Answer, EventSink, Received};
pub use upstream::Upstream;

/// How long a fixture waits for something that should take milliseconds. Long, because a busy
/// machine must not fail a test; bounded, because a hang must.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);
