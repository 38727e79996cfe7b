//! Space: bounded, reclaimed, and never while a reader uses it.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs;
use std::path::Path;

use sluicegate_wal::limits::{FIRST_SEGMENT_BYTES, SPACE_RETRY_MS};
use sluicegate_wal::{AppendError, Cursor, LogOptions, LogPosition, StreamId, WriteAheadLog};

const SEGMENT_BYTES: u64 = 16 << 10;
const LOG_BYTES_MAX: u64 = 4 * SEGMENT_BYTES;

fn options() -> LogOptions {
    LogOptions { segment_bytes: SEGMENT_BYTES as u32, log_bytes_max: LOG_BYTES_MAX, seed: 1, ..LogOptions::default() }
}

fn bytes_on_disk(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// Reads and acknowledges everything that is durable; returns the number of events.
fn consume(log: &mut WriteAheadLog, stream: StreamId, subscriber: &str) -> u64 {
    let found = log.cursors(stream).find(|(name, _)| *name == subscriber).map(|(_, mark)| mark.clone());
    let mut mark = found.unwrap();
    let mut count = 0;
    while let Some(record) = log.read(stream, mark.low()) {
        mark.complete(record.since..record.next);
        count += 1;
    }
    log.cursor(stream, subscriber, mark).unwrap();
    count
}

/// APP-07: a full log rejects events, loses nothing, and accepts events again when consumers are done; a
/// hundred times its size passes through it.
#[test]
fn full_log_accepts_events_after_consumers_finish() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    let (mut accepted, mut delivered, mut refused) = (0, 0, 0);
    while accepted < 100 * LOG_BYTES_MAX / 512 {
        match log.append(stream, 0, &[&[7; 512 - 40]]) {
            Ok(_) => accepted += 1,
            Err(AppendError::Full { limit, .. }) => {
                assert_eq!(limit, "log_bytes_max");
                refused += 1;
                log.flush_blocking().unwrap();
                delivered += consume(&mut log, stream, "x");
                log.flush_blocking().unwrap();
                assert!(log.reclaim().segments > 0);
                log.flush_blocking().unwrap();
            }
            Err(other) => panic!("{other}"),
        }
        assert!(bytes_on_disk(folder.path()) <= LOG_BYTES_MAX + 2 * SEGMENT_BYTES);
    }
    log.flush_blocking().unwrap();
    delivered += consume(&mut log, stream, "x");
    assert_eq!(delivered, accepted);
    assert!(refused > 50, "{refused}");
    assert_eq!(log.stat().streams["a"].pending, 0);
}

/// APP-07: events that a slow subscriber still needs are retained, and a full log still writes cursors:
/// otherwise it would stay full forever.
#[test]
fn full_log_still_writes_cursors() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    for subscriber in ["slow", "x"] {
        log.cursor(stream, subscriber, Cursor::at(log.end(stream))).unwrap();
    }
    let mut accepted = 0;
    while log.append(stream, 0, &[&[7; 200]]).is_ok() {
        accepted += 1;
    }
    for low in 0..3000 {
        log.cursor(stream, "x", Cursor::at(LogPosition::new(low))).unwrap();
        log.flush_blocking().unwrap();
        log.reclaim();
    }
    assert!(bytes_on_disk(folder.path()) <= LOG_BYTES_MAX + 3 * SEGMENT_BYTES);
    drop(log);
    let (mut log, recovery) = WriteAheadLog::open(folder.path(), options()).unwrap();
    assert_eq!((recovery.events, recovery.gaps.len()), (accepted, 0));
    let (_, mark) = log.cursors(stream).find(|(name, _)| *name == "x").unwrap();
    assert_eq!(mark.low(), LogPosition::new(2999));
    assert_eq!(consume(&mut log, stream, "slow"), accepted);
}

/// APP-07, EV-RTE-10: each event of a full log has a derived event, and is done only when that is stored.
/// They have space beyond the limit, the first segments are reclaimed, and in the end all are done.
#[test]
fn full_log_accepts_derived_events_and_drains() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    let mut asked = 0;
    while log.append(stream, 0, &[b"?", &[7; 512]]).is_ok() {
        asked += 1;
    }
    let mut mark = log.how_far(stream, "x").unwrap().clone();
    let mut answered = 0;
    log.flush_blocking().unwrap();
    while let Some(record) = log.read(stream, mark.low()) {
        if record.payload[0] == b'?' {
            let kept = log.append_onward(stream, 0, &[&[b"!", &[7; 500]]]);
            assert!(kept.is_ok(), "after {answered}: {}", kept.unwrap_err());
            answered += 1;
        }
        mark.complete(record.since..record.next);
        log.cursor(stream, "x", mark.clone()).unwrap();
        log.flush_blocking().unwrap();
        log.reclaim();
        assert!(bytes_on_disk(folder.path()) <= 2 * LOG_BYTES_MAX + 2 * SEGMENT_BYTES);
    }
    assert_eq!(answered, asked);
    log.append(stream, 0, &[b"there is space again"]).unwrap();
}

#[test]
fn stream_without_subscribers_retains_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let (lonely, gone) = (log.stream("lonely").unwrap(), log.stream("gone").unwrap());
    log.cursor(gone, "x", Cursor::at(log.end(gone))).unwrap();
    for nth in 0..60 {
        log.append(if nth % 2 == 0 { lonely } else { gone }, 0, &[&[7; 800]]).unwrap();
    }
    log.flush_blocking().unwrap();
    assert_eq!(log.reclaim().segments, 0);
    log.forget_stream("gone");
    assert!(log.reclaim().segments >= 3);
    log.flush_blocking().unwrap();
    assert_eq!(log.stat().segments, 1);
    drop(log);
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    assert_eq!(log.streams().collect::<Vec<_>>(), [(lonely, "lonely")]);
    assert!(log.stream("gone").unwrap() > gone);
}

#[test]
fn reader_bytes_survive_segment_reuse() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    log.append(stream, 0, &[b"held"]).unwrap();
    log.flush_blocking().unwrap();
    let held = log.read(stream, LogPosition::ORIGIN).unwrap().payload;
    for _ in 0..500 {
        log.append(stream, 0, &[&[9; 500]]).unwrap();
        log.flush_blocking().unwrap();
        consume(&mut log, stream, "x");
        log.flush_blocking().unwrap();
        log.reclaim();
    }
    assert_eq!(held, b"held"[..]);
    drop(log);
    assert_eq!(held, b"held"[..]);
}

#[test]
fn prepared_spare_is_used_and_full_log_prepares_none() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    assert!(log.prepare_spare().is_none(), "the first is far from full");
    while log.visible() < LogPosition::new(u64::from(options().segment_bytes / 4)) {
        log.append(stream, 0, &[&[7; 500]]).unwrap();
    }
    let job = log.prepare_spare().unwrap();
    assert!(log.prepare_spare().is_none(), "one is out");
    let spare = std::thread::spawn(|| job.run()).join().unwrap();
    log.spare_ready(spare);
    assert!(log.prepare_spare().is_none(), "one is ready");
    let files = fs::read_dir(folder.path()).unwrap().count();
    while log.stat().segments == 1 {
        log.append(stream, 0, &[&[7; 500]]).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), files, "the spare became the segment");
    while log.append(stream, 0, &[&[7; 500]]).is_ok() {}
    assert!(log.prepare_spare().is_none());
}

/// A full disk is tried for a spare once a second, and not at every flush.
#[test]
fn failed_spare_is_retried_after_delay() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    while log.visible() < LogPosition::new(u64::from(options().segment_bytes / 4)) {
        log.append(stream, 5_000, &[&[7; 500]]).unwrap();
    }
    assert!(log.prepare_spare().is_some());
    log.spare_ready(Err(std::io::ErrorKind::StorageFull.into()));
    assert!(log.prepare_spare().is_none(), "it has just failed");
    log.append(stream, 5_000 + SPACE_RETRY_MS, &[&[7; 500]]).unwrap();
    assert!(log.prepare_spare().is_some());
}

/// The first segment is small, so that a new log opens quickly; a record too large for it goes into the
/// next.
#[test]
fn new_log_with_small_segment_accepts_large_records() {
    let folder = tempfile::tempdir().unwrap();
    let options = || LogOptions { record_bytes_max: 9 << 20, ..LogOptions::default() };
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    assert_eq!(log.stat().bytes, u64::from(FIRST_SEGMENT_BYTES));
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    let large = vec![7; 9 << 20];
    let at = log.append(stream, 0, &[&large]).unwrap();
    assert_eq!(log.stat().bytes, u64::from(FIRST_SEGMENT_BYTES) + u64::from(options().segment_bytes));
    log.flush_blocking().unwrap();
    drop(log);
    let (log, found) = WriteAheadLog::open(folder.path(), options()).unwrap();
    assert_eq!((found.events, found.gaps.len(), found.torn_bytes), (1, 0, 0));
    assert!(log.read(stream, at).unwrap().payload == large, "another record");
}

/// Segments became smaller between two starts: a record that fits the last old segment but no new one is
/// rejected.
#[test]
fn record_must_fit_new_segment_size() {
    let folder = tempfile::tempdir().unwrap();
    let options = |segment_bytes| LogOptions { segment_bytes, log_bytes_max: 1 << 20, ..options() };
    let (mut log, _) = WriteAheadLog::open(folder.path(), options(256 << 10)).unwrap();
    log.stream("a").unwrap();
    log.flush_blocking().unwrap();
    drop(log);
    let (mut log, _) = WriteAheadLog::open(folder.path(), options(16 << 10)).unwrap();
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    let most = (16 << 10) / 2;
    let refused = log.append(stream, 0, &[&vec![7; most]]);
    assert!(matches!(refused, Err(AppendError::TooLarge { .. })), "{refused:?}");
    while log.append(stream, 0, &[&vec![7; most - 64]]).is_ok() {}
    log.flush_blocking().unwrap();
    assert!(log.stat().segments > 1);
}

/// A disk without space for a segment is a full log, and the log retries by itself.
#[test]
fn disk_without_space_makes_log_full_until_freed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    for number in [2, 3] {
        // An obstacle at the name of the next file has the same effect as a full disk.
        fs::create_dir(folder.path().join(format!("{number:010}.seg"))).unwrap();
    }
    while log.append(stream, 5000, &[&[7; 500]]).is_ok() {}
    for (at_ms, taken) in [(5999, false), (6000, false), (6999, false), (7000, true), (7001, true)] {
        match log.append(stream, at_ms, &[&[7; 500]]) {
            Ok(_) => assert!(taken, "at {at_ms}"),
            Err(AppendError::Full { limit, .. }) => assert!(!taken && limit.contains("disk"), "at {at_ms}"),
            Err(other) => panic!("{other}"),
        }
    }
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    log.flush_blocking().unwrap();
}

/// APP-07: one event that is retried again and again retains its own bytes, not those of all events
/// acknowledged after it; and it is still there after a restart.
#[test]
fn unfinished_event_retains_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let options = || LogOptions { segment_bytes: 64 << 10, log_bytes_max: 4 << 20, seed: 1, ..LogOptions::default() };
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    let mut mark = Cursor::at(log.end(stream));
    log.cursor(stream, "x", mark.clone()).unwrap();
    let mut stuck = None;
    for round in 0..40_u8 {
        for nth in 0..100 {
            let position = log.append(stream, 0, &[&[round], &[nth; 500]]).unwrap();
            stuck = stuck.or_else(|| (nth == 3).then_some(position));
        }
        log.flush_blocking().unwrap();
        let mut from = mark.next_open(mark.low());
        while let Some(record) = log.read(stream, from) {
            if Some(record.position) != stuck {
                mark.complete(record.since..record.next);
            }
            from = record.next;
        }
        log.cursor(stream, "x", mark.clone()).unwrap();
        log.flush_blocking().unwrap();
        log.reclaim();
        log.move_on();
        log.flush_blocking().unwrap();
    }
    let stat = log.stat();
    assert!(stat.live_bytes < 2000, "{}", stat.live_bytes);
    assert!(stat.segments <= 6, "{} segments of 40 rounds with 54 KB each", stat.segments);
    drop(log);

    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let stream = log.stream("a").unwrap();
    let kept = log.cursors(stream).next().unwrap().1.clone();
    let record = log.read(stream, kept.next_open(kept.low())).unwrap();
    assert_eq!((Some(record.position), record.payload[1]), (stuck, 3));
    assert!(log.read(stream, kept.next_open(record.next)).is_none(), "all others are done");
}
