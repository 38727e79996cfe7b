//! Damage is not a crash: lost acknowledged bytes are reported, never skipped silently.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use sluicegate_wal::{Cursor, LogOptions, LogPosition, Recovery, WriteAheadLog};

const EVENTS: u32 = 300;

fn open(folder: &Path) -> (WriteAheadLog, Recovery) {
    let options = LogOptions { segment_bytes: 16 << 10, log_bytes_max: 1 << 20, seed: 1, ..LogOptions::default() };
    WriteAheadLog::open(folder, options).unwrap()
}

fn segment_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).collect();
    files.sort();
    files
}

/// Writes each event in a flush of its own; the payload is its number. Returns the positions.
fn fill(folder: &Path) -> Vec<LogPosition> {
    let (mut log, _) = open(folder);
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    let append = |number: u32| {
        let position = log.append(stream, 0, &[&number.to_le_bytes(), &[0xab; 116]]).unwrap();
        log.flush_blocking().unwrap();
        position
    };
    (0..EVENTS).map(append).collect()
}

fn numbers(log: &mut WriteAheadLog) -> Vec<u32> {
    let stream = log.stream("a").unwrap();
    let mut found = Vec::new();
    let mut from = LogPosition::ORIGIN;
    while let Some(record) = log.read(stream, from) {
        found.push(u32::from_le_bytes(record.payload[..4].try_into().unwrap()));
        from = record.next;
    }
    found
}

fn corrupt(file: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn lost_record_is_reported_as_one_gap() {
    // The tail proves it by what its later records knew to be durable, other segments by having a
    // successor.
    for lost in [20, EVENTS - 3] {
        let folder = tempfile::tempdir().unwrap();
        let positions = fill(folder.path());
        let (file, offset) = (positions[lost as usize].get() / (16 << 10), positions[lost as usize].get());
        corrupt(&segment_files(folder.path())[file as usize], offset % (16 << 10) + 45);

        let (mut log, recovery) = open(folder.path());
        assert_eq!(recovery.gaps.len(), 1, "{recovery:?}");
        assert_eq!(recovery.gaps[0].from, positions[lost as usize]);
        assert_eq!(recovery.gaps[0].to, positions[lost as usize + 1]);
        assert_eq!(numbers(&mut log), (0..EVENTS).filter(|number| *number != lost).collect::<Vec<_>>());
        let stream = log.stream("a").unwrap();
        log.append(stream, 0, &[&EVENTS.to_le_bytes()]).unwrap();
        log.flush_blocking().unwrap();
        drop(log);
        assert_eq!(numbers(&mut open(folder.path()).0).last(), Some(&EVENTS));
    }
}

/// The number after the largest possible one used to overflow.
#[test]
fn file_with_largest_number_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let name = folder.path().join(format!("{}.seg", u64::MAX));
    fs::write(&name, [0; 100]).unwrap();
    let (mut log, recovery) = open(folder.path());
    assert_eq!(recovery.gaps, []);
    assert_eq!(numbers(&mut log).len(), EVENTS as usize);
    assert!(name.exists());
}

#[test]
fn missing_undropped_segment_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let files = segment_files(folder.path());
    assert!(files.len() >= 3);
    fs::remove_file(&files[1]).unwrap();
    let (mut log, recovery) = open(folder.path());
    assert_eq!(recovery.gaps.len(), 1);
    assert_eq!((recovery.gaps[0].from.get(), recovery.gaps[0].to.get()), (16 << 10, 32 << 10));
    assert_eq!(recovery.gaps[0].file, None);
    assert!(numbers(&mut log).len() < EVENTS as usize);
}

#[test]
fn segment_with_damaged_header_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let file = segment_files(folder.path()).remove(1);
    corrupt(&file, 17);
    let damaged = fs::read(&file).unwrap();
    let (_, recovery) = open(folder.path());
    assert_eq!(recovery.gaps.len(), 1);
    assert_eq!(fs::read(file.with_extension("damaged")).unwrap(), damaged);
}

#[test]
fn event_payload_never_passes_as_record() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    let stream = log.stream("a").unwrap();
    log.append(stream, 0, &[&[7; 8]]).unwrap();
    log.flush_blocking().unwrap();
    // A sender that knows the format and guesses the position, but does not know the salt.
    let position = log.visible().get() + 40;
    let mut forged = [0; 48];
    forged[4] = 8;
    forged[8..16].copy_from_slice(&position.to_le_bytes());
    forged[24] = 1;
    forged[32] = 1;
    let crc = crc32c::crc32c(&forged[4..]);
    forged[..4].copy_from_slice(&crc.to_le_bytes());
    let victim = log.append(stream, 0, &[&forged]).unwrap();
    log.flush_blocking().unwrap();
    drop(log);
    corrupt(&segment_files(folder.path())[0], victim.get() + 32);
    let (log, recovery) = open(folder.path());
    assert_eq!((recovery.events, recovery.gaps.len()), (1, 0));
    assert!(log.read(stream, victim).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the files contain, opening never panics, and shows only events that were appended.
    #[test]
    fn random_disk_bytes_never_panic_or_invent_events(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..16 << 10, any::<u8>(), 1_usize..600), 1..12),
    ) {
        let memory_folder = Path::new("/dev/shm"); // no power cut is simulated here, so a disk is not needed
        let folder = if memory_folder.is_dir() { tempfile::tempdir_in(memory_folder) } else { tempfile::tempdir() }.unwrap();
        fill_fast(folder.path());
        for (file, offset, byte, length) in changes {
            let files = segment_files(folder.path());
            let path = file.get(&files);
            let mut bytes = fs::read(path).unwrap();
            let end = bytes.len().min(offset + length);
            bytes[offset..end].fill(byte);
            fs::write(path, bytes).unwrap();
        }
        let options = LogOptions { segment_bytes: 16 << 10, log_bytes_max: 1 << 20, seed: 1, ..LogOptions::default() };
        if let Ok((mut log, _)) = WriteAheadLog::open(folder.path(), options) {
            let found = numbers(&mut log);
            prop_assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(found.iter().all(|number| *number < EVENTS));
        }
    }
}

/// Same as `fill`, in few flushes.
fn fill_fast(folder: &Path) {
    let (mut log, _) = open(folder);
    let stream = log.stream("a").unwrap();
    log.cursor(stream, "x", Cursor::at(log.end(stream))).unwrap();
    for number in 0..EVENTS {
        log.append(stream, 0, &[&number.to_le_bytes(), &[0xab; 116]]).unwrap();
        if number % 50 == 0 {
            log.flush_blocking().unwrap();
        }
    }
    log.flush_blocking().unwrap();
}

/// Bits that flip while the log is open are found when the event is read: it is reported with its position
/// and skipped, and a cursor continues behind it.
#[test]
fn event_with_flipped_bits_is_never_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let positions = fill(folder.path());
    for (lost, at) in [(20_u32, 45), (30, 24), (40, 5), (50, 0), (60, 16), (70, 155)] {
        let (mut log, _) = open(folder.path());
        let stream = log.stream("a").unwrap();
        let position = positions[lost as usize];
        let (nth, offset) = ((position.get() / (16 << 10)) as usize, position.get() % (16 << 10));
        let file = segment_files(folder.path()).remove(nth);
        corrupt(&file, offset + at);
        assert_eq!(numbers(&mut log), (0..EVENTS).filter(|number| *number != lost).collect::<Vec<_>>());
        assert_eq!(numbers(&mut log).len(), EVENTS as usize - 1, "read twice, reported once");
        let damage = log.take_damage();
        assert_eq!((damage.len(), damage[0].position, &damage[0].file), (1, position, &file));
        assert_eq!((u64::from(damage[0].offset), damage[0].stream), (offset, stream));
        assert_eq!(log.stat().damaged, 1);
        let after = log.read(stream, position).unwrap();
        assert_eq!((after.since, after.position), (position, positions[lost as usize + 1]));
        drop(log);
        corrupt(&file, offset + at); // flips it back
    }
}
