//! A segment that held acknowledged events is lost while no process has the log open.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sluicegate_wal::{Cursor, GapCause, LogGap, LogOptions, LogPosition, Recovery, WriteAheadLog, inspect};

const SEGMENT_BYTES: u64 = 64 << 10;
const STATE: &str = "segments.state";

fn open(folder: &Path) -> (WriteAheadLog, Recovery) {
    let options = LogOptions {
        segment_bytes: u32::try_from(SEGMENT_BYTES).unwrap(),
        log_bytes_max: 1 << 20,
        seed: 1,
        ..LogOptions::default()
    };
    WriteAheadLog::open(folder, options).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).collect();
    files.sort();
    files
}

/// Appends events that a subscriber needs, a flush each, until the last of this many segments is in use.
/// Returns their positions.
fn fill(folder: &Path, segments: u64) -> Vec<LogPosition> {
    let (mut log, recovery) = open(folder);
    assert_eq!(recovery.gaps, []);
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    let mut positions = Vec::new();
    while log.durable().get() < (segments - 1) * SEGMENT_BYTES + SEGMENT_BYTES / 2 {
        positions.push(log.append(stream, 0, &[&[7; 1000]]).unwrap());
        log.flush_blocking().unwrap();
    }
    positions
}

fn readable(log: &WriteAheadLog) -> Vec<LogPosition> {
    let Some((stream, _)) = log.streams().next() else { return Vec::new() };
    log.read_from(stream, LogPosition::ORIGIN).map(|record| record.position).collect()
}

fn write_zeros(file: &Path, from: u64, to: u64) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&vec![0; usize::try_from(to - from).unwrap()], from).unwrap();
}

fn truncate(file: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

type Damage = (&'static str, GapCause, fn(&Path));

/// All of them destroy the first flush of the segment.
const DAMAGES: [Damage; 7] = [
    ("removed", GapCause::Missing, |file| fs::remove_file(file).unwrap()),
    ("renamed", GapCause::Missing, |file| fs::rename(file, file.with_extension("old")).unwrap()),
    ("truncated to 0", GapCause::NoHeader, |file| truncate(file, 0)),
    ("truncated inside its header", GapCause::NoHeader, |file| truncate(file, 40)),
    ("zero-filled", GapCause::NoHeader, |file| write_zeros(file, 0, SEGMENT_BYTES)),
    ("without its header", GapCause::NoHeader, |file| write_zeros(file, 0, 4096)),
    ("without its records", GapCause::NoHeader, |file| write_zeros(file, 64, SEGMENT_BYTES)),
];

fn covers(gaps: &[LogGap], position: LogPosition) -> bool {
    gaps.iter().any(|gap| gap.from <= position && position < gap.to)
}

/// APP-05, APP-06: whichever segment is lost, and in whatever way, recovery and `verify` report every lost
/// event, name the file of the newest segment, and keep the events of the other segments.
#[test]
fn segment_lost_at_rest_is_reported_with_its_positions() {
    for (segments, lost) in [(1, 0), (3, 0), (3, 1), (3, 2)] {
        for (name, cause, damage) in DAMAGES {
            let case = format!("segment {lost} of {segments} {name}");
            let folder = tempfile::tempdir().unwrap();
            let positions = fill(folder.path(), segments);
            let file = files(folder.path()).remove(usize::try_from(lost).unwrap());
            damage(&file);

            let verified = inspect(folder.path(), &mut |_, _| {}).unwrap();
            let (log, recovery) = open(folder.path());
            let left = readable(&log);
            for gaps in [&verified.gaps, &recovery.gaps] {
                let gone = positions.iter().filter(|position| !left.contains(position));
                assert!(gone.clone().count() > 10, "{case}: the events are lost");
                gone.for_each(|position| assert!(covers(gaps, *position), "{case}: {position} is not in {gaps:?}"));
                assert!(!left.iter().any(|position| covers(gaps, *position)), "{case}: {gaps:?}");
            }
            if lost == segments - 1 {
                let (from, to) = (LogPosition::new(lost * SEGMENT_BYTES), LogPosition::new(segments * SEGMENT_BYTES));
                let gap = LogGap { file: Some(file.clone()), from, to, cause };
                assert_eq!(verified.gaps, [gap], "{case}");
                assert_eq!(recovery.gaps.len(), 1, "{case}");
            }
        }
    }
}

/// A position identifies an event: those of lost events are not used again. The loss is reported by each
/// start until the log has continued durably.
#[test]
fn log_continues_after_lost_positions() {
    for segments in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), segments);
        fs::remove_file(files(folder.path()).pop().unwrap()).unwrap();
        for _ in 0..2 {
            assert_eq!(open(folder.path()).1.gaps.len(), 1, "nothing was flushed since");
        }
        let (mut log, _) = open(folder.path());
        let stream = log.stream("a").unwrap();
        let next = log.append(stream, 0, &[b"next"]).unwrap();
        assert!(next.get() > segments * SEGMENT_BYTES, "{next}");
        log.flush_blocking().unwrap();
        drop(log);
        assert_eq!(inspect(folder.path(), &mut |_, _| {}).unwrap().gaps, []);
        let (log, recovery) = open(folder.path());
        assert_eq!((recovery.gaps, readable(&log).last()), (Vec::new(), Some(&next)));
    }
}

/// The two newest segments are lost together, which no snapshot shows.
#[test]
fn two_newest_segments_lost_are_one_gap() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 4);
    files(folder.path()).drain(2..).for_each(|file| fs::remove_file(file).unwrap());
    for gaps in [inspect(folder.path(), &mut |_, _| {}).unwrap().gaps, open(folder.path()).1.gaps] {
        let range = gaps.iter().map(|gap| (gap.from.get(), gap.to.get())).collect::<Vec<_>>();
        assert_eq!(range, [(2 * SEGMENT_BYTES, 4 * SEGMENT_BYTES)]);
    }
}

/// The newest segment is removed, and the one before it has lost its header only.
#[test]
fn newest_segments_lost_in_two_ways_report_all_positions() {
    let folder = tempfile::tempdir().unwrap();
    let positions = fill(folder.path(), 4);
    let files = files(folder.path());
    write_zeros(&files[2], 0, 4096);
    fs::remove_file(&files[3]).unwrap();
    let verified = inspect(folder.path(), &mut |_, _| {}).unwrap().gaps;
    let (log, recovery) = open(folder.path());
    let left = readable(&log);
    for gaps in [verified, recovery.gaps] {
        for position in positions.iter().filter(|position| !left.contains(position)) {
            assert!(covers(&gaps, *position), "{position} is not in {gaps:?}");
        }
        assert!(gaps.iter().any(|gap| gap.file.as_ref() == Some(&files[3])), "{gaps:?}");
    }
}

/// A segment that is truncated to nothing while the log is open, and a process that is killed before it
/// notices.
#[test]
fn tail_truncated_while_log_is_open_is_reported_at_next_start() {
    for goes_on in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 2);
        let (mut log, _) = open(folder.path());
        let stream = log.stream("a").unwrap();
        log.append(stream, 0, &[b"before"]).unwrap();
        log.flush_blocking().unwrap();
        truncate(&files(folder.path())[1], 0);
        if goes_on {
            log.append(stream, 0, &[b"after"]).unwrap();
            log.flush_blocking().unwrap();
        }
        drop(log);
        let gaps = open(folder.path()).1.gaps;
        assert!(gaps.len() == 1 && gaps[0].from.get() == SEGMENT_BYTES, "{gaps:?}");
    }
}

/// A next segment that was prepared and never used contains nothing: whatever happens to it is no loss.
#[test]
fn prepared_segment_is_never_reported() {
    for (name, _, damage) in DAMAGES {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 2);
        let (mut log, _) = open(folder.path());
        let spare = log.prepare_spare().unwrap().run().unwrap();
        log.spare_ready(Ok(spare));
        drop(log);
        assert_eq!(files(folder.path()).len(), 3);
        damage(&files(folder.path())[2]);
        let verified = inspect(folder.path(), &mut |_, _| {}).unwrap();
        assert_eq!((verified.gaps, open(folder.path()).1.gaps), (Vec::new(), Vec::new()), "{name}");
    }
}

/// A log of an older version has no segment state: it opens as before, and gets one with its first flush.
#[test]
fn log_without_segment_state_gets_one_at_start() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 2);
    fs::remove_file(folder.path().join(STATE)).unwrap();
    let (mut log, recovery) = open(folder.path());
    assert_eq!(recovery.gaps, []);
    log.flush_blocking().unwrap();
    drop(log);
    truncate(&files(folder.path())[1], 0);
    assert_eq!(inspect(folder.path(), &mut |_, _| {}).unwrap().gaps.len(), 1);
    assert_eq!(open(folder.path()).1.gaps.len(), 1);
}

/// An older state (a backup that copied it first, or an older version that continued the log) names a
/// segment that may be gone by now.
#[test]
fn older_segment_state_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 1);
    let older = fs::read(folder.path().join(STATE)).unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    for _ in 0..200 {
        log.append(stream, 0, &[&[7; 1000]]).unwrap();
        log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
        log.flush_blocking().unwrap();
        log.reclaim();
    }
    drop(log);
    for state in [older, b"no state at all".to_vec(), Vec::new()] {
        fs::write(folder.path().join(STATE), state).unwrap();
        assert_eq!(inspect(folder.path(), &mut |_, _| {}).unwrap().gaps, []);
        assert_eq!(open(folder.path()).1.gaps, []);
    }
}

/// The segment state is removed while the log is open: it is created again for the next segment.
#[test]
fn removed_segment_state_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 1);
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    log.flush_blocking().unwrap();
    fs::remove_file(folder.path().join(STATE)).unwrap();
    while log.durable().get() < 2 * SEGMENT_BYTES {
        log.append(stream, 0, &[&[7; 1000]]).unwrap();
        log.flush_blocking().unwrap();
    }
    drop(log);
    fs::remove_file(files(folder.path()).pop().unwrap()).unwrap();
    assert_eq!(open(folder.path()).1.gaps.len(), 1);
}

/// APP-05: the events of a segment's first flush are acknowledged only when the segment is named.
#[test]
fn first_flush_of_segment_is_durable_when_segment_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    let position = log.append(stream, 0, &[b"first"]).unwrap();
    let first = log.next_flush().unwrap();
    first.file.write_all_at(&first.bytes, first.offset).unwrap();
    assert!(first.end > position && !log.is_naming_due());
    log.flush_done(first, Ok(()));
    assert!(log.durable() <= position && log.is_naming_due() && log.staged_bytes() > 0);

    let naming = log.next_flush().unwrap();
    assert!(log.next_flush().is_none() && !log.is_naming_due());
    naming.file.write_all_at(&naming.bytes, naming.offset).unwrap();
    log.flush_done(naming, Ok(()));
    assert!(log.durable() > position && log.staged_bytes() == 0);

    let before = log.stat().flushes;
    log.append(stream, 0, &[b"second"]).unwrap();
    log.flush_blocking().unwrap();
    assert_eq!(log.stat().flushes, before + 1);
    assert!(log.next_flush().is_none(), "an ordinary flush needs no other one");
}
