//! Counts the frames of a connection that cost their sender nothing and the gateway something. No clock: the caller
//! says how much time has passed.

use std::time::Duration;

use crate::limits::{self, RateAllowance};

/// A kind of frame flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloodKind {
    Resets,
    Pings,
    Settings,
    EmptyData,
    Continuations,
    Ignored,
    WindowUpdates,
    /// Streams that a client's own mistakes made the gateway reset (MadeYouReset). Their frames are of usual kinds.
    MadeResets,
}

/// Kinds of floods.
pub const FLOOD_KINDS: usize = 8;

impl FloodKind {
    /// Names in metrics and logs, in the order of the variants.
    pub const NAMES: [&'static str; FLOOD_KINDS] =
        ["resets", "pings", "settings", "empty_data", "continuations", "ignored", "window_updates", "own_resets"];

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

type Allowances = [RateAllowance; FLOOD_KINDS];

/// What a client may send, in the order of [`FloodKind`].
const OF_CLIENTS: Allowances = [
    limits::RESETS,
    limits::PINGS,
    limits::SETTINGS,
    limits::EMPTY_DATA,
    limits::CONTINUATIONS,
    limits::IGNORED,
    limits::WINDOW_UPDATES,
    RateAllowance { burst: limits::RESETS_CAUSED_MAX, each_second: 0 },
];

/// What a server may send. The requests of many clients share a connection to it, so a mistake in one response does not
/// count against the others: each ends a stream that this end has opened.
const OF_SERVERS: Allowances = [
    limits::UNLIMITED,
    limits::PINGS,
    limits::SETTINGS,
    limits::SERVER_EMPTY_DATA,
    limits::CONTINUATIONS,
    limits::IGNORED,
    limits::WINDOW_UPDATES,
    limits::UNLIMITED,
];

/// What one connection may still send.
#[derive(Debug)]
pub struct FrameAllowances {
    allowed: &'static Allowances,
    /// Remaining allowance by kind.
    left: [u32; FLOOD_KINDS],
    /// Requests since the last one that earned a reset.
    requests: u32,
    refilled: Duration,
}

impl FrameAllowances {
    /// For frames of a client. `now`: time since any fixed point.
    #[must_use]
    pub fn of_client(now: Duration) -> Self {
        Self::new(&OF_CLIENTS, now)
    }

    /// For frames of a server.
    #[must_use]
    pub fn of_server(now: Duration) -> Self {
        Self::new(&OF_SERVERS, now)
    }

    fn new(allowed: &'static Allowances, now: Duration) -> Self {
        Self { allowed, left: allowed.map(|allowance| allowance.burst), requests: 0, refilled: now }
    }

    /// Counts one frame; fails with its kind if there were too many.
    pub fn count(&mut self, kind: FloodKind) -> Result<(), FloodKind> {
        let left = &mut self.left[kind as usize];
        *left = left.checked_sub(1).ok_or(kind)?;
        Ok(())
    }

    /// Adds the allowance that comes with each HEADERS frame.
    pub fn head_began(&mut self) {
        self.allow(FloodKind::Continuations, limits::CONTINUATIONS_OF_A_HEAD);
        self.requests += 1;
        if self.requests == limits::REQUESTS_FOR_A_RESET {
            self.requests = 0;
            self.allow(FloodKind::Resets, 1);
        }
    }

    /// A request was sent: its server may refuse or reset the stream after it was closed here.
    pub fn request_sent(&mut self) {
        self.allow(FloodKind::Ignored, 1);
    }

    /// `bytes` were sent to the peer: it may acknowledge them with WINDOW_UPDATE.
    pub fn sent(&mut self, bytes: usize) {
        let more = u32::try_from(bytes as u64 / limits::WINDOW_UPDATE_BYTES).unwrap_or(u32::MAX);
        self.allow(FloodKind::WindowUpdates, more);
    }

    /// Adds the allowance of the time since the last call.
    pub fn refill(&mut self, now: Duration) {
        let seconds = u32::try_from(now.saturating_sub(self.refilled).as_secs()).unwrap_or(u32::MAX);
        if seconds == 0 {
            return;
        }
        self.refilled = now;
        for (left, allowance) in self.left.iter_mut().zip(self.allowed) {
            let more = allowance.each_second.saturating_mul(seconds);
            *left = left.saturating_add(more).min(allowance.burst);
        }
    }

    fn allow(&mut self, kind: FloodKind, more: u32) {
        let left = &mut self.left[kind as usize];
        *left = left.saturating_add(more).min(self.allowed[kind as usize].burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(allowances: &mut FrameAllowances, kind: FloodKind) -> u32 {
        let mut count = 0;
        while allowances.count(kind).is_ok() {
            count += 1;
        }
        count
    }

    #[test]
    fn each_kind_has_its_burst_and_refills_up_to_it() {
        let kinds = [FloodKind::Resets, FloodKind::Pings, FloodKind::EmptyData, FloodKind::MadeResets];
        for kind in kinds {
            let mut allowances = FrameAllowances::of_client(Duration::ZERO);
            let RateAllowance { burst, each_second } = OF_CLIENTS[kind as usize];
            assert_eq!(counted(&mut allowances, kind), burst);
            allowances.refill(Duration::from_millis(999));
            assert_eq!(counted(&mut allowances, kind), 0);
            allowances.refill(Duration::from_secs(1));
            assert_eq!(counted(&mut allowances, kind), each_second);
            allowances.refill(Duration::from_secs(100_000));
            assert_eq!(counted(&mut allowances, kind), if each_second == 0 { 0 } else { burst });
        }
    }

    /// The least efficient client answers each DATA frame with two updates, and may do so forever.
    #[test]
    fn window_updates_for_sent_data_are_free() {
        let mut allowances = FrameAllowances::of_client(Duration::ZERO);
        for _ in 0..limits::WINDOW_UPDATES.burst {
            allowances.sent(10);
            assert_eq!(allowances.count(FloodKind::WindowUpdates), Ok(()));
            assert_eq!(allowances.count(FloodKind::WindowUpdates), Ok(()));
        }
        assert!(counted(&mut allowances, FloodKind::WindowUpdates) >= limits::WINDOW_UPDATES.burst - 2);
    }

    #[test]
    fn requests_earn_resets_and_continuations() {
        let mut allowances = FrameAllowances::of_client(Duration::ZERO);
        for _ in 0..10_000 {
            for _ in 0..limits::REQUESTS_FOR_A_RESET {
                allowances.head_began();
            }
            assert_eq!(allowances.count(FloodKind::Resets), Ok(()));
        }
        let mut rapid = 0;
        while allowances.count(FloodKind::Resets).is_ok() {
            allowances.head_began();
            rapid += 1;
        }
        assert!((limits::RESETS.burst..2 * limits::RESETS.burst).contains(&rapid), "{rapid}");
    }
}
