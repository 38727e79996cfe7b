//! Connections to instances that speak HTTP/2: few, shared by many requests.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ::h2::client::{Builder, Connection, SendRequest};
use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{Chunk, EndpointAddress, Ring, Tick};
use tokio::sync::Notify;

use super::io::{Http2Io, IoState};
use super::limits;
use crate::http::buffers::{by, earlier};
use crate::http::limits::HttpLimits;
use crate::table::Endpoint;
use crate::target_policy::TargetPolicy;
use crate::tls::{TlsClientConfig, Transport};

/// One core's connections, by the instance's id.
pub struct Http2Client {
    ring: Ring,
    limits: HttpLimits,
    targets: Arc<TargetPolicy>,
    lines: RefCell<HashMap<u64, Rc<EndpointConnections>, RandomState>>,
}

/// All that leads to one instance.
#[derive(Default)]
struct EndpointConnections {
    /// Those that take requests; with the dial under way, never more than may be.
    links: RefCell<Vec<Http2Connection>>,
    /// One at a time, and whoever needs a connection waits for it.
    dial: RefCell<Option<Rc<PendingConnect>>>,
}

/// A connection that is being opened by a task of its own: it is for all who wait, and none of them may take it along.
#[derive(Default)]
struct PendingConnect {
    failed: RefCell<Option<SharedConnectError>>,
    ended: Notify,
}

/// An error that many are told.
struct SharedConnectError {
    kind: io::ErrorKind,
    why: String,
}

/// A shared connection. Clones stand for the same one.
#[derive(Clone)]
struct Http2Connection {
    sender: SendRequest<Bytes>,
    shared: Rc<Http2ConnectionState>,
}

struct Http2ConnectionState {
    /// The connection has ended, or was given up.
    closed: Cell<bool>,
    /// A request has been given it.
    used: Cell<bool>,
    streams: Cell<usize>,
    facts: Rc<IoState>,
    idle_since: Cell<Tick>,
}

/// A request's share of a connection.
pub struct Http2StreamPermit {
    pub sender: SendRequest<Bytes>,
    /// The connection was given a request before, so it may have been closed meanwhile.
    pub reused: bool,
    shared: Rc<Http2ConnectionState>,
    ring: Ring,
}

impl Http2StreamPermit {
    /// What is known of the connection beside what h2 tells.
    #[must_use]
    pub fn facts(&self) -> Rc<IoState> {
        Rc::clone(&self.shared.facts)
    }

    /// No further request takes this connection.
    pub fn give_up(&self) {
        self.shared.closed.set(true);
    }
}

impl Drop for Http2StreamPermit {
    fn drop(&mut self) {
        self.shared.streams.set(self.shared.streams.get() - 1);
        self.shared.idle_since.set(self.ring.now());
    }
}

impl Http2Client {
    #[must_use]
    pub fn new(ring: &Ring, limits: &HttpLimits, targets: Arc<TargetPolicy>) -> Self {
        Self { ring: ring.clone(), limits: *limits, targets, lines: RefCell::default() }
    }

    /// A connection with room for one more request, or the least busy one when there are as many as may
    /// be: h2 then holds the request back until the instance has room.
    #[must_use]
    pub fn idle_connection(&self, endpoint: u64) -> Option<Http2StreamPermit> {
        let link = self.lines.borrow().get(&endpoint)?.link()?;
        Some(self.acquire_stream(link))
    }

    /// The same, or a new connection, within `connect_max` and before `due`; the target policy is asked first.
    pub async fn open(
        &self,
        endpoint: &Endpoint,
        trust: Option<&Arc<TlsClientConfig>>,
        due: Option<Tick>,
    ) -> io::Result<Http2StreamPermit> {
        let to = endpoint.address;
        if !endpoint.is_unrestricted() {
            self.targets.admit_connect(to)?;
        }
        let line = Rc::clone(self.lines.borrow_mut().entry(endpoint.id).or_default());
        let at = earlier(due, Some(self.ring.now() + self.limits.connect_max));
        loop {
            if let Some(link) = line.link() {
                return Ok(self.acquire_stream(link));
            }
            let under_way = line.dial.borrow().clone();
            let dial = under_way.unwrap_or_else(|| self.dial(&line, to, trust));
            if by(&self.ring, at, dial.ended.notified()).await.is_err() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if let Some(SharedConnectError { kind, why }) = &*dial.failed.borrow() {
                // An instance that takes no further connection serves on those it has.
                let link = line.idlest().ok_or_else(|| io::Error::new(*kind, why.as_str()))?;
                return Ok(self.acquire_stream(link));
            }
        }
    }

    fn dial(
        &self,
        line: &Rc<EndpointConnections>,
        to: EndpointAddress,
        trust: Option<&Arc<TlsClientConfig>>,
    ) -> Rc<PendingConnect> {
        let dial = Rc::<PendingConnect>::default();
        *line.dial.borrow_mut() = Some(Rc::clone(&dial));
        let dialling = ConnectGuard { connections: Rc::clone(line), dial: Rc::clone(&dial) };
        let (ring, trust, limits) = (self.ring.clone(), trust.cloned(), self.limits);
        self.ring.spawn(async move {
            let connected = async {
                let stream = Transport::connect(&ring, to, trust.as_deref()).await?;
                let facts = Rc::<IoState>::default();
                let io = Http2Io::new(&ring, stream, Chunk::empty(), limits.stream_idle_timeout).of_responses(&facts);
                let (sender, connection) =
                    builder(&limits).handshake::<_, Bytes>(io).await.map_err(io::Error::other)?;
                Ok((sender, connection, facts))
            };
            let connected = by(&ring, Some(ring.now() + limits.connect_max), connected).await;
            match connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))) {
                Ok((sender, connection, facts)) => dialling.connections.add(&ring, (sender, connection), facts),
                Err(why) => {
                    let failure = SharedConnectError { kind: why.kind(), why: why.to_string() };
                    *dialling.dial.failed.borrow_mut() = Some(failure);
                }
            }
        });
        dial
    }

    fn acquire_stream(&self, link: Http2Connection) -> Http2StreamPermit {
        let Http2Connection { sender, shared } = link;
        shared.streams.set(shared.streams.get() + 1);
        Http2StreamPermit { sender, reused: shared.used.replace(true), shared, ring: self.ring.clone() }
    }

    /// Closes what has been idle for too long and forgets what ended. Called now and then.
    pub fn sweep(&self, now: Tick) {
        self.lines.borrow_mut().retain(|_, line| {
            let links = &mut *line.links.borrow_mut();
            links.retain(|link| {
                let idle =
                    link.shared.streams.get() == 0 && now - link.shared.idle_since.get() >= self.limits.pool_idle_max;
                !link.shared.closed.get() && !idle
            });
            !links.is_empty() || line.dial.borrow().is_some()
        });
    }

    /// Closes all that carry nothing; the others when they are done.
    pub fn clear(&self) {
        self.lines.take();
    }
}

impl EndpointConnections {
    /// See [`Client::kept`].
    fn link(&self) -> Option<Http2Connection> {
        let idlest = self.idlest()?;
        let room = idlest.sender.current_max_send_streams().min(limits::INSTANCE_STREAMS_MAX);
        let full = self.links.borrow().len() >= limits::CONNECTIONS_PER_ENDPOINT_MAX;
        (full || idlest.shared.streams.get() < room).then_some(idlest)
    }

    fn idlest(&self) -> Option<Http2Connection> {
        let links = &mut *self.links.borrow_mut();
        links.retain_mut(|link| !link.shared.closed.get() && !link.is_draining());
        links.iter().min_by_key(|link| link.shared.streams.get()).cloned()
    }

    fn add(
        &self,
        ring: &Ring,
        (sender, connection): (SendRequest<Bytes>, Connection<Http2Io, Bytes>),
        facts: Rc<IoState>,
    ) {
        let shared = Rc::new(Http2ConnectionState {
            closed: Cell::new(false),
            used: Cell::new(false),
            streams: Cell::new(0),
            facts,
            idle_since: Cell::new(ring.now()),
        });
        self.links.borrow_mut().push(Http2Connection { sender, shared: Rc::clone(&shared) });
        assert!(self.links.borrow().len() <= limits::CONNECTIONS_PER_ENDPOINT_MAX);
        ring.spawn(async move {
            if let Err(why) = connection.await {
                tracing::debug!(%why, "a connection to an instance ended");
            }
            shared.closed.set(true);
        });
    }
}

impl Http2Connection {
    /// The instance has said GOAWAY, or the connection has ended: there is no other way to ask h2.
    fn is_draining(&mut self) -> bool {
        matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }
}

/// However a dial ends, all who wait for it look again.
struct ConnectGuard {
    connections: Rc<EndpointConnections>,
    dial: Rc<PendingConnect>,
}

impl Drop for ConnectGuard {
    fn drop(&mut self) {
        self.connections.dial.take();
        self.dial.ended.notify_waiters();
    }
}

/// An instance's faults concern the requests that met them: others share the connection, so nothing of one is counted up
/// until it ends. What an instance sends for requests that were taken back meanwhile is no fault at all.
fn builder(http: &HttpLimits) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::INSTANCE_WINDOW_BYTES)
        .max_header_list_size(limits::header_list_bytes_max(http.head))
        .initial_max_send_streams(limits::FIRST_STREAMS_MAX)
        .max_concurrent_reset_streams(limits::UPSTREAM_RESET_STREAMS_MAX)
        .max_local_error_reset_streams(None)
        .max_send_buffer_size(limits::SEND_BYTES_MAX);
    builder
}
