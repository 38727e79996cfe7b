//! Connections to instances that speak HTTP/2: a few, shared by many requests.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use contract::table::Endpoint;
use contract::target_policy::TargetPolicy;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use http2::StreamGone;
use ring::{EndpointAddress, Ring, Tick};
use tokio::sync::Notify;

use super::heads::InstanceRequest;
use super::instance_connection::InstanceConnection;
use super::instance_stream::InstanceStream;
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
    connections: RefCell<Vec<PooledConnection>>,
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

/// A connection that accepts requests. Dropped, it ends with its last request.
struct PooledConnection(Rc<InstanceConnection>);

impl Drop for PooledConnection {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// A request's share of a connection.
pub struct Http2StreamPermit {
    connection: Rc<InstanceConnection>,
    /// The connection has carried a request before, so the instance may have closed it meanwhile.
    pub reused: bool,
}

impl Http2StreamPermit {
    fn acquire(connection: &Rc<InstanceConnection>) -> Self {
        Self { reused: connection.acquire(), connection: Rc::clone(connection) }
    }

    /// Opens a stream, once the instance allows another one. `ends`: the request has no body.
    ///
    /// # Errors
    /// The request was not sent: the connection takes no more streams.
    pub async fn send_request(&self, request: &InstanceRequest, ends: bool) -> Result<InstanceStream, StreamGone> {
        self.connection.send_request(request, ends).await
    }

    /// Keeps further requests off this connection.
    pub fn give_up(&self) {
        self.connection.retire();
    }
}

impl Drop for Http2StreamPermit {
    fn drop(&mut self) {
        self.connection.release();
    }
}

impl Http2Client {
    #[must_use]
    pub fn new(ring: &Ring, limits: &HttpLimits, targets: Arc<TargetPolicy>) -> Self {
        Self { ring: ring.clone(), limits: *limits, targets, endpoints: RefCell::default() }
    }

    /// A connection with capacity for one more request, or the least loaded one when the maximum number is open: the
    /// request then waits until the instance has capacity.
    #[must_use]
    pub fn idle_connection(&self, endpoint: u64) -> Option<Http2StreamPermit> {
        let connection = self.endpoints.borrow().get(&endpoint)?.connection()?;
        Some(Http2StreamPermit::acquire(&connection))
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
                return Ok(Http2StreamPermit::acquire(&connection));
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
                return Ok(Http2StreamPermit::acquire(&connection));
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
            let connecting = Transport::connect(&ring, to, trust.as_deref(), &[]);
            let connected = by(&ring, Some(ring.now() + connect_max), connecting).await;
            match connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))) {
                Ok(stream) => guard.connections.add(InstanceConnection::start(&ring, &limits, stream)),
                Err(why) => {
                    let failure = SharedConnectError { kind: why.kind(), why: why.to_string() };
                    *guard.pending_connect.failed.borrow_mut() = Some(failure);
                }
            }
        });
        pending_connect
    }

    /// Closes connections that were idle for too long and removes ended ones. Called periodically.
    pub fn sweep(&self, now: Tick) {
        self.endpoints.borrow_mut().retain(|_, endpoint| {
            let connections = &mut *endpoint.connections.borrow_mut();
            connections.retain(|PooledConnection(connection)| {
                let is_idle = connection.idle_since().is_some_and(|since| now - since >= self.limits.pool_idle_max);
                connection.is_open() && !is_idle
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
    fn connection(&self) -> Option<Rc<InstanceConnection>> {
        let least_loaded = self.least_loaded()?;
        let full = self.connections.borrow().len() >= limits::CONNECTIONS_PER_ENDPOINT_MAX;
        (full || least_loaded.permits() < least_loaded.streams_max()).then_some(least_loaded)
    }

    fn least_loaded(&self) -> Option<Rc<InstanceConnection>> {
        let connections = &mut *self.connections.borrow_mut();
        connections.retain(|PooledConnection(connection)| connection.is_open());
        let all = connections.iter().map(|PooledConnection(connection)| connection);
        all.min_by_key(|connection| connection.permits()).cloned()
    }

    fn add(&self, connection: Rc<InstanceConnection>) {
        let mut connections = self.connections.borrow_mut();
        connections.push(PooledConnection(connection));
        assert!(connections.len() <= limits::CONNECTIONS_PER_ENDPOINT_MAX);
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
