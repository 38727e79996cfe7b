//! Where a worker's events come from, and where it says which of them are done.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use wal::LogPosition;

use super::fanout::{FanoutMatcher, MatchQueue};
use super::store_reader::StoreReader;
use crate::feed::StreamFeed;
use crate::progress::SubscriberProgress;

/// The source of one subscriber's events.
pub(super) enum EventSource {
    Log(LogReader),
    /// An external store.
    Store(StoreReader),
}

/// A subscriber's reading of a log.
pub(super) struct LogReader {
    pub(super) progress: Rc<SubscriberProgress>,
    pub(super) feed: Rc<StreamFeed>,
    pub(super) fanout: Rc<FanoutMatcher>,
    /// The events matched for this subscriber.
    pub(super) queue: Rc<MatchQueue>,
    /// Number of matched events that the worker has processed. Counts while it has a match queue.
    pub(super) last_spec: Cell<u64>,
    /// The same for damaged ones.
    pub(super) damaged_count: Cell<u64>,
    /// Events of the feed that are counted as offered.
    pub(super) counted: Cell<u64>,
    /// Events below were in the log before the worker.
    pub(super) backlog_end: LogPosition,
    /// Positions read ahead, which a core may access.
    pub(super) warm: RefCell<Range<LogPosition>>,
    /// A readahead is in flight.
    pub(super) paging: Cell<bool>,
}
