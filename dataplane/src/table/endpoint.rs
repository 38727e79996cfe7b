//! One running instance, as the cores know it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{EndpointAddress, Protocol};
use crate::load::EndpointLoad;

/// One running instance.
#[derive(Debug)]
pub struct Endpoint {
    /// Unique among all instances of this process's life: pools key their connections by it.
    pub id: u64,
    pub address: EndpointAddress,
    pub load: Arc<EndpointLoad>,
    /// Where it comes from, if it is somebody's. Boxed: addresses, of which there are many, are nobody's.
    pub start: Option<Box<InstanceStart>>,
}

/// What is known of an instance that was started for us, or of an address that is more than one among many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceStart {
    /// Its name in logs.
    pub pod: Box<str>,
    /// How it came up, if somebody saw that.
    pub start: Option<StartupDuration>,
    /// What it was found to speak, if it was asked.
    pub found: Option<Protocol>,
    /// The operator named the address (`--route`), or it is a listener of ours by its name: the target policy is not asked.
    pub unrestricted: bool,
}

/// How long an instance took to come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupDuration {
    /// From the order to a running process.
    pub spawn: Duration,
    /// From there until it was ready.
    pub listen: Duration,
}

impl Endpoint {
    /// An instance nobody knew before, with an id of its own.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Relaxed), address: address.into(), load: Arc::default(), start: None }
    }

    /// Whether the target policy is not asked about its address.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.start.as_deref().is_some_and(|start| start.unrestricted)
    }

    /// What is spoken to it, where its backend says `usual`; `upgrades`: for a WebSocket. An instance that was found to
    /// speak HTTP/2 speaks HTTP/1 as well, and a WebSocket's opening is HTTP/1's.
    #[must_use]
    pub fn protocol(&self, usual: Protocol, upgrades: bool) -> Protocol {
        match self.start.as_deref().and_then(|born| born.found) {
            None => usual,
            Some(_) if upgrades => Protocol::Http1,
            Some(found) => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RT-PORT-02: what was found wins over what is usual, except for WebSockets.
    #[test]
    fn an_instance_is_spoken_to_as_it_was_found_to_speak() {
        use Protocol::{H2c, Http1};
        for (found, usual, upgrades, spoken) in [
            (None, Http1, false, Http1),
            (None, H2c, true, H2c),
            (Some(H2c), Http1, false, H2c),
            (Some(H2c), Http1, true, Http1),
            (Some(Http1), Http1, false, Http1),
        ] {
            let born = Some(Box::new(InstanceStart { pod: "p".into(), found, ..InstanceStart::default() }));
            let endpoint = Endpoint { start: born, ..Endpoint::new(([127, 0, 0, 1], 1).into()) };
            assert_eq!(endpoint.protocol(usual, upgrades), spoken, "{found:?} {usual:?} {upgrades}");
        }
    }
}
