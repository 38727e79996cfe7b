//! Compares a recovered log with the promises: a pure function.

use std::collections::BTreeMap;

use wal::{LogGap, LogPosition, StreamId, WriteAheadLog};

use super::acknowledged::AcknowledgedState;
use super::content::{STREAMS, SUBSCRIBER, batch_of, batch_records, next_of_stream, read, stream_of};
use super::damage::BitFlip;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    /// Acknowledged records that were lost.
    pub(super) lost: u64,
    pub(super) what: String,
}

impl Violation {
    fn new(lost: u64, what: String) -> Self {
        Self { lost, what }
    }

    /// Recovery reports that acknowledged bytes are gone; the comparison tells which records they were.
    pub(super) fn gap(gap: &LogGap) -> Self {
        Self::new(0, format!("recovery found a gap, positions {} to {}: {gap}", gap.from, gap.to))
    }

    pub(super) fn passed_over(flips: &[BitFlip], who: &str) -> Self {
        let flipped: Vec<String> = flips.iter().map(BitFlip::to_string).collect();
        Self::new(0, format!("{who} did not see {}", flipped.join(", ")))
    }
}

/// By batch: how many of its records exist. Only those at or after the stream's cursor.
type BatchCounts = BTreeMap<u64, u32>;

/// The number after the last batch in the log.
pub(super) fn end(log: &WriteAheadLog) -> u64 {
    log.streams().filter_map(|(_, name)| log_end(log, name)).max().unwrap_or(0)
}

fn log_end(log: &WriteAheadLog, name: &str) -> Option<u64> {
    let (stream, _) = log.streams().find(|(_, known)| *known == name)?;
    let mark = log.how_far(stream, SUBSCRIBER)?.low();
    let mut last = None;
    walk(log, stream, mark, |payload| last = batch_of(payload));
    last.map(|batch| batch + 1)
}

/// The broken parts of the promise.
pub(super) fn against(log: &WriteAheadLog, seed: u64, promise: &AcknowledgedState) -> Vec<Violation> {
    let mut violations = Vec::new();
    let end = end(log).max(promise.acknowledged);
    for (nth, name) in STREAMS.iter().enumerate() {
        let Some((stream, _)) = log.streams().find(|(_, known)| known == name) else {
            if promise.acknowledged > 0 {
                violations.push(Violation::new(promise.acknowledged, format!("stream {name} is missing")));
            }
            continue;
        };
        let Some(mark) = log.how_far(stream, SUBSCRIBER) else {
            if promise.acknowledged > 0 {
                violations.push(Violation::new(0, format!("the cursor of {name} is missing")));
            }
            continue;
        };
        let Some((_, first)) = promise.marks[nth].iter().find(|(put, _)| *put == mark.low()) else {
            let what = format!("the cursor of {name} is at {}, where it was never set", mark.low());
            violations.push(Violation::new(0, what));
            continue;
        };
        let mut found = BatchCounts::new();
        violations.extend(take(log, stream, mark.low(), seed, nth, &mut found));
        compare(seed, *first..end, promise.acknowledged, &found, &mut violations);
    }
    violations
}

/// Reads a stream's records; foreign or unordered ones are violations.
fn take(
    log: &WriteAheadLog,
    stream: StreamId,
    from: LogPosition,
    seed: u64,
    nth: usize,
    found: &mut BatchCounts,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut last = None;
    walk(log, stream, from, |payload| match read(seed, payload) {
        Some(label) if stream_of(label.0) == nth && last < Some(label) => {
            *found.entry(label.0).or_default() += 1;
            last = Some(label);
        }
        Some(label) => violations.push(Violation::new(0, format!("{label:?} after {last:?}: out of order"))),
        None => violations.push(Violation::new(0, format!("a record that was never appended, after {last:?}"))),
    });
    violations
}

/// Every batch of the stream in the range must be complete, and there must be nothing else.
fn compare(
    seed: u64,
    wanted: std::ops::Range<u64>,
    acknowledged: u64,
    found: &BatchCounts,
    violations: &mut Vec<Violation>,
) {
    let mut batch = wanted.start;
    while batch < wanted.end {
        let (all, there) = (batch_records(seed, batch), found.get(&batch).copied().unwrap_or(0));
        if there != all {
            let is_promised = batch < acknowledged;
            let what = if is_promised { "acknowledged" } else { "not acknowledged, but later ones exist" };
            let lost = if is_promised { u64::from(all - there.min(all)) } else { 0 };
            violations.push(Violation::new(lost, format!("batch {batch}: {there} of {all} records; {what}")));
        }
        batch = next_of_stream(batch);
    }
    if let Some((early, _)) = found.range(..wanted.start).next() {
        violations.push(Violation::new(0, format!("batch {early} is returned again after its cursor")));
    }
}

/// Records that were never appended, in the rest of a damaged log.
pub(super) fn invented(log: &WriteAheadLog, seed: u64) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (stream, name) in log.streams() {
        walk(log, stream, LogPosition::ORIGIN, |payload| {
            if read(seed, payload).is_none() {
                violations.push(Violation::new(0, format!("{name} shows a record that was never appended")));
            }
        });
    }
    violations
}

fn walk(log: &WriteAheadLog, stream: StreamId, from: LogPosition, mut each: impl FnMut(&[u8])) {
    let mut from = from;
    while let Some(record) = log.read(stream, from) {
        each(&record.payload);
        from = record.next;
    }
}

#[cfg(test)]
mod tests {
    use wal::Cursor;

    use super::super::content::record;
    use super::super::options;
    use super::*;

    const SEED: u64 = 5;
    const BATCHES: u64 = 30;

    /// Appends complete batches but omits `without`; the cursors are before all of it.
    fn filled(without: Option<u64>) -> (tempfile::TempDir, WriteAheadLog, AcknowledgedState) {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, _) = WriteAheadLog::open(folder.path(), options(SEED)).unwrap();
        let mut promise = AcknowledgedState { acknowledged: BATCHES, ..AcknowledgedState::default() };
        for (nth, name) in STREAMS.iter().enumerate() {
            let stream = log.stream(name).unwrap();
            log.cursor(stream, SUBSCRIBER, Cursor::at(LogPosition::ORIGIN)).unwrap();
            promise.marks[nth].push((LogPosition::ORIGIN, nth as u64));
        }
        for batch in (0..BATCHES).filter(|batch| Some(*batch) != without) {
            let stream = log.stream(STREAMS[stream_of(batch)]).unwrap();
            for nth in 0..batch_records(SEED, batch) {
                log.append(stream, 0, &[&record(SEED, batch, nth)]).unwrap();
            }
        }
        log.flush_blocking().unwrap();
        (folder, log, promise)
    }

    #[test]
    fn kept_promise_has_no_violation() {
        let (_folder, log, promise) = filled(None);
        assert_eq!((against(&log, SEED, &promise), end(&log)), (Vec::new(), BATCHES));
    }

    #[test]
    fn every_kind_of_violation_is_found() {
        let (_folder, log, promise) = filled(Some(13));
        let broken = against(&log, SEED, &promise);
        assert_eq!((broken.len(), broken[0].lost), (1, u64::from(batch_records(SEED, 13))), "{broken:?}");

        let (_folder, log, mut promise) = filled(None);
        promise.acknowledged = BATCHES + 2;
        let lost: u64 = against(&log, SEED, &promise).iter().map(|broken| broken.lost).sum();
        assert_eq!(lost, u64::from(batch_records(SEED, BATCHES) + batch_records(SEED, BATCHES + 1)));
        assert!(!against(&log, SEED + 1, &promise).is_empty(), "records of another writer");
        assert!(!invented(&log, SEED + 1).is_empty() && invented(&log, SEED).is_empty());

        promise.marks[1].clear();
        let broken = against(&log, SEED, &promise);
        assert!(broken.iter().any(|one| one.what.contains("where it was never set")), "{broken:?}");
    }
}
