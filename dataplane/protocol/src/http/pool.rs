//! One core's idle connections to instances.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use codec::http::ResponseHead;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{IdleReadiness, Tick};

use super::buffers::{ReadBuffer, WriteBuffer};
use super::limits::HttpLimits;
use crate::tls::Transport;

/// A connection to an instance, with the buffers that it keeps from request to request.
pub struct UpstreamConnection {
    pub stream: Transport,
    pub read_buffer: ReadBuffer,
    pub write_buffer: WriteBuffer,
    pub head: ResponseHead,
    /// It has carried a request before, so the instance may be about to close it.
    pub reused: bool,
}

impl UpstreamConnection {
    /// Whether it may carry another request: bytes after the end of the response belong to no request of the proxy.
    #[inline]
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.head.keep_alive && self.read_buffer.is_between() && !self.read_buffer.ended
    }

    #[must_use]
    pub fn new(stream: impl Into<Transport>) -> Box<Self> {
        Box::new(Self {
            stream: stream.into(),
            read_buffer: ReadBuffer::default(),
            write_buffer: WriteBuffer::default(),
            head: ResponseHead::default(),
            reused: false,
        })
    }
}

/// The target of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolKey {
    /// An instance by its id: another instance may get the same address later.
    Endpoint(u64),
    /// An external address.
    Address(SocketAddr),
    /// An external address that was verified by the [`crate::tls::TlsClientConfig`] of this id.
    Trusted(SocketAddr, u64),
}

/// Idle connections by instance, the last used on top.
pub struct ConnectionPool {
    idle: RefCell<IdleConnection>,
    per_peer_max: usize,
    total_max: usize,
    idle_max: Duration,
}

#[derive(Default)]
struct IdleConnection {
    by_peer: HashMap<PoolKey, Vec<(Box<UpstreamConnection>, Tick)>, RandomState>,
    /// Sum of the lengths of all lists.
    total: usize,
}

impl ConnectionPool {
    #[must_use]
    pub fn new(limits: &HttpLimits) -> Self {
        Self {
            idle: RefCell::default(),
            per_peer_max: limits.idle_per_endpoint_max,
            total_max: limits.idle_total_max,
            idle_max: limits.pool_idle_max,
        }
    }

    /// A connection that is idle as far as is known now. Connections with unsolicited bytes, and closed ones, are
    /// dropped on the way.
    pub fn take(&self, peer: PoolKey, now: Tick) -> Option<Box<UpstreamConnection>> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let (upstream, since) = idle.by_peer.get_mut(&peer)?.pop()?;
            idle.total -= 1;
            if now - since < self.idle_max && upstream.stream.ready() == IdleReadiness::Idle {
                return Some(upstream);
            }
        }
    }

    /// Pools a connection, unless the limits are reached.
    pub fn put(&self, peer: PoolKey, mut upstream: Box<UpstreamConnection>, now: Tick) {
        let mut idle = self.idle.borrow_mut();
        if idle.total >= self.total_max {
            return;
        }
        let list = idle.by_peer.entry(peer).or_default();
        if list.len() >= self.per_peer_max {
            return;
        }
        upstream.reused = true;
        list.push((upstream, now));
        idle.total += 1;
    }

    /// Closes connections that were idle for too long or that the instance closed, and removes empty entries. Called
    /// periodically.
    pub fn sweep(&self, now: Tick) {
        let mut idle = self.idle.borrow_mut();
        let mut total = 0;
        idle.by_peer.retain(|_, list| {
            list.retain(|(upstream, since)| {
                now - *since < self.idle_max && upstream.stream.ready() == IdleReadiness::Idle
            });
            total += list.len();
            !list.is_empty()
        });
        idle.total = total;
    }

    /// Closes all connections.
    pub fn clear(&self) {
        self.idle.replace(IdleConnection::default());
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.idle.borrow().total
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
