//! Connections to instances that speak HTTP/2: a few, shared by many requests.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::h2::client::{Builder, Connection, SendRequest};
use bytes::Bytes;
use contract::table::Endpoint;
use contract::target_policy::TargetPolicy;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{Chunk, EndpointAddress, Ring, Tick};
use tokio::sync::Notify;

use super::io::{Http2Io, IoState};
use super::limits;
use crate::http::buffers::{by, earlier};
use crate::http::limits::HttpLimits;
use crate::tls::{TlsClientConfig, Transport};

/// The connections of one core, by the id of the instance.
pub struct Http2Client {
    ring: Ring,
    limits: HttpLimits,
    targets: Arc<TargetPolicy>,
    endpoints: RefCell<HashMap<u64, Rc<EndpointConnections>, RandomState>>,
}

/// All connections to one instance.
#[derive(Default)]
struct EndpointConnections {
    /// Connections that accept requests. With the pending connect at most the limit per instance.
    connections: RefCell<Vec<Http2Connection>>,
    /// At most one at a time; requests that need a connection wait for it.
    pending_connect: RefCell<Option<Rc<PendingConnect>>>,
}

/// A connection that its own task opens, so that it survives any single request that waits for it.
#[derive(Default)]
struct PendingConnect {
    failed: RefCell<Option<SharedConnectError>>,
    ended: Notify,
}

/// A connect error that all waiting requests get.
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
    /// The connection has ended, or takes no more requests.
    closed: Cell<bool>,
    /// It has carried a request.
    used: Cell<bool>,
    streams: Cell<usize>,
    io_state: Rc<IoState>,
    idle_since: Cell<Tick>,
}

/// A request's stream on a connection.
pub struct Http2StreamPermit {
    pub sender: SendRequest<Bytes>,
    /// The connection has carried a request before, so the instance may have closed it meanwhile.
    pub reused: bool,
    shared: Rc<Http2ConnectionState>,
    ring: Ring,
}

impl Http2StreamPermit {
    /// State of the connection that h2 does not expose.
    #[must_use]
    pub fn io_state(&self) -> Rc<IoState> {
        Rc::clone(&self.shared.io_state)
    }

    /// Keeps further requests off this connection.
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
        Self { ring: ring.clone(), limits: *limits, targets, endpoints: RefCell::default() }
    }

    /// A connection with capacity for one more request, or the least loaded one when the maximum number is open: h2
    /// then queues the request until the instance has capacity.
    #[must_use]
    pub fn idle_connection(&self, endpoint: u64) -> Option<Http2StreamPermit> {
        let connection = self.endpoints.borrow().get(&endpoint)?.connection()?;
        Some(self.acquire_stream(connection))
    }

    /// The same, or a new connection, within `connect_timeout` or else `connect_max`, and before `due`. The target policy is checked first.
    pub async fn open(
        &self,
        endpoint: &Endpoint,
        trust: Option<&Arc<TlsClientConfig>>,
        due: Option<Tick>,
        connect_timeout: Option<Duration>,
    ) -> io::Result<Http2StreamPermit> {
        let to = endpoint.address;
        if !endpoint.is_unrestricted() {
            self.targets.admit_connect(to)?;
        }
        let connections = Rc::clone(self.endpoints.borrow_mut().entry(endpoint.id).or_default());
        let connect_max = connect_timeout.unwrap_or(self.limits.connect_max);
        let at = earlier(due, Some(self.ring.now() + connect_max));
        loop {
            if let Some(connection) = connections.connection() {
                return Ok(self.acquire_stream(connection));
            }
            let under_way = connections.pending_connect.borrow().clone();
            let pending_connect =
                under_way.unwrap_or_else(|| self.pending_connect(&connections, to, trust, connect_max));
            if by(&self.ring, at, pending_connect.ended.notified()).await.is_err() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if let Some(SharedConnectError { kind, why }) = &*pending_connect.failed.borrow() {
                // An instance that refuses further connections still serves on the open ones.
                let connection = connections.least_loaded().ok_or_else(|| io::Error::new(*kind, why.as_str()))?;
                return Ok(self.acquire_stream(connection));
            }
        }
    }

    fn pending_connect(
        &self,
        connections: &Rc<EndpointConnections>,
        to: EndpointAddress,
        trust: Option<&Arc<TlsClientConfig>>,
        connect_max: Duration,
    ) -> Rc<PendingConnect> {
        let pending_connect = Rc::<PendingConnect>::default();
        *connections.pending_connect.borrow_mut() = Some(Rc::clone(&pending_connect));
        let guard = ConnectGuard { connections: Rc::clone(connections), pending_connect: Rc::clone(&pending_connect) };
        let (ring, trust, limits) = (self.ring.clone(), trust.cloned(), self.limits);
        self.ring.spawn(async move {
            let connected = async {
                let stream = Transport::connect(&ring, to, trust.as_deref(), &[]).await?;
                let io_state = Rc::<IoState>::default();
                let io =
                    Http2Io::new(&ring, stream, Chunk::empty(), limits.stream_idle_timeout).of_responses(&io_state);
                let (sender, connection) =
                    builder(&limits).handshake::<_, Bytes>(io).await.map_err(io::Error::other)?;
                Ok((sender, connection, io_state))
            };
            let connected = by(&ring, Some(ring.now() + connect_max), connected).await;
            match connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))) {
                Ok((sender, connection, io_state)) => guard.connections.add(&ring, (sender, connection), io_state),
                Err(why) => {
                    let failure = SharedConnectError { kind: why.kind(), why: why.to_string() };
                    *guard.pending_connect.failed.borrow_mut() = Some(failure);
                }
            }
        });
        pending_connect
    }

    fn acquire_stream(&self, connection: Http2Connection) -> Http2StreamPermit {
        let Http2Connection { sender, shared } = connection;
        shared.streams.set(shared.streams.get() + 1);
        Http2StreamPermit { sender, reused: shared.used.replace(true), shared, ring: self.ring.clone() }
    }

    /// Closes connections that were idle for too long and removes ended ones. Called periodically.
    pub fn sweep(&self, now: Tick) {
        self.endpoints.borrow_mut().retain(|_, endpoint| {
            let connections = &mut *endpoint.connections.borrow_mut();
            connections.retain(|connection| {
                let idle = connection.shared.streams.get() == 0
                    && now - connection.shared.idle_since.get() >= self.limits.pool_idle_max;
                !connection.shared.closed.get() && !idle
            });
            !connections.is_empty() || endpoint.pending_connect.borrow().is_some()
        });
    }

    /// Closes idle connections at once, and the others when their requests are done.
    pub fn clear(&self) {
        self.endpoints.take();
    }
}

impl EndpointConnections {
    /// See [`Http2Client::idle_connection`].
    fn connection(&self) -> Option<Http2Connection> {
        let least_loaded = self.least_loaded()?;
        let streams_max = least_loaded.sender.current_max_send_streams().min(limits::INSTANCE_STREAMS_MAX);
        let full = self.connections.borrow().len() >= limits::CONNECTIONS_PER_ENDPOINT_MAX;
        (full || least_loaded.shared.streams.get() < streams_max).then_some(least_loaded)
    }

    fn least_loaded(&self) -> Option<Http2Connection> {
        let connections = &mut *self.connections.borrow_mut();
        connections.retain_mut(|connection| !connection.shared.closed.get() && !connection.is_draining());
        connections.iter().min_by_key(|connection| connection.shared.streams.get()).cloned()
    }

    fn add(
        &self,
        ring: &Ring,
        (sender, connection): (SendRequest<Bytes>, Connection<Http2Io, Bytes>),
        io_state: Rc<IoState>,
    ) {
        let shared = Rc::new(Http2ConnectionState {
            closed: Cell::new(false),
            used: Cell::new(false),
            streams: Cell::new(0),
            io_state,
            idle_since: Cell::new(ring.now()),
        });
        self.connections.borrow_mut().push(Http2Connection { sender, shared: Rc::clone(&shared) });
        assert!(self.connections.borrow().len() <= limits::CONNECTIONS_PER_ENDPOINT_MAX);
        ring.spawn(async move {
            if let Err(why) = connection.await {
                tracing::debug!(%why, "a connection to an instance ended");
            }
            shared.closed.set(true);
        });
    }
}

impl Http2Connection {
    /// The instance has sent GOAWAY, or the connection has ended: h2 has no other way to ask.
    fn is_draining(&mut self) -> bool {
        matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }
}

/// Wakes all requests that wait for the connect, however it ends.
struct ConnectGuard {
    connections: Rc<EndpointConnections>,
    pending_connect: Rc<PendingConnect>,
}

impl Drop for ConnectGuard {
    fn drop(&mut self) {
        self.connections.pending_connect.take();
        self.pending_connect.ended.notify_waiters();
    }
}

/// Faults of an instance only fail the requests that met them. Other requests share the connection, so they are not
/// counted until they end it. Frames for streams that were cancelled meanwhile are no fault.
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
