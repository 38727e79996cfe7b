//! The state of each connection for debug queries, kept in a few cells that the connection updates.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use contract::connection_query::{ConnectionInfo, ConnectionList, ConnectionState};
use protocol::h2::io::IoState;
use ring::Tick;

use super::Proxy;

/// The state of one connection.
pub(super) struct ConnectionStats {
    peer: SocketAddr,
    listener: &'static str,
    protocol: Cell<Option<&'static str>>,
    opened: Tick,
    state: Cell<ConnectionState>,
    since: Cell<Tick>,
    requests: Cell<u64>,
    received: Cell<u64>,
    sent: Cell<u64>,
    /// HTTP/2 counts its bytes frame by frame.
    frames: OnceCell<Rc<IoState>>,
    streams: Cell<usize>,
}

impl ConnectionStats {
    /// A request begins, or the idle time between two requests.
    pub(super) fn start(&self, state: ConnectionState, now: Tick) {
        self.state.set(state);
        self.since.set(now);
        if state == ConnectionState::Routing {
            self.requests.set(self.requests.get() + 1);
        }
    }

    pub(super) fn set_state(&self, state: ConnectionState) {
        self.state.set(state);
    }

    pub(super) fn set_protocol(&self, protocol: &'static str) {
        self.protocol.set(Some(protocol));
    }

    pub(super) fn carried(&self, received: u64, sent: u64) {
        self.received.set(received);
        self.sent.set(sent);
    }

    /// Called when the connection turns out to speak HTTP/2.
    pub(super) fn count_frames(&self, io_state: &Rc<IoState>, now: Tick) {
        self.set_protocol("HTTP/2");
        self.start(ConnectionState::Idle, now);
        let _ = self.frames.set(Rc::clone(io_state)); // a connection switches to HTTP/2 once
    }

    /// An HTTP/2 stream begins. It ends when the guard is dropped.
    pub(super) fn stream(self: &Rc<Self>, proxy: &Rc<Proxy>) -> OpenStreamCount {
        self.requests.set(self.requests.get() + 1);
        if self.streams.replace(self.streams.get() + 1) == 0 {
            self.start(ConnectionState::Serving, proxy.ring.now());
        }
        OpenStreamCount { stats: Rc::clone(self), proxy: Rc::clone(proxy) }
    }

    fn info(&self, now: Tick) -> ConnectionInfo {
        let state = self.state.get();
        let frames = self.frames.get();
        let streams = match frames {
            Some(_) => self.streams.get(),
            None => usize::from(!state.is_idle() && state != ConnectionState::Closing),
        };
        ConnectionInfo {
            peer: self.peer,
            listener: self.listener,
            protocol: self.protocol.get(),
            state,
            age: now - self.opened,
            state_age: now - self.since.get(),
            requests: self.requests.get(),
            streams,
            received: frames.map_or(self.received.get(), |io_state| io_state.received.get()),
            sent: frames.map_or(self.sent.get(), |io_state| io_state.sent.get()),
        }
    }
}

/// Counts an open HTTP/2 stream until it is dropped.
pub(super) struct OpenStreamCount {
    stats: Rc<ConnectionStats>,
    proxy: Rc<Proxy>,
}

impl Drop for OpenStreamCount {
    fn drop(&mut self) {
        let open = self.stats.streams.get() - 1;
        self.stats.streams.set(open);
        if open == 0 {
            self.stats.start(ConnectionState::Idle, self.proxy.ring.now());
        }
    }
}

/// All connections of a core.
#[derive(Default)]
pub(super) struct ConnectionRegistry {
    all: RefCell<RegistrySlots>,
}

#[derive(Default)]
struct RegistrySlots {
    slots: Vec<Option<Rc<ConnectionStats>>>,
    free: Vec<usize>,
}

impl ConnectionRegistry {
    /// Lists up to `most` connections, those with a request first.
    pub(super) fn list(&self, now: Tick, most: usize) -> ConnectionList {
        let all = self.all.borrow();
        let open = || all.slots.iter().flatten();
        let busy = open().filter(|stats| !stats.state.get().is_idle());
        let idle = open().filter(|stats| stats.state.get().is_idle());
        let connections = busy.chain(idle).take(most).map(|stats| stats.info(now)).collect();
        ConnectionList { open: all.slots.len() - all.free.len(), connections }
    }
}

/// An open connection: counted and listed until it is dropped.
pub(super) struct RegisteredConnection {
    proxy: Rc<Proxy>,
    number: usize,
    pub(super) stats: Rc<ConnectionStats>,
}

impl RegisteredConnection {
    pub(super) fn count(proxy: &Rc<Proxy>, peer: SocketAddr, listener: &'static str) -> Self {
        proxy.counters.connections_taken.fetch_add(1, Relaxed);
        proxy.counters.connections_open.fetch_add(1, Relaxed);
        let now = proxy.ring.now();
        let stats = Rc::new(ConnectionStats {
            peer,
            listener,
            protocol: Cell::default(),
            opened: now,
            state: Cell::default(),
            since: Cell::new(now),
            requests: Cell::default(),
            received: Cell::default(),
            sent: Cell::default(),
            frames: OnceCell::default(),
            streams: Cell::default(),
        });
        let all = &mut *proxy.connections.all.borrow_mut();
        let number = all.free.pop().unwrap_or_else(|| {
            all.slots.push(None);
            all.slots.len() - 1
        });
        all.slots[number] = Some(Rc::clone(&stats));
        Self { proxy: Rc::clone(proxy), number, stats }
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.proxy.counters.connections_open.fetch_sub(1, Relaxed);
        let all = &mut *self.proxy.connections.all.borrow_mut();
        all.slots[self.number] = None;
        all.free.push(self.number);
    }
}
