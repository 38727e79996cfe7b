//! Seeks by time or position: what a replay needs.

use super::WriteAheadLog;
use super::read::LogRecord;
use crate::codec::decode;
use crate::index::IndexEntry;
use crate::position::{LogPosition, StreamId};

impl WriteAheadLog {
    /// Position from which to read everything of the stream that arrived at `at_ms` (milliseconds since
    /// 1970, the caller's clock) or later: the oldest such event, or the end when there is none.
    ///
    /// Later events in the log may be older where the clock stepped back; no earlier event is younger. An
    /// event that is not durable yet counts as young. Reads at most some 256 records, plus those of the
    /// stream that were compacted.
    #[must_use]
    pub fn position_at_time(&self, stream: StreamId, at_ms: u64) -> LogPosition {
        let Some(known) = self.ledger.streams.get(&stream.get()) else { return self.visible };
        let (mut native, moved) = known.index.since(at_ms);
        let is_young = |entry: &IndexEntry| self.time_of(*entry).is_none_or(|found| found >= at_ms);
        let native = native.find(is_young).map_or(self.visible, |entry| entry.origin);
        let moved = moved.filter(|entry| entry.origin < native).filter(is_young).map(|entry| entry.origin).min();
        moved.unwrap_or(native)
    }

    /// The stream's durable events at or after `from`, in order, the same as [`WriteAheadLog::read`]
    /// returns one by one; [`LogPosition::ORIGIN`] is the beginning. Ends at the durable position.
    pub fn read_from(&self, stream: StreamId, from: LogPosition) -> impl Iterator<Item = LogRecord> {
        let mut next = from;
        std::iter::from_fn(move || {
            let record = self.read(stream, next)?;
            next = record.next;
            Some(record)
        })
    }

    /// Number of events of the stream in `from..to`, readable or not, durable or not.
    #[must_use]
    pub fn count(&self, stream: StreamId, from: LogPosition, to: LogPosition) -> u64 {
        let Some(known) = self.ledger.streams.get(&stream.get()) else { return 0 };
        known.index.count_from(from).saturating_sub(known.index.count_from(to.max(from)))
    }

    /// The position from which the stream's events take `bytes_max` together, including headers, or
    /// slightly less; `None` when all of them take no more. Inside a segment the share is taken by count,
    /// not by size.
    #[must_use]
    pub fn position_by_size(&self, stream: StreamId, bytes_max: u64) -> Option<LogPosition> {
        self.ledger.streams.get(&stream.get())?.index.newest(bytes_max)
    }

    /// Bytes of records that the stream's subscribers still need, by the cursors that survive a crash.
    #[must_use]
    pub fn live_bytes_of(&self, stream: StreamId) -> u64 {
        let Some(known) = self.ledger.streams.get(&stream.get()) else { return 0 };
        known.done().map_or(0, |done| known.index.live_bytes(&done).map(|(_, bytes)| bytes).sum())
    }

    /// `None` when it cannot be read: not durable yet, or damaged.
    fn time_of(&self, entry: IndexEntry) -> Option<u64> {
        let position = entry.base + u64::from(entry.offset);
        if position >= self.durable.get() {
            return None;
        }
        let segment = self.segment(entry.base)?;
        let bytes = self.durable_bytes(segment)?;
        let found = decode(&bytes, entry.offset as usize, segment.header.salt, LogPosition::new(position))?;
        Some(found.head.at_ms)
    }
}
