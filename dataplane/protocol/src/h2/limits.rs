//! The limits of an HTTP/2 connection, with the reason for each.

use crate::http::limits::HeadLimits;

/// A token bucket: its size, and its refill rate.
#[derive(Debug, Clone, Copy)]
pub struct RateAllowance {
    pub burst: u32,
    pub each_second: u32,
}

/// Payload bytes buffered before the socket accepts them: one send of some frames, not of a body.
pub const WRITE_BYTES_MAX: usize = 64 * 1024;

/// Concurrent requests of one connection. A client queues further ones itself.
pub const STREAMS_MAX: u32 = 256;

/// Bytes that a client may send on one stream before the instance accepts them, and an instance before the client does.
pub const STREAM_WINDOW_BYTES: u32 = 128 * 1024;

/// Bytes that a client may send on all streams of its connection together. It bounds the memory for its bodies.
pub const CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;

/// Requests on one connection to an instance before another one is opened, even if the instance allows more.
pub const INSTANCE_STREAMS_MAX: usize = 1024;

/// Bytes that an instance may send on all streams of a connection together: [`STREAM_WINDOW_BYTES`] for each of
/// [`INSTANCE_STREAMS_MAX`], because the streams of many clients share it. With less, clients that do not read would
/// use up the window of those that do. Memory is bounded by the stream's window: a client that reads nothing holds 128
/// KiB for each of its requests (32 MiB with all [`STREAMS_MAX`] of a connection) until it times out. The total is 128
/// MiB for a connection, and 512 MiB for all of one core to one instance. h2 takes half of it as the budget for the
/// overhead of small DATA frames.
pub const INSTANCE_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * INSTANCE_STREAMS_MAX as u32;

/// The overhead of small DATA frames that are received but not read on one connection, counted by h2 as 256 bytes each:
/// the connection's window full of gRPC messages of three bytes. They arrive in bursts, and a whole burst is there
/// before its stream is polled.
pub const SMALL_DATA_BYTES_MAX: usize = 16 << 20;

/// Buffered DATA frames from this size on are kept as they are; smaller ones are merged with their neighbours.
pub const WHOLE_BYTES_MIN: usize = 1024;

/// Body bytes that a buffered server holds for one connection: four of the largest bodies, or all streams with 64 KiB
/// each.
pub const BUFFERED_BYTES_MAX: usize = 16 << 20;

/// Bytes of one stream's response that h2 buffers while the client's window or socket is full.
pub const SEND_BYTES_MAX: usize = 64 * 1024;

/// HPACK's overhead for each field beyond its name and value (RFC 7541 4.1).
const FIELD_BYTES: usize = 32;

/// The size of all fields of one head as HPACK counts them: as many as an HTTP/1 head may have. h2 derives the maximum
/// number of CONTINUATION frames from it.
#[must_use]
pub fn header_list_bytes_max(head: HeadLimits) -> u32 {
    u32::try_from(head.bytes() + FIELD_BYTES * head.fields()).unwrap_or(u32::MAX)
}

/// Streams that a client reset before they were accepted.
pub const RESET_BEFORE_ACCEPT_MAX: usize = 20;

/// Streams that a client's own faults made the gateway reset (MadeYouReset), over the connection's life. A correct
/// client causes some only before it knows [`STREAMS_MAX`]: streams beyond it are refused.
pub const RESET_BY_US_MAX: usize = 1_000;

/// Reset streams of a client's connection that h2 remembers, so that frames in flight to them are not taken for a
/// fault: all that can be open.
pub const RESET_STREAMS_MAX: usize = STREAMS_MAX as usize;

/// The same for a connection to an instance: when a client goes, all of its requests are cancelled at once.
pub const UPSTREAM_RESET_STREAMS_MAX: usize = INSTANCE_STREAMS_MAX;

/// Connections from one core to one instance that accept requests or are being opened, each with the streams that the
/// instance allows. A connection that got GOAWAY is not counted while it finishes its streams.
pub const CONNECTIONS_PER_ENDPOINT_MAX: usize = 4;

/// Attempts for one request whose instance has not processed it. Each connection may get GOAWAY, or refuse a stream
/// that was sent before its limit was known; after that there is one with a known limit.
pub const TRIES_MAX: usize = CONNECTIONS_PER_ENDPOINT_MAX + 1;

/// Streams opened on a connection before the instance's own limit is known.
pub const FIRST_STREAMS_MAX: usize = 100;

/// RST_STREAM from a client (rapid reset). A proxy in front of the gateway that cancels requests sends some; each may
/// have cost an instance work.
pub const RESETS: RateAllowance = RateAllowance { burst: 1_000, each_second: 100 };

/// Requests that earn one free reset: a proxy in front of the gateway has many clients on one connection, and some
/// always cancel.
pub const REQUESTS_FOR_A_RESET: u32 = 4;

/// PING that requires an answer. gRPC clients that probe bandwidth send one per round trip.
pub const PINGS: RateAllowance = RateAllowance { burst: 10_000, each_second: 1_000 };

/// SETTINGS that require an answer: one or two per connection are usual.
pub const SETTINGS: RateAllowance = RateAllowance { burst: 100, each_second: 10 };

/// DATA without content and without END_STREAM: this many over the connection's life, as h2 allows.
pub const EMPTY_DATA: RateAllowance = RateAllowance { burst: 100, each_second: 0 };

/// CONTINUATION beyond the [`CONTINUATIONS_OF_A_HEAD`].
pub const CONTINUATIONS: RateAllowance = RateAllowance { burst: 256, each_second: 64 };

/// As many as a head of 64 KiB takes.
pub const CONTINUATIONS_OF_A_HEAD: u32 = 4;

/// PRIORITY, GOAWAY, unsolicited PING answers and frames of unknown types: ignored, so more than a few are noise.
pub const IGNORED: RateAllowance = RateAllowance { burst: 1_000, each_second: 100 };

/// WINDOW_UPDATE beyond those that sent data earns: see [`WINDOW_UPDATE_BYTES`].
pub const WINDOW_UPDATES: RateAllowance = RateAllowance { burst: 50_000, each_second: 1_000 };

/// Bytes sent that earn a client one more WINDOW_UPDATE: the smallest DATA frame with content has ten bytes, and the
/// least efficient client answers each with two.
pub const WINDOW_UPDATE_BYTES: u64 = 4;

/// Small DATA. Only checked once h2 has met [`SMALL_DATA_BYTES_MAX`]: as many as that allows.
pub const SMALL_DATA: RateAllowance = RateAllowance { burst: 65_536, each_second: 65_536 };
