//! The sockets of a listener that is opened at run time: control opens one for each core, and each core reports when it
//! accepts.

use std::fmt;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::ServerConfig;
use tokio::sync::watch;

/// What the connections or datagrams of a listener carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenerProtocol {
    Http,
    /// TLS: with HTTP in it, or relayed. The server name decides.
    Https,
    Tcp,
    Udp,
}

impl ListenerProtocol {
    /// Whether its sockets receive datagrams. Listeners of both kinds can have the same address.
    #[must_use]
    pub fn is_datagram(self) -> bool {
        self == Self::Udp
    }

    /// As Gateway API calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// The name of a listener in tables and connections. An address with a protocol keeps its id as long as the process runs,
/// also when its sockets are closed and opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(NonZeroU32);

impl ListenerId {
    /// The id of the listener that was named after `earlier` others.
    #[must_use]
    pub fn after(earlier: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(earlier))
    }
}

/// Where a listener accepts, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerSpec {
    pub address: SocketAddr,
    pub protocol: ListenerProtocol,
}

impl fmt::Display for ListenerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.protocol.name())
    }
}

/// One core's socket. All sockets of a listener share its address (SO_REUSEPORT), and the kernel distributes over them.
#[derive(Debug)]
pub enum ListenerSocket {
    Stream(TcpListener),
    Datagram(UdpSocket),
}

/// How far the cores are.
#[derive(Debug, Clone, Default)]
struct AcceptProgress {
    accepting: usize,
    /// The first failure of a core.
    failed: Option<Arc<str>>,
}

/// The open sockets of one listener. A core takes its own from the first table that has them, and closes it when a table
/// has them no more.
pub struct ListenerSockets {
    pub id: ListenerId,
    pub spec: ListenerSpec,
    /// By core. A core takes its lock once.
    sockets: Vec<Mutex<Option<ListenerSocket>>>,
    progress: watch::Sender<AcceptProgress>,
    /// Of a listener that ends TLS, made by the first core: a ticket of one core is valid at every other.
    pub tls: OnceLock<Arc<ServerConfig>>,
}

impl ListenerSockets {
    /// `sockets` has one for each core.
    #[must_use]
    pub fn new(id: ListenerId, spec: ListenerSpec, sockets: Vec<ListenerSocket>) -> Arc<Self> {
        let sockets = sockets.into_iter().map(|socket| Mutex::new(Some(socket))).collect();
        Arc::new(Self { id, spec, sockets, progress: watch::Sender::default(), tls: OnceLock::new() })
    }

    /// The socket of a core; `None` after the first call.
    #[must_use]
    pub fn take(&self, core: usize) -> Option<ListenerSocket> {
        self.sockets.get(core)?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Called by each core once its socket accepts.
    pub fn mark_accepting(&self) {
        self.progress.send_modify(|progress| progress.accepting += 1);
    }

    /// Called by a core that cannot serve its socket.
    pub fn mark_failed(&self, why: &str) {
        self.progress.send_modify(|progress| {
            progress.failed.get_or_insert_with(|| why.into());
        });
    }

    /// Whether all cores accept.
    #[must_use]
    pub fn is_accepting(&self) -> bool {
        self.progress.borrow().accepting >= self.sockets.len()
    }

    /// Returns when all cores accept.
    ///
    /// # Errors
    ///
    /// The reason why a core cannot.
    pub async fn accepting(&self) -> Result<(), Arc<str>> {
        let settled = |progress: &AcceptProgress| progress.failed.is_some() || progress.accepting >= self.sockets.len();
        let mut progress = self.progress.subscribe();
        // An error means that the sender is gone, and it is a field of this.
        let failed = progress.wait_for(settled).await.ok().and_then(|progress| progress.failed.clone());
        failed.map_or(Ok(()), Err)
    }
}

impl fmt::Debug for ListenerSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerSockets").field("id", &self.id).field("spec", &self.spec).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn sockets(cores: usize) -> Arc<ListenerSockets> {
        let open = |_| ListenerSocket::Stream(TcpListener::bind("127.0.0.1:0").unwrap());
        let spec = ListenerSpec { address: "127.0.0.1:1".parse().unwrap(), protocol: ListenerProtocol::Http };
        ListenerSockets::new(ListenerId::after(0), spec, (0..cores).map(open).collect())
    }

    #[test]
    fn listener_accepts_when_each_core_does() {
        let sockets = sockets(2);
        let mut accepting = pin!(sockets.accepting());
        let mut poll = || accepting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        sockets.mark_accepting();
        assert!(poll().is_pending() && !sockets.is_accepting());
        sockets.mark_accepting();
        assert_eq!((poll(), sockets.is_accepting()), (Poll::Ready(Ok(())), true));
    }

    #[test]
    fn failure_of_one_core_is_reported() {
        let sockets = sockets(2);
        sockets.mark_accepting();
        sockets.mark_failed("first");
        sockets.mark_failed("second");
        let mut accepting = pin!(sockets.accepting());
        let outcome = accepting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(outcome, Poll::Ready(Err("first".into())));
    }

    #[test]
    fn each_core_takes_its_socket_once() {
        let sockets = sockets(2);
        assert!(sockets.take(1).is_some() && sockets.take(1).is_none());
        assert!(sockets.take(0).is_some() && sockets.take(2).is_none());
    }
}
