//! The line that shows a running test on a terminal.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use load::{LoadProgress, report};

/// Between two frames: a person reads no faster.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Back to the start of the line, and clear it.
const CLEAR: &str = "\r\x1b[K";

/// Shows nothing if stderr is not a terminal. Dropping it clears the line.
pub(super) struct LoadDisplay {
    is_terminal: bool,
    label: String,
    drawn_at: Option<Instant>,
}

impl LoadDisplay {
    pub(super) fn new(label: String) -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), label, drawn_at: None }
    }

    /// What the line begins with.
    pub(super) fn label(&mut self, label: String) {
        self.label = label;
    }

    pub(super) fn show(&mut self, progress: &LoadProgress<'_>) {
        if !self.is_terminal || self.drawn_at.is_some_and(|at| at.elapsed() < REDRAW_INTERVAL) {
            return;
        }
        complain!(part "{CLEAR}{}{}", self.label, report::progress_line(progress));
        self.drawn_at = Some(Instant::now());
    }
}

impl Drop for LoadDisplay {
    fn drop(&mut self) {
        if self.drawn_at.is_some() {
            complain!(part "{CLEAR}");
        }
    }
}
