//! What each connection shows of itself to whoever asks the core: a few cells, set as it goes on.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use ring::Tick;

use super::Proxy;
use crate::h2::io::Facts;
use crate::inquiry::{Connection, State, Told};

/// One connection's.
pub(super) struct Sheet {
    peer: SocketAddr,
    listener: &'static str,
    protocol: Cell<Option<&'static str>>,
    opened: Tick,
    state: Cell<State>,
    since: Cell<Tick>,
    requests: Cell<u64>,
    received: Cell<u64>,
    sent: Cell<u64>,
    /// In HTTP/2 the frames are counted where they pass.
    frames: OnceCell<Rc<Facts>>,
    streams: Cell<usize>,
}

impl Sheet {
    /// A request begins, or what is between two of them.
    pub(super) fn begin(&self, state: State, now: Tick) {
        self.state.set(state);
        self.since.set(now);
        if state == State::Routing {
            self.requests.set(self.requests.get() + 1);
        }
    }

    pub(super) fn turn(&self, state: State) {
        self.state.set(state);
    }

    pub(super) fn speaks(&self, protocol: &'static str) {
        self.protocol.set(Some(protocol));
    }

    pub(super) fn carried(&self, received: u64, sent: u64) {
        self.received.set(received);
        self.sent.set(sent);
    }

    /// From now on it speaks HTTP/2.
    pub(super) fn count_frames(&self, facts: &Rc<Facts>, now: Tick) {
        self.speaks("HTTP/2");
        self.begin(State::Idle, now);
        let _ = self.frames.set(Rc::clone(facts)); // a connection turns to HTTP/2 once
    }

    /// A stream of HTTP/2 begins; it ends when the guard does.
    pub(super) fn stream(self: &Rc<Self>, proxy: &Rc<Proxy>) -> OpenStream {
        self.requests.set(self.requests.get() + 1);
        if self.streams.replace(self.streams.get() + 1) == 0 {
            self.begin(State::Serving, proxy.ring.now());
        }
        OpenStream { sheet: Rc::clone(self), proxy: Rc::clone(proxy) }
    }

    fn told(&self, now: Tick) -> Connection {
        let state = self.state.get();
        let frames = self.frames.get();
        let streams = match frames {
            Some(_) => self.streams.get(),
            None => usize::from(!state.is_idle() && state != State::Closing),
        };
        Connection {
            peer: self.peer,
            listener: self.listener,
            protocol: self.protocol.get(),
            state,
            age: now - self.opened,
            state_age: now - self.since.get(),
            requests: self.requests.get(),
            streams,
            received: frames.map_or(self.received.get(), |facts| facts.received.get()),
            sent: frames.map_or(self.sent.get(), |facts| facts.sent.get()),
        }
    }
}

/// A stream of HTTP/2, however it ends.
pub(super) struct OpenStream {
    sheet: Rc<Sheet>,
    proxy: Rc<Proxy>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let open = self.sheet.streams.get() - 1;
        self.sheet.streams.set(open);
        if open == 0 {
            self.sheet.begin(State::Idle, self.proxy.ring.now());
        }
    }
}

/// All of a core.
#[derive(Default)]
pub(super) struct Sheets {
    all: RefCell<All>,
}

#[derive(Default)]
struct All {
    places: Vec<Option<Rc<Sheet>>>,
    free: Vec<usize>,
}

impl Sheets {
    /// Tells of up to `most` connections, those with a request first.
    pub(super) fn tell(&self, now: Tick, most: usize) -> Told {
        let all = self.all.borrow();
        let open = || all.places.iter().flatten();
        let busy = open().filter(|sheet| !sheet.state.get().is_idle());
        let idle = open().filter(|sheet| sheet.state.get().is_idle());
        let connections = busy.chain(idle).take(most).map(|sheet| sheet.told(now)).collect();
        Told { open: all.places.len() - all.free.len(), connections }
    }
}

/// An open connection, in the counters and among the sheets, however it ends.
pub(super) struct Open {
    proxy: Rc<Proxy>,
    number: usize,
    pub(super) sheet: Rc<Sheet>,
}

impl Open {
    pub(super) fn count(proxy: &Rc<Proxy>, peer: SocketAddr, listener: &'static str) -> Self {
        proxy.counters.connections_taken.fetch_add(1, Relaxed);
        proxy.counters.connections_open.fetch_add(1, Relaxed);
        let now = proxy.ring.now();
        let sheet = Rc::new(Sheet {
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
        let all = &mut *proxy.sheets.all.borrow_mut();
        let number = all.free.pop().unwrap_or_else(|| {
            all.places.push(None);
            all.places.len() - 1
        });
        all.places[number] = Some(Rc::clone(&sheet));
        Self { proxy: Rc::clone(proxy), number, sheet }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.proxy.counters.connections_open.fetch_sub(1, Relaxed);
        let all = &mut *self.proxy.sheets.all.borrow_mut();
        all.places[self.number] = None;
        all.free.push(self.number);
    }
}
