//! The limits of an HTTP/2 connection, with the reason for each.

use crate::http::limits::HeadLimits;

/// Payload bytes buffered before the socket accepts them: one send of some frames, not of a body.
pub const WRITE_BYTES_MAX: usize = 64 * 1024;

/// Concurrent requests of one connection. A client queues further ones itself.
pub const STREAMS_MAX: u32 = 256;

/// Streams of a client's connection in memory: those that are open, and as many that the client has cancelled and whose
/// tasks have not noticed it. Further ones are refused.
pub const STREAM_SLOTS_MAX: usize = 2 * STREAMS_MAX as usize;

/// Bytes to a client that are not sent before no more of its frames are read: what responses may buffer
/// ([`WRITE_BYTES_MAX`]), and as much for answers to its SETTINGS, PING and mistakes.
pub const UNSENT_BYTES_MAX: usize = 2 * WRITE_BYTES_MAX;

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
/// MiB for a connection, and 512 MiB for all of one core to one instance.
pub const INSTANCE_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * INSTANCE_STREAMS_MAX as u32;

/// Body bytes that a buffered server holds for one connection: four of the largest bodies, or all streams with 64 KiB
/// each.
pub const BUFFERED_BYTES_MAX: usize = 16 << 20;

/// HPACK's overhead for each field beyond its name and value (RFC 7541 4.1).
const FIELD_BYTES: usize = 32;

/// The size of all fields of one head as HPACK counts them: as many as an HTTP/1 head may have.
#[must_use]
pub fn header_list_bytes_max(head: HeadLimits) -> u32 {
    u32::try_from(head.bytes() + FIELD_BYTES * head.fields()).unwrap_or(u32::MAX)
}

/// Streams of a connection to an instance in memory: those that are open, and as many that have ended early and whose
/// tasks have not noticed it. As many streams that were reset are remembered, so that frames in flight to them are not
/// taken for a fault: when a client goes, all of its requests are cancelled at once.
pub const INSTANCE_STREAM_SLOTS_MAX: usize = 2 * INSTANCE_STREAMS_MAX;

/// Connections from one core to one instance that accept requests or are being opened, each with the streams that the
/// instance allows. A connection that got GOAWAY is not counted while it finishes its streams.
pub const CONNECTIONS_PER_ENDPOINT_MAX: usize = 4;

/// Attempts for one request whose instance has not processed it. Each connection may get GOAWAY, or refuse a stream
/// that was sent before its limit was known; after that there is one with a known limit.
pub const TRIES_MAX: usize = CONNECTIONS_PER_ENDPOINT_MAX + 1;
