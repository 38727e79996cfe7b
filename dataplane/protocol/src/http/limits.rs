//! The limits of an HTTP/1 connection, with the reason for each.

use std::time::Duration;

pub use codec::http::limits::{
    CHUNK_EXTENSION_BYTES_MAX, CHUNK_SIZE_DIGITS_MAX, EMPTY_LINES, FIELDS_CEILING, FIELDS_MAX, FIELDS_USUAL,
    HEAD_BYTES_CEILING, HEAD_BYTES_MAX, HeadLimits, REQUEST_LINE_BYTES_MAX, TARGET_BYTES_MAX, TRAILER_BYTES_MAX,
};

/// A head that arrives in many pieces is parsed again each time it has grown by this much, because it may be too large.
pub const HEAD_LOOK_BYTES: usize = 16 * 1024;

/// Protocols that the operator may list for `Upgrade`: each is compared with what a client asks for.
pub const UPGRADE_PROTOCOLS_MAX: usize = 32;

/// Payload up to this many bytes is copied behind the bytes before it, so that a head and a small body are sent in one
/// call. A copy of 16 KiB costs about 1 µs, a second send 5 µs and more.
pub const COPY_BYTES_MAX: usize = 16 * 1024;

/// Interim (1xx) responses before the final one: more is a faulty instance.
pub const INTERIM_MAX: u8 = 16;

/// Attempts for a request that may be sent again: after pooled connections that were about to close, and instances that
/// ended before they read it. A request that crashes instances is not sent to all of them.
pub const SENDS_MAX: usize = 4;

/// Limits on one connection that an operator may want to change.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// The maximum size of a request or response head.
    pub head: HeadLimits,
    /// From a request's first byte to the end of its head: slow heads must not hold connections.
    pub head_max: Duration,
    /// A connection without a request is closed after this.
    pub idle_max: Duration,
    /// Longest silence inside a request body before the response begins, and the longest time to send a local reply: as
    /// nginx (`client_body_timeout`).
    pub stall_max: Duration,
    /// A request whose response has begun ends when neither direction has carried a byte for this long while its client
    /// has more to send, and any request ends when a peer has not accepted bytes for this long. Zero: no limit. As long
    /// as Envoy's `stream_idle_timeout`: a video that is paused during a telephone call continues, and a reader that
    /// never comes back holds its buffers (a receive buffer, or 128 KiB in HTTP/2) for minutes and not for hours.
    pub stream_idle_timeout: Duration,
    /// A WebSocket that carries no bytes in either direction is closed after this: an hour, because many only send news
    /// and rely on the network to notice a dead peer.
    pub tunnel_idle_max: Duration,
    /// A client that has sent its request and closed its write side counts as disconnected when its response has sent
    /// it nothing for this long. A closed connection looks the same until something is sent on it, so nginx, Envoy and
    /// Go treat such a client as gone at once; a tenth of a second serves scripts that close their side (`nc -N`) when
    /// the response is quick, and wastes no more than that of an instance for a client that left.
    pub half_closed_silence_max: Duration,
    /// Opening a connection to an instance: they are near (loopback or one hop).
    pub connect_max: Duration,
    /// A client with `Expect: 100-continue` gets the 100 from the gateway when the instance has been silent for this
    /// long; many small servers do not implement it.
    pub continue_after: Duration,
    /// Body bytes of an already answered request that are read and dropped, so that the client sees the response rather
    /// than a reset.
    pub linger_bytes_max: usize,
    /// How long they are read.
    pub linger_max: Duration,
    /// Idle connections to one instance, per core. Their number follows from the peak concurrency within
    /// `pool_idle_max`; this limit only keeps one peer from taking them all. A fan-out of ten subscribers to one
    /// address has 640 requests in flight.
    pub idle_per_endpoint_max: usize,
    /// Idle connections to all instances, per core: each costs a file descriptor.
    pub idle_total_max: usize,
    /// An idle connection to an instance is closed after this. Below the 60 s of most servers, so that the gateway
    /// closes first.
    pub pool_idle_max: Duration,
    /// Protocols besides WebSocket that clients may ask instances for by `Upgrade`. None: what is switched to is beyond the routes
    /// and limits of requests.
    pub upgrade_protocols: &'static [&'static str],
    /// Connections of clients open at a time, per core: each costs a descriptor and some KiB.
    pub connections_max: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            head_max: Duration::from_secs(15),
            idle_max: Duration::from_secs(180),
            stall_max: Duration::from_secs(60),
            stream_idle_timeout: Duration::from_secs(300),
            tunnel_idle_max: Duration::from_secs(3600),
            half_closed_silence_max: Duration::from_millis(100),
            connect_max: Duration::from_secs(5),
            continue_after: Duration::from_millis(300),
            linger_bytes_max: 256 * 1024,
            linger_max: Duration::from_secs(2),
            idle_per_endpoint_max: 2048,
            idle_total_max: 4096,
            pool_idle_max: Duration::from_secs(45),
            upgrade_protocols: &[],
            connections_max: 16_384,
        }
    }
}
