//! Where a new subscriber of a stream begins.

/// Where a new subscriber begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InitialOffset {
    /// With the next event.
    #[default]
    Now,
    /// With the oldest event in the log.
    Earliest,
    /// With the first event at or after this time, in milliseconds since 1970.
    At(u64),
}
