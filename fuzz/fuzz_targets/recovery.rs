//! A log's folder on a faulty disk: opening never panics, never invents a record, and what it
//! accepted once it accepts again.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sluicegate_wal::{Cursor, WriteAheadLog, LogOptions, LogPosition};
use tempfile::TempDir;

const EVENTS: u32 = 90;
const SEGMENT_BYTES: u32 = 16 << 10;
const STREAMS: [&str; 2] = ["broker/a", "broker/b"];
/// Few, and each writes one value over a range: what is damaged must not come with a right checksum.
const DAMAGES_MAX: usize = 4;

/// By stream: where each record is and what it says.
type Contents = BTreeMap<String, Vec<(LogPosition, Vec<u8>)>>;

struct Pristine {
    files: Vec<(String, Vec<u8>)>,
    contents: Contents,
}

static PRISTINE: LazyLock<Pristine> = LazyLock::new(|| {
    let folder = folder();
    let mut log = open(folder.path()).expect("an empty folder is a log");
    let streams = STREAMS.map(|name| log.stream(name).expect("there is room for a name"));
    for number in 0..EVENTS {
        let stream = streams[number as usize % 3 % 2];
        let tail = vec![number as u8; (number as usize * 37) % 900];
        log.append(stream, 7, &[&number.to_le_bytes(), &tail]).expect("there is room");
        if number % 4 == 0 {
            let mark = Cursor::at(log.end(stream));
            log.cursor(stream, "subscriber", mark).expect("there is room");
        }
        if number % 5 == 0 {
            log.flush_blocking().expect("memory does not fail");
        }
    }
    log.flush_blocking().expect("memory does not fail");
    let contents = contents(&log);
    drop(log);
    let entries = fs::read_dir(folder.path()).expect("the folder is there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("the folder is there"))
        .map(|entry| {
            let bytes = fs::read(entry.path()).expect("the file is there");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .filter(|(name, _)| name.ends_with(".seg"))
        .collect();
    files.sort();
    assert!(files.len() >= 3, "damage between segments needs segments");
    Pristine { files, contents }
});

fuzz_target!(|input: &[u8]| {
    let pristine = &*PRISTINE;
    let folder = folder();
    let mut files: BTreeMap<String, Vec<u8>> = pristine.files.iter().cloned().collect();
    let foreign = damage(&mut files, input);
    for (name, bytes) in &files {
        fs::write(folder.path().join(name), bytes).expect("memory is a disk");
    }

    let Some(mut log) = open(folder.path()) else { return };
    let found = contents(&log);
    if !foreign {
        for (stream, records) in &found {
            let known = pristine.contents.get(stream).expect("no stream is invented");
            for record in records {
                assert!(known.contains(record), "invented at {:?} of {stream}", record.0);
            }
        }
    }
    for records in found.values() {
        assert!(records.windows(2).all(|pair| pair[0].0 < pair[1].0), "positions rise");
    }

    let added = log.stream(STREAMS[0]).and_then(|stream| log.append(stream, 8, &[b"after"]));
    let flushed = log.flush_blocking();
    drop(log);
    let log = open(folder.path()).expect("what was opened once opens again");
    let again = contents(&log);
    if let (Ok(at), Ok(())) = (added, flushed) {
        let last = again[STREAMS[0]].last().expect("the new record is there");
        assert_eq!(last, &(at, b"after".to_vec()));
        let mut expected = found;
        expected.entry(STREAMS[0].into()).or_default().push((at, b"after".to_vec()));
        assert_eq!(again, expected);
    }
});

fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary folder")
}

fn open(folder: &Path) -> Option<WriteAheadLog> {
    let options =
        LogOptions { segment_bytes: SEGMENT_BYTES, log_bytes_max: 1 << 20, seed: 1, ..LogOptions::default() };
    WriteAheadLog::open(folder, options).ok().map(|(log, _)| log)
}

fn contents(log: &WriteAheadLog) -> Contents {
    let mut all = Contents::new();
    for (stream, name) in log.streams() {
        let list = all.entry(name.to_owned()).or_default();
        let mut from = LogPosition::ORIGIN;
        while let Some(record) = log.read(stream, from) {
            assert!(record.next > from, "reading goes on");
            list.push((record.position, record.payload.to_vec()));
            from = record.next;
        }
    }
    all
}

/// Does what the input says to the files; `true` when it brought bytes of its own.
fn damage(files: &mut BTreeMap<String, Vec<u8>>, input: &[u8]) -> bool {
    let mut foreign = false;
    let mut rest = input;
    for _ in 0..DAMAGES_MAX {
        let [kind, which, a0, a1, b0, b1, value, tail @ ..] = rest else { break };
        rest = tail;
        let names: Vec<String> = files.keys().cloned().collect();
        if names.is_empty() {
            break;
        }
        let name = names[usize::from(*which) % names.len()].clone();
        let other = names[usize::from(*value) % names.len()].clone();
        let at = usize::from(u16::from_le_bytes([*a0, *a1]));
        let length = usize::from(u16::from_le_bytes([*b0, *b1]));
        let Some(bytes) = files.get_mut(&name) else { break };
        let end = bytes.len().min(at.saturating_add(length));
        match kind % 7 {
            0 => bytes.get_mut(at..end).unwrap_or_default().fill(*value),
            1 => bytes.truncate(at),
            2 => drop(files.remove(&name)),
            3 => {
                // A misdirected write: a piece of one file in another, or elsewhere in the same one.
                let piece = bytes.get(at..end).unwrap_or_default().to_vec();
                let target = files.get_mut(&other).expect("it was listed");
                let to = usize::from(rest.first().copied().unwrap_or(0)) * 64;
                for (byte, new) in target.iter_mut().skip(to).zip(piece) {
                    *byte = new;
                }
            }
            4 => bytes.resize(at.min(64 << 10), *value),
            5 => {
                let copy = bytes.clone();
                files.insert(format!("{:020}.seg", 900 + u32::from(*value)), copy);
            }
            _ => {
                foreign = true;
                let own = &rest[..rest.len().min(length)];
                for (byte, new) in bytes.iter_mut().skip(at).zip(own) {
                    *byte = *new;
                }
                rest = &rest[own.len()..];
            }
        }
    }
    foreign
}
