//! One running instance.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{EndpointAddress, Protocol};
use crate::load::EndpointLoad;

/// One running instance.
#[derive(Debug)]
pub struct Endpoint {
    /// Unique over the life of this process: pools use it as the key of connections.
    pub id: u64,
    pub address: EndpointAddress,
    pub load: Arc<EndpointLoad>,
    /// Set for started instances and special addresses. Boxed: most endpoints are plain addresses without it.
    pub start: Option<Box<InstanceStart>>,
}

/// Details of a started instance, or of a special address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceStart {
    /// Its name in logs.
    pub pod: Box<str>,
    /// How long it took to start, if that was measured.
    pub start: Option<StartupDuration>,
    /// The protocol that a probe detected, if there was one.
    pub found: Option<Protocol>,
    /// The operator named the address (`--route`), or it is a listener of this process: the target policy is skipped.
    pub unrestricted: bool,
}

/// How long an instance took to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupDuration {
    /// From the order to a running process.
    pub spawn: Duration,
    /// From there until it was ready.
    pub listen: Duration,
}

impl Endpoint {
    /// A new endpoint with a new id.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Relaxed), address: address.into(), load: Arc::default(), start: None }
    }

    /// Whether the target policy is skipped for its address.
    #[inline]
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.start.as_deref().is_some_and(|start| start.unrestricted)
    }

    /// The protocol to use, where its backend says `usual`; `upgrades`: for a WebSocket. An instance that speaks HTTP/2
    /// was found to speak HTTP/1 as well, and a WebSocket handshake needs HTTP/1.
    #[inline]
    #[must_use]
    pub fn protocol(&self, usual: Protocol, upgrades: bool) -> Protocol {
        match self.start.as_deref().and_then(|start| start.found) {
            None => usual,
            Some(_) if upgrades => Protocol::Http1,
            Some(found) => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RT-PORT-02: the detected protocol overrides the usual one, except for WebSockets.
    #[test]
    fn detected_protocol_overrides_the_usual_one() {
        use Protocol::{H2c, Http1};
        for (found, usual, upgrades, spoken) in [
            (None, Http1, false, Http1),
            (None, H2c, true, H2c),
            (Some(H2c), Http1, false, H2c),
            (Some(H2c), Http1, true, Http1),
            (Some(Http1), Http1, false, Http1),
        ] {
            let start = Some(Box::new(InstanceStart { pod: "p".into(), found, ..InstanceStart::default() }));
            let endpoint = Endpoint { start, ..Endpoint::new(([127, 0, 0, 1], 1).into()) };
            assert_eq!(endpoint.protocol(usual, upgrades), spoken, "{found:?} {usual:?} {upgrades}");
        }
    }
}
