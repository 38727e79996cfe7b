//! Recognises events that a sender sends again: the identities (`source` and `id`, which CloudEvents makes unique) of the
//! events that a stream took within its deduplication window.
//!
//! A window lives beside the one log that takes all events of its stream, so that no other core has to be asked. It is
//! built again from that log when a core starts.

use std::cell::Cell;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use codec::cloudevent::CloudEvent;
use codec::record::EventRecord;
use foldhash::fast;
use hashbrown::{HashMap, HashSet};
use ring::{Ring, Tick};
use wal::{LogPosition, StreamId, WriteAheadLog};

use super::ingress::IncomingEvent;
use super::limits::{DEDUPLICATION_IDENTITIES_MAX, DEDUPLICATION_SCAN_BYTES_MAX};

/// A keyed hash of source and id. 128 bits, so that different events share one by accident only, and keyed, so that a
/// sender cannot make one that another sender's event will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct IdentityHash([u64; 2]);

/// Memory is returned when a window uses less than this part of it, so that a shrink is paid for by as many expiries.
const SHRINK_RATIO: usize = 8;

/// How many identities the windows of a core hold together.
pub(crate) type IdentityCount = Rc<Cell<usize>>;

/// The recent identities of one stream.
#[derive(Debug)]
pub(crate) struct DeduplicationWindow {
    window: Duration,
    /// With the end of each event in the log: a duplicate is acknowledged when the event is durable.
    ends: HashMap<IdentityHash, LogPosition, fast::RandomState>,
    /// The oldest first, with the moment from which on it is forgotten.
    expiries: VecDeque<(Tick, IdentityHash)>,
    keys: [RandomState; 2],
    count: IdentityCount,
    limit: LimitReport,
}

/// Whether the core's limit made a window forget identities too early. It is reported once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitReport {
    NotReached,
    Due,
    Done,
}

/// The events of a request, without those that the stream has.
pub(crate) struct NewEvents<'r, 'e> {
    pub(crate) events: Vec<&'r IncomingEvent<'e>>,
    identities: Vec<IdentityHash>,
    pub(crate) duplicates: u64,
    /// The end of the newest event that has a duplicate in the request.
    pub(crate) known_end: Option<LogPosition>,
}

impl DeduplicationWindow {
    pub(crate) fn new(window: Duration, count: &IdentityCount) -> Self {
        Self {
            window,
            ends: HashMap::default(),
            expiries: VecDeque::new(),
            keys: Default::default(),
            count: Rc::clone(count),
            limit: LimitReport::NotReached,
        }
    }

    /// Reads the identities of the stream's events that are younger than the window, the newest
    /// [`DEDUPLICATION_SCAN_BYTES_MAX`] of them: the log was read when it was opened, so they are in memory.
    pub(crate) fn read_log(&mut self, log: &WriteAheadLog, stream: StreamId, ring: &Ring, now_ms: u64) {
        let window_ms = u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX);
        let by_time = log.position_at_time(stream, now_ms.saturating_sub(window_ms));
        let from = log.position_by_size(stream, DEDUPLICATION_SCAN_BYTES_MAX).unwrap_or_default().max(by_time);
        for found in log.read_from(stream, from) {
            let left = self.window.saturating_sub(Duration::from_millis(now_ms.saturating_sub(found.at_ms)));
            let Ok(record) = EventRecord::decode(found.payload) else { continue }; // reported where it is delivered
            let (Some(source), Some(id)) = (record.attribute("source"), record.attribute("id")) else { continue };
            let identity = self.identity(source, id);
            self.insert(identity, found.next, ring.now() + left);
        }
    }

    /// The time that new identities are remembered for.
    pub(crate) fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    /// Sorts out duplicates: of earlier events, and within the request. Events from `inside` are replies and events that
    /// another stream forwards: they are all new, but remembered as well.
    pub(crate) fn select<'r, 'e>(
        &mut self,
        events: &'r [IncomingEvent<'e>],
        inside: bool,
        now: Tick,
    ) -> NewEvents<'r, 'e> {
        self.expire(now);
        let capacity = events.len();
        let (events_new, identities) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        let mut new = NewEvents { events: events_new, identities, duplicates: 0, known_end: None };
        let mut in_request = (capacity > 1 && !inside).then(HashSet::new); // nearly all requests have one event
        for entering in events {
            let identity = self.identity_of(&entering.event);
            let known = self.ends.get(&identity).copied().filter(|_| !inside);
            let is_repeated = in_request.as_mut().is_some_and(|earlier| !earlier.insert(identity));
            if known.is_some() || is_repeated {
                new.duplicates += 1;
                new.known_end = new.known_end.max(known);
            } else {
                new.events.push(entering);
                new.identities.push(identity);
            }
        }
        new
    }

    /// Remembers the events of a request that are in the log now, up to `end`.
    pub(crate) fn remember(&mut self, new: &NewEvents<'_, '_>, end: LogPosition, now: Tick) {
        let forgotten = now + self.window;
        new.identities.iter().for_each(|identity| self.insert(*identity, end, forgotten));
    }

    /// Whether the operator has to be told that the window is shorter than configured: once.
    pub(crate) fn must_report_limit(&mut self) -> bool {
        let is_due = self.limit == LimitReport::Due;
        if is_due {
            self.limit = LimitReport::Done;
        }
        is_due
    }

    fn insert(&mut self, identity: IdentityHash, end: LogPosition, forgotten: Tick) {
        if self.count.get() >= DEDUPLICATION_IDENTITIES_MAX {
            if self.limit == LimitReport::NotReached {
                self.limit = LimitReport::Due;
            }
            self.forget_oldest();
            if self.count.get() >= DEDUPLICATION_IDENTITIES_MAX {
                return; // the other windows of the core take all
            }
        }
        if self.ends.try_insert(identity, end).is_ok() {
            self.expiries.push_back((forgotten, identity));
            self.count.set(self.count.get() + 1);
        }
    }

    fn expire(&mut self, now: Tick) {
        while self.expiries.front().is_some_and(|(forgotten, _)| *forgotten <= now) {
            self.forget_oldest();
        }
        // The limit counts identities: memory of a burst must not stay behind with every stream.
        if self.expiries.capacity() / SHRINK_RATIO > self.expiries.len().max(SHRINK_RATIO) {
            self.expiries.shrink_to(self.expiries.len() * 2);
            self.ends.shrink_to(self.ends.len() * 2);
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, identity)) = self.expiries.pop_front() {
            self.ends.remove(&identity);
            self.count.set(self.count.get() - 1);
        }
    }

    fn identity_of(&self, event: &CloudEvent<'_>) -> IdentityHash {
        let value = |name| event.attributes.iter().find(|one| one.name == name).map_or("", |one| &*one.value);
        self.identity(value("source"), value("id"))
    }

    fn identity(&self, source: &str, id: &str) -> IdentityHash {
        IdentityHash(self.keys.each_ref().map(|key| key.hash_one((source, id))))
    }
}

impl Drop for DeduplicationWindow {
    fn drop(&mut self) {
        self.count.set(self.count.get() - self.expiries.len());
    }
}

#[cfg(test)]
mod tests {
    use codec::cloudevent::binary;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn event(source: &'static str, id: &'static str) -> IncomingEvent<'static> {
        let fields: [(&str, &[u8]); 4] =
            [("ce-specversion", b"1.0"), ("ce-type", b"t"), ("ce-source", source.as_bytes()), ("ce-id", id.as_bytes())];
        IncomingEvent { event: binary::parse(fields, b"").unwrap(), hops_left: 0 }
    }

    fn end(bytes: u64) -> LogPosition {
        LogPosition::new(bytes)
    }

    /// Takes a request in, as the engine does.
    fn take(window: &mut DeduplicationWindow, events: &[IncomingEvent<'_>], until: u64, now: Tick) -> (usize, u64) {
        let new = window.select(events, false, now);
        window.remember(&new, end(until), now);
        (new.events.len(), new.duplicates)
    }

    /// DP-ACK-13
    #[test]
    fn identity_is_source_and_id() {
        let mut window = DeduplicationWindow::new(WINDOW, &IdentityCount::default());
        let request = [event("/a", "1"), event("/b", "1"), event("/a", "12"), event("/a1", "2"), event("/a", "1")];
        assert_eq!(take(&mut window, &request, 10, Tick::ZERO), (4, 1));
        let again = window.select(&request, false, Tick::ZERO);
        assert_eq!((again.events.len(), again.duplicates, again.known_end), (0, 5, Some(end(10))));
    }

    #[test]
    fn identity_is_forgotten_after_the_window() {
        let (count, mut now) = (IdentityCount::default(), Tick::ZERO);
        let mut window = DeduplicationWindow::new(WINDOW, &count);
        for (seconds, new) in [(0, 1), (59, 0), (60, 1), (61, 0), (200, 1)] {
            now = Tick::ZERO + Duration::from_secs(seconds);
            assert_eq!(take(&mut window, &[event("/a", "1")], 10, now).0, new, "after {seconds} s");
        }
        assert_eq!(count.get(), 1, "at {now:?}");
        drop(window);
        assert_eq!(count.get(), 0);
    }

    #[test]
    fn events_from_inside_are_new_and_remembered() {
        let mut window = DeduplicationWindow::new(WINDOW, &IdentityCount::default());
        take(&mut window, &[event("/a", "1")], 10, Tick::ZERO);
        let reply = [event("/a", "1"), event("/reply", "1")];
        let new = window.select(&reply, true, Tick::ZERO);
        assert_eq!((new.events.len(), new.duplicates), (2, 0));
        window.remember(&new, end(20), Tick::ZERO);
        assert_eq!(take(&mut window, &reply, 30, Tick::ZERO), (0, 2));
    }

    #[test]
    fn full_core_forgets_the_oldest_identity() {
        let count = IdentityCount::default();
        let (mut window, mut other) =
            (DeduplicationWindow::new(WINDOW, &count), DeduplicationWindow::new(WINDOW, &count));
        take(&mut window, &[event("/a", "1"), event("/a", "2")], 10, Tick::ZERO);
        count.set(DEDUPLICATION_IDENTITIES_MAX);
        take(&mut window, &[event("/a", "3")], 20, Tick::ZERO);
        assert_eq!([window.must_report_limit(), window.must_report_limit()], [true, false]);
        assert_eq!(take(&mut window, &[event("/a", "2"), event("/a", "3")], 30, Tick::ZERO), (0, 2));
        take(&mut other, &[event("/a", "1")], 10, Tick::ZERO);
        assert_eq!(other.expiries.len(), 0, "it has none of its own to forget");
        count.set(2);
    }
}
