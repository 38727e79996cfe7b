//! A disk that reports a write and did not make it. A single copy cannot survive that, but the reader of
//! the log must get a gap reported.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use fastrand::Rng;
use sluicegate_wal::{Flush, LogOptions, LogPosition, StreamId, WriteAheadLog, inspect};

use crate::disk::SECTOR_BYTES;
use crate::lost_segments::names_segment;
use crate::{each_seed, memory_folder};

const SEGMENT_BYTES: u32 = 16 << 10;
/// Maximum number of flushes before the lost one, and of honest ones after it.
const BEFORE_MAX: usize = 30;
const BEHIND_MAX: usize = 30;
/// A single record behind a lost header is not found when its own header is in two sectors.
const BEHIND_MIN: usize = 5;

type RecordedEvents = BTreeMap<LogPosition, Vec<u8>>;

/// APP-05: what the disk lost before later records is reported as a gap by recovery and by `verify`;
/// everything else is there, and nothing is invented.
#[test]
fn flush_lost_by_disk_is_reported_as_gap() {
    each_seed(|seed, seen| {
        run(seed);
        seen.lost_flushes += 1;
    });
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let folder = memory_folder();
    let home = folder.path().join("log");
    let options = LogOptions {
        segment_bytes: SEGMENT_BYTES,
        log_bytes_max: 64 * u64::from(SEGMENT_BYTES),
        seed,
        ..LogOptions::default()
    };
    let (mut log, _) = WriteAheadLog::open(&home, options.clone()).unwrap();
    let stream = log.stream("a").unwrap();
    let mut events = RecordedEvents::new();
    for _ in 0..rng.usize(0..BEFORE_MAX) {
        append(&mut log, stream, &mut events, &mut rng);
        flush(&mut log, honestly);
    }
    // Sometimes the lost flush is the first of a segment, including the header.
    let is_first = rng.u8(0..3) == 0;
    let (mut lost, mut tries) = (None, 0);
    while lost.is_none() {
        let at = append(&mut log, stream, &mut events, &mut rng);
        tries += 1;
        let mut lying = |flush: &Flush| {
            if names_segment(flush) || (is_first && flush.offset > 0 && tries < 60) {
                return honestly(flush);
            }
            lost = Some(drop_sectors(flush, at.get() % u64::from(SEGMENT_BYTES), &mut rng).then_some(at));
        };
        flush(&mut log, &mut lying);
    }
    for _ in 0..rng.usize(BEHIND_MIN..BEHIND_MAX) {
        append(&mut log, stream, &mut events, &mut rng);
        flush(&mut log, honestly);
    }
    drop(log);
    let Some(Some(lost)) = lost else { return }; // the flush contained no event: nothing relevant was lost

    let found = inspect(&home, &mut |_, _| {}).unwrap();
    let covers = |from: LogPosition, to: LogPosition| from <= lost && lost < to;
    assert!(found.gaps.iter().any(|gap| covers(gap.from, gap.to)), "verify passes {lost} over: {found:?}");
    let (log, recovery) = WriteAheadLog::open(&home, options).unwrap();
    let gaps = &recovery.gaps;
    assert!(gaps.iter().any(|gap| covers(gap.from, gap.to)), "{lost} is passed over: {recovery:?}");
    let mut there = RecordedEvents::new();
    if let Some((stream, _)) = log.streams().next() {
        let mut from = LogPosition::ORIGIN;
        while let Some(record) = log.read(stream, from) {
            there.insert(record.position, record.payload.to_vec());
            from = record.next;
        }
    }
    assert!(there.iter().all(|(at, payload)| events.get(at) == Some(payload)), "invented");
    for at in events.keys().filter(|at| !there.contains_key(at)) {
        assert!(gaps.iter().any(|gap| gap.from <= *at && *at < gap.to), "{at} is gone, and no gap: {gaps:?}");
    }
}

fn append(log: &mut WriteAheadLog, stream: StreamId, events: &mut RecordedEvents, rng: &mut Rng) -> LogPosition {
    let payload: Vec<u8> = (0..rng.usize(0..900)).map(|_| rng.u8(..)).collect();
    let position = log.append(stream, 0, &[&payload]).unwrap();
    events.insert(position, payload);
    position
}

fn flush(log: &mut WriteAheadLog, mut write: impl FnMut(&Flush)) {
    while let Some(flush) = log.next_flush() {
        write(&flush);
        log.flush_done(flush, Ok(()));
    }
}

fn honestly(flush: &Flush) {
    flush.file.write_all_at(&flush.bytes, flush.offset).unwrap();
}

/// Omits the sector in which the record at `victim` begins, and perhaps more, or all. False when the record
/// is not in this flush.
fn drop_sectors(flush: &Flush, victim: u64, rng: &mut Rng) -> bool {
    let end = flush.offset + flush.bytes.len() as u64;
    let all = rng.u8(0..3) == 0;
    let mut at = flush.offset;
    while at < end {
        let sector_end = (at - at % SECTOR_BYTES + SECTOR_BYTES).min(end);
        let is_victim = (at..sector_end).contains(&victim);
        if !(all || is_victim || rng.u8(0..4) == 0) {
            let bytes = &flush.bytes[(at - flush.offset) as usize..(sector_end - flush.offset) as usize];
            flush.file.write_all_at(bytes, at).unwrap();
        }
        at = sector_end;
    }
    (flush.offset..end).contains(&victim)
}
