//! The limits of what tables carry and of what cores report, each with its unit and its reason.

use std::time::Duration;

/// Steps that one filter may take for one event: four times through the largest attributes of an event
/// (256 KiB) character by character, and some 3 ms of a core. Usual filters take some tens.
pub const FILTER_STEPS_MAX: usize = 1 << 20;

/// How often cursors become durable when no event flushes them: what a crash delivers twice.
pub const CURSOR_INTERVAL: Duration = Duration::from_millis(100);

/// How long events of streams without a durability promise wait for a shared flush, and so the maximum
/// delay of their delivery.
pub const RELAXED_FLUSH: Duration = CURSOR_INTERVAL;

/// Event types reported of one stream: with more, the events carry data in their type, and a list of them
/// is useless.
pub const EVENT_TYPES_REPORTED_MAX: usize = 1024;

/// Slots probed for one type: the table is nearly full when they are all taken.
pub const TYPES_PROBED_MAX: usize = 8;

/// Types of one stream that wait to be reported. They are fetched once a second.
pub const TYPES_WAITING_MAX: usize = 64;

/// Deleted streams and subscribers with a backlog that wait to be reported. They are fetched every two
/// seconds.
pub const ABANDONED_REPORTED_MAX: usize = 256;

/// Requests in flight to the core that owns an ordered stream: further ones are rejected with a retry hint.
pub const RELAYED_MAX: usize = 1024;

/// Retry-After of a sender that found the log full, in seconds: cursors and reclaim run more often than
/// that.
pub const RETRY_AFTER_S: u32 = 2;

/// Certificates of one chain together. Ten of RSA-4096 are below 20 KB, and each active handshake holds them.
pub const CHAIN_BYTES_MAX: usize = 32 * 1024;

/// Longest value of an Authorization header that is read, in bytes: tokens with many groups have some 4 KiB.
pub const AUTHORIZATION_BYTES_MAX: usize = 16 << 10;

/// Bytes of a password file. A line has some 80.
pub const PASSWORD_FILE_BYTES_MAX: usize = 1 << 20;

/// Users of a password file: with more, an identity provider and tokens are the right tool.
pub const PASSWORD_USERS_MAX: usize = 10_000;

/// Highest cost of a bcrypt hash. Each step doubles the time; 14 is a second of the thread that verifies.
pub const BCRYPT_COST_MAX: u32 = 14;

/// Passwords that wait for the thread that verifies them. With the usual cost of 10 the last one waits 3 s.
pub const PASSWORDS_PENDING_MAX: usize = 64;

/// How long an authorization service may take for its whole response, unless its rule says otherwise. Each request waits for it,
/// and one that starts an instance of a scaled-to-zero revision takes seconds.
pub const AUTHORIZATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest such timeout that a rule may have: the clients of a hung service hold their connections for this long.
pub const AUTHORIZATION_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Headers in a list of those that an authorization service is told, or of those of its response that the backend is told. Each
/// is compared with each header of a request.
pub const AUTHORIZATION_HEADERS_MAX: usize = 64;

/// Bytes of the headers that are copied from the response of an authorization service into a request. Names, groups and a token
/// fit; the backend has a limit for its whole head.
pub const AUTHORIZATION_COPIED_BYTES_MAX: usize = 16 << 10;

/// Bytes of the path with which an authorization service is asked.
pub const AUTHORIZATION_PATH_BYTES_MAX: usize = 2048;

/// Events that wait for an external store to have them, over all cores: half a second of what one stream with three
/// replicas stores.
pub const STORE_PUBLISHES_MAX: u64 = 4096;

/// Their bytes together: what they take of the process's memory, twice while they are sent.
pub const STORE_PUBLISHED_BYTES_MAX: u64 = 64 << 20;

/// Requests that wait for the thread that speaks to the store: all the events that may wait, and what control asks.
pub const STORE_REQUESTS_MAX: usize = STORE_PUBLISHES_MAX as usize + 1024;

/// Events of one consumer of an external store that are received and not done, over all its readers. Each is in memory
/// until it is done.
pub const STORE_UNFINISHED_MAX: usize = 256;

/// Bytes of such events of one consumer in this process: eight of the largest, or all 256 of 64 KiB.
pub const STORE_UNFINISHED_BYTES_MAX: usize = 16 << 20;

/// Bytes of such events of all consumers in this process: beyond, each gets one event at a time.
pub const STORE_UNFINISHED_TOTAL_BYTES_MAX: usize = 256 << 20;
