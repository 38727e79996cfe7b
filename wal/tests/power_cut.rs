//! Weather: a disk that loses power in the middle of a flush, thousands of times from seeds.
//!
//! The disk keeps any part of the write that was out: nothing, all, a prefix of any length, or any
//! subset of its 512-byte sectors; and a deleted file may be back. A model remembers what was
//! appended and what was reported durable, and after each recovery compares.
//!
//! `SEED=81723 cargo test -p sluicegate-wal --test power_cut` replays one case, `CASES=100000` runs more.

#![allow(clippy::unwrap_used)] // a panic is this test's way to fail

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use sluicegate_wal::{AppendError, Bookmark, Flush, Log, Options, Position, Spare, StreamId, Urgency};

const SECTOR_BYTES: u64 = 512;
const CASES: u64 = 1500;
const CRASHES_PER_CASE: usize = 4;
const STREAMS: [&str; 3] = ["a", "b", "c"];
const SUBSCRIBERS: [&str; 2] = ["x", "y"];

/// EV-RTE-02, APP-05, APP-06: whatever a power cut leaves of a flush, everything reported durable
/// is there, in order; nothing torn is shown; batches are whole or absent; bookmarks never run ahead.
#[test]
fn whatever_a_power_cut_leaves_nothing_acknowledged_is_lost_and_nothing_torn_is_shown() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CASES").unwrap_or(CASES),
    };
    let mut seen = Seen::default();
    for seed in seeds.clone() {
        let case = std::panic::catch_unwind(|| {
            let mut seen = Seen::default();
            run(seed, &mut seen);
            seen
        });
        match case {
            Ok(more) => seen.add(&more),
            Err(cause) => {
                eprintln!("replay with SEED={seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    if seeds.end - seeds.start >= CASES {
        // A run in which these never happened has not shown what it claims.
        assert!(seen.torn > 0 && seen.torn_batches > 0 && seen.leftovers > 0, "{seen:?}");
        assert!(seen.unacknowledged_kept > 0 && seen.reclaimed > 0 && seen.full > 0, "{seen:?}");
        assert!(seen.moved > 0 && seen.cut_while_moving > 0 && seen.moved_found > 0, "{seen:?}");
    }
    println!("{seen:?}");
}

#[derive(Debug, Default)]
struct Seen {
    events: u64,
    torn: u64,
    torn_batches: u64,
    leftovers: u64,
    unacknowledged_kept: u64,
    reclaimed: u64,
    full: u64,
    /// Bytes of live records that were moved forward.
    moved: u64,
    /// Crashes in the middle of emptying a segment.
    cut_while_moving: u64,
    /// Events found after a crash, elsewhere than where they were appended.
    moved_found: u64,
}

impl Seen {
    fn add(&mut self, more: &Self) {
        self.events += more.events;
        self.torn += more.torn;
        self.torn_batches += more.torn_batches;
        self.leftovers += more.leftovers;
        self.unacknowledged_kept += more.unacknowledged_kept;
        self.reclaimed += more.reclaimed;
        self.full += more.full;
        self.moved += more.moved;
        self.cut_while_moving += more.cut_while_moving;
        self.moved_found += more.moved_found;
    }
}

#[derive(Debug, Clone)]
struct Event {
    stream: StreamId,
    payload: Vec<u8>,
    batch: u64,
}

/// What the log was told and what it promised.
#[derive(Default)]
struct Model {
    events: BTreeMap<Position, Event>,
    durable: Position,
    batches: u64,
    /// Every bookmark since the last one known durable, oldest first.
    marks: BTreeMap<(StreamId, &'static str), Vec<Bookmark>>,
    never_durable: BTreeSet<(StreamId, &'static str)>,
    /// All that was ever acknowledged: what everybody has had may be gone.
    acknowledged: BTreeMap<(StreamId, &'static str), Bookmark>,
}

fn run(seed: u64, seen: &mut Seen) {
    let mut rng = Rng::with_seed(seed);
    let shelf = Path::new("/dev/shm"); // the power cut is ours: a real disk would only be slower
    let folder = if shelf.is_dir() { tempfile::tempdir_in(shelf) } else { tempfile::tempdir() }.unwrap();
    let (home, names) = (folder.path().join("log"), folder.path().join("attic"));
    fs::create_dir(&names).unwrap();
    let attic = Attic { home: home.clone(), names };

    let mut model = Model::default();
    for _ in 0..CRASHES_PER_CASE {
        let (mut log, recovery) = Log::open(&home, options(seed)).unwrap();
        assert_eq!(recovery.holes, []);
        seen.torn += u64::from(recovery.torn_bytes > 0);
        seen.torn_batches += u64::from(recovery.torn_batch_records > 0);
        seen.leftovers += recovery.leftovers as u64;
        model.compare(&log, seen);
        let streams = settle_in(&mut log, &mut model);
        live(&mut log, &mut model, &streams, &attic, &mut rng, seen);
        seen.moved += log.stat().moved_bytes;
        seen.cut_while_moving += u64::from(log.is_moving());
        drop(log);
        attic.haunt(&mut rng);
    }
    let (log, recovery) = Log::open(&home, options(seed)).unwrap();
    assert_eq!(recovery.holes, []);
    model.compare(&log, seen);
    drop(log);
    let (log, again) = Log::open(&home, options(seed)).unwrap();
    assert_eq!((again.torn_bytes, again.leftovers, again.events), (0, 0, recovery.events));
    model.compare(&log, seen);
    seen.events += recovery.events;
}

fn options(seed: u64) -> Options {
    let segment_bytes = 16 << 10;
    let segments = if seed.is_multiple_of(2) { 5 } else { 9 };
    Options { segment_bytes, log_bytes_max: segments * u64::from(segment_bytes), seed, ..Options::default() }
}

/// Declares streams and gives those that lost their never durable bookmark a new one.
fn settle_in(log: &mut Log, model: &mut Model) -> Vec<StreamId> {
    let mut streams = Vec::new();
    for name in STREAMS {
        let Ok(stream) = log.stream(name) else { continue };
        streams.push(stream);
        for subscriber in SUBSCRIBERS {
            if !log.bookmarks(stream).any(|(name, _)| name == subscriber) {
                let mark = Bookmark::at(log.origin());
                log.bookmark(stream, subscriber, mark.clone()).unwrap();
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
    log: &mut Log,
    model: &mut Model,
    streams: &[StreamId],
    attic: &Attic,
    rng: &mut Rng,
    seen: &mut Seen,
) {
    let mut spare: Option<Spare> = None;
    let mut out: Option<Flush> = None;
    // Now and then nobody acknowledges anything for so long that the log fills up.
    // And now and then one stream's subscribers are dead while all others are busy.
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
                // The flush goes out, and life goes on before it comes back.
                attic.remember();
                out = out.or_else(|| log.next_flush());
            }
            51..53 => drop(flush(log, model, attic, &mut out)),
            53..68 => acknowledge(log, model, awake, rng),
            68..71 => seen.reclaimed += log.reclaim().segments as u64,
            71..75 => log.move_on(),
            75..79 => spare = spare.or_else(|| log.prepare_spare().map(|job| job.run().unwrap())),
            79..83 => spare.take().into_iter().for_each(|spare| log.spare_ready(Ok(spare))),
            83..90 => drop(flush(log, model, attic, &mut out)),
            _ => {
                while flush(log, model, attic, &mut out) {}
                if log.urgency() == Urgency::Nothing {
                    model.never_durable.clear();
                    model.marks.values_mut().for_each(|marks| drop(marks.drain(..marks.len() - 1)));
                }
            }
        }
    }
    if rng.bool() {
        // Space given back while a flush is out, and the power fails before the drop is durable.
        attic.remember();
        out = out.or_else(|| log.next_flush());
        seen.reclaimed += log.reclaim().segments as u64;
        log.move_on();
        flush(log, model, attic, &mut out);
    }
    attic.remember();
    if let Some(flush) = out.or_else(|| log.next_flush()) {
        cut_power_during(&flush, rng);
    }
}

fn append(log: &mut Log, model: &mut Model, streams: &[StreamId], rng: &mut Rng, seen: &mut Seen) {
    let stream = streams[rng.usize(0..streams.len())];
    let payload = payload(rng);
    match log.append(stream, 0, &[&payload]) {
        Ok(position) => {
            model.batches += 1;
            model.events.insert(position, Event { stream, payload, batch: model.batches });
        }
        Err(AppendError::Full { .. }) => seen.full += 1,
        Err(other) => panic!("{other}"),
    }
}

fn batch(log: &mut Log, model: &mut Model, streams: &[StreamId], rng: &mut Rng, seen: &mut Seen) {
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
                model.events.insert(position, Event { stream, payload, batch: model.batches });
                position = Position::new(next);
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

/// Reads a few events and puts the bookmark over some of them.
fn acknowledge(log: &mut Log, model: &mut Model, streams: &[StreamId], rng: &mut Rng) {
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
    log.bookmark(stream, subscriber, mark.clone()).unwrap();
    marks.push(mark.clone());
    model.acknowledge(stream, subscriber, &mark);
}

/// One flush that the disk keeps its word on.
fn flush(log: &mut Log, model: &mut Model, attic: &Attic, out: &mut Option<Flush>) -> bool {
    attic.remember();
    let Some(flush) = out.take().or_else(|| log.next_flush()) else { return false };
    flush.file.write_all_at(&flush.bytes, flush.offset).unwrap();
    log.flush_done(flush, Ok(()));
    model.durable = log.durable();
    assert!(log.durable() <= log.visible());
    true
}

fn cut_power_during(flush: &Flush, rng: &mut Rng) {
    let length = flush.bytes.len();
    match rng.u32(0..5) {
        0 => {}
        1 => flush.file.write_all_at(&flush.bytes, flush.offset).unwrap(),
        2 => flush.file.write_all_at(&flush.bytes[..rng.usize(0..=length)], flush.offset).unwrap(),
        _ => {
            let often = rng.u32(1..10);
            let mut at = 0;
            while at < length {
                let sector_end = SECTOR_BYTES - (flush.offset + at as u64) % SECTOR_BYTES;
                let end = length.min(at + sector_end as usize);
                if rng.u32(0..10) < often {
                    flush.file.write_all_at(&flush.bytes[at..end], flush.offset + at as u64).unwrap();
                }
                at = end;
            }
        }
    }
}

/// A second name for every file, as a deletion that never reached the disk would leave it.
struct Attic {
    home: PathBuf,
    names: PathBuf,
}

impl Attic {
    fn remember(&self) {
        for entry in fs::read_dir(&self.home).unwrap().map(Result::unwrap) {
            let name = self.names.join(entry.file_name());
            if entry.file_name() != "LOCK" && !name.exists() {
                fs::hard_link(entry.path(), name).unwrap();
            }
        }
    }

    /// Brings some deleted files back, and forgets the others for good.
    fn haunt(&self, rng: &mut Rng) {
        for entry in fs::read_dir(&self.names).unwrap().map(Result::unwrap) {
            let name = self.home.join(entry.file_name());
            if !name.exists() && rng.bool() {
                fs::hard_link(entry.path(), name).unwrap();
            }
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

impl Model {
    fn acknowledge(&mut self, stream: StreamId, subscriber: &'static str, mark: &Bookmark) {
        let all = self.acknowledged.entry((stream, subscriber)).or_default();
        all.complete(Position::ORIGIN..mark.low());
        mark.done().iter().for_each(|range| all.complete(range.clone()));
    }

    fn everybody_had(&self, position: Position, stream: StreamId) -> bool {
        let had =
            |subscriber| self.acknowledged.get(&(stream, subscriber)).is_some_and(|m| m.is_done(position));
        SUBSCRIBERS.into_iter().all(had)
    }

    /// Holds the recovered log against what was promised, then takes it as the new truth.
    fn compare(&mut self, log: &Log, seen: &mut Seen) {
        let mut found: BTreeMap<Position, Event> = BTreeMap::new();
        let log_begin = log.stat().first_byte;
        for (stream, _) in log.streams() {
            let mut from = Position::ORIGIN;
            while let Some(record) = log.read(stream, from) {
                let told =
                    self.events.get(&record.position).expect("nothing is there that was never appended");
                assert_eq!((told.stream, &told.payload[..]), (stream, &record.payload[..]));
                assert!(record.position >= from, "in order, and once");
                seen.moved_found += u64::from(record.position < log_begin);
                found.insert(record.position, told.clone());
                from = record.next;
            }
        }
        let floors = self.compare_bookmarks(log);
        let needed = |position: Position, event: &Event| {
            let is_open = floors.get(&event.stream).is_some_and(|floor| position >= *floor);
            is_open && !self.everybody_had(position, event.stream)
        };
        let last = found.keys().next_back().copied().unwrap_or_default();
        let batches: BTreeSet<u64> =
            found.iter().filter(|(at, event)| needed(**at, event)).map(|(_, event)| event.batch).collect();
        for (position, event) in self.events.iter().filter(|(at, event)| needed(**at, event)) {
            let there = found.contains_key(position);
            assert!(there || *position >= self.durable, "acknowledged {position} is lost");
            assert!(there || *position > last, "{position} is missing before {last}");
            assert!(there || !batches.contains(&event.batch), "{position}: half a batch is shown");
            seen.unacknowledged_kept += u64::from(there && *position >= self.durable);
        }
        self.events = found;
        self.durable = log.durable();
    }

    /// Returns from where on each stream must be complete.
    fn compare_bookmarks(&mut self, log: &Log) -> BTreeMap<StreamId, Position> {
        let mut floors: BTreeMap<StreamId, Position> = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for (stream, _) in log.streams() {
            for (name, mark) in log.bookmarks(stream) {
                let subscriber = *SUBSCRIBERS.iter().find(|known| **known == name).unwrap();
                let put = &self.marks[&(stream, subscriber)];
                assert!(
                    put.contains(mark),
                    "{stream} {subscriber}: {mark:?} was never put, or is too old: {put:?}"
                );
                let floor = floors.entry(stream).or_insert(mark.low());
                *floor = mark.low().min(*floor);
                self.never_durable.remove(&(stream, subscriber));
                marks.insert((stream, subscriber), vec![mark.clone()]);
            }
        }
        for ((stream, subscriber), put) in &self.marks {
            let lost = !marks.contains_key(&(*stream, *subscriber));
            assert!(
                !lost || self.never_durable.contains(&(*stream, *subscriber)),
                "{stream} {subscriber} {put:?}"
            );
        }
        self.marks = marks;
        floors
    }
}
