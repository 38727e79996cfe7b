//! How many files this process may open, and how many of them are reserved.
//!
//! Clients determine the number of connections. So connections stop some way below the limit, and the rest
//! is for segments of the logs, for the store and for instances.

use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Result, bail};
use axum::serve::Listener;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};

/// Descriptors without which nothing starts: listeners, rings, logs and objects, and a few for connections.
const DESCRIPTORS_MIN: u64 = 48;
const DESCRIPTORS_PER_CORE: u64 = 16;

/// Inverse of the share (1/4) of the descriptors that is reserved for files and instances.
const RESERVED_SHARE: u64 = 4;
/// Maximum of this share: a log of 8 GiB has 128 segments, and an instance takes some ten descriptors.
const RESERVED_MAX: u64 = 4096;

/// After a failed accept: long enough not to spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A proxied request holds a descriptor on either side; the usual soft limit of 1,024 is for programs that
/// use select(2), and the hard one is what the administrator allows.
pub(super) fn raise_limit(workers: usize) -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(why) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%why, "the limit of open files stays as it is");
    }
    let needed = DESCRIPTORS_MIN + DESCRIPTORS_PER_CORE * workers as u64;
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < needed => {
            bail!(
                "this process may open {allowed} files, and needs {needed} to start on {workers} cores: raise the limit \
                 (ulimit -n, LimitNOFILE=) or start fewer --workers"
            )
        }
        _ => Ok(()),
    }
}

/// Sockets of requests have descriptors below this number.
pub(super) fn sockets_max() -> i32 {
    sockets_of(getrlimit(Resource::Nofile).current, 1)
}

/// The reserved descriptors are for files and instances, `part` of them.
fn sockets_of(allowed: Option<u64>, part: u64) -> i32 {
    let allowed = allowed.unwrap_or(u64::MAX);
    let sockets = allowed - (allowed / RESERVED_SHARE).min(RESERVED_MAX) / part;
    i32::try_from(sockets).unwrap_or(i32::MAX)
}

/// A listener for operators: while clients use all their sockets, it may use half of the reserved
/// descriptors, so that health checks and scrapes are answered. Beyond that it closes connections.
pub(super) struct Guarded {
    listener: TcpListener,
    sockets_max: i32,
}

impl Guarded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, sockets_max: sockets_of(getrlimit(Resource::Nofile).current, 2) }
    }
}

impl Listener for Guarded {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) if stream.as_raw_fd() < self.sockets_max => return (stream, address),
                Ok(_) => {}
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await, // usually out of descriptors
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_leave_descriptors_for_files() {
        for (allowed, sockets) in [(80, 60), (1024, 768), (1 << 20, (1 << 20) - 4096)] {
            assert_eq!(sockets_of(Some(allowed), 1), sockets);
        }
        assert_eq!(sockets_of(Some(1024), 2), 896, "operators get in when clients do not");
        assert_eq!(sockets_of(None, 1), i32::MAX);
    }
}
