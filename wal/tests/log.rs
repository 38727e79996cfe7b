//! The promises of the log, each through its public API and a real folder.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use sluicegate_wal::{
    AppendError, Cursor, Error, FlushUrgency, LogOptions, LogPosition, Recovery, StreamId, WriteAheadLog, inspect,
};

const SEGMENT_BYTES: u32 = 16 << 10;

fn options() -> LogOptions {
    LogOptions { segment_bytes: SEGMENT_BYTES, log_bytes_max: 1 << 20, seed: 1, ..LogOptions::default() }
}

fn open(folder: &Path) -> (WriteAheadLog, Recovery) {
    WriteAheadLog::open(folder, options()).unwrap()
}

fn read_all(log: &WriteAheadLog, stream: StreamId) -> Vec<Vec<u8>> {
    let mut from = LogPosition::ORIGIN;
    let mut found = Vec::new();
    while let Some(record) = log.read(stream, from) {
        assert!(record.position >= from && record.next > record.position);
        found.push(record.payload.to_vec());
        from = record.next;
    }
    found
}

fn event(number: u32) -> Vec<u8> {
    format!("event {number} {}", "x".repeat(number as usize % 300)).into_bytes()
}

/// The most recently written file.
fn newest_file(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).max().unwrap()
}

/// Writes `count` events, one flush each, and closes the log.
fn fill(folder: &Path, count: u32) {
    let (mut log, _) = open(folder);
    let stream = log.stream("a").unwrap();
    for number in 0..count {
        log.append(stream, 0, &[&event(number)]).unwrap();
        log.flush_blocking().unwrap();
    }
}

/// APP-05, EV-RTE-02: what a flush was reported done for can be read after the log is reopened.
#[test]
fn durable_events_are_readable_after_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, recovery) = open(folder.path());
    assert_eq!(recovery, Recovery::default());
    let streams = [log.stream("a").unwrap(), log.stream("b").unwrap()];
    for number in 0..600 {
        let bytes = event(number);
        let (front, back) = bytes.split_at(3);
        log.append(streams[number as usize % 2], 7, &[front, back]).unwrap();
    }
    assert!(log.read(streams[0], LogPosition::ORIGIN).is_none(), "visible is not readable");
    log.flush_blocking().unwrap();
    assert_eq!(log.durable(), log.visible());
    drop(log);

    let (mut log, recovery) = open(folder.path());
    assert_eq!((recovery.events, recovery.torn_bytes, recovery.gaps.len()), (600, 0, 0));
    assert!(recovery.segments > 3, "the events span several segments");
    for (nth, name) in ["a", "b"].into_iter().enumerate() {
        let stream = log.stream(name).unwrap();
        assert_eq!(stream, streams[nth]);
        let wanted: Vec<_> = (0..600).filter(|number| number % 2 == nth as u32).map(event).collect();
        assert_eq!(read_all(&log, stream), wanted);
        assert_eq!(log.read(stream, LogPosition::ORIGIN).unwrap().at_ms, 7);
    }
}

/// APP-06: a last record truncated anywhere is dropped and reported, all records before it are kept, and
/// the log accepts new events.
#[test]
fn truncated_last_record_is_dropped_alone() {
    for lost in [1, 7, 30, 48, 60] {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 10);
        let file = OpenOptions::new().write(true).open(newest_file(folder.path())).unwrap();
        let bytes = fs::read(newest_file(folder.path())).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
        file.set_len(end - lost.min(event(9).len() as u64 + 39)).unwrap();

        assert_eq!(inspect(folder.path(), &mut |_, _| {}).unwrap().cut.len(), 1);
        let (mut log, recovery) = open(folder.path());
        let [cut] = &recovery.cut[..] else { panic!("it is reported: {recovery:?}") };
        assert!(cut.to_string().contains("was truncated from outside"), "{cut}");
        let stream = log.stream("a").unwrap();
        assert_eq!(read_all(&log, stream), (0..9).map(event).collect::<Vec<_>>());
        log.append(stream, 0, &[b"new"]).unwrap();
        log.flush_blocking().unwrap();
        drop(log);
        let (log, recovery) = open(folder.path());
        assert_eq!(read_all(&log, stream).last().unwrap(), b"new");
        assert_eq!((recovery.events, recovery.torn_bytes), (10, 0));
        assert_eq!(recovery.cut, [], "it is whole again");
    }
}

/// APP-06: the checksum finds damage in the last record.
#[test]
fn flipped_bit_in_last_record_drops_only_that_record() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 10);
    let file = newest_file(folder.path());
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end] ^= 0x20;
    fs::write(&file, bytes).unwrap();

    let (mut log, recovery) = open(folder.path());
    let stream = log.stream("a").unwrap();
    assert_eq!(read_all(&log, stream), (0..9).map(event).collect::<Vec<_>>());
    assert!(recovery.torn_bytes > 0 && recovery.gaps.is_empty());
}

#[test]
fn second_opener_of_folder_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = open(folder.path());
    let second = WriteAheadLog::open(folder.path(), options());
    assert!(matches!(second, Err(Error::InUse { folder: named }) if named == folder.path()));
    drop(log);
    open(folder.path());
}

#[test]
fn foreign_file_or_format_is_rejected_and_untouched() {
    for (bytes, format) in [(&b"\x7fELF\x02\x01\x01\x00"[..], false), (b"SLUICWAL\x09\0\0\0", true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0000000009.seg");
        fs::write(&path, bytes).unwrap();
        match WriteAheadLog::open(folder.path(), options()) {
            Err(Error::Foreign { file, .. }) => assert!(file == path && !format),
            Err(Error::Format { file, found: 9, readable: 2 }) => assert!(file == path && format),
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

/// Writes `format` into every segment's header.
fn relabel(folder: &Path, format: u32) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if bytes.starts_with(b"SLUICWAL") {
            bytes[8..12].copy_from_slice(&format.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[..60]);
            bytes[60..64].copy_from_slice(&crc.to_le_bytes());
            fs::write(path, bytes).unwrap();
        }
    }
}

/// A folder of the previous format is read completely and continues, in a segment of the current format.
#[test]
fn older_format_is_read_and_continued_in_new_one() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 100);
    relabel(folder.path(), 1);
    let older = newest_file(folder.path());
    let (mut log, recovery) = open(folder.path());
    let stream = log.stream("a").unwrap();
    assert_eq!((recovery.events, recovery.torn_bytes, recovery.gaps.len()), (100, 0, 0));
    assert_eq!(read_all(&log, stream), (0..100).map(event).collect::<Vec<_>>());
    log.append(stream, 0, &[&event(100)]).unwrap();
    log.flush_blocking().unwrap();
    drop(log);

    let newest = newest_file(folder.path());
    assert_ne!(newest, older);
    assert_eq!((fs::read(older).unwrap()[8], fs::read(newest).unwrap()[8]), (1, 2));
    assert_eq!(read_all(&open(folder.path()).0, stream), (0..=100).map(event).collect::<Vec<_>>());
}

#[test]
fn failed_flush_poisons_log_until_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    log.append(stream, 0, &[b"kept"]).unwrap();
    log.flush_blocking().unwrap();
    let durable = log.durable();

    log.append(stream, 0, &[b"lost"]).unwrap();
    let flush = log.next_flush().unwrap();
    log.flush_done(flush, Err(io::Error::from_raw_os_error(5)));
    assert!(matches!(log.append(stream, 0, &[b"no"]), Err(AppendError::Poisoned { .. })));
    assert!(log.next_flush().is_none());
    assert_eq!((log.durable(), log.urgency()), (durable, FlushUrgency::Nothing));
    assert_eq!(read_all(&log, stream), [b"kept"]);
    drop(log);
    assert_eq!(read_all(&open(folder.path()).0, stream), [b"kept"]);
}

/// EV-DLV-13: acknowledgements survive a restart, also out of order.
#[test]
fn cursors_survive_restarts_and_roll_overs() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    let mut mark = Cursor::at(log.end(stream));
    for number in 0..400 {
        log.append(stream, 0, &[&event(number)]).unwrap();
        log.flush_blocking().unwrap();
        let record = log.read(stream, mark.done().last().map_or(mark.low(), |last| last.end)).unwrap();
        if number % 40 != 3 {
            mark.complete(record.since..record.next);
        } else {
            mark.complete(record.next..record.next); // an empty range changes nothing
            mark.complete(LogPosition::new(record.next.get() - 1)..record.next);
        }
        log.cursor(stream, "x", mark.clone()).unwrap();
        log.cursor(stream, "y", Cursor::at(record.next)).unwrap();
    }
    log.forget_cursor(stream, "y");
    log.flush_blocking().unwrap();
    drop(log);

    let (log, recovery) = open(folder.path());
    assert!(recovery.segments > 2);
    assert_eq!(log.cursors(stream).collect::<Vec<_>>(), [("x", &mark)]);
    assert_eq!(mark.done().len(), 10);
}

#[test]
fn backlog_count_stops_at_given_end() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    let mut mark = Cursor::at(log.end(stream));
    let positions: Vec<_> = (0..6).map(|n| log.append(stream, 0, &[&event(n)]).unwrap()).collect();
    log.flush_blocking().unwrap();
    mark.complete(positions[1]..positions[2]);
    mark.complete(positions[4]..positions[5]);

    let open = |end| log.open_events_before(stream, &mark, end);
    assert_eq!(positions.iter().map(|end| open(*end)).collect::<Vec<_>>(), [0, 1, 1, 2, 3, 3]);
    assert_eq!((open(log.visible()), log.open_events(stream, &mark)), (4, 4));
}

#[test]
fn repeated_cursor_updates_write_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    log.flush_blocking().unwrap();
    for low in 0..10_000 {
        log.cursor(stream, "x", Cursor::at(LogPosition::new(low))).unwrap();
    }
    assert_eq!(log.urgency(), FlushUrgency::Whenever);
    let flush = log.next_flush().unwrap();
    let before = log.stat().flushed_bytes;
    log.flush_done(flush, Ok(()));
    assert!(log.stat().flushed_bytes - before < 100);
}

#[test]
fn batch_is_appended_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    let large = vec![1; 3000];
    let visible = log.visible();
    let refused = log.append_batch(stream, 0, &[&[&large], &[&large], &[&large]]);
    assert!(matches!(refused, Err(AppendError::TooLarge { max: 8192, .. })), "{refused:?}");
    assert_eq!(log.visible(), visible);

    let range = log.append_batch(stream, 0, &[&[b"one"], &[b"two", b"!"]]).unwrap();
    log.flush_blocking().unwrap();
    assert_eq!(read_all(&log, stream), [&b"one"[..], b"two!"]);
    let last = log.read(stream, LogPosition::new(range.start.get() + 1)).unwrap();
    assert_eq!(last.next, range.end);
    assert_eq!(log.append_batch(stream, 0, &[]).unwrap(), range.end..range.end);
}

#[test]
fn rejected_append_names_limit_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let limits = LogOptions { record_bytes_max: 100, staged_bytes_max: 500, streams_max: 1, ..options() };
    let (mut log, _) = WriteAheadLog::open(folder.path(), LogOptions { cursors_max: 1, ..limits }).unwrap();
    let stream = log.stream("a").unwrap();
    log.flush_blocking().unwrap();
    let refused = log.append(stream, 0, &[&[0; 60], &[0; 41]]);
    let wanted = AppendError::TooLarge { bytes: 101, max: 100, limit: "record_bytes_max" };
    assert_eq!(refused, Err(wanted));
    assert!(matches!(log.stream("b"), Err(AppendError::Full { limit: "streams_max", .. })));
    log.cursor(stream, "x", Cursor::default()).unwrap();
    let refused = log.cursor(stream, "y", Cursor::default());
    assert!(matches!(refused, Err(AppendError::Full { limit: "bookmarks_max", .. })));
    while log.append(stream, 0, &[&[0; 80]]).is_ok() {}
    let refused = log.append(stream, 0, &[&[0; 80]]);
    assert!(matches!(refused, Err(AppendError::Full { limit: "staged_bytes_max", .. })));
    log.flush_blocking().unwrap();
    log.append(stream, 0, &[&[0; 80]]).unwrap();
    log.forget_stream("a");
    let refused = log.append(stream, 0, &[b""]);
    assert_eq!(refused, Err(AppendError::UnknownStream { stream: stream.get() }));
    assert!(log.stream("b").unwrap() > stream, "a number is never given twice");
}
