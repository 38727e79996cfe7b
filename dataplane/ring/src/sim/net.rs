//! The network of one simulation: listeners, and pairs of connected ends.
//!
//! A byte is first with its sender, then in flight, then arrived, then received. Arrived and in-flight
//! bytes together fill the receiver's window; when it is full the sender waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::buffers::{SimBuffers, SimReceiveTarget};
use super::{SimContext, SimEvent};
use crate::chunk::Chunk;
use crate::endpoint_address::EndpointAddress;
use crate::limits::BACKLOG_MAX;
use crate::op::{Completion, OpKey, SocketHandle};
use crate::tick::Tick;

/// First ephemeral port, same as on Linux.
const PORT_FIRST: u16 = 32_768;

/// Result of a wait for the peer's end.
const HUNG_UP: i32 = libc::POLLRDHUP as i32;

/// Network events.
pub(super) enum NetEvent {
    /// A client's SYN reaches `address`.
    ConnectionAttempt {
        client: SocketHandle,
        address: SocketAddr,
    },
    /// Its SYN-ACK.
    Admitted {
        client: SocketHandle,
        result: i32,
    },
    Arrive {
        from: SocketHandle,
        to: SocketHandle,
        bytes: Chunk,
    },
    Finish {
        to: SocketHandle,
    },
    Break {
        to: SocketHandle,
    },
}

pub(super) struct SimNetwork {
    pub(super) buffers: SimBuffers,
    sockets: BTreeMap<SocketHandle, SimSocket>,
    /// The socket of each operation in flight.
    operations: BTreeMap<OpKey, SocketHandle>,
    next_handle: i32,
    next_port: u16,
}

enum SimSocket {
    Listener(SimListener),
    End(Box<ConnectionEnd>),
}

impl SimSocket {
    fn port(&self) -> Option<u16> {
        match self {
            Self::Listener(listener) => Some(listener.address.port()),
            Self::End(end) => end.local.map(|local| local.port()),
        }
    }
}

struct SimListener {
    address: SocketAddr,
    /// Connected and not yet accepted.
    queue: VecDeque<SocketHandle>,
    accept: Option<OpKey>,
}

/// One end of a connection.
#[derive(Default)]
struct ConnectionEnd {
    local: Option<SocketAddr>,
    peer_address: Option<SocketAddr>,
    peer: Option<SocketHandle>,
    connect: Option<OpKey>,
    receive: Option<(OpKey, SimReceiveTarget)>,
    send: Option<BytesInTransit>,
    /// Operations that wait for the peer's end.
    hangups: Vec<OpKey>,
    arrived: VecDeque<Chunk>,
    /// Arrived and in flight; at most the window.
    held_bytes: usize,
    /// The peer has finished, and everything before that has arrived.
    finished: bool,
    /// This end has finished.
    shut: bool,
    resets_on_close: bool,
    broken: Option<i32>,
    /// The latest arrival scheduled towards this end: no segment overtakes it.
    last_arrival: Tick,
    slow: bool,
}

struct BytesInTransit {
    key: OpKey,
    rest: Chunk,
    sent: usize,
}

impl SimNetwork {
    pub(super) fn new(buffers: SimBuffers) -> Self {
        Self { buffers, sockets: BTreeMap::new(), operations: BTreeMap::new(), next_handle: 0, next_port: PORT_FIRST }
    }

    pub(super) fn socket(&mut self) -> SocketHandle {
        self.add(SimSocket::End(Box::default()))
    }

    pub(super) fn listen(&mut self, mut address: SocketAddr) -> io::Result<SocketHandle> {
        if address.port() == 0 {
            address.set_port(self.free_port().ok_or(io::ErrorKind::AddrInUse)?);
        } else if self.listener_at(address).is_some() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(self.add(SimSocket::Listener(SimListener { address, queue: VecDeque::new(), accept: None })))
    }

    pub(super) fn local_address(&self, socket: SocketHandle) -> io::Result<SocketAddr> {
        match self.sockets.get(&socket) {
            Some(SimSocket::Listener(listener)) => Ok(listener.address),
            Some(SimSocket::End(end)) => end.local.ok_or_else(|| io::ErrorKind::NotConnected.into()),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub(super) fn peer_address(&self, socket: SocketHandle) -> io::Result<SocketAddr> {
        match self.sockets.get(&socket) {
            Some(SimSocket::End(end)) => end.peer_address.ok_or_else(|| io::ErrorKind::NotConnected.into()),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub(super) fn accept(&mut self, key: OpKey, socket: SocketHandle, means: &mut SimContext<'_>) {
        match self.sockets.get_mut(&socket) {
            Some(SimSocket::Listener(listener)) => {
                listener.accept = Some(key);
                self.operations.insert(key, socket);
                self.pass_to_accept(socket, means);
            }
            _ => means.finish(key, -libc::EINVAL),
        }
    }

    pub(super) fn connect(
        &mut self,
        key: OpKey,
        socket: SocketHandle,
        address: EndpointAddress,
        means: &mut SimContext<'_>,
    ) {
        // A simulation has no file system for sockets.
        let EndpointAddress::Ip(address) = address else { return means.finish(key, -libc::ENOENT) };
        let Some(port) = self.free_port() else { return means.finish(key, -libc::EADDRNOTAVAIL) };
        let slow = means.happens(means.faults.slow_peers);
        let Some(end) = self.end(socket) else { return means.finish(key, -libc::EINVAL) };
        end.local = Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        end.peer_address = Some(address);
        end.connect = Some(key);
        end.slow = slow;
        self.operations.insert(key, socket);
        let wait = means.between(&means.faults.latency.clone());
        means.schedule.plan(wait, SimEvent::Net(NetEvent::ConnectionAttempt { client: socket, address }));
    }

    pub(super) fn receive(
        &mut self,
        key: OpKey,
        socket: SocketHandle,
        target: SimReceiveTarget,
        means: &mut SimContext<'_>,
    ) {
        let Some(end) = self.end(socket) else { return means.finish(key, -libc::EINVAL) };
        end.receive = Some((key, target));
        self.operations.insert(key, socket);
        self.deliver(socket, means);
    }

    pub(super) fn send(&mut self, key: OpKey, socket: SocketHandle, chunk: Chunk, means: &mut SimContext<'_>) {
        let Some(end) = self.end(socket) else { return means.finish(key, -libc::EINVAL) };
        if end.shut || end.broken.is_some() || end.peer.is_none() {
            return means.finish(key, -libc::EPIPE);
        }
        end.send = Some(BytesInTransit { key, rest: chunk, sent: 0 });
        self.operations.insert(key, socket);
        self.push(socket, means);
    }

    pub(super) fn shutdown(&mut self, key: OpKey, socket: SocketHandle, means: &mut SimContext<'_>) {
        let Some(end) = self.end(socket) else { return means.finish(key, -libc::EINVAL) };
        if end.peer.is_none() || end.broken.is_some() {
            return means.finish(key, -libc::ENOTCONN);
        }
        self.deliver_fin(socket, means);
        means.finish(key, 0);
    }

    pub(super) fn hangup(&mut self, key: OpKey, socket: SocketHandle, means: &mut SimContext<'_>) {
        let Some(end) = self.end(socket) else { return means.finish(key, -libc::EINVAL) };
        if end.finished || end.broken.is_some() {
            return means.finish(key, HUNG_UP);
        }
        end.hangups.push(key);
        self.operations.insert(key, socket);
    }

    pub(super) fn set_reset_on_close(&mut self, socket: SocketHandle, resets: bool) {
        self.end(socket).into_iter().for_each(|end| end.resets_on_close = resets);
    }

    /// Operations hold their socket, so none is in flight when it closes.
    pub(super) fn close(&mut self, key: OpKey, socket: SocketHandle, means: &mut SimContext<'_>) {
        if self.end(socket).is_some_and(|end| end.resets_on_close || !end.arrived.is_empty()) {
            self.deliver_reset(socket, means);
        } else {
            self.deliver_fin(socket, means);
        }
        let closed = self.sockets.remove(&socket);
        if let Some(SimSocket::Listener(listener)) = &closed {
            for waiting in &listener.queue {
                self.deliver_reset(*waiting, means);
                self.sockets.remove(waiting);
            }
        }
        means.finish(key, if closed.is_some() { 0 } else { -libc::EBADF });
    }

    pub(super) fn cancel(&mut self, key: OpKey, means: &mut SimContext<'_>) {
        let Some(socket) = self.operations.remove(&key) else { return };
        let mut result = -libc::ECANCELED;
        match self.sockets.get_mut(&socket) {
            Some(SimSocket::Listener(listener)) => listener.accept = None,
            Some(SimSocket::End(end)) => {
                if let Some(outgoing) = end.send.take_if(|outgoing| outgoing.key == key)
                    && outgoing.sent > 0
                {
                    result = outgoing.sent as i32;
                }
                end.receive.take_if(|(receive, _)| *receive == key);
                end.hangups.retain(|hangup| *hangup != key);
                end.connect.take_if(|connect| *connect == key);
            }
            None => {}
        }
        means.finish(key, result);
    }

    pub(super) fn power_cut(&mut self, means: &mut SimContext<'_>) {
        for socket in self.sockets.keys().copied().collect::<Vec<_>>() {
            self.fail(socket, libc::ECONNRESET, means);
        }
        for (key, _) in std::mem::take(&mut self.operations) {
            means.finish(key, -libc::EIO); // accepts
        }
    }

    pub(super) fn happen(&mut self, event: NetEvent, means: &mut SimContext<'_>) {
        match event {
            NetEvent::ConnectionAttempt { client, address } => self.connection_attempted(client, address, means),
            NetEvent::Admitted { client, result } => {
                if let Some(key) = self.end(client).and_then(|end| end.connect.take()) {
                    self.operations.remove(&key);
                    means.finish(key, result);
                }
            }
            NetEvent::Arrive { from, to, bytes } => match self.end(to) {
                Some(end) => {
                    end.arrived.push_back(bytes);
                    self.deliver(to, means);
                }
                None => self.fail(from, libc::ECONNRESET, means),
            },
            NetEvent::Finish { to } => {
                if let Some(end) = self.end(to) {
                    end.finished = true;
                    self.deliver_hangup(to, means);
                    self.deliver(to, means);
                }
            }
            NetEvent::Break { to } => self.fail(to, libc::ECONNRESET, means),
        }
    }

    fn connection_attempted(&mut self, client: SocketHandle, address: SocketAddr, means: &mut SimContext<'_>) {
        let back = means.between(&means.faults.latency.clone());
        let listener = self.listener_at(address);
        let Some(peer_address) = self.end(client).filter(|end| end.connect.is_some()).and_then(|end| end.local) else {
            return; // it was closed meanwhile
        };
        let mut result = -libc::ECONNREFUSED;
        if let Some(listener) = listener {
            let slow = means.happens(means.faults.slow_peers);
            let end = ConnectionEnd {
                local: Some(address),
                peer_address: Some(peer_address),
                peer: Some(client),
                slow,
                ..ConnectionEnd::default()
            };
            let server = self.add(SimSocket::End(Box::new(end)));
            if let Some(end) = self.end(client) {
                end.peer = Some(server);
            }
            if let Some(SimSocket::Listener(listener)) = self.sockets.get_mut(&listener) {
                listener.queue.push_back(server);
            }
            self.pass_to_accept(listener, means);
            result = 0;
        }
        means.schedule.plan(back, SimEvent::Net(NetEvent::Admitted { client, result }));
    }

    /// Passes connected sockets to pending accepts.
    fn pass_to_accept(&mut self, socket: SocketHandle, means: &mut SimContext<'_>) {
        if let Some(SimSocket::Listener(listener)) = self.sockets.get_mut(&socket)
            && let Some(key) = listener.accept
        {
            for accepted in listener.queue.drain(..) {
                means.answers.push(Completion { key, result: accepted.0, more: true, chunk: None });
            }
        }
    }

    /// Sends as much as the receiver's window allows.
    fn push(&mut self, socket: SocketHandle, means: &mut SimContext<'_>) {
        let Some(end) = self.end(socket) else { return };
        let (Some(peer), Some(mut outgoing)) = (end.peer, end.send.take()) else { return };
        while !outgoing.rest.is_empty() {
            // A closed peer accepts everything, and answers the first segment with a reset.
            let window = means.faults.window_bytes;
            let free_bytes = self.end(peer).map_or(usize::MAX, |peer| window.saturating_sub(peer.held_bytes));
            if free_bytes == 0 {
                if let Some(end) = self.end(socket) {
                    end.send = Some(outgoing);
                }
                return;
            }
            if means.happens(means.faults.resets) {
                self.operations.remove(&outgoing.key);
                means.finish(outgoing.key, -libc::ECONNRESET);
                self.deliver_reset(socket, means);
                self.fail(socket, libc::ECONNRESET, means);
                return;
            }
            let most = free_bytes.min(outgoing.rest.len()).min(means.faults.segment_bytes_max);
            let bytes = outgoing.rest.split_to(means.chance.usize(1..=most.max(1)));
            outgoing.sent += bytes.len();
            let at = self.arrival(peer, bytes.len(), means);
            means.schedule.plan_at(at, SimEvent::Net(NetEvent::Arrive { from: socket, to: peer, bytes }));
        }
        self.operations.remove(&outgoing.key);
        means.finish(outgoing.key, outgoing.sent as i32);
    }

    /// Fills receive buffers with arrived bytes.
    fn deliver(&mut self, socket: SocketHandle, means: &mut SimContext<'_>) {
        let Self { sockets, buffers, operations, .. } = self;
        let Some(SimSocket::End(end)) = sockets.get_mut(&socket) else { return };
        let Some((key, target)) = end.receive else { return };
        let mut taken = false;
        let last = loop {
            let Some(bytes) = end.arrived.front_mut() else {
                break match (end.broken, end.finished) {
                    (Some(errno), _) => Some(-errno),
                    (None, true) => Some(0),
                    (None, false) => None,
                };
            };
            let (count, chunk) = match target {
                SimReceiveTarget::Buffers => match buffers.fill(bytes) {
                    Some(chunk) => (chunk.len(), Some(chunk)),
                    None => break Some(-libc::ENOBUFS),
                },
                // SAFETY: the receive is in flight: it is in `end.receive` until its last completion.
                SimReceiveTarget::OpBuffer { start, bytes: buffer_bytes } => unsafe {
                    (SimBuffers::fill_op_buffer(start, buffer_bytes, bytes), None)
                },
            };
            bytes.advance(count);
            end.held_bytes -= count;
            if bytes.is_empty() {
                end.arrived.pop_front();
            }
            taken = true;
            if chunk.is_none() {
                break Some(count as i32);
            }
            means.answers.push(Completion { key, result: count as i32, more: true, chunk });
        };
        if let Some(result) = last {
            end.receive = None;
            operations.remove(&key);
            means.finish(key, result);
        }
        if let (true, Some(peer)) = (taken, end.peer) {
            self.push(peer, means);
        }
    }

    /// Ends every operation in flight on a socket.
    fn fail(&mut self, socket: SocketHandle, errno: i32, means: &mut SimContext<'_>) {
        let Some(end) = self.end(socket) else { return };
        end.broken.get_or_insert(errno);
        end.arrived.clear();
        self.deliver_hangup(socket, means);
        let Some(end) = self.end(socket) else { return };
        let keys =
            [end.connect.take(), end.receive.take().map(|(key, _)| key), end.send.take().map(|outgoing| outgoing.key)];
        for key in keys.into_iter().flatten() {
            self.operations.remove(&key);
            means.finish(key, -errno);
        }
    }

    fn deliver_hangup(&mut self, socket: SocketHandle, means: &mut SimContext<'_>) {
        let Some(end) = self.end(socket) else { return };
        for key in std::mem::take(&mut end.hangups) {
            self.operations.remove(&key);
            means.finish(key, HUNG_UP);
        }
    }

    fn deliver_fin(&mut self, socket: SocketHandle, means: &mut SimContext<'_>) {
        let Some(end) = self.end(socket) else { return };
        if let (false, None, Some(peer)) = (end.shut, end.broken, end.peer) {
            end.shut = true;
            let at = self.arrival(peer, 0, means);
            means.schedule.plan_at(at, SimEvent::Net(NetEvent::Finish { to: peer }));
        }
    }

    fn deliver_reset(&mut self, socket: SocketHandle, means: &mut SimContext<'_>) {
        if let Some(peer) = self.end(socket).and_then(|end| end.peer) {
            let at = self.arrival(peer, 0, means);
            means.schedule.plan_at(at, SimEvent::Net(NetEvent::Break { to: peer }));
        }
    }

    /// When something sent now reaches `to`: after everything sent there before.
    fn arrival(&mut self, to: SocketHandle, bytes: usize, means: &mut SimContext<'_>) -> Tick {
        let mut wait = means.between(&means.faults.latency.clone());
        let now = means.schedule.now();
        let Some(end) = self.end(to) else { return now + wait };
        if end.slow {
            wait *= means.faults.slowness;
        }
        end.held_bytes += bytes;
        end.last_arrival = end.last_arrival.max(now + wait);
        end.last_arrival
    }

    fn listener_at(&self, address: SocketAddr) -> Option<SocketHandle> {
        self.sockets.iter().find_map(|(handle, socket)| match socket {
            SimSocket::Listener(listener) => {
                let at = listener.address;
                let here = at.port() == address.port() && (at.ip() == address.ip() || at.ip().is_unspecified());
                (here && listener.queue.len() < BACKLOG_MAX as usize).then_some(*handle)
            }
            SimSocket::End(_) => None,
        })
    }

    fn end(&mut self, socket: SocketHandle) -> Option<&mut ConnectionEnd> {
        match self.sockets.get_mut(&socket) {
            Some(SimSocket::End(end)) => Some(end),
            _ => None,
        }
    }

    fn add(&mut self, socket: SimSocket) -> SocketHandle {
        let handle = SocketHandle(self.next_handle);
        self.next_handle += 1;
        self.sockets.insert(handle, socket);
        handle
    }

    /// The next port in turn that no socket has: a listener may have chosen its own.
    fn free_port(&mut self) -> Option<u16> {
        let taken: BTreeSet<u16> = self.sockets.values().filter_map(SimSocket::port).collect();
        for _ in PORT_FIRST..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(PORT_FIRST);
            if !taken.contains(&port) {
                return Some(port);
            }
        }
        None
    }
}
