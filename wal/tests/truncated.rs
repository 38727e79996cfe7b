//! A segment's file is truncated while the log is open.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use sluicegate_wal::{AppendError, Cursor, LogOptions, LogPosition, WriteAheadLog};

fn open(folder: &Path) -> WriteAheadLog {
    let options = LogOptions { segment_bytes: 64 << 10, log_bytes_max: 1 << 20, seed: 1, ..LogOptions::default() };
    WriteAheadLog::open(folder, options).unwrap().0
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).collect();
    files.sort();
    files
}

fn cut(file: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

/// Three segments of events that a subscriber needs.
fn filled(folder: &Path) -> WriteAheadLog {
    let mut log = open(folder);
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    while files(folder).len() < 3 {
        log.append(stream, 0, &[&[7; 1000]]).unwrap();
        log.flush_blocking().unwrap();
    }
    log
}

/// APP-05, APP-06: the process survives, readers get what remains and a report of what is missing, and the
/// log continues.
#[test]
fn truncated_segment_loses_only_its_own_records() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = filled(folder.path());
    let stream = log.stream("a").unwrap();
    let all = log.read_from(stream, LogPosition::ORIGIN).count();
    assert_eq!(log.check_files(), []);
    cut(&files(folder.path())[0], 8 << 10);

    let left: Vec<_> = log.read_from(stream, LogPosition::ORIGIN).collect();
    assert!(left.len() < all && left.len() >= all / 2, "{} of {all}", left.len());
    assert!(left.iter().all(|record| record.payload[..] == [7; 1000]));
    let damage = log.take_damage();
    assert_eq!(damage.len(), all - left.len());
    assert!(damage.iter().all(|one| one.file == files(folder.path())[0]));
    let broken = log.check_files();
    assert_eq!(broken.len(), 1);
    assert_eq!((broken[0].cut_to, broken[0].poisons), (Some(8 << 10), false));
    assert!(broken[0].to_string().contains("was truncated from outside to 8192 of 65536 bytes"), "{}", broken[0]);
    assert_eq!((log.check_files(), log.stat().broken), (Vec::new(), 1), "reported once, and counted");

    log.append(stream, 0, &[b"goes on"]).unwrap();
    log.flush_blocking().unwrap();
    log.reclaim();
    log.move_on();
    assert_eq!(log.read_from(stream, LogPosition::ORIGIN).last().unwrap().payload, b"goes on"[..]);
}

/// APP-06: acknowledged data in the tail segment is lost: appends are rejected, and the next opening
/// reports what is missing.
#[test]
fn truncated_tail_poisons_log_and_reports_loss() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = filled(folder.path());
    let stream = log.stream("a").unwrap();
    for _ in 0..20 {
        log.append(stream, 0, &[&[7; 1000]]).unwrap();
        log.flush_blocking().unwrap();
    }
    let file = files(folder.path()).pop().unwrap();
    cut(&file, 12 << 10);
    let before = log.read_from(stream, LogPosition::ORIGIN).count();

    let broken = log.check_files();
    assert!(broken.len() == 1 && broken[0].poisons && broken[0].file == file);
    let refused = log.append(stream, 0, &[b"no"]).unwrap_err();
    assert!(matches!(&refused, AppendError::Poisoned { reason } if reason.contains("was truncated")), "{refused}");
    assert!(log.next_flush().is_none() && log.poison().is_some());
    drop(log);

    let log = open(folder.path());
    assert_eq!(log.read_from(stream, LogPosition::ORIGIN).count(), before);
}
