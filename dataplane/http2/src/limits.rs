//! The limits of a connection that do not depend on its configuration, with the reason for each.

/// A token bucket: its size, and its refill rate.
#[derive(Debug, Clone, Copy)]
pub struct RateAllowance {
    pub burst: u32,
    pub each_second: u32,
}

/// The largest payload of a frame that is accepted and sent: the default of the protocol. A larger one would only delay
/// the frames of other streams.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;

/// The dynamic table of header compression, both ways: the default of the protocol.
pub const HPACK_TABLE_BYTES: usize = 4096;

/// Values of at most this many bytes are added to the table of response fields: larger ones evict everything else.
pub const HPACK_ENTRY_BYTES_MAX: usize = HPACK_TABLE_BYTES / 8;

/// A window can have no more bytes (RFC 9113 6.9.1).
pub const WINDOW_BYTES_MAX: i64 = (1 << 31) - 1;

/// The window of a new connection and stream before SETTINGS (RFC 9113 6.9.2).
pub const WINDOW_BYTES_DEFAULT: u32 = 65_535;

/// A header block may have this many times the bytes that its fields may have, so that a head that is too large is
/// answered with 431, and only one without an end ends the connection.
pub const BLOCK_BYTES_FACTOR: usize = 2;

/// Fields of one head are decoded up to this many times the bytes that they may have: those of a large head, to answer
/// it with 431 and to know what later heads refer to, but not those of an HPACK bomb.
pub const FIELD_BYTES_FACTOR: usize = 16;

/// Memory for fields that a connection keeps between requests. Larger heads are rare, and their memory is released.
pub const FIELD_BYTES_KEPT: usize = 8 * 1024;

/// Streams that a client opens before it knows the server's SETTINGS_MAX_CONCURRENT_STREAMS: the smallest that RFC 9113
/// 6.5.2 recommends.
pub const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// Streams that a client's own mistakes made the server reset (MadeYouReset), over the connection's life. A correct
/// client causes some only before it knows the limit of streams: those beyond it are refused.
pub const RESETS_CAUSED_MAX: u32 = 1_000;

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

/// DATA without content and without END_STREAM: this many over the connection's life. No client needs any.
pub const EMPTY_DATA: RateAllowance = RateAllowance { burst: 100, each_second: 0 };

/// CONTINUATION beyond the [`CONTINUATIONS_OF_A_HEAD`].
pub const CONTINUATIONS: RateAllowance = RateAllowance { burst: 256, each_second: 64 };

/// As many as a head of 64 KiB takes.
pub const CONTINUATIONS_OF_A_HEAD: u32 = 4;

/// PRIORITY, PRIORITY_UPDATE, GOAWAY, unsolicited PING answers and frames of unknown types: ignored, so more than a few
/// are noise.
pub const IGNORED: RateAllowance = RateAllowance { burst: 1_000, each_second: 100 };

/// WINDOW_UPDATE beyond those that sent data earns: see [`WINDOW_UPDATE_BYTES`].
pub const WINDOW_UPDATES: RateAllowance = RateAllowance { burst: 50_000, each_second: 1_000 };

/// Bytes sent that earn a client one more WINDOW_UPDATE: the smallest DATA frame with content has ten bytes, and the
/// least efficient client answers each with two.
pub const WINDOW_UPDATE_BYTES: u64 = 4;

/// Frames of a kind that a client does not limit: each belongs to one of its own requests, and their number is limited.
pub const UNLIMITED: RateAllowance = RateAllowance { burst: u32::MAX, each_second: 0 };

/// DATA without content from a server, which many streams share: some frameworks flush an empty frame before each message.
pub const SERVER_EMPTY_DATA: RateAllowance = RateAllowance { burst: 10_000, each_second: 10_000 };

/// Responses after which a client tries one more stream on a connection whose server has refused some: a refused request costs a
/// round trip, so one in a hundred is affordable.
pub const RESPONSES_PER_STREAM: u32 = 100;
