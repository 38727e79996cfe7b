//! A lagging subscriber reads events written long ago: a thread reads their pages ahead, so that the core
//! never waits for the disk.

use std::rc::Rc;

use wal::{LogPosition, ReadaheadWindow};

use super::send::EventSender;
use super::worker::SubscriptionWorker;
use crate::limits::{PAGE_IN_BYTES, PAGE_IN_RECORD_BYTES, RECENT_BYTES};

/// For continuous reading.
const BACKLOG: ReadaheadWindow =
    ReadaheadWindow { recent_bytes: RECENT_BYTES, window_bytes: PAGE_IN_BYTES, record_bytes: PAGE_IN_RECORD_BYTES };
/// For one event.
const SINGLE: ReadaheadWindow = ReadaheadWindow { window_bytes: 1, ..BACKLOG };

impl<P: EventSender> SubscriptionWorker<P> {
    /// Whether the next event from there on can be read without waiting for the disk; if not, it is being
    /// read ahead.
    pub(super) fn is_resident(self: &Rc<Self>, from: LogPosition) -> bool {
        if self.paging.get() {
            return false;
        }
        let log = self.context.writer.log();
        let Some(job) = log.page_in(self.feed.id, from, &self.warm.borrow(), BACKLOG) else { return true };
        self.paging.set(true);
        let worker = Rc::clone(self);
        self.context.ring.spawn(async move {
            let ranges = job.ranges();
            worker.context.writer.readahead.fetch(job).await;
            worker.warm.replace(ranges);
            worker.paging.set(false);
            worker.notify.ring();
        });
        false
    }

    /// Resolves when an event that is retried can be read without waiting for the disk.
    pub(super) async fn bring(&self, position: LogPosition) {
        let job = self.context.writer.log().page_in(self.feed.id, position, &self.warm.borrow(), SINGLE);
        if let Some(job) = job {
            self.context.writer.readahead.fetch(job).await;
        }
    }
}
