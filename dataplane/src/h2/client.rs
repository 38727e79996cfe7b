//! Connections to instances that speak HTTP/2: few, shared by many requests.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::h2::client::{Builder, SendRequest};
use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{Chunk, Ring, Tick};

use super::io::Io;
use super::limits;
use crate::http::limits::HttpLimits;
use crate::http::wire::{by, earlier};
use crate::tls::{Trust, Wire};

/// One core's connections, by the instance's id.
pub struct Client {
    ring: Ring,
    limits: HttpLimits,
    links: RefCell<HashMap<u64, Vec<Link>, RandomState>>,
}

/// A shared connection. Clones stand for the same one.
#[derive(Clone)]
pub struct Link {
    sender: SendRequest<Bytes>,
    shared: Rc<Shared>,
}

impl Link {
    /// The instance has said GOAWAY, or the connection has ended: there is no other way to ask h2.
    fn is_leaving(&mut self) -> bool {
        matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }
}

struct Shared {
    /// The connection has ended, or was given up.
    closed: Cell<bool>,
    streams: Cell<usize>,
    idle_since: Cell<Tick>,
}

/// A request's share of a connection.
pub struct Turn {
    pub sender: SendRequest<Bytes>,
    /// The connection has carried a request before, so it may have been closed meanwhile.
    pub reused: bool,
    shared: Rc<Shared>,
    ring: Ring,
}

impl Turn {
    /// No further request takes this connection.
    pub fn give_up(&self) {
        self.shared.closed.set(true);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared.streams.set(self.shared.streams.get() - 1);
        self.shared.idle_since.set(self.ring.now());
    }
}

impl Client {
    #[must_use]
    pub fn new(ring: &Ring, limits: &HttpLimits) -> Self {
        Self { ring: ring.clone(), limits: *limits, links: RefCell::default() }
    }

    /// A connection with room for one more request, or the least busy one when there are as many as may
    /// be: h2 then holds the request back until the instance has room.
    #[must_use]
    pub fn kept(&self, endpoint: u64) -> Option<Turn> {
        let mut all = self.links.borrow_mut();
        let links = all.get_mut(&endpoint)?;
        links.retain_mut(|link| !link.shared.closed.get() && !link.is_leaving());
        let full = links.len() >= limits::CONNECTIONS_PER_ENDPOINT_MAX;
        let idlest = links.iter().min_by_key(|link| link.shared.streams.get())?;
        let room = idlest.sender.current_max_send_streams().min(limits::INSTANCE_STREAMS_MAX);
        let has_room = idlest.shared.streams.get() < room;
        (has_room || full).then(|| self.turn(idlest.clone(), true))
    }

    /// A new connection, within `connect_max` and before `due`; others may use it as well.
    pub async fn open(
        &self,
        endpoint: u64,
        to: SocketAddr,
        trust: Option<&Trust>,
        due: Option<Tick>,
    ) -> io::Result<Turn> {
        let at = earlier(due, Some(self.ring.now() + self.limits.connect_max));
        let connected = async {
            let stream = Wire::connect(&self.ring, to, trust).await?;
            let io = Io::new(&self.ring, stream, Chunk::empty(), self.limits.stall_max);
            builder().handshake::<_, Bytes>(io).await.map_err(io::Error::other)
        };
        let (sender, connection) = match by(&self.ring, at, connected).await {
            Ok(both) => both?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        let shared = Rc::new(Shared {
            closed: Cell::new(false),
            streams: Cell::new(0),
            idle_since: Cell::new(self.ring.now()),
        });
        let link = Link { sender, shared: Rc::clone(&shared) };
        self.links.borrow_mut().entry(endpoint).or_default().push(link.clone());
        self.ring.spawn(async move {
            if let Err(why) = connection.await {
                tracing::debug!(%why, "a connection to an instance ended");
            }
            shared.closed.set(true);
        });
        Ok(self.turn(link, false))
    }

    fn turn(&self, link: Link, reused: bool) -> Turn {
        link.shared.streams.set(link.shared.streams.get() + 1);
        Turn { sender: link.sender, reused, shared: link.shared, ring: self.ring.clone() }
    }

    /// Closes what has been idle for too long and forgets what ended. Called now and then.
    pub fn sweep(&self, now: Tick) {
        self.links.borrow_mut().retain(|_, links| {
            links.retain(|link| {
                let idle = link.shared.streams.get() == 0
                    && now - link.shared.idle_since.get() >= self.limits.pool_idle_max;
                !link.shared.closed.get() && !idle
            });
            !links.is_empty()
        });
    }

    /// Closes all that carry nothing; the others when they are done.
    pub fn clear(&self) {
        self.links.take();
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::INSTANCE_WINDOW_BYTES)
        .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
        .initial_max_send_streams(limits::FIRST_STREAMS_MAX)
        .max_send_buffer_size(limits::SEND_BYTES_MAX);
    builder
}
