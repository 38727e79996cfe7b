//! A segment's file is removed, renamed or replaced while the log is open.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs;
use std::path::{Path, PathBuf};

use sluicegate_wal::{AppendError, Cursor, LogOptions, LogPosition, StreamId, WriteAheadLog};

fn open(folder: &Path) -> WriteAheadLog {
    let options = LogOptions { segment_bytes: 64 << 10, log_bytes_max: 1 << 20, seed: 1, ..LogOptions::default() };
    WriteAheadLog::open(folder, options).unwrap().0
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).collect();
    files.sort();
    files
}

/// Three segments of events that a subscriber needs.
fn filled(folder: &Path) -> (WriteAheadLog, StreamId) {
    let mut log = open(folder);
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    while files(folder).len() < 3 {
        log.append(stream, 0, &[&[7; 1000]]).unwrap();
        log.flush_blocking().unwrap();
    }
    (log, stream)
}

/// APP-05: nothing is acknowledged from the first flush on that went to a file which can never be opened
/// again.
#[test]
fn flush_to_removed_segment_is_never_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, stream) = filled(folder.path());
    let durable = log.durable();
    fs::remove_file(files(folder.path()).last().unwrap()).unwrap();

    log.append(stream, 0, &[b"lost"]).unwrap();
    let why = log.flush_blocking().unwrap_err().to_string();

    assert!(why.contains("removed from outside"), "{why}");
    assert_eq!(log.durable(), durable);
    assert!(matches!(log.append(stream, 0, &[b"x"]), Err(AppendError::Poisoned { .. })));
    let broken = log.check_files();
    assert!(broken.len() == 1 && broken[0].removed && broken[0].poisons, "{broken:?}");
    assert_eq!((log.check_files(), log.stat().broken), (Vec::new(), 1), "reported once, and counted");
}

/// APP-05: an idle log notices it too, whatever happened to the name of the file.
#[test]
fn removed_renamed_or_replaced_tail_poisons_log() {
    let remove = |file: &Path| fs::remove_file(file).unwrap();
    let rename = |file: &Path| fs::rename(file, file.with_extension("old")).unwrap();
    let replace = |file: &Path| {
        fs::copy(file, file.with_extension("new")).unwrap();
        fs::rename(file.with_extension("new"), file).unwrap();
    };
    let move_folder = |file: &Path| {
        let folder = file.parent().unwrap();
        fs::rename(folder, folder.with_extension("old")).unwrap();
    };
    for (nth, change) in [&remove as &dyn Fn(&Path), &rename, &replace, &move_folder].into_iter().enumerate() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("log");
        let (mut log, _) = filled(&folder);
        assert_eq!(log.check_files(), []);
        change(files(&folder).last().unwrap());
        let broken = log.check_files();
        assert!(broken.iter().any(|one| one.removed && one.poisons), "{nth}: {broken:?}");
        assert!(log.poison().is_some(), "{nth}");
    }
}

/// EV-DLV-13: the live records of an older segment are copied while this process can still read it.
#[test]
fn events_of_removed_older_segment_survive_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, stream) = filled(folder.path());
    let all = log.read_from(stream, LogPosition::ORIGIN).count();
    fs::remove_file(&files(folder.path())[0]).unwrap();
    let broken = log.check_files();
    assert!(broken.len() == 1 && broken[0].removed && !broken[0].poisons, "{broken:?}");
    assert!(broken[0].to_string().contains("copied to the newest segment"), "{}", broken[0]);

    log.reclaim();
    assert!(log.is_compacting());
    while log.is_compacting() {
        log.move_on();
        log.flush_blocking().unwrap();
    }
    log.flush_blocking().unwrap();
    assert_eq!((log.read_from(stream, LogPosition::ORIGIN).count(), log.stat().broken), (all, 0));
    drop(log);
    assert_eq!(open(folder.path()).read_from(stream, LogPosition::ORIGIN).count(), all);
}
