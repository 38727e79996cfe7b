//! A subscriber's reading of an external store: the events that were received and are not done.
//!
//! The store delivers them again after a crash, so nothing is written here. They stay in memory until they are done,
//! for retries; the store delivers no more than [`STORE_UNFINISHED_MAX`] beyond those that are done.

use std::cell::RefCell;
use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::mpsc;
use wal::{LogPosition, LogRecord};

#[cfg(doc)]
use contract::limits::STORE_UNFINISHED_MAX;

pub(super) struct StoreReader {
    /// Received and not started.
    waiting: RefCell<VecDeque<LogRecord>>,
    /// Started and not done. A position is an event's sequence in the store.
    unfinished: RefCell<HashMap<LogPosition, LogRecord, RandomState>>,
    /// Takes the sequences of events that are done; `None` once the reader is released.
    done: RefCell<Option<mpsc::UnboundedSender<u64>>>,
}

impl StoreReader {
    pub(super) fn new(done: mpsc::UnboundedSender<u64>) -> Self {
        Self { waiting: RefCell::default(), unfinished: RefCell::default(), done: RefCell::new(Some(done)) }
    }

    /// Adds a received event; returns whether it will be delivered here.
    pub(super) fn receive(&self, record: LogRecord) -> bool {
        let is_open = self.done.borrow().is_some();
        if is_open {
            self.waiting.borrow_mut().push_back(record);
        }
        is_open
    }

    /// The next event, which is unfinished from here on.
    pub(super) fn next(&self) -> Option<LogRecord> {
        let record = self.waiting.borrow_mut().pop_front()?;
        self.unfinished.borrow_mut().insert(record.position, record.clone());
        Some(record)
    }

    pub(super) fn load(&self, position: LogPosition) -> Option<LogRecord> {
        self.unfinished.borrow().get(&position).cloned()
    }

    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.borrow().len()
    }

    /// The event is done. `false` if it was not unfinished.
    pub(super) fn finish(&self, position: LogPosition) -> bool {
        let was_unfinished = self.unfinished.borrow_mut().remove(&position).is_some();
        if was_unfinished && let Some(done) = &*self.done.borrow() {
            let _ = done.send(position.get()); // the process is stopping: it is delivered again
        }
        was_unfinished
    }

    /// Gives everything that is not done back to the store, which delivers it to the next reader at once.
    pub(super) fn release(&self) {
        self.done.take();
        self.waiting.take();
        self.unfinished.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64) -> LogRecord {
        let (position, next) = (LogPosition::new(sequence), LogPosition::new(sequence + 1));
        LogRecord { position, since: position, next, damaged: 0, at_ms: 0, payload: Vec::new().into() }
    }

    #[test]
    fn event_is_acknowledged_once_and_only_when_done() {
        let (done, mut acknowledged) = mpsc::unbounded_channel();
        let reader = StoreReader::new(done);
        assert!((1..=3).all(|sequence| reader.receive(record(sequence))));
        let first = reader.next().unwrap().position;
        let second = reader.next().unwrap().position;
        assert_eq!((first.get(), second.get(), reader.unfinished()), (1, 2, 2));
        assert!(acknowledged.try_recv().is_err());
        assert!(reader.finish(second) && !reader.finish(second) && !reader.finish(LogPosition::new(3)));
        assert_eq!((acknowledged.try_recv(), reader.load(second)), (Ok(2), None));
        assert_eq!(reader.load(first).unwrap().position, first, "for a retry");
    }

    #[test]
    fn released_reader_acknowledges_nothing_more() {
        let (done, mut acknowledged) = mpsc::unbounded_channel();
        let reader = StoreReader::new(done);
        reader.receive(record(1));
        reader.receive(record(2));
        let started = reader.next().unwrap().position;
        reader.release();
        assert_eq!(acknowledged.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        assert!(!reader.finish(started) && reader.next().is_none() && !reader.receive(record(3)));
    }
}
