//! Limits of the figures.

use std::time::Duration;

/// Interval of figures: a rate over less jumps, and a person reads no faster.
pub(crate) const FIGURES_INTERVAL: Duration = Duration::from_secs(1);
/// Backends in one line of figures, the busiest first: some 300 bytes each.
pub(super) const BACKENDS_MAX: usize = 200;
/// Revisions that are asked for their scaling, those that run first: as many as `/metrics` has.
pub(super) const REVISIONS_MAX: usize = 1000;
/// Brokers and channels in one line of figures, by their paths: some 100 bytes each.
pub(super) const STREAMS_LISTED_MAX: usize = 200;
/// Subscribers in one line of figures, over all streams: some 300 bytes each.
pub(super) const SUBSCRIBERS_MAX: usize = 500;
/// Threads of this process that are listed: cores, control, and those that serve instances.
pub(super) const THREADS_MAX: usize = 128;
