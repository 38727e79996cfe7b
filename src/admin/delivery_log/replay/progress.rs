//! The lines that a client of a replay receives, and the rate that it asked for.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Interval of progress lines.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Events sent so far, and the client that hears of it.
pub(super) struct ReplayProgress<'a> {
    pub(super) sent: u64,
    dry_run: bool,
    rate: u32,
    reported_at: Instant,
    lines: &'a mpsc::Sender<String>,
}

impl<'a> ReplayProgress<'a> {
    pub(super) fn new(dry_run: bool, rate: u32, lines: &'a mpsc::Sender<String>) -> Self {
        Self { sent: 0, dry_run, rate, reported_at: Instant::now(), lines }
    }

    pub(super) fn to_json(&self, is_done: bool) -> Value {
        json!({ "sent": self.sent, "dryRun": self.dry_run, "done": is_done })
    }

    /// A line, unless the last one is too recent. `None`: the client has disconnected.
    pub(super) async fn report_if_due(&mut self) -> Option<()> {
        if self.reported_at.elapsed() < PROGRESS_EVERY {
            return Some(());
        }
        self.report().await
    }

    pub(super) async fn report(&mut self) -> Option<()> {
        self.reported_at = Instant::now();
        self.say(&self.to_json(false)).await
    }

    pub(super) async fn say(&self, line: &Value) -> Option<()> {
        self.lines.send(format!("{line}\n")).await.ok()
    }

    pub(super) fn pace(&self) -> Pace {
        Pace { began: Instant::now(), passed: 0, rate: self.rate }
    }
}

/// Lets events pass at the client's rate.
pub(super) struct Pace {
    began: Instant,
    passed: u64,
    /// Events a second; 0 = unlimited.
    rate: u32,
}

impl Pace {
    pub(super) async fn wait(&mut self) {
        if self.rate > 0 {
            let due = self.began + Duration::from_secs_f64(self.passed as f64 / f64::from(self.rate));
            tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
        }
        self.passed += 1;
    }
}
