//! Fault simulation: a disk loses power in the middle of a flush, thousands of times from seeds.
//!
//! The disk keeps any part of the write that was in flight: nothing, all, a prefix of any length, or any
//! subset of its 512-byte sectors; and a deleted file may come back. A model records what was appended and
//! what was reported durable, and compares after each recovery.
//!
//! `SLUICEGATE_SEED=81723 cargo test -p sluicegate-wal --test power_cut` replays one case of each test,
//! `SLUICEGATE_SEEDS=100000` runs more of them, starting at the given one if both are set.

#![allow(clippy::unwrap_used)] // a panic is this test's way to fail

mod disk;
mod lost_flushes;
mod lost_segments;
mod model;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use disk::{DeletedFiles, cut_between, cut_power_during, files};
use fastrand::Rng;
use model::{Coverage, LogModel, ModelEvent};
use sluicegate_wal::{
    AppendError, Cursor, Flush, FlushUrgency, LogOptions, LogPosition, SpareSegment, StreamId, WriteAheadLog, inspect,
};
use tempfile::TempDir;

/// Seeds of each test by default.
const SEEDS: u64 = 1000;
const CRASHES_PER_CASE: usize = 4;
/// Consecutive crashes of a recovery before one completes.
const CUT_RECOVERIES_MAX: usize = 3;
const STREAMS: [&str; 3] = ["a", "b", "c"];
const SUBSCRIBERS: [&str; 2] = ["x", "y"];

/// EV-RTE-02, APP-05, APP-06: whatever a power cut leaves of a flush, or of a recovery, everything reported
/// durable is there, in order; nothing torn is shown; batches are complete or absent; cursors never run
/// ahead. No crash makes a segment look lost, and a segment that is lost later is reported.
#[test]
fn power_cut_loses_no_acknowledged_event() {
    let (seeds, seen) = each_seed(run);
    if seeds >= SEEDS {
        // A run without these cases proves nothing.
        assert!(seen.torn > 0 && seen.torn_batches > 0 && seen.leftovers > 0, "{seen:?}");
        assert!(seen.unacknowledged_kept > 0 && seen.reclaimed > 0 && seen.full > 0, "{seen:?}");
        assert!(seen.moved > 0 && seen.cut_while_moving > 0 && seen.moved_found > 0, "{seen:?}");
        assert!(seen.cut_recoveries > 0, "{seen:?}");
        assert!(seen.cut_states > 0 && seen.destroyed > 0, "{seen:?}");
    }
}

/// An interrupted recovery left a record header of two halves, which looked like a proof of a lost segment
/// header.
#[test]
fn half_header_of_torn_first_flush_is_no_gap() {
    run(59_268, &mut Coverage::default());
}

/// Runs a case for every requested seed; a failure prints how to replay it.
fn each_seed(case: impl Fn(u64, &mut Coverage) + std::panic::RefUnwindSafe) -> (u64, Coverage) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = number("SLUICEGATE_SEED");
    let usual = if first.is_some() { 1 } else { SEEDS };
    let seeds = number("SLUICEGATE_SEEDS").unwrap_or(usual);
    let mut seen = Coverage::default();
    for seed in (first.unwrap_or(0)..).take(seeds as usize) {
        let outcome = std::panic::catch_unwind(|| {
            let mut seen = Coverage::default();
            case(seed, &mut seen);
            seen
        });
        match outcome {
            Ok(more) => seen.add(&more),
            Err(cause) => {
                eprintln!("replay with SLUICEGATE_SEED={seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    println!("{seeds} seeds: {seen:?}");
    (seeds, seen)
}

/// A folder in memory if possible: the power cut is simulated, and a real disk would only be slower.
fn memory_folder() -> TempDir {
    let memory_folder = Path::new("/dev/shm");
    if memory_folder.is_dir() { tempfile::tempdir_in(memory_folder) } else { tempfile::tempdir() }.unwrap()
}

fn run(seed: u64, seen: &mut Coverage) {
    let mut rng = Rng::with_seed(seed);
    let folder = memory_folder();
    let (home, names) = (folder.path().join("log"), folder.path().join("attic"));
    fs::create_dir(&names).unwrap();
    let deleted_files = DeletedFiles { home: home.clone(), names };

    let mut model = LogModel::default();
    for _ in 0..CRASHES_PER_CASE {
        let (mut log, recovery) = WriteAheadLog::open(&home, options(seed)).unwrap();
        assert_eq!(recovery.gaps, []);
        seen.torn += u64::from(recovery.torn_bytes > 0);
        seen.torn_batches += u64::from(recovery.torn_batch_records > 0);
        seen.leftovers += recovery.leftovers as u64;
        model.compare(&log, seen);
        let streams = settle_in(&mut log, &mut model);
        live(&mut log, &mut model, &streams, &deleted_files, &mut rng, seen);
        seen.moved += log.stat().compacted_bytes;
        seen.cut_while_moving += u64::from(log.is_compacting());
        drop(log);
        deleted_files.resurrect(&mut rng);
        assert_eq!(inspect(&home, &mut |_, _| {}).unwrap().gaps, []);
        if rng.bool() {
            lost_segments::destroy_newest(&home, model.acknowledged_end, seed, &mut Rng::with_seed(seed), seen);
        }
        seen.cut_recoveries += cut_recoveries(&home, seed, &mut rng);
    }
    let (log, recovery) = WriteAheadLog::open(&home, options(seed)).unwrap();
    assert_eq!(recovery.gaps, []);
    model.compare(&log, seen);
    drop(log);
    let (log, again) = WriteAheadLog::open(&home, options(seed)).unwrap();
    assert_eq!((again.torn_bytes, again.leftovers, again.events), (0, 0, recovery.events));
    model.compare(&log, seen);
    seen.events += recovery.events;
}

/// Recoveries that are interrupted themselves: all or part of what they wrote is there.
fn cut_recoveries(home: &Path, seed: u64, rng: &mut Rng) -> u64 {
    let mut cut = 0;
    let cuts = if rng.u8(0..3) == 0 { rng.usize(1..=CUT_RECOVERIES_MAX) } else { 0 };
    for _ in 0..cuts {
        let before = files(home);
        let (log, recovery) = WriteAheadLog::open(home, options(seed)).unwrap();
        assert_eq!(recovery.gaps, []);
        drop(log);
        let after = files(home);
        cut_between(home, &before, &after, rng);
        cut += u64::from(before != after);
    }
    cut
}

fn options(seed: u64) -> LogOptions {
    let segment_bytes = 16 << 10;
    let segments = if seed.is_multiple_of(2) { 5 } else { 9 };
    LogOptions { segment_bytes, log_bytes_max: segments * u64::from(segment_bytes), seed, ..LogOptions::default() }
}

/// Declares streams and declares those again that lost their never durable cursor.
fn settle_in(log: &mut WriteAheadLog, model: &mut LogModel) -> Vec<StreamId> {
    let mut streams = Vec::new();
    for name in STREAMS {
        let Ok(stream) = log.stream(name) else { continue };
        streams.push(stream);
        for subscriber in SUBSCRIBERS {
            if !log.cursors(stream).any(|(name, _)| name == subscriber) {
                let mark = Cursor::at(log.origin());
                log.cursor(stream, subscriber, mark.clone()).unwrap();
                model.acknowledge(stream, subscriber, &mark);
                model.marks.insert((stream, subscriber), vec![mark]);
                model.never_durable.insert((stream, subscriber));
            }
        }
    }
    streams
}

/// Works until the power fails; in the middle of a flush if one was due.
fn live(
    log: &mut WriteAheadLog,
    model: &mut LogModel,
    streams: &[StreamId],
    deleted_files: &DeletedFiles,
    rng: &mut Rng,
    seen: &mut Coverage,
) {
    let mut spare: Option<SpareSegment> = None;
    let mut out: Option<Flush> = None;
    // Sometimes no subscriber acknowledges anything for so long that the log fills up, and sometimes the
    // subscribers of one stream are dead while all others are busy.
    let (steps, dice, awake) = match rng.u32(0..8) {
        0 => (900, 0..53, streams),
        1..4 => (400, 0..100, &streams[1..]),
        _ => (160, 0..100, streams),
    };
    let appending = if rng.bool() { streams } else { awake };
    for _ in 0..rng.usize(1..steps) {
        match rng.u32(dice.clone()) {
            0..40 => append(log, model, appending, rng, seen),
            40..48 => batch(log, model, appending, rng, seen),
            48..51 => {
                // The flush is in flight, and work continues before it returns.
                deleted_files.remember();
                out = out.or_else(|| log.next_flush());
            }
            51..53 => drop(flush(log, model, deleted_files, &mut out)),
            53..68 => acknowledge(log, model, awake, rng),
            68..71 => seen.reclaimed += log.reclaim().segments as u64,
            71..75 => log.move_on(),
            75..79 => spare = spare.or_else(|| log.prepare_spare().map(|job| job.run().unwrap())),
            79..83 => spare.take().into_iter().for_each(|spare| log.spare_ready(Ok(spare))),
            83..90 => drop(flush(log, model, deleted_files, &mut out)),
            _ => {
                while flush(log, model, deleted_files, &mut out) {}
                if log.urgency() == FlushUrgency::Nothing {
                    model.never_durable.clear();
                    model.marks.values_mut().for_each(|marks| drop(marks.drain(..marks.len() - 1)));
                }
            }
        }
    }
    if rng.bool() {
        // Space is reclaimed while a flush is in flight, and the power fails before the drop is durable.
        deleted_files.remember();
        out = out.or_else(|| log.next_flush());
        seen.reclaimed += log.reclaim().segments as u64;
        log.move_on();
        flush(log, model, deleted_files, &mut out);
    }
    deleted_files.remember();
    if let Some(flush) = out.or_else(|| log.next_flush()) {
        seen.cut_states += u64::from(lost_segments::names_segment(&flush));
        cut_power_during(&flush, rng);
    }
}

fn append(log: &mut WriteAheadLog, model: &mut LogModel, streams: &[StreamId], rng: &mut Rng, seen: &mut Coverage) {
    let stream = streams[rng.usize(0..streams.len())];
    let payload = payload(rng);
    match log.append(stream, 0, &[&payload]) {
        Ok(position) => {
            model.batches += 1;
            model.events.insert(position, ModelEvent { stream, payload, batch: model.batches });
        }
        Err(AppendError::Full { .. }) => seen.full += 1,
        Err(other) => panic!("{other}"),
    }
}

fn batch(log: &mut WriteAheadLog, model: &mut LogModel, streams: &[StreamId], rng: &mut Rng, seen: &mut Coverage) {
    let stream = streams[rng.usize(0..streams.len())];
    let payloads: Vec<Vec<u8>> = (0..rng.usize(1..6)).map(|_| payload(rng)).collect();
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [payload.as_slice()]).collect();
    let records: Vec<&[&[u8]]> = parts.iter().map(|parts| parts.as_slice()).collect();
    match log.append_batch(stream, 0, &records) {
        Ok(range) => {
            model.batches += 1;
            let mut position = range.start;
            for payload in payloads {
                let next = position.get() + (40 + payload.len() as u64).next_multiple_of(8);
                model.events.insert(position, ModelEvent { stream, payload, batch: model.batches });
                position = LogPosition::new(next);
            }
            assert_eq!(position, range.end);
        }
        Err(AppendError::Full { .. }) => seen.full += 1,
        Err(other) => panic!("{other}"),
    }
}

fn payload(rng: &mut Rng) -> Vec<u8> {
    let length = if rng.u32(0..10) == 0 { rng.usize(0..1500) } else { rng.usize(0..80) };
    (0..length).map(|_| rng.u8(..)).collect()
}

/// Reads a few events and advances the cursor over some of them.
fn acknowledge(log: &mut WriteAheadLog, model: &mut LogModel, streams: &[StreamId], rng: &mut Rng) {
    let stream = streams[rng.usize(0..streams.len())];
    let subscriber = SUBSCRIBERS[rng.usize(0..SUBSCRIBERS.len())];
    let marks = model.marks.get_mut(&(stream, subscriber)).unwrap();
    let mut mark = marks.last().unwrap().clone();
    let mut from = mark.low();
    for _ in 0..rng.usize(1..30) {
        let Some(record) = log.read(stream, from) else { break };
        from = record.next;
        if rng.u32(0..8) != 0 {
            mark.complete(record.since..record.next);
        }
    }
    log.cursor(stream, subscriber, mark.clone()).unwrap();
    marks.push(mark.clone());
    model.acknowledge(stream, subscriber, &mark);
}

/// One flush that the disk really writes.
fn flush(log: &mut WriteAheadLog, model: &mut LogModel, deleted_files: &DeletedFiles, out: &mut Option<Flush>) -> bool {
    deleted_files.remember();
    let Some(flush) = out.take().or_else(|| log.next_flush()) else { return false };
    flush.file.write_all_at(&flush.bytes, flush.offset).unwrap();
    log.flush_done(flush, Ok(()));
    model.durable = log.durable();
    model.acknowledged_end = log.durable();
    assert!(log.durable() <= log.visible());
    true
}
