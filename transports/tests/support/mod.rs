//! Fixtures for tests of adapters: a sink, an adapter's process, servers, and a proxy that can be cut.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]
#![allow(clippy::disallowed_methods, reason = "fixtures are threads")]

pub(crate) mod adapter_process;
pub(crate) mod http;
pub(crate) mod proxy;
pub(crate) mod server;
pub(crate) mod sink;

use std::time::{Duration, Instant};

/// Longer than any machine needs; only a failed test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `probe` gives something.
pub(crate) fn wait<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
