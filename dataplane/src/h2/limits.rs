//! Every number that bounds an HTTP/2 connection, with the reason for its size.

use super::flood_guard::RateAllowance;
use crate::http::limits::HeadLimits;

/// Payload bytes written before the socket has taken them: one send of some frames, not of a body.
pub const WRITE_BYTES_MAX: usize = 64 * 1024;

/// Requests of one connection at a time; a client holds the next one back itself.
pub const STREAMS_MAX: u32 = 256;

/// What a client may send on one stream before the instance has taken it, and an instance before the client has.
pub const STREAM_WINDOW_BYTES: u32 = 128 * 1024;

/// What a client may send on all streams of its connection together: this bounds what its bodies can hold.
pub const CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;

/// Requests on one connection to an instance before another one is opened, however many the instance allows.
pub const INSTANCE_STREAMS_MAX: usize = 1024;

/// What an instance may send on all streams of a connection together: [`STREAM_WINDOW_BYTES`] for each of
/// [`INSTANCE_STREAMS_MAX`], because the streams of many clients share it: were it less, those who do not read their
/// answers would use up the room of those who do. Memory is bounded by the stream's window: a client that reads nothing
/// holds 128 KiB for each of its requests (32 MiB with all [`STREAMS_MAX`] of a connection), until its stall ends them.
/// This is the end of it: 128 MiB a connection, 512 MiB on all that one core has to one instance. h2 takes half of it as
/// what small DATA frames may cost beyond their bytes.
pub const INSTANCE_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * INSTANCE_STREAMS_MAX as u32;

/// What small DATA frames of one connection that nobody has read yet may cost beyond their bytes, at the 256 that h2
/// takes each for: the connection's window full of gRPC messages of three bytes. They come in bursts, and all of a burst is
/// there before its stream gets a turn.
pub const SMALL_DATA_BYTES_MAX: usize = 16 << 20;

/// DATA that waits for a client is kept as it came from so many bytes on; what is smaller is put together with its neighbours.
pub const WHOLE_BYTES_MIN: usize = 1024;

/// Bodies that a server of whole messages holds for one connection at a time, in bytes: four of the largest, or
/// all streams with 64 KiB each.
pub const BUFFERED_BYTES_MAX: usize = 16 << 20;

/// Bytes of one stream's answer that wait in h2 for the client's window or socket.
pub const SEND_BYTES_MAX: usize = 64 * 1024;

/// What HPACK counts for each field beyond its name and value (RFC 7541 4.1).
const FIELD_BYTES: usize = 32;

/// All fields of one head as HPACK counts them: as many as an HTTP/1 head may have. h2 derives from it how many
/// CONTINUATION frames one head may take.
#[must_use]
pub fn header_list_bytes_max(head: HeadLimits) -> u32 {
    u32::try_from(head.bytes() + FIELD_BYTES * head.fields()).unwrap_or(u32::MAX)
}

/// Streams that a client reset before we had looked at them.
pub const RESET_BEFORE_ACCEPT_MAX: usize = 20;

/// Streams that a client's own faults made us reset (MadeYouReset), in the connection's life. A correct
/// client causes some only before it knows [`STREAMS_MAX`]: what it opens beyond is refused.
pub const RESET_BY_US_MAX: usize = 1_000;

/// Streams of a client's connection that were reset by us and are still known, so that what is on its way to them is not taken
/// for a fault: all that can be open.
pub const RESET_STREAMS_MAX: usize = STREAMS_MAX as usize;

/// ... and of a connection to an instance: when a client goes, all of its requests are taken back at once.
pub const UPSTREAM_RESET_STREAMS_MAX: usize = INSTANCE_STREAMS_MAX;

/// Connections from one core to one instance that take requests or are being opened, each with the streams that the
/// instance allows. One that said GOAWAY is not among them while it finishes what it has.
pub const CONNECTIONS_PER_ENDPOINT_MAX: usize = 4;

/// Times that one request is asked because its instance has not looked at it. Each connection may say goodbye, or refuse what
/// was sent before its limit was known; then there is one whose limit is known.
pub const TRIES_MAX: usize = CONNECTIONS_PER_ENDPOINT_MAX + 1;

/// Streams opened on a connection before the instance's own limit is known.
pub const FIRST_STREAMS_MAX: usize = 100;

/// RST_STREAM from a client (rapid reset). A proxy in front of us that gives up requests sends some;
/// each may have cost an instance work.
pub const RESETS: RateAllowance = RateAllowance { burst: 1_000, each_second: 100 };

/// Requests of which one may be taken back for nothing: a proxy in front of us has many clients on one connection, and some of
/// them always leave.
pub const REQUESTS_FOR_A_RESET: u32 = 4;

/// PING that wants an answer. gRPC clients that probe bandwidth send one a round trip.
pub const PINGS: RateAllowance = RateAllowance { burst: 10_000, each_second: 1_000 };

/// SETTINGS that want an answer: usual are one or two in a connection's life.
pub const SETTINGS: RateAllowance = RateAllowance { burst: 100, each_second: 10 };

/// DATA without content and without an end: so many in a connection's life, which is what h2 allows.
pub const EMPTY_DATA: RateAllowance = RateAllowance { burst: 100, each_second: 0 };

/// CONTINUATION beyond the [`CONTINUATIONS_OF_A_HEAD`].
pub const CONTINUATIONS: RateAllowance = RateAllowance { burst: 256, each_second: 64 };

/// What a head of 64 KiB takes.
pub const CONTINUATIONS_OF_A_HEAD: u32 = 4;

/// PRIORITY, GOAWAY, PING that answers nothing, and frames of types that nobody knows: ignored, so more than a few are noise.
pub const IGNORED: RateAllowance = RateAllowance { burst: 1_000, each_second: 100 };

/// WINDOW_UPDATE beyond those that our own frames call for: see [`WINDOW_UPDATE_BYTES`].
pub const WINDOW_UPDATES: RateAllowance = RateAllowance { burst: 50_000, each_second: 1_000 };

/// Bytes sent for which a client may send one more WINDOW_UPDATE: the smallest DATA frame with content has ten, and the least
/// clever client answers each with two.
pub const WINDOW_UPDATE_BYTES: u64 = 4;

/// DATA of few bytes. Only looked at when h2 has met [`SMALL_DATA_BYTES_MAX`]: as many as that allows.
pub const SMALL_DATA: RateAllowance = RateAllowance { burst: 65_536, each_second: 65_536 };
