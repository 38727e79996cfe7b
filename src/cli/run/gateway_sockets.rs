//! The sockets of listeners that Gateways open at run time: one for each core, and a duplicate of each for a successor.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::controllers::listeners::OpenSockets;
use dataplane::listener_sockets::{ListenerProtocol, ListenerSocket, ListenerSpec};
use socket2::{Domain, Protocol, Socket, Type};

use super::listener_name::ListenerName;
use super::sockets::BACKLOG;

/// All waits of a start together. A dead process releases its addresses within milliseconds.
const START_WAIT_MAX: Duration = Duration::from_secs(1);
const START_WAIT_STEP: Duration = Duration::from_millis(5);
/// A core closes its socket at its next wake-up. After this time an address that is in use is another program's, or a stalled
/// core's; the listener is tried again in both cases.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);

/// An address with whether its sockets receive datagrams: a successor may use a socket for another protocol.
type SocketKey = (SocketAddr, bool);

/// All sockets of one listener.
type SocketGroup = Vec<OwnedFd>;

#[derive(Debug)]
pub(super) struct GatewaySockets {
    workers: usize,
    /// The process that is being replaced still has its sockets.
    has_predecessor: AtomicBool,
    /// Until then an address that is in use is waited for: after a crash the kernel tears down the listeners of the dead
    /// process with some delay.
    start_ends: Mutex<Option<Instant>>,
    state: Mutex<SocketsState>,
}

#[derive(Debug, Default)]
struct SocketsState {
    /// Duplicates of what is open. While they are open the kernel accepts connections, even without an accepting process.
    open: BTreeMap<SocketKey, SocketGroup>,
    /// Of the previous process, and not yet used.
    inherited: BTreeMap<SocketKey, SocketGroup>,
    /// Addresses that were closed, and when: the cores may still have their sockets.
    closed: Vec<(SocketKey, Instant)>,
}

impl GatewaySockets {
    /// `inherited` are the sockets of the previous process, if there is one.
    pub(super) fn new(workers: usize, inherited: Vec<(ListenerName, OwnedFd)>, has_predecessor: bool) -> Arc<Self> {
        let mut state = SocketsState::default();
        for (name, socket) in inherited {
            if let ListenerName::Gateway { address, is_datagram } = name {
                state.inherited.entry((address, is_datagram)).or_default().push(socket);
            }
        }
        Arc::new(Self {
            workers,
            has_predecessor: AtomicBool::new(has_predecessor),
            start_ends: Mutex::new(Some(Instant::now() + START_WAIT_MAX)),
            state: Mutex::new(state),
        })
    }

    /// Passes the duplicates to `give`, in an order that stays the same while the lock is held.
    pub(super) fn with_open<T>(&self, give: impl FnOnce(&[(ListenerName, BorrowedFd<'_>)]) -> T) -> T {
        let state = self.lock();
        let all: Vec<_> = state
            .open
            .iter()
            .flat_map(|(&(address, is_datagram), group)| {
                group.iter().map(move |socket| (ListenerName::Gateway { address, is_datagram }, socket.as_fd()))
            })
            .collect();
        give(&all)
    }

    /// All listeners of stored Gateways have been opened. Closes inherited sockets that no Gateway wants: clients that
    /// connect to them would wait.
    pub(super) fn started(&self) {
        self.start_ends.lock().unwrap_or_else(PoisonError::into_inner).take();
        let unused = std::mem::take(&mut self.lock().inherited);
        for (address, _) in unused.keys() {
            tracing::info!(%address, "closing a listener of the previous process: no Gateway has it");
        }
    }

    /// The previous process has ended.
    pub(super) fn predecessor_ended(&self) {
        self.has_predecessor.store(false, SeqCst);
    }

    /// Closes the duplicates: from now on the cores decide how long the kernel accepts connections.
    pub(super) fn close(&self) {
        *self.lock() = SocketsState::default();
    }

    fn waits_at_start(&self) -> bool {
        let ends = *self.start_ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.is_some_and(|ends| Instant::now() < ends)
    }

    fn lock(&self) -> MutexGuard<'_, SocketsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sockets for a listener, inherited or new.
    fn bind(&self, state: &mut SocketsState, key: SocketKey) -> io::Result<SocketGroup> {
        if let Some(group) = state.inherited.remove(&key)
            && group.len() == self.workers
        {
            return Ok(group);
        }
        let (address, is_datagram) = key;
        // SO_REUSEPORT would let a second appliance of the same user share the port and take half of the requests; an
        // ordinary bind first detects another listener. It would also detect sockets of our own on the same port.
        let same_port = |other: &SocketKey| other.0.port() == address.port() && other.1 == is_datagram;
        state.closed.retain(|(_, at)| at.elapsed() < CLOSE_WAIT_MAX);
        let has_own = state.open.keys().chain(state.closed.iter().map(|(key, _)| key)).any(same_port);
        if !has_own && !self.has_predecessor.load(SeqCst) {
            drop(listen(address, is_datagram, false)?);
        }
        (0..self.workers).map(|_| listen(address, is_datagram, true)).collect()
    }
}

impl OpenSockets for GatewaySockets {
    fn open(&self, spec: ListenerSpec) -> io::Result<Vec<ListenerSocket>> {
        let state = &mut *self.lock();
        let key = (spec.address, spec.protocol.is_datagram());
        let group = loop {
            match self.bind(state, key) {
                Err(why) if why.kind() == io::ErrorKind::AddrInUse && self.waits_at_start() => pause(),
                outcome => break outcome?,
            }
        };
        let for_cores = group.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        state.closed.retain(|(closed, _)| *closed != key);
        state.open.insert(key, group);
        Ok(for_cores.into_iter().map(|socket| typed(socket, spec.protocol)).collect())
    }

    fn release(&self, spec: ListenerSpec) {
        let (state, key) = (&mut *self.lock(), (spec.address, spec.protocol.is_datagram()));
        if state.open.remove(&key).is_some() {
            state.closed.retain(|(_, at)| at.elapsed() < CLOSE_WAIT_MAX);
            state.closed.push((key, Instant::now()));
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "nothing is served yet")]
fn pause() {
    std::thread::sleep(START_WAIT_STEP);
}

fn typed(socket: OwnedFd, protocol: ListenerProtocol) -> ListenerSocket {
    if protocol.is_datagram() {
        ListenerSocket::Datagram(UdpSocket::from(socket))
    } else {
        ListenerSocket::Stream(TcpListener::from(socket))
    }
}

/// Blocking sockets: on the ring a non-blocking one would return EAGAIN.
fn listen(address: SocketAddr, is_datagram: bool, shared: bool) -> io::Result<OwnedFd> {
    let (kind, protocol) = if is_datagram { (Type::DGRAM, Protocol::UDP) } else { (Type::STREAM, Protocol::TCP) };
    let socket = Socket::new(Domain::for_address(address), kind.cloexec(), Some(protocol))?;
    // For datagrams it would let another program take the port.
    socket.set_reuse_address(!is_datagram)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    if !is_datagram {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(address: SocketAddr) -> ListenerSpec {
        ListenerSpec { address, protocol: ListenerProtocol::Http }
    }

    fn free_address() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap()
    }

    #[test]
    fn address_of_another_program_is_not_shared() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = GatewaySockets::new(2, Vec::new(), false);
        sockets.started();
        let why = sockets.open(spec(other.local_addr().unwrap())).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::AddrInUse);
        sockets.with_open(|open| assert!(open.is_empty()));
    }

    #[test]
    fn successor_gets_the_sockets_and_closes_what_is_unused() {
        let (used, unused) = (free_address(), free_address());
        let before = GatewaySockets::new(2, Vec::new(), false);
        let _cores = [used, unused].map(|address| before.open(spec(address)).unwrap());
        let passed = before.with_open(|open| {
            open.iter().map(|(name, socket)| (*name, socket.try_clone_to_owned().unwrap())).collect::<Vec<_>>()
        });
        assert_eq!(passed.len(), 4);
        let after = GatewaySockets::new(2, passed, true);
        let taken = after.open(spec(used)).unwrap();
        assert!(taken.iter().all(|socket| match socket {
            ListenerSocket::Stream(listener) => listener.local_addr().unwrap() == used,
            ListenerSocket::Datagram(_) => false,
        }));
        after.started();
        after.with_open(|open| assert_eq!(open.len(), 2));
    }

    #[test]
    fn closed_address_is_opened_again_while_cores_still_have_it() {
        let address = free_address();
        let sockets = GatewaySockets::new(1, Vec::new(), false);
        let first = sockets.open(spec(address)).unwrap();
        sockets.release(spec(address));
        let second = sockets.open(spec(address)).unwrap();
        drop((first, second));
    }
}
