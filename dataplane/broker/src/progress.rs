//! The progress of one subscriber in its stream: what is read, what is unfinished, what is done.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use ring::Tick;
use wal::{Cursor, LogPosition, LogRecord, StreamId, WriteAheadLog};

use crate::limits::{CURSOR_INTERVAL, CURSOR_LONG_RANGES};

/// A subscriber's progress in a stream. Its cursor is durable with the next flush after a change.
#[derive(Debug)]
pub struct SubscriberProgress {
    pub stream: StreamId,
    pub subscriber: Box<str>,
    progress: RefCell<ProgressState>,
    /// In the log writer's list of cursors to be written.
    pub(super) dirty: Cell<bool>,
    /// When a long cursor was last written.
    written: Cell<Option<Tick>>,
}

#[derive(Debug)]
struct ProgressState {
    mark: Cursor,
    /// Where reading continues. Everything of the stream below is done or in `unfinished`.
    cursor: LogPosition,
    /// By position: the range that the cursor may mark done when that event is done.
    unfinished: BTreeMap<LogPosition, Range<LogPosition>>,
    /// Events that were skipped because they are damaged, and not counted yet.
    damaged: u64,
}

impl SubscriberProgress {
    #[must_use]
    pub fn new(stream: StreamId, subscriber: &str, mark: Cursor) -> Self {
        let progress = ProgressState { cursor: mark.low(), mark, unfinished: BTreeMap::new(), damaged: 0 };
        Self {
            stream,
            subscriber: subscriber.into(),
            progress: RefCell::new(progress),
            dirty: Cell::new(false),
            written: Cell::new(None),
        }
    }

    /// The next durable event below `end` that is not done. It is unfinished until
    /// [`SubscriberProgress::finish`].
    pub fn read(&self, log: &WriteAheadLog, end: LogPosition) -> Option<LogRecord> {
        let progress = &mut *self.progress.borrow_mut();
        loop {
            let record = log.read(self.stream, progress.mark.next_open(progress.cursor))?;
            if record.position >= end {
                return None;
            }
            progress.cursor = record.next;
            progress.damaged += record.damaged;
            if progress.mark.is_done(record.position) {
                // Between two done ranges there were only other streams' events.
                progress.mark.complete(record.since..record.next);
                continue;
            }
            progress.unfinished.insert(record.position, record.since..record.next);
            return Some(record);
        }
    }

    /// The same for an event that was read already, and after which the stream continues at `next`. `false`
    /// if it was read here, or is done.
    pub fn take_on(&self, position: LogPosition, next: LogPosition) -> bool {
        let progress = &mut *self.progress.borrow_mut();
        let since = progress.mark.next_open(progress.cursor);
        if since > position || progress.mark.is_done(position) {
            return false;
        }
        progress.cursor = next;
        progress.unfinished.insert(position, since..next);
        true
    }

    /// Marks events before `position` that were not read as done.
    pub fn skip_to(&self, position: LogPosition) {
        let progress = &mut *self.progress.borrow_mut();
        if progress.cursor < position {
            progress.mark.complete(progress.cursor..position);
            progress.cursor = position;
        }
    }

    /// Number of damaged events that [`SubscriberProgress::read`] has skipped since the last call.
    pub fn take_damaged(&self) -> u64 {
        std::mem::take(&mut self.progress.borrow_mut().damaged)
    }

    /// Gives up the unread events before `end`; returns their number. Unfinished ones stay so.
    pub fn give_up(&self, log: &WriteAheadLog, end: LogPosition) -> u64 {
        let progress = &mut *self.progress.borrow_mut();
        let mut events = 0;
        while progress.cursor < end {
            let from = progress.mark.next_open(progress.cursor);
            let done = progress.mark.done().iter().map(|range| range.start).find(|start| *start >= from);
            let to = done.unwrap_or(end).min(end).max(from);
            events += log.count(self.stream, from, to);
            progress.mark.complete(from..to);
            progress.cursor = to.max(LogPosition::new(progress.cursor.get() + 1)).min(end);
        }
        events
    }

    /// Where [`SubscriberProgress::read`] continues.
    #[must_use]
    pub fn next(&self) -> LogPosition {
        let progress = self.progress.borrow();
        progress.mark.next_open(progress.cursor)
    }

    /// Where reading continues.
    #[must_use]
    pub fn cursor(&self) -> LogPosition {
        self.progress.borrow().cursor
    }

    /// The event is done. `false` if it was not unfinished.
    pub fn finish(&self, position: LogPosition) -> bool {
        let progress = &mut *self.progress.borrow_mut();
        let Some(range) = progress.unfinished.remove(&position) else { return false };
        progress.mark.complete(range);
        true
    }

    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.progress.borrow().unfinished.len()
    }

    /// Whether the cursor is to be written with the flush that begins now; a long one waits.
    pub(super) fn is_due(&self, now: Tick) -> bool {
        if self.progress.borrow().mark.done().len() < CURSOR_LONG_RANGES {
            return true;
        }
        let is_due = self.written.get().is_none_or(|last| now - last >= CURSOR_INTERVAL);
        if is_due {
            self.written.set(Some(now));
        }
        is_due
    }

    #[must_use]
    pub fn mark(&self) -> Cursor {
        self.progress.borrow().mark.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(folder: &tempfile::TempDir) -> WriteAheadLog {
        let options = wal::LogOptions { segment_bytes: 1 << 20, record_bytes_max: 1 << 16, ..Default::default() };
        WriteAheadLog::open(folder.path(), options).unwrap().0
    }

    fn read_all(progress: &SubscriberProgress, log: &WriteAheadLog) -> Vec<LogPosition> {
        std::iter::from_fn(|| progress.read(log, log.durable())).map(|record| record.position).collect()
    }

    /// EV-DLV-13: finished events, in whatever order, are not read again; all others are.
    #[test]
    fn restored_progress_reads_only_unfinished_events() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(&folder);
        let (own, other) = (log.stream("ours").unwrap(), log.stream("other").unwrap());
        let progress = SubscriberProgress::new(own, "s", Cursor::at(log.end(own)));
        for n in 0_u8..30 {
            log.append(if n % 3 == 0 { other } else { own }, 0, &[&[n]]).unwrap();
        }
        assert!(progress.read(&log, log.visible()).is_none(), "nothing is read before it is durable");
        log.flush_blocking().unwrap();

        let all = read_all(&progress, &log);
        assert_eq!((all.len(), progress.unfinished()), (20, 20));
        let kept = [0, 3, 4, 19];
        for (at, position) in all.iter().enumerate().rev().filter(|(at, _)| !kept.contains(at)) {
            assert!(progress.finish(*position) && !progress.finish(*position), "{at}");
        }
        let restored = SubscriberProgress::new(own, "s", progress.mark());
        assert_eq!(read_all(&restored, &log), kept.map(|at| all[at]));
        for position in kept.map(|at| all[at]) {
            restored.finish(position);
        }
        assert_eq!(restored.mark().done(), []);
        assert!(read_all(&SubscriberProgress::new(own, "s", restored.mark()), &log).is_empty());
    }

    /// EV-DLV-13: it has the same effect as reading it here.
    #[test]
    fn event_read_elsewhere_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(&folder);
        let (own, other) = (log.stream("ours").unwrap(), log.stream("other").unwrap());
        let start = Cursor::at(log.end(own));
        for n in 0_u8..12 {
            log.append(if n % 3 == 0 { other } else { own }, 0, &[&[n]]).unwrap();
        }
        log.flush_blocking().unwrap();
        let reader = SubscriberProgress::new(own, "reader", start.clone());
        let all: Vec<_> = std::iter::from_fn(|| reader.read(&log, log.durable())).collect();
        let progress = SubscriberProgress::new(own, "s", start.clone());
        for record in &all {
            assert!(progress.take_on(record.position, record.next) && !progress.take_on(record.position, record.next));
        }
        assert_eq!((progress.unfinished(), progress.cursor(), progress.mark()), (8, reader.cursor(), start));
        for record in all.iter().rev() {
            assert!(progress.finish(record.position) && reader.finish(record.position));
            assert_eq!(progress.mark(), reader.mark());
            assert!(!progress.take_on(record.position, record.next), "it is done");
        }
    }

    /// Done events, and those read and unfinished, are not given up a second time.
    #[test]
    fn give_up_skips_read_and_done_events() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(&folder);
        let own = log.stream("ours").unwrap();
        let start = log.end(own);
        let all: Vec<_> = (0_u8..20).map(|n| log.append(own, 0, &[&[n]]).unwrap()).collect();
        log.flush_blocking().unwrap();
        let mut mark = Cursor::at(start);
        mark.complete(all[5]..all[8]);
        mark.complete(all[12]..all[13]);
        let progress = SubscriberProgress::new(own, "s", mark);
        let read: Vec<_> = (0..2).map(|_| progress.read(&log, log.durable()).unwrap().position).collect();
        assert_eq!(read, all[..2]);

        assert_eq!(progress.give_up(&log, all[15]), 15 - 2 - 4);
        assert_eq!((progress.give_up(&log, all[15]), progress.give_up(&log, all[3])), (0, 0));
        assert_eq!(progress.read(&log, log.durable()).map(|record| record.position), Some(all[15]));
        assert_eq!(progress.mark().low(), start, "two are unfinished");
        assert!(progress.finish(all[0]) && progress.finish(all[1]));
        assert_eq!(progress.mark().low(), all[15]);
    }

    /// EV-DLV-13: skipped events are done, unfinished ones before them are not.
    #[test]
    fn skip_keeps_read_events_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(&folder);
        let own = log.stream("ours").unwrap();
        let progress = SubscriberProgress::new(own, "s", Cursor::at(log.end(own)));
        let all: Vec<_> = (0_u8..6).map(|n| log.append(own, 0, &[&[n]]).unwrap()).collect();
        log.flush_blocking().unwrap();

        assert_eq!(progress.read(&log, all[1]).map(|record| record.position), Some(all[0]));
        assert!(progress.read(&log, all[1]).is_none(), "the end is where it says");
        progress.skip_to(all[4]);
        progress.skip_to(all[2]); // backwards has no effect
        assert_eq!(progress.read(&log, log.durable()).map(|record| record.position), Some(all[4]));
        assert_eq!(read_all(&SubscriberProgress::new(own, "s", progress.mark()), &log), [all[0], all[4], all[5]]);
    }
}
