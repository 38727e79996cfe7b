//! An event loaded for delivery: read, checked and encoded once for all subscribers that get it at the same
//! time.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use codec::cloudevent::{CloudEventAttribute, ContentMode};
use codec::encode::{EncodedEvent, encode};
use codec::record::{CorruptRecord, EventRecord};
use wal::LogPosition;

use super::arrival::{CachedTimestamp, arrival};
use crate::limits::{FRESH_BYTES_MAX, FRESH_MAX};

/// One event from the log.
pub(super) struct LoadedEvent {
    pub(super) position: LogPosition,
    /// Where the stream continues after it.
    pub(super) next: LogPosition,
    pub(super) record: EventRecord,
    at_ms: u64,
    /// When a broker accepted it, if subscribers get that (X-BRK-05), in RFC 3339 format.
    arrived: OnceCell<Option<Rc<str>>>,
    /// In each mode, as far as it is the same for all: many subscribers may want the other one than the
    /// sender's.
    written: [OnceCell<EncodedEvent>; 2],
}

impl LoadedEvent {
    /// `arrives`: at a broker, whose subscribers and filters see the time of arrival.
    pub(super) fn of(read: wal::LogRecord, arrives: bool) -> Result<Self, CorruptRecord> {
        let wal::LogRecord { position, next, at_ms, payload, .. } = read;
        let record = EventRecord::decode(payload)?;
        let record = if arrives { record.arrived_at(at_ms) } else { record };
        Ok(Self { position, next, record, at_ms, arrived: OnceCell::new(), written: Default::default() })
    }

    /// Sets the time of arrival for subscribers.
    pub(super) fn set_arrival(&self, moment: &RefCell<CachedTimestamp>) {
        self.arrived.get_or_init(|| moment.borrow_mut().text(self.at_ms));
    }

    pub(super) fn arrival(&self) -> Option<CloudEventAttribute<'_>> {
        self.arrived.get()?.as_deref().map(arrival)
    }

    /// Bytes of the log that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.record.bytes()
    }

    /// Encoded as a request, without the parts that each attempt adds.
    pub(super) fn write(&self, mode: ContentMode) -> EncodedEvent {
        self.encoding(mode).get_or_init(|| encode(&self.record, mode, self.arrival().as_slice())).again()
    }

    /// Whether it is encoded in this mode already.
    pub(super) fn is_written(&self, mode: ContentMode) -> bool {
        self.encoding(mode).get().is_some()
    }

    fn encoding(&self, mode: ContentMode) -> &OnceCell<EncodedEvent> {
        let [binary, structured] = &self.written;
        match mode {
            ContentMode::Binary => binary,
            ContentMode::Structured => structured,
        }
    }
}

/// Recently matched events, in order: a subscriber that starts soon need not read them again. All of them
/// are released from time to time, because they hold the log's memory.
#[derive(Default)]
pub(super) struct RecentEvents {
    events: RefCell<VecDeque<Rc<LoadedEvent>>>,
    /// Total size of the events.
    bytes: Cell<usize>,
}

impl RecentEvents {
    pub(super) fn push(&self, loaded: LoadedEvent) {
        let mut events = self.events.borrow_mut();
        let mut bytes = self.bytes.get() + loaded.bytes();
        events.push_back(Rc::new(loaded));
        // The newest one stays, however large: its event is about to be delivered.
        while events.len() > FRESH_MAX || (bytes > FRESH_BYTES_MAX && events.len() > 1) {
            let Some(oldest) = events.pop_front() else { break };
            bytes -= oldest.bytes();
        }
        self.bytes.set(bytes);
    }

    pub(super) fn find(&self, position: LogPosition) -> Option<Rc<LoadedEvent>> {
        let events = self.events.borrow();
        let at = events.binary_search_by_key(&position, |loaded| loaded.position).ok()?;
        Some(Rc::clone(&events[at]))
    }

    pub(super) fn clear(&self) {
        self.events.take();
        self.bytes.set(0);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use codec::cloudevent::binary;
    use codec::record::encode_head;

    fn loaded(position: u64) -> LoadedEvent {
        of_bytes(position, 4)
    }

    fn of_bytes(position: u64, data_bytes: usize) -> LoadedEvent {
        let headers: [(&str, &[u8]); 5] = [
            ("ce-specversion", b"1.0"),
            ("ce-id", b"1"),
            ("ce-source", b"/s"),
            ("ce-type", b"t"),
            ("content-type", b"text/plain"),
        ];
        let data = vec![b'd'; data_bytes];
        let event = binary::parse(headers, &data).unwrap();
        let payload = Bytes::from([encode_head(&event, &[], 0), data.clone()].concat());
        let (position, next) = (LogPosition::new(position), LogPosition::new(position + 1));
        let (since, damaged, at_ms) = (position, 0, 1_700_000_000_000);
        LoadedEvent::of(wal::LogRecord { position, since, next, damaged, at_ms, payload }, false).unwrap()
    }

    /// EV-RTE-09, X-BRK-05: every subscriber, in every mode, gets the same event.
    #[test]
    fn every_subscriber_gets_same_encoding() {
        for (with_arrival, mode) in
            [(false, ContentMode::Binary), (true, ContentMode::Binary), (true, ContentMode::Structured)]
        {
            let loaded = loaded(7);
            if with_arrival {
                loaded.set_arrival(&RefCell::default());
            }
            let first = loaded.write(mode);
            assert_eq!(first, encode(&loaded.record, mode, loaded.arrival().as_slice()));
            let came = first.header("ce-knativearrivaltime").map(<[u8]>::to_vec);
            assert_eq!(came.is_some(), with_arrival && mode == ContentMode::Binary);
            let mut second = loaded.write(mode);
            assert_eq!(second, first);
            second.push("Prefer", b"reply");
            assert_eq!(loaded.write(mode), first, "what one attempt adds is not the next one's");
        }
    }

    #[test]
    fn recent_event_is_found_by_position_until_released() {
        let fresh = RecentEvents::default();
        [3, 5, 9].into_iter().for_each(|position| fresh.push(loaded(position)));
        for (position, is_there) in [(3, true), (4, false), (5, true), (9, true), (10, false)] {
            let found = fresh.find(LogPosition::new(position)).map(|loaded| loaded.position.get());
            assert_eq!(found, is_there.then_some(position));
        }
        fresh.clear();
        assert!(fresh.find(LogPosition::new(5)).is_none());
    }

    #[test]
    fn recent_events_are_bounded_and_newest_stays() {
        let (fresh, each) = (RecentEvents::default(), loaded(0).bytes());
        let count = || fresh.events.borrow().len();
        for position in 0..FRESH_MAX as u64 + 10 {
            fresh.push(loaded(position));
        }
        assert_eq!((count(), fresh.bytes.get()), (FRESH_MAX, FRESH_MAX * each));
        assert!(fresh.find(LogPosition::new(9)).is_none() && fresh.find(LogPosition::new(10)).is_some());
        fresh.push(of_bytes(1000, FRESH_BYTES_MAX));
        assert_eq!((count(), fresh.bytes.get() > FRESH_BYTES_MAX), (1, true));
        fresh.push(loaded(1001));
        assert_eq!((count(), fresh.bytes.get()), (1, each), "the large one went");
    }
}
