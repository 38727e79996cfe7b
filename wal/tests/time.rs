//! Seeks by time or position, across restarts and compaction.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::path::Path;

use sluicegate_wal::{Cursor, LogOptions, LogPosition, ReadaheadWindow, StreamId, WriteAheadLog};

fn open(folder: &Path) -> WriteAheadLog {
    let options = LogOptions { segment_bytes: 16 << 10, log_bytes_max: 2 << 20, seed: 1, ..LogOptions::default() };
    WriteAheadLog::open(folder, options).unwrap().0
}

/// Compares every time with the oldest event at or after it, found by a full scan.
fn check(log: &WriteAheadLog, stream: StreamId) {
    let all: Vec<_> = log.read_from(stream, LogPosition::ORIGIN).collect();
    for at_ms in 0..1300 {
        let oldest = all.iter().find(|record| record.at_ms >= at_ms).map(|record| record.position);
        assert_eq!(log.position_at_time(stream, at_ms), oldest.unwrap_or(log.visible()), "at {at_ms}");
    }
}

/// APP-05: a replay from a time begins at the first event of that time, also where the clock stepped back
/// or stood still, after a restart, and when the events were compacted.
#[test]
fn position_at_time_is_first_event_of_that_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path());
    let (stream_id, busy) = (log.stream("ours").unwrap(), log.stream("busy").unwrap());
    log.cursor(stream_id, "dead", Cursor::at(log.end(stream_id))).unwrap();
    log.cursor(busy, "awake", Cursor::at(log.end(busy))).unwrap();
    for nth in 0..900_u64 {
        let at_ms = if (300..350).contains(&nth) { nth - 200 } else { nth / 3 * 4 };
        log.append(stream_id, at_ms, &[b"event"]).unwrap();
        log.append(busy, at_ms, &[&[7; 300]]).unwrap();
        if nth % 50 == 0 {
            log.flush_blocking().unwrap();
        }
    }
    log.flush_blocking().unwrap();
    check(&log, stream_id);
    check(&log, busy);
    drop(log);
    let mut log = open(folder.path());
    check(&log, stream_id);

    for round in 0.. {
        assert!(round < 1000, "nothing is moved");
        if log.stat().compacted_bytes > 0 && !log.is_compacting() {
            break;
        }
        log.append(busy, 2000, &[&[7; 300]]).unwrap();
        log.cursor(busy, "awake", Cursor::at(log.visible())).unwrap();
        log.flush_blocking().unwrap();
        log.reclaim();
        log.move_on();
    }
    assert_eq!(log.read_from(stream_id, LogPosition::ORIGIN).count(), 900);
    check(&log, stream_id);
    drop(log);
    check(&open(folder.path()), stream_id);
}

/// What is not durable yet cannot be read, and must not be skipped either.
#[test]
fn undurable_event_counts_as_young() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path());
    let stream = log.stream("a").unwrap();
    log.append(stream, 10, &[b"durable"]).unwrap();
    log.flush_blocking().unwrap();
    let staged = log.append(stream, 20, &[b"staged"]).unwrap();
    assert_eq!(log.position_at_time(stream, 15), staged);
    assert_eq!(log.read_from(stream, staged).count(), 0);
    log.flush_blocking().unwrap();
    assert_eq!(log.position_at_time(stream, 15), staged);
    assert_eq!(log.position_at_time(stream, 21), log.visible());
}

#[test]
fn events_between_positions_are_counted_by_index() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path());
    let stream = log.stream("a").unwrap();
    let all: Vec<_> = (0..500_u64).map(|at| log.append(stream, at, &[b"event"]).unwrap()).collect();
    log.flush_blocking().unwrap();
    assert_eq!(log.count(stream, all[3], all[450]), 447);
    assert_eq!(log.count(stream, all[450], all[3]), 0);
    assert_eq!(log.count(stream, LogPosition::ORIGIN, log.visible()), 500);
}

/// APP-07: the index alone gives the newest events of a number of bytes, and what subscribers need of a
/// stream.
#[test]
fn stream_size_is_known_by_newest_and_live_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path());
    let (stream, other) = (log.stream("a").unwrap(), log.stream("b").unwrap());
    let record = 40 + 120;
    let mut all = Vec::new();
    for at in 0..500_u64 {
        all.push(log.append(stream, at, &[&[1; 120]]).unwrap());
        log.append(other, at, &[&[2; 300]]).unwrap();
    }
    log.flush_blocking().unwrap();
    assert_eq!(log.position_by_size(stream, 500 * record), None);
    for kept in [1, 77, 250, 499] {
        let from = log.position_by_size(stream, kept * record + 8).unwrap();
        assert_eq!(log.count(stream, from, log.visible()), kept);
    }
    assert_eq!(log.live_bytes_of(stream), 0, "no subscriber needs it");
    log.cursor(stream, "x", Cursor::at(all[100])).unwrap();
    assert_eq!(log.live_bytes_of(stream), 400 * record);
}

/// A reader that asks first gets one request for each window that may need the disk, and none for recent
/// data.
#[test]
fn cold_backlog_is_read_ahead_by_window() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path());
    let stream = log.stream("a").unwrap();
    for at in 0..500_u64 {
        log.append(stream, at, &[&[1; 200]]).unwrap();
    }
    log.flush_blocking().unwrap();
    let ahead = ReadaheadWindow { recent_bytes: 40 << 10, window_bytes: 4 << 10, record_bytes: 1 << 10 };
    let cold = log.durable().get() - (40 << 10);
    let (mut warm, mut windows, mut from) = (LogPosition::ORIGIN..LogPosition::ORIGIN, 0, LogPosition::ORIGIN);
    while let Some(record) = log.read(stream, from) {
        if let Some(job) = log.page_in(stream, from, &warm, ahead) {
            job.run();
            warm = job.ranges();
            windows += 1;
        }
        let is_recent = record.position.get() >= cold;
        assert!(warm.contains(&record.position) || is_recent, "{}", record.position);
        from = record.next;
    }
    assert!((cold / (4 << 10)..cold / (3 << 10)).contains(&windows), "{windows} for {cold} bytes");
}
