//! What the log keeps and gives back, and what is said when it is full or damaged.

use wal::{AppendError, Cursor, LogPosition};

use super::{HISTORY, LogWriter};
use crate::feed::StreamFeed;
use crate::limits::FULL_LOG_INTERVAL;

impl LogWriter {
    /// Periodic work, whether anything is flushed or not.
    pub fn maintain(&self) {
        self.reclaim();
        for broken in self.log.borrow_mut().check_files() {
            tracing::error!(%broken, "a segment of the log lost records; the remaining ones are delivered");
        }
        self.log_damage();
        for feed in self.feeds.borrow().values() {
            feed.account(self.log.borrow().live_bytes_of(feed.id));
        }
        self.work.ring(); // the drop takes effect with the next flush; and a failure must be reported
    }

    /// Retains events of the stream from here on without subscribers; `None` ends it.
    pub(crate) fn retain_history(&self, feed: &StreamFeed, from: Option<LogPosition>) {
        let mut log = self.log.borrow_mut();
        let kept = log.how_far(feed.id, HISTORY).map(Cursor::low);
        match from {
            Some(from) if kept.is_none_or(|kept| kept < from) => {
                if let Err(why) = log.cursor(feed.id, HISTORY, Cursor::at(from)) {
                    tracing::warn!(stream = %feed.id, %why, "the history is not retained; retrying");
                }
            }
            None if kept.is_some() => log.forget_cursor(feed.id, HISTORY),
            _ => return,
        }
        drop(log);
        self.work.ring();
    }

    pub(super) fn reclaim(&self) -> bool {
        let mut log = self.log.borrow_mut();
        let freed = log.reclaim().segments > 0;
        if log.is_compacting() {
            log.move_on();
            self.work.ring(); // each step follows a flush: make sure that there is one
        }
        freed
    }

    /// Logs one line when the log begins to reject events, and one when it accepts them again; at most once per
    /// [`FULL_LOG_INTERVAL`], because a log at its limit accepts a small one between two large ones.
    pub(super) fn log_full<T>(&self, appended: &Result<T, AppendError>) {
        match appended {
            Ok(_) if self.full_logged.get() => {
                self.full_logged.set(false);
                tracing::info!("the log accepts events again");
            }
            Err(why @ AppendError::Full { .. }) => {
                let now = self.ring.now();
                if self.full_logged_at.get().is_none_or(|logged| now - logged >= FULL_LOG_INTERVAL) {
                    self.full_logged_at.set(Some(now));
                    self.full_logged.set(true);
                    tracing::warn!(%why, "events are rejected with 503, and replies wait, until there is space");
                }
            }
            _ => {}
        }
    }

    pub(super) fn log_damage(&self) {
        for wal::RecordDamage { stream, position, file, offset } in self.log.borrow().take_damage() {
            let file = file.display();
            tracing::error!(%stream, %position, %file, offset, "an event was damaged on the disk and is skipped");
        }
    }
}
