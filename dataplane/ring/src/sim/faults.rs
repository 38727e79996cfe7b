//! The fault profile of a simulation.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The probabilities of faults. They are per million, so that zero is never and a million is always.
#[derive(Debug, Clone)]
pub struct FaultProfile {
    /// One-way network latency, per segment; segments of one direction stay in order.
    pub latency: RangeInclusive<Duration>,
    /// A segment carries one byte to this many, so reads are short in every possible way.
    pub segment_bytes_max: usize,
    /// Unreceived bytes that a socket can hold; beyond, the peer's send waits.
    pub window_bytes: usize,
    /// Probability, per segment, that the connection breaks instead.
    pub resets: u32,
    /// Probability, per connection end, that everything to it takes `slowness` times as long.
    pub slow_peers: u32,
    pub slowness: u32,
    /// Time until the disk executes an operation; operations overtake each other.
    pub disk_latency: RangeInclusive<Duration>,
    /// Probability, per operation, that the disk returns EIO; a write may then have happened in part.
    pub disk_errors: u32,
    /// Probability, per operation, that there is no memory for it (ENOMEM); a write may then have happened in part.
    pub disk_shortages: u32,
    /// Whether the file system accepts RWF_DSYNC; otherwise it returns EOPNOTSUPP.
    pub durable_writes: bool,
    /// Probability, per write, that only its first part is written and the count says so.
    pub short_writes: u32,
}

impl FaultProfile {
    /// No faults, and nothing is instant.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            latency: Duration::from_micros(20)..=Duration::from_micros(50),
            segment_bytes_max: 64 * 1024,
            window_bytes: 256 * 1024,
            resets: 0,
            slow_peers: 0,
            slowness: 1,
            disk_latency: Duration::from_micros(50)..=Duration::from_micros(200),
            disk_errors: 0,
            disk_shortages: 0,
            durable_writes: true,
            short_writes: 0,
        }
    }

    /// Short reads, slow peers and late disks, but no failures: everything sent arrives.
    #[must_use]
    pub fn moderate() -> Self {
        Self {
            latency: Duration::from_micros(10)..=Duration::from_millis(30),
            segment_bytes_max: 1500,
            window_bytes: 16 * 1024,
            slow_peers: 100_000,
            slowness: 20,
            disk_latency: Duration::from_micros(50)..=Duration::from_millis(20),
            short_writes: 50_000,
            ..Self::calm()
        }
    }

    /// In addition broken connections and disk errors.
    #[must_use]
    pub fn severe() -> Self {
        Self { resets: 2_000, disk_errors: 5_000, ..Self::moderate() }
    }
}
