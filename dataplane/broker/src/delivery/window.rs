//! The window of a subscriber that answers quickly.

use std::cell::Cell;
use std::time::Duration;

use crate::limits::QUICK_ANSWER_MAX;

/// Approximate number of responses in the mean.
const ANSWERS: u32 = 16;

/// The recent response time of a subscriber.
#[derive(Debug)]
pub(super) struct DeliveryWindow {
    mean: Cell<Duration>,
}

impl Default for DeliveryWindow {
    /// No responses yet.
    fn default() -> Self {
        Self { mean: Cell::new(Duration::MAX) }
    }
}

impl DeliveryWindow {
    pub(super) fn note(&self, took: Duration) {
        let mean = match self.mean.get() {
            Duration::MAX => took,
            mean => mean * (ANSWERS - 1) / ANSWERS + took / ANSWERS,
        };
        self.mean.set(mean);
    }

    /// The usable part of the configured window: half for a fast subscriber. With all of it, the events of
    /// a flush are sent at once and their slots end before the next flush: then each event needs a new
    /// task, and a delivery costs 8 % more.
    pub(super) fn window(&self, most: u32) -> usize {
        let most = most.max(1);
        let enough = if self.mean.get() < QUICK_ANSWER_MAX { most.div_ceil(2) } else { most };
        enough as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_subscriber_gets_half_window_and_slow_one_all() {
        let window = DeliveryWindow::default();
        assert_eq!((window.window(64), window.window(0)), (64, 1), "nothing is known");
        let times = |count: usize, took: Duration| (0..count).for_each(|_| window.note(took));
        times(1, QUICK_ANSWER_MAX / 2);
        assert_eq!((window.window(64), window.window(1)), (32, 1));
        times(3, QUICK_ANSWER_MAX * 10);
        assert_eq!(window.window(64), 64, "it has become slow");
        times(1, Duration::from_secs(3600));
        times(200, QUICK_ANSWER_MAX / 2);
        assert_eq!(window.window(64), 32, "and quick again");
    }
}
