//! Where the responses to the stored requests of a log are: by id, for clients that ask for a result. `S` is a stream's id.
//!
//! Filled as records are appended, and from the log at a start. It has a bounded number of requests, the newest.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::Hash;

use codec::record::EventRecord;
use codec::stored_request::{self, RequestId};
use foldhash::fast::RandomState;
use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use wal::LogPosition;

use super::limits::REQUESTS_INDEXED_MAX;

/// A stored request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexedRequest<S> {
    pub(super) stream: S,
    /// The newest, if there is one.
    pub(super) response: Option<LogPosition>,
}

#[derive(Debug)]
pub(super) struct RequestIndex<S> {
    requests: RefCell<HashMap<RequestId, IndexedRequest<S>, RandomState>>,
    /// The ids in the order in which they came.
    order: RefCell<VecDeque<RequestId>>,
    /// Streams whose records were read, or are being read.
    scanned: RefCell<HashSet<S, RandomState>>,
    scans: Cell<u32>,
}

impl<S> Default for RequestIndex<S> {
    fn default() -> Self {
        Self {
            requests: RefCell::default(),
            order: RefCell::default(),
            scanned: RefCell::default(),
            scans: Cell::new(0),
        }
    }
}

impl<S: Copy + Eq + Hash> RequestIndex<S> {
    /// Records of an earlier process are being read: what is not here may exist.
    pub(super) fn is_incomplete(&self) -> bool {
        self.scans.get() > 0
    }

    /// The stream's earlier records are about to be read. `false`: they were before.
    pub(super) fn begin_scan(&self, stream: S) -> bool {
        let is_first = self.scanned.borrow_mut().insert(stream);
        self.scans.set(self.scans.get() + u32::from(is_first));
        is_first
    }

    pub(super) fn end_scan(&self) {
        self.scans.set(self.scans.get() - 1);
    }

    pub(super) fn get(&self, stream: S, id: RequestId) -> Option<IndexedRequest<S>> {
        self.requests.borrow().get(&id).filter(|found| found.stream == stream).copied()
    }

    /// A request or a response was appended. A response is never replaced by nothing.
    pub(super) fn note(&self, stream: S, id: RequestId, response: Option<LogPosition>) {
        match self.requests.borrow_mut().entry(id) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.response = response.max(known.response);
                return;
            }
            Entry::Vacant(free) => free.insert(IndexedRequest { stream, response }),
        };
        let mut order = self.order.borrow_mut();
        order.push_back(id);
        if order.len() > REQUESTS_INDEXED_MAX
            && let Some(oldest) = order.pop_front()
        {
            self.requests.borrow_mut().remove(&oldest);
        }
    }

    pub(super) fn note_record(&self, stream: S, position: LogPosition, record: &EventRecord) {
        if let Some(id) = stored_request::id(record) {
            self.note(stream, id, stored_request::is_response(record).then_some(position));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_response_is_found_in_its_stream_only() {
        let index = RequestIndex::default();
        let (id, stream) = (RequestId::of_bits(1), 7_u32);
        index.note(stream, id, None);
        assert_eq!(index.get(stream, id), Some(IndexedRequest { stream, response: None }));
        index.note(stream, id, Some(LogPosition::new(20)));
        for other in [None, Some(LogPosition::new(10))] {
            index.note(stream, id, other);
            assert_eq!(index.get(stream, id).unwrap().response, Some(LogPosition::new(20)));
        }
        assert_eq!(index.get(8, id), None);
    }

    #[test]
    fn oldest_request_leaves_a_full_index() {
        let (index, stream) = (RequestIndex::default(), 7_u32);
        let id = |nth: usize| RequestId::of_bits(nth as u128);
        (0..REQUESTS_INDEXED_MAX + 2).for_each(|nth| index.note(stream, id(nth), None));
        assert!(index.get(stream, id(1)).is_none() && index.get(stream, id(2)).is_some());
        assert_eq!(index.requests.borrow().len(), REQUESTS_INDEXED_MAX);
    }
}
