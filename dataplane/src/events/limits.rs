//! The limits of event intake and delivery: each with its unit and its reason.

use std::time::Duration;

/// Attributes in one event. Real ones have about ten; every one is looked at for every filter.
pub const ATTRIBUTES_MAX: usize = 256;

/// Steps that one filter may take for one event: four times through the largest event's attributes character by
/// character, and some 10 ms of a core. Usual filters take some tens.
pub const FILTER_STEPS_MAX: usize = 4 << 20;

/// Steps of filters after which the core does something else first: about a millisecond.
pub const TURN_STEPS_MAX: usize = 512 << 10;

/// Attributes up to which an event goes out in binary mode, each as a header field: there are some more fields, and many servers
/// (we too) take a hundred. One with more goes in an envelope, whatever was asked for.
pub const BINARY_ATTRIBUTES_MAX: usize = 80;

/// ... and what these fields may take together, in bytes: servers take heads of some 32 KiB.
pub const BINARY_FIELDS_BYTES_MAX: usize = 24 << 10;

/// What attributes that streams add (when it came, why it failed) may take without counting against the limit of the next stream, in
/// bytes: two URLs and [`ERROR_DATA_BYTES_MAX`].
pub const ADDED_BYTES_MAX: usize = 4 << 10;

/// Longest attribute name, in bytes: its length is one byte in a record. The specification asks
/// for 20 at most.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;

/// Events in one batch: they become durable together, so a batch must stay well below a segment.
pub const BATCH_EVENTS_MAX: usize = 1000;

/// Headers beside the event that travel with it (tracing, `knative-*`), in bytes, names included.
/// More are left behind: they are company, not cargo.
pub const EXTENSION_HEADERS_BYTES_MAX: usize = 4096;

/// Hops that an event may make through brokers before a loop is assumed, when its sender does not
/// say less (`knativebrokerttl`, X-BRK-04).
pub const HOPS_MAX: u8 = 255;

/// A subscriber's events that were read and not finished: in flight or waiting for a retry. Each costs
/// some 100 bytes here and 16 in the bookmark, whose ranges are bounded by the log (1024); a subscriber
/// that fails everything stops here and its backlog stays on disk. One that fails some of it goes on: with
/// the default retries an event that always fails is unfinished for 205 s, so five of them a second fit.
pub const UNFINISHED_MAX: usize = 1000;

/// A subscriber that answers sooner than this on average is quick, and sent half of its window at a time: 32 are 4,000 events a second
/// from each core even so. Long enough that one which is slow only because it is sent twice as much at a time still counts.
pub const QUICK_ANSWER_MAX: Duration = Duration::from_millis(8);

/// Done ranges from which on a bookmark is long: it is written at most every [`CURSOR_INTERVAL`], and not
/// with each flush, which would cost more than the events.
pub const CURSOR_LONG_RANGES: usize = 32;

/// Records a subscriber looks at before others get a turn: a filter that wants nothing must not
/// hold the core while it passes a backlog.
pub const RECORDS_PER_TURN_MAX: usize = 64;

/// Events found for a subscriber that it has not taken yet, each 16 bytes. One with more lags: it reads
/// the log by itself, and evaluates its own filter, until it has caught up.
pub const MATCHES_MAX: usize = 1024;

/// Events that a stream keeps read and written out for those who have not taken them on yet, while events come: four times a
/// usual window. Who comes later reads and decodes them again.
pub const FRESH_MAX: usize = 256;

/// ... and what they may hold of the log, in bytes.
pub const FRESH_BYTES_MAX: usize = 1 << 20;

/// Data up to this size is copied behind the head of its request, and kept there until the answer has come: 64 requests to
/// a subscriber that hangs hold 128 KiB. More of it is a slice of the log, copied only while it is sent.
pub const JOINED_BODY_BYTES_MAX: usize = 2 << 10;

/// How long a subscriber that wants nothing of what comes may sleep: then its counts and its bookmark
/// follow. With 10,000 subscribers that is some 2 % of a core; what a crash looks at again is
/// filtered again, and delivered to nobody.
pub const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// Longest wait before a retry. Exponential backoff reaches a day after 20 retries of 0.1 s; nobody
/// who configures that many means a year.
pub const BACKOFF_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Shortest wait before a retry, whatever `backoffDelay` says. Without one an event is tried again as fast as its subscriber
/// fails, 50,000 times a second where nobody listens.
pub const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// What is kept of a failed answer's body for `knativeerrordata`, in bytes of base64 (X-DLV-08).
pub const ERROR_DATA_BYTES_MAX: usize = 1024;

/// Largest answer taken from a subscriber, in bytes: a reply becomes a record of the log, so it has
/// the default size of one event and room for its headers.
pub const ANSWER_BYTES_MAX: usize = 2 << 20;

/// How often bookmarks become durable when no event takes them along: what a crash delivers twice.
pub const CURSOR_INTERVAL: Duration = Duration::from_millis(100);

/// The newest bytes of a log, in bytes, that are taken to be in memory: one segment. Older ones are read by a
/// thread that may wait for the disk before a core touches them.
pub const RECENT_BYTES: u64 = 64 << 20;

/// What is read ahead at a time for one lagging subscriber, in bytes: some 2,000 events, 1 ms of a disk.
pub const PAGE_IN_BYTES: u32 = 1 << 20;

/// What is read beyond that, in bytes, so that a usual event that begins at the end is there whole.
pub const PAGE_IN_RECORD_BYTES: u32 = 64 << 10;

/// Threads of one core that read ahead at a time; more would not make a disk faster.
pub const PAGERS_MAX: u32 = 4;

/// How long events of streams that promise nothing wait for company before they are flushed alone, and so
/// the longest that their delivery is late.
pub const UNHURRIED_FLUSH: Duration = CURSOR_INTERVAL;

/// Events that nobody waits for are flushed at once when they are this many bytes: the staging buffer stays
/// small, and larger writes are hardly faster.
pub const UNHURRIED_BYTES_MAX: usize = 1 << 20;

/// How long a flush waits at most for a core to be idle, so that all who are about to append go with it: the kernel's part of one takes
/// some 60 µs of a processor, however little is in it.
pub const GATHER_MAX: Duration = Duration::from_millis(2);

/// A flush of so many bytes does not wait for others: the disk may as well begin.
pub const GATHERED_BYTES_MAX: usize = 256 << 10;

/// Senders that wait for one flush and count as alone: a core stays awake for them.
pub const LONE_MAX: usize = 2;

/// The longest that a core stays awake for one flush. What takes longer is not worth it: a sleeping processor
/// wakes in some 50 µs.
pub const QUICK_FLUSH_MAX: Duration = Duration::from_micros(500);

/// The longest that a core stays awake for the next request of a sender that waits for each answer: on one machine it
/// comes after some 60 µs. With two virtual processors of a busy host it takes 100 to 300 µs, and 550 where the core slept;
/// one that once fell asleep must find back from that.
pub const NEXT_REQUEST_MAX: Duration = Duration::from_micros(600);

/// How often it is said at most that a full log refuses events: each refusal has its answer and its count.
pub const FULL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How often old segments are looked through, segment files are looked at, and retention and quotas follow
/// what is kept.
pub const RECLAIM_EVERY: Duration = Duration::from_secs(1);

/// A reply that has no room in the log is tried again after this long: space is looked for once a second.
pub const SPACE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long a flush is tried that finds no memory: a process that takes all of it has been killed by then. Whoever waits for the
/// flush waits as long.
pub const FLUSH_RETRY_MAX: Duration = Duration::from_secs(30);

/// Between two attempts at first; twice as long each time.
pub const FLUSH_RETRY_DELAY_MIN: Duration = Duration::from_millis(5);

/// ... and at most.
pub const FLUSH_RETRY_DELAY_MAX: Duration = Duration::from_millis(500);

/// Between two attempts to let go of a log whose next segment is being prepared: that takes some 100 ms.
pub const RELEASE_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A subscriber or stream that the table no longer names is forgotten after this long: control may
/// need a while after a start, or between two versions of an object, to name it again, and what is
/// forgotten is lost.
pub const ABSENT_PATIENCE: Duration = Duration::from_secs(120);

/// What a sender that found the log full is told to wait, in seconds: bookmarks and reclaim run more
/// often than that.
pub const RETRY_AFTER_S: u32 = 2;

/// How long the addresses of a DNS name are used without asking again: a subscriber that moved is
/// found within this time, and a name costs a core one look-up in it.
pub const RESOLVED_FOR: Duration = Duration::from_secs(5);

/// Names looked up at a time, per core, each on a short-lived thread: a dead name server holds its own
/// names for many seconds, and must not hold all others.
pub const LOOKUPS_MAX: usize = 4;

/// Names kept with their addresses, per core: more subscribers outside are asked for more often.
pub const NAMES_MAX: usize = 1024;

/// Largest request body at the events listener, in bytes, before its stream is even known: an event of
/// the default 1 MiB in base64 with its envelope, or a batch of smaller ones.
pub const BODY_BYTES_MAX: usize = 4 << 20;

/// Request bodies that a core holds at a time at the events listener, in bytes: sixty-four of the largest, whoever
/// sends them and whether they ever end. Usual events are in and out within a flush and take some KiB together.
pub const BODIES_BYTES_MAX: usize = 64 * BODY_BYTES_MAX;

/// How often the table is compared with the log for what nobody names any more.
pub const TIDY_EVERY: Duration = Duration::from_secs(10);

/// Notes of the flight recorder that make a page, in bytes: some 700.
pub const DELIVERY_LOG_PAGE_BYTES: usize = 16 << 10;

/// How long notes wait for a page to fill: what a kill takes from the flight recorder.
pub const DELIVERY_LOG_INTERVAL: Duration = Duration::from_millis(250);

/// What is looked at of the flight recorder when a log is opened, in bytes, the newest: some 700,000 attempts, and 20 ms. Attempts at
/// unfinished events that were noted before count as not made.
pub const NOTES_LOOKED_AT_BYTES: u64 = 16 << 20;

/// Requests on their way to the core that keeps an ordered stream: more are told to come again.
pub const RELAYED_MAX: usize = 1024;

/// Types of events that are told of one stream: more are events that carry data in their type, and nobody
/// reads a list of them.
pub const EVENT_TYPES_REPORTED_MAX: usize = 1024;

/// Places that are looked at for one type: the table is nearly full when they are all taken.
pub const TYPES_PROBED_MAX: usize = 8;

/// Types of one stream that wait to be told. They are fetched once a second.
pub const TYPES_WAITING_MAX: usize = 64;

/// How soon a report to control that found the queue full is made again.
pub const SIGNAL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest token taken from a sender, in bytes. A service account's has some 700; a head has room for more.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Tokens that one core remembers: a sender has one for an hour, and a few streams that it sends to. With the
/// usual length that is 3 MiB, and 32 MiB at the very worst.
pub const TOKEN_CACHE_MAX: usize = 4096;

/// How often a delivery looks whether there is a token for its target: only at a start, or after a long failure to
/// renew one.
pub const TOKEN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A token that is refused with 401 is renewed if it is older: a newer one is refused for another reason, and a receiver
/// that refuses everything causes no more than one request for a token in this time.
pub const REFUSED_TOKEN_AGE_MIN: Duration = Duration::from_secs(10);

/// How long a delivery waits for the token that replaces a refused one: many times what a request for one takes.
pub const TOKEN_RENEWAL_MAX: Duration = Duration::from_secs(2);

/// Between two attempts of a delivery that one of our own streams refuses with 401 or 403: a policy or a token is mended
/// in minutes, and one request in this time for each event costs nothing that counts.
pub const REFUSED_RETRY_EVERY: Duration = Duration::from_secs(5);

/// Deleted streams and subscribers with a backlog that wait to be told of. They are fetched every two seconds.
pub const ABANDONED_REPORTED_MAX: usize = 256;
