//! Compaction: a dead subscriber retains its own events and not whole segments.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use sluicegate_wal::limits::MOVE_SLACK_SEGMENTS;
use sluicegate_wal::{Cursor, LogOptions, LogPosition, StreamId, WriteAheadLog};

const SEGMENT_BYTES: u64 = 256 << 10;
/// Segments beyond twice the live bytes: when compaction starts, and until it has an effect (the one being
/// compacted, its copies, its drop that is not durable yet).
const SLACK_SEGMENTS: u64 = MOVE_SLACK_SEGMENTS + 3;
const BUSY: usize = 100;
const ROUNDS: usize = 220;

fn open(folder: &Path) -> WriteAheadLog {
    let segment_bytes = SEGMENT_BYTES as u32;
    let options = LogOptions { segment_bytes, log_bytes_max: 80 * SEGMENT_BYTES, seed: 1, ..LogOptions::default() };
    let (log, recovery) = WriteAheadLog::open(folder, options).unwrap();
    assert_eq!(recovery.gaps, []);
    log
}

fn subscribe(log: &mut WriteAheadLog, name: &str) -> StreamId {
    let stream = log.stream(name).unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    stream
}

fn consume(log: &mut WriteAheadLog, stream: StreamId) -> Vec<(LogPosition, Vec<u8>)> {
    let mut mark = log.cursors(stream).next().unwrap().1.clone();
    let mut found = Vec::new();
    while let Some(record) = log.read(stream, mark.low()) {
        mark.complete(record.since..record.next);
        found.push((record.position, record.payload.to_vec()));
    }
    log.cursor(stream, "x", mark).unwrap();
    found
}

/// Same as the owner of a log: a flush, then a step.
fn turn(log: &mut WriteAheadLog) {
    log.flush_blocking().unwrap();
    log.move_on();
    log.reclaim();
    log.flush_blocking().unwrap();
}

fn bytes_on_disk(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// APP-07: one dead subscriber among a hundred busy streams retains twice its own events and a few
/// segments, through a restart in the middle; when it returns it gets every event in order.
#[test]
fn dead_subscriber_retains_at_most_twice_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path());
    let busy: Vec<StreamId> = (0..BUSY).map(|nth| subscribe(&mut log, &format!("busy-{nth}"))).collect();
    let dead = subscribe(&mut log, "dead");
    let (mut kept, mut written, mut moved) = (Vec::new(), 0, 0);
    for round in 0..ROUNDS {
        for nth in 0..250_usize {
            let payload = format!("{round} {nth} {}", "x".repeat(nth % 500)).into_bytes();
            let stream = if nth % 20 == 0 { dead } else { busy[(round + nth) % BUSY] };
            let position = log.append(stream, 0, &[&payload]).unwrap();
            written += payload.len() as u64 + 40;
            if stream == dead {
                kept.push((position, payload));
            }
        }
        log.flush_blocking().unwrap();
        for stream in &busy {
            consume(&mut log, *stream);
        }
        turn(&mut log);
        let (used, live) = (bytes_on_disk(folder.path()), log.stat().live_bytes);
        assert!(used <= 2 * live + SLACK_SEGMENTS * SEGMENT_BYTES, "round {round}: {used} for {live} alive");
        if round == ROUNDS / 2 {
            moved += log.stat().compacted_bytes;
            drop(log);
            log = open(folder.path());
        }
    }
    moved += log.stat().compacted_bytes;
    assert!(written > 30 * SEGMENT_BYTES && moved > 0, "{written} {moved}");
    assert!(moved < written, "moving at most doubles what is written: {moved} for {written}");
    assert!(log.stat().first_byte > kept[0].0, "the oldest events lie elsewhere by now");
    assert_eq!(log.stat().streams["dead"].pending, kept.len() as u64);

    drop(log);
    let mut log = open(folder.path());
    assert_eq!(consume(&mut log, dead), kept);
    for _ in 0..100 {
        turn(&mut log);
    }
    assert!(log.stat().segments <= 2, "{:?}", log.stat());
}

#[test]
fn fully_live_or_fully_consumed_log_is_not_compacted() {
    for keeps_up in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut log = open(folder.path());
        let stream = subscribe(&mut log, "a");
        for _ in 0..100 {
            for _ in 0..100 {
                log.append(stream, 0, &[&[7; 500]]).unwrap();
            }
            log.flush_blocking().unwrap();
            if keeps_up {
                consume(&mut log, stream);
            }
            turn(&mut log);
            assert!(!log.is_compacting());
        }
        assert_eq!(log.stat().compacted_bytes, 0);
    }
}

/// A full log compacts dead space before it rejects appends, even within its slack.
#[test]
fn full_log_gains_space_by_compaction() {
    let folder = tempfile::tempdir().unwrap();
    let segment_bytes = 16 << 10;
    let options = || LogOptions { segment_bytes, log_bytes_max: 4 * 16384, seed: 1, ..LogOptions::default() };
    let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
    let (dead, busy) = (subscribe(&mut log, "dead"), subscribe(&mut log, "busy"));
    let mut kept = Vec::new();
    for nth in 0..2000_u32 {
        let payload = [&nth.to_le_bytes()[..], &[7; 200]].concat();
        let stream = if nth % 20 == 0 { dead } else { busy };
        let mut tries = 0;
        let position = loop {
            match log.append(stream, 0, &[&payload]) {
                Ok(position) => break position,
                Err(why) => assert!(tries < 30, "event {nth}: {why}: {:?}", log.stat()),
            }
            tries += 1;
            log.flush_blocking().unwrap();
            consume(&mut log, busy);
            turn(&mut log);
        };
        if stream == dead {
            kept.push((position, payload));
        }
    }
    log.flush_blocking().unwrap();
    drop(log);
    let (mut log, recovery) = WriteAheadLog::open(folder.path(), options()).unwrap();
    assert_eq!(recovery.gaps, []);
    assert_eq!(consume(&mut log, dead), kept);
}

/// A record that cannot be read is neither compacted nor deleted.
#[test]
fn segment_with_damaged_live_record_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path());
    let (dead, busy) = (subscribe(&mut log, "dead"), subscribe(&mut log, "busy"));
    let victim = log.append(dead, 0, &[b"victim"]).unwrap();
    log.flush_blocking().unwrap();
    let file = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = file.filter(|path| path.extension().is_some()).min().unwrap();
    let disk = OpenOptions::new().write(true).open(&file).unwrap();
    disk.write_all_at(b"V", victim.get() + 40).unwrap();
    for _ in 0..150 {
        for _ in 0..50 {
            log.append(busy, 0, &[&[7; 500]]).unwrap();
        }
        log.append(dead, 0, &[b"fine"]).unwrap();
        log.flush_blocking().unwrap();
        consume(&mut log, busy);
        turn(&mut log);
    }
    let damage = log.take_damage();
    assert_eq!(damage.len(), 1);
    assert_eq!((damage[0].position, damage[0].stream, &damage[0].file), (victim, dead, &file));
    assert!(file.exists());
    assert_eq!(log.stat().damaged, 1);
    let found = consume(&mut log, dead);
    assert_eq!(found.len(), 150);
    assert!(found.iter().all(|(_, payload)| payload == b"fine"));
    assert_eq!(log.take_damage().len(), 0, "each damage is reported once");
}
