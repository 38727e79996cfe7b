//! Fixtures for tests of the built binary's promises, and the load generators of benches.
//!
//! Everything in here is independent code: it never uses our ring, proxy, log or API crates, so that
//! the system under test is measured and checked by something else. Servers and the load generator
//! run on monoio (those of HTTP/2 on tokio), one thread each; the clients of tests are plain blocking sockets.
//!
//! Fixtures panic when they cannot do their work: a panic in a fixture is a failed test, and its
//! message says what it waited for.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the crate is test code; a panic is a failed test")]

pub mod api;
pub mod appliance;
pub mod background_clients;
pub mod event;
pub mod faulty_block_device;
pub mod http;
pub mod http2;
pub mod kingress;
pub mod load;
pub mod manifest;
pub mod message;
pub mod nats;
pub mod open_loop;
pub mod proxy;
pub mod registry;
mod runtime;
pub mod scene;
pub mod server;
pub mod sink;
pub mod tls;
pub mod upstream;
pub mod wait;
pub mod webdriver;

pub use api::KitApi;
pub use appliance::{Appliance, ApplianceSetup, Ports};
pub use event::TestEvent;
pub use http::{HttpCall, HttpConnection};
pub use message::{HttpRequest, HttpResponse};
pub use nats::NatsServer;
pub use open_loop::OpenLoopLoad;
pub use sink::{EventSink, ReceivedRequest, SinkResponse};
pub use upstream::TestUpstream;

/// How long a fixture waits for something that should take milliseconds. Long, because a busy
/// machine must not fail a test; bounded, because a hang must.
pub const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
