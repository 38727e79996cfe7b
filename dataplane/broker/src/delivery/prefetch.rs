//! A lagging subscriber reads events written long ago: a thread reads their pages ahead, so that the core
//! never waits for the disk.

use std::rc::Rc;

use wal::{LogPosition, ReadaheadWindow};

use super::send::EventSender;
use super::source::LogReader;
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
    pub(super) fn is_resident(self: &Rc<Self>, reader: &LogReader, from: LogPosition) -> bool {
        if reader.paging.get() {
            return false;
        }
        let log = self.context.writer.log();
        let Some(job) = log.page_in(reader.feed.id, from, &reader.warm.borrow(), BACKLOG) else { return true };
        reader.paging.set(true);
        let worker = Rc::clone(self);
        self.context.ring.spawn(async move {
            let ranges = job.ranges();
            worker.context.writer.readahead.fetch(job).await;
            if let Some(reader) = worker.log_reader() {
                reader.warm.replace(ranges);
                reader.paging.set(false);
            }
            worker.notify.ring();
        });
        false
    }

    /// Resolves when an event that is retried can be read without waiting for the disk.
    pub(super) async fn bring(&self, position: LogPosition) {
        let Some(reader) = self.log_reader() else { return };
        let job = self.context.writer.log().page_in(reader.feed.id, position, &reader.warm.borrow(), SINGLE);
        if let Some(job) = job {
            self.context.writer.readahead.fetch(job).await;
        }
    }
}
