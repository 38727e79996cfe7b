//! Limits of JobSinks.

/// Bytes of an event: what Kubernetes lets a Secret hold.
pub const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// Events in progress. Each holds its event twice and waits for two durable writes, so these are at most some 128 MiB.
pub const REQUESTS_MAX: usize = 64;

/// Seconds after which a sender may try again when all of them are in progress.
pub(super) const RETRY_AFTER: &str = "1";
