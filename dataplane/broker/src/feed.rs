//! A stream of a log, as used by its writers and readers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ring::Notify;
use wal::{LogPosition, StreamId};

use contract::table::EventStream;

use super::deduplication::DeduplicationWindow;

/// A stream as its readers see it.
#[derive(Debug)]
pub struct StreamFeed {
    pub id: StreamId,
    /// Events appended since the process began.
    pub(super) appended: Cell<u64>,
    /// The end of the newest event.
    pub(super) appended_end: Cell<LogPosition>,
    /// In the log writer's list of feeds with events that are not durable.
    pub(super) touched: Cell<bool>,
    /// Notified of new durable events: the fan-out matcher, while there are subscribers.
    readers: RefCell<Vec<Rc<Notify>>>,
    /// The stream in the newest table.
    pub(super) stream: RefCell<Option<Arc<EventStream>>>,
    /// Bytes that count against its quota.
    kept_bytes: Cell<u64>,
    /// The identities of recent events, if the stream has a deduplication window.
    pub(super) recent: RefCell<Option<Box<DeduplicationWindow>>>, // boxed: few streams have one
}

impl StreamFeed {
    pub(super) fn of(id: StreamId) -> Self {
        Self {
            id,
            appended: Cell::new(0),
            appended_end: Cell::new(LogPosition::ORIGIN),
            touched: Cell::new(false),
            readers: RefCell::default(),
            stream: RefCell::default(),
            kept_bytes: Cell::new(0),
            recent: RefCell::default(),
        }
    }

    #[must_use]
    pub fn appended(&self) -> u64 {
        self.appended.get()
    }

    /// Takes the stream from a newer table; the retained bytes count against its quota.
    pub(super) fn follow(&self, stream: &Arc<EventStream>) {
        let kept = self.kept_bytes();
        self.account(0);
        self.stream.replace(Some(Arc::clone(stream)));
        self.account(kept);
    }

    /// Bytes of the stream that this log retains for its subscribers.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.get()
    }

    pub(super) fn account(&self, now: u64) {
        let Some(stream) = &*self.stream.borrow() else { return };
        let before = self.kept_bytes.replace(now);
        if before != now {
            stream.tally.kept_bytes.fetch_add(now.wrapping_sub(before), Relaxed); // wraps to a subtraction
            stream.quota.account(before, now);
        }
    }

    pub(super) fn subscribe(&self, reader: &Rc<Notify>) {
        self.readers.borrow_mut().push(Rc::clone(reader));
    }

    pub(super) fn unsubscribe(&self, reader: &Rc<Notify>) {
        self.readers.borrow_mut().retain(|other| !Rc::ptr_eq(other, reader));
    }

    pub(super) fn notify(&self) {
        for reader in &*self.readers.borrow() {
            reader.ring();
        }
    }
}
