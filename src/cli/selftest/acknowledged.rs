//! What a child has acknowledged, and so must be there after a power cut.

use std::time::Duration;

use anyhow::{Result, bail};
use wal::{LogPosition, WriteAheadLog};

use super::content::{STREAMS, SUBSCRIBER};

/// For a pattern: numbers below are streams.
const LAST: u64 = STREAMS.len() as u64;

/// What the log has acknowledged so far.
#[derive(Debug, Default)]
pub(super) struct AcknowledgedState {
    /// Batches below this were acknowledged.
    pub(super) acknowledged: u64,
    /// Batches below this may have been appended: the next child begins here.
    pub(super) next: u64,
    /// Everything below was reported durable. An acknowledgement may need several flushes, each of which
    /// relies on the one before.
    pub(super) durable: LogPosition,
    /// The durable position at the last acknowledgement.
    pub(super) acknowledged_at: LogPosition,
    /// Everything below was durable before the last acknowledged records were appended: damage in it can be
    /// distinguished from a torn write.
    pub(super) proven: LogPosition,
    /// For each stream: possible cursors, with the first batch that each leaves unread.
    pub(super) marks: [Vec<(LogPosition, u64)>; STREAMS.len()],
}

/// Results of one child.
#[derive(Debug, Default)]
pub(super) struct ChildRun {
    pub(super) flushes: Vec<Duration>,
    pub(super) bytes: u64,
    /// From its first line to its end, as far as it appended.
    pub(super) time: Duration,
    /// Acknowledged by this child.
    pub(super) batches: std::ops::Range<u64>,
}

impl AcknowledgedState {
    pub(super) fn record(&mut self, line: &str, work: &mut ChildRun) -> Result<()> {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        match (kind, &numbers[..]) {
            ("ack", [batch, durable, nanos, bytes]) => {
                self.proven = self.acknowledged_at;
                (self.acknowledged, self.durable) = (*batch, LogPosition::new(*durable));
                self.acknowledged_at = self.durable;
                work.batches.end = *batch;
                work.bytes += bytes;
                work.flushes.push(Duration::from_nanos(*nanos));
            }
            ("flushed", [durable]) => self.durable = LogPosition::new(*durable),
            ("mark", [stream @ 0..LAST, position, batch]) => {
                self.marks[*stream as usize].push((LogPosition::new(*position), *batch));
            }
            ("opening" | "open", []) => {}
            _ => bail!("a child said {line:?}"),
        }
        Ok(())
    }

    /// After a successful check: the recovered state, whose next batch is `end`, is the new reference.
    pub(super) fn settle(&mut self, log: &WriteAheadLog, end: u64) {
        self.durable = log.durable();
        self.acknowledged_at = self.durable;
        for (nth, name) in STREAMS.iter().enumerate() {
            let stream = log.streams().find(|(_, known)| known == name);
            let mark = stream.and_then(|(id, _)| log.how_far(id, SUBSCRIBER));
            // `None`: its declaration was never durable.
            self.marks[nth].retain(|(put, _)| mark.is_some_and(|mark| *put == mark.low()));
        }
        self.next = end;
        self.acknowledged = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An intermediate flush of an acknowledgement is durable anyway: no power cut takes it. But
    /// nothing was acknowledged after it yet, so damage in it may look like a torn write.
    #[test]
    fn intermediate_flush_is_durable_and_not_proven() {
        let (mut promise, mut work) = (AcknowledgedState::default(), ChildRun::default());
        let mut state_after = |line: &str| {
            promise.record(line, &mut work).unwrap();
            (promise.acknowledged, promise.durable.get(), promise.proven.get())
        };
        assert_eq!(state_after("ack 1 100 9 100"), (1, 100, 0));
        assert_eq!(state_after("flushed 150"), (1, 150, 0));
        assert_eq!(state_after("ack 2 200 9 100"), (2, 200, 100));
        assert_eq!(state_after("ack 3 300 9 100"), (3, 300, 200));
        assert!(promise.record("flushed", &mut work).is_err());
    }
}
