//! The limits of a load test, each with its reason.

use std::time::Duration;

/// Connections of one test. One source address has some 28,000 ports for one target, so more need several addresses.
pub const CONNECTIONS_MAX: usize = 65_536;

/// Concurrent streams of one HTTP/2 connection; servers allow 100 to 256, and further ones wait in the client.
pub const STREAMS_MAX: usize = 1_024;

/// Threads; each has a ring with 16 MiB of receive buffers, of which only the used pages are resident.
pub const THREADS_MAX: usize = 256;

/// Requests a second in an open loop. One thread does not reach a million, and arrival times are counted in floating point.
pub const RATE_MAX: f64 = 10_000_000.0;

/// Rounds of a comparison: far more than a confidence interval needs.
pub const ROUNDS_MAX: usize = 1_000;

/// Steps of the rate in one test. A report has a row for each.
pub const STEPS_MAX: usize = 100;

/// The longest test. A soak test of a month is still one.
pub const DURATION_MAX: Duration = Duration::from_secs(31 * 24 * 3_600);

/// A request's body. All connections share one copy.
pub const REQUEST_BODY_BYTES_MAX: usize = 64 << 20;

/// A request's head. Servers reject more than 64 KiB, and those that accept more are not measured with it.
pub const REQUEST_HEAD_BYTES_MAX: usize = 1 << 20;

/// How long a connect with its TLS handshake may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a response may take, unless the user says otherwise.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest timeout, and so the longest wait for the last responses.
pub const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// Timeouts are checked this often for all requests at once. A timer for each request would cost more than its parser.
pub const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Wait after a failed connect, so that a target that is down does not get a storm of connects.
pub const RECONNECT_WAIT: Duration = Duration::from_millis(100);

/// Interim responses (1xx) before the final one, as the proxy allows.
pub const INTERIM_RESPONSES_MAX: usize = 16;

/// A response head up to this size is kept, to be compared with the next one. Larger heads are parsed each time.
pub const REPEATED_HEAD_BYTES_MAX: usize = 4 * 1024;

/// The shortest latency that the histogram tells from zero: below it is the clock's own cost.
pub const LATENCY_MIN_NS: u64 = 64;

/// The longest latency; longer ones count as this one. Timeouts end requests before.
pub const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// Significant digits of a latency: an error of at most 0.1 %, in some 250 KB.
pub const LATENCY_DIGITS: u8 = 3;

/// Points of a time series with a known duration.
pub const SERIES_POINTS: u32 = 100;

/// The shortest interval of a time series: shorter ones have too few requests for a percentile.
pub const SERIES_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// The first interval of a time series without a known duration.
pub const SERIES_INTERVAL: Duration = Duration::from_millis(250);

/// After this many intervals the next ones are twice as long, so that a series without an end stays small.
pub const SERIES_BLOCK: u64 = 400;

/// Characters kept of the first error of a kind.
pub const ERROR_TEXT_CHARS_MAX: usize = 300;

/// Window of one HTTP/2 stream and, times the streams, of the connection: the responses are dropped as they arrive.
pub const HTTP2_WINDOW_BYTES: u32 = 1 << 20;

/// Size of the fields of an HTTP/2 response head, as HPACK counts them.
pub const HTTP2_HEADER_LIST_BYTES_MAX: u32 = 128 * 1024;

/// Bytes that HTTP/2 may buffer before the socket accepts them.
pub const HTTP2_WRITE_BYTES_MAX: usize = 64 * 1024;

/// A request's body bytes that HTTP/2 buffers for one stream while the server's window is closed; larger bodies share one copy.
pub const HTTP2_SEND_BYTES_MAX: usize = 1 << 20;

/// How long a server that a bench starts has until it accepts connections.
pub const SERVER_START_TIMEOUT: Duration = Duration::from_secs(30);
