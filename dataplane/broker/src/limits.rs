//! The limits of event intake and delivery: each with its unit and its reason.

use std::time::Duration;

pub use contract::limits::{CURSOR_INTERVAL, RELAXED_FLUSH, RETRY_AFTER_S};

/// Bytes of an event that count as one step of a turn ([`ring::TURN_STEPS_MAX`]) when it is decoded, or sent without
/// being encoded: both take a small part of a nanosecond for each byte.
pub const LOADED_BYTES_PER_STEP: usize = 16;

/// Bytes of an event that count as one step when it is parsed or encoded, which looks at each byte: the largest
/// usual event, 1 MiB, takes a whole turn.
pub const ENCODED_BYTES_PER_STEP: usize = 2;

/// Headers that are forwarded with an event (tracing, `knative-*`), in bytes, names included. Headers
/// beyond this are dropped: they are secondary to the event.
pub const EXTENSION_HEADERS_BYTES_MAX: usize = 4096;

/// Hops that an event may make through brokers before a loop is assumed, when its sender sets no lower
/// limit (`knativebrokerttl`, X-BRK-04).
pub const HOPS_MAX: u8 = 255;

/// A subscriber's events that were read and not finished: in flight or waiting for a retry. Each costs some
/// 100 bytes here and 16 in the cursor, whose ranges are bounded by the log (1024); a subscriber that fails
/// everything stops here and its backlog stays on disk. One that fails some of it continues: with the
/// default retries an event that always fails is unfinished for 205 s, so five of them a second fit.
pub const UNFINISHED_MAX: usize = 1000;

/// A subscriber with a mean response time below this is fast, and gets half of its window at a time: 32 are
/// still 4,000 events a second from each core. High enough that one which is slow only because it gets
/// twice as much at a time still counts as fast.
pub const QUICK_ANSWER_MAX: Duration = Duration::from_millis(8);

/// Done ranges from which on a cursor is long: it is written at most every [`CURSOR_INTERVAL`], and not
/// with each flush, which would cost more than the events.
pub const CURSOR_LONG_RANGES: usize = 32;

/// Records a subscriber reads before others get a turn: a filter that matches nothing must not block the
/// core while it goes through a backlog.
pub const RECORDS_PER_TURN_MAX: usize = 64;

/// Matched events queued for a subscriber, 16 bytes each. One with more lags: it reads the log by itself,
/// and evaluates its own filter, until it has caught up.
pub const MATCHES_MAX: usize = 1024;

/// Recent events that a stream keeps decoded and encoded while events arrive: four times a usual window.
/// Later readers read and decode them again.
pub const FRESH_MAX: usize = 256;

/// Maximum bytes of the log that they may hold. Their encodings come on top: one in each mode, and each at most
/// about twice as large as the event.
pub const FRESH_BYTES_MAX: usize = 1 << 20;

/// Data up to this size is copied behind the head of its request, and kept until the response has come: 64
/// requests to a subscriber that hangs hold 128 KiB. Larger data is a slice of the log, copied only while
/// it is sent.
pub const JOINED_BODY_BYTES_MAX: usize = 2 << 10;

/// How long a subscriber without matching events may sleep: then its counts and its cursor are updated.
/// With 10,000 subscribers that is some 2 % of a core; after a crash these events are filtered again, and
/// not delivered.
pub const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// Longest wait before a retry. Exponential backoff reaches a day after 20 retries of 0.1 s; a year would
/// never be intended.
pub const BACKOFF_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Shortest wait before a retry, whatever `backoffDelay` says. Without one an event is retried as fast as
/// its subscriber fails, 50,000 times a second at a closed port.
pub const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// Bytes of base64 kept of a failed response's body for `knativeerrordata` (X-DLV-08).
pub const ERROR_DATA_BYTES_MAX: usize = 1024;

/// How long a sink behind the events listener may take to answer: twice the timeout of an adapter's own request, so that its
/// response reaches the sender.
pub const SINK_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Largest response accepted from a subscriber, in bytes: a reply becomes a record of the log, so it has
/// the default size of one event plus its headers.
pub const ANSWER_BYTES_MAX: usize = 2 << 20;

/// The newest bytes of a log, in bytes, that are assumed to be in memory: one segment. Older ones are read
/// by a thread that may block before a core accesses them.
pub const RECENT_BYTES: u64 = 64 << 20;

/// Readahead window of one lagging subscriber, in bytes: some 2,000 events, 1 ms of a disk.
pub const PAGE_IN_BYTES: u32 = 1 << 20;

/// Bytes read beyond that, so that a usual event that begins at the end is complete.
pub const PAGE_IN_RECORD_BYTES: u32 = 64 << 10;

/// Readahead threads of one core; more would not make a disk faster.
pub const PAGERS_MAX: u32 = 4;

/// Events without a waiting sender are flushed at once at this many bytes: the staging buffer stays small,
/// and larger writes are hardly faster.
pub const RELAXED_BYTES_MAX: usize = 1 << 20;

/// How long a flush waits at most for a core to be idle, so that pending appends are included: the kernel's
/// part of a flush takes some 60 µs of a processor, however little is in it.
pub const GATHER_MAX: Duration = Duration::from_millis(2);

/// A flush of this many bytes does not wait for others: the disk may as well start.
pub const GATHERED_BYTES_MAX: usize = 256 << 10;

/// Maximum number of senders waiting for one flush for which a core busy polls.
pub const LONE_MAX: usize = 2;

/// The longest that a core busy polls for one flush. For slower flushes it is not worth it: a sleeping
/// processor wakes in some 50 µs.
pub const QUICK_FLUSH_MAX: Duration = Duration::from_micros(500);

/// The longest that a core busy polls for the next request of a sender that waits for each response: on one
/// machine it comes after some 60 µs. With two virtual processors of a busy host it takes 100 to 300 µs,
/// and 550 where the core slept; one that once slept must be able to return to polling.
pub const NEXT_REQUEST_MAX: Duration = Duration::from_micros(600);

/// Minimum interval of the message that a full log rejects events: each rejection has its response and its
/// count.
pub const FULL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How often segments are reclaimed, segment files are checked, and retention and quotas are updated.
pub const RECLAIM_EVERY: Duration = Duration::from_secs(1);

/// A reply without space in the log is retried after this long: space is reclaimed once a second.
pub const SPACE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long a flush without memory is retried: the process that uses it all has been killed by then. Requests that wait for the
/// flush wait as long.
pub const FLUSH_RETRY_MAX: Duration = Duration::from_secs(30);

/// First delay between two attempts; it doubles each time.
pub const FLUSH_RETRY_DELAY_MIN: Duration = Duration::from_millis(5);

/// Longest delay between two attempts.
pub const FLUSH_RETRY_DELAY_MAX: Duration = Duration::from_millis(500);

/// Time between two attempts to release a log whose next segment is being prepared: that takes some 100 ms.
pub const RELEASE_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A subscriber or stream that is missing in the table is deleted after this long: control may need a while
/// after a start, or between two versions of an object, to add it again, and deleted data is lost.
pub const REMOVAL_DELAY: Duration = Duration::from_secs(120);

/// How long the addresses of a DNS name are cached: a subscriber that moved is found within this time, and
/// a name costs a core one look-up in it.
pub const RESOLVED_FOR: Duration = Duration::from_secs(5);

/// Concurrent look-ups per core, each on a short-lived thread: a dead name server blocks its own names for
/// many seconds, and must not block all others.
pub const LOOKUPS_MAX: usize = 4;

/// Cached names per core: with more external subscribers, names are resolved more often.
pub const NAMES_MAX: usize = 1024;

/// Largest request body at the events listener, in bytes, before its stream is known: an event of the
/// default 1 MiB in base64 with its envelope, or a batch of smaller ones.
pub const BODY_BYTES_MAX: usize = 4 << 20;

/// Request bodies that a core holds at a time at the events listener, in bytes: sixty-four of the largest,
/// whichever senders they come from and whether or not they are completed. Usual events are processed
/// within a flush and take some KiB together.
pub const BODIES_BYTES_MAX: usize = 64 * BODY_BYTES_MAX;

/// How often the log is compared with the table for streams and subscribers to delete.
pub const TIDY_EVERY: Duration = Duration::from_secs(10);

/// Size of a page of the delivery log, in bytes: some 700 entries.
pub const DELIVERY_LOG_PAGE_BYTES: usize = 16 << 10;

/// How long entries wait for a full page: what a kill loses of the delivery log.
pub const DELIVERY_LOG_INTERVAL: Duration = Duration::from_millis(250);

/// Newest bytes of the delivery log that are read when a log is opened: some 700,000 attempts, and 20 ms.
/// Older attempts at unfinished events are not counted.
pub const NOTES_LOOKED_AT_BYTES: u64 = 16 << 20;

/// Retry interval of a report to control that found the queue full.
pub const SIGNAL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest token accepted from a sender, in bytes. A service account's has some 700; a head can hold more.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Tokens that one core caches: a sender uses one for an hour, and for a few streams. With the usual length
/// that is 3 MiB, and 32 MiB at the very worst.
pub const TOKEN_CACHE_MAX: usize = 4096;

/// How often a delivery checks for a token for its target: only at a start, or after a long failure to
/// renew one.
pub const TOKEN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A token rejected with 401 is renewed if it is older than this: a newer one is rejected for another
/// reason, and a receiver that rejects everything causes at most one token request in this time.
pub const REFUSED_TOKEN_AGE_MIN: Duration = Duration::from_secs(10);

/// How long a delivery waits for the replacement of a rejected token: many times the duration of a token
/// request.
pub const TOKEN_RENEWAL_MAX: Duration = Duration::from_secs(2);

/// Retry interval of a delivery that one of our own streams rejects with 401 or 403: a policy or a token is
/// corrected within minutes, and one request in this time for each event is cheap.
pub const REFUSED_RETRY_EVERY: Duration = Duration::from_secs(5);

/// Identities of events that the deduplication windows of a core hold together: some 70 MB at most. With more, windows
/// are shorter than configured.
pub const DEDUPLICATION_IDENTITIES_MAX: usize = 1 << 20;

/// Newest bytes of a stream that are read when its deduplication window is built: half a second at most, since opening
/// the log read them just before.
pub const DEDUPLICATION_SCAN_BYTES_MAX: u64 = 512 << 20;

/// Header fields of a stored request, in bytes, names included: as much as most servers take. They are written to the log with it.
pub const REQUEST_FIELDS_BYTES_MAX: usize = 16 << 10;

/// Path and query of a stored request, in bytes.
pub const REQUEST_TARGET_BYTES_MAX: usize = 8 << 10;

/// Body of a result, in bytes: it becomes a record of the log, like a request's. The result of a larger response has its status and
/// its header.
pub const RESULT_BODY_BYTES_MAX: usize = 1 << 20;

/// Header fields of a result, in bytes, names included. Further ones are dropped.
pub const RESULT_FIELDS_BYTES_MAX: usize = 16 << 10;

/// Stored requests of one log whose results can be read, some 64 bytes each: eleven a second for a day. The results of the oldest
/// beyond are not found any more.
pub const REQUESTS_INDEXED_MAX: usize = 1_000_000;
