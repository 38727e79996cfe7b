//! What the log costs: an append by itself, and a group commit next to the raw disk in the same run.
//!
//! `disk` writes a ready buffer of the same payload bytes at rising offsets into an allocated and zeroed
//! file: with pwrite and fdatasync, or with one RWF_DSYNC write. `log` appends record by record and makes
//! its flush durable in the same two ways: it waits for each flush, or appends the next records meanwhile
//! as the product does.

#![allow(clippy::unwrap_used)] // a bench that cannot write has nothing to measure

use std::fs::File;
use std::hint::black_box;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustix::io::{ReadWriteFlags, pwritev2};
use sluicegate_wal::{Cursor, Flush, FlushUrgency, LogOptions, LogPosition, StreamId, WriteAheadLog};

const RECORD_BYTES: usize = 512;
const FILE_BYTES: u64 = 64 << 20;
const READ_RECORDS: u64 = 1000;
/// Events between two calls of `reclaim`: a core calls it once a second.
const RECLAIM_EVERY: usize = 1 << 16;
const GIB: u64 = 1 << 30;
/// Size of the log that is opened, in GiB; by default 1, or a sixteenth in an unoptimised build.
const RECOVERED_GIB: &str = "SLUICEGATE_RECOVERED_GIB";
const RECOVERED_BYTES: u64 = if cfg!(debug_assertions) { GIB / 16 } else { GIB };

type BenchWrite = fn(&File, &[u8], u64);

const WRITES: [(&str, BenchWrite); 2] = [("fdatasync", write_and_sync), ("dsync", write_through)];

fn write_and_sync(file: &File, bytes: &[u8], offset: u64) {
    file.write_all_at(bytes, offset).unwrap();
    file.sync_data().unwrap();
}

fn write_through(file: &File, bytes: &[u8], offset: u64) {
    let written = pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::DSYNC).unwrap();
    assert_eq!(written, bytes.len());
}

fn commit(log: &mut WriteAheadLog, stream: StreamId, payload: &[u8], records: usize, write: BenchWrite) {
    for _ in 0..records {
        black_box(log.append(stream, 0, &[payload]).unwrap());
    }
    while let Some(flush) = log.next_flush() {
        write(&flush.file, &flush.bytes, flush.offset);
        log.flush_done(flush, Ok(()));
    }
    log.reclaim(); // no stream has a subscriber, so all space is reclaimed
}

/// Same as the product: the disk works on one flush while the next records are appended. The disk is a
/// thread here.
struct Pipeline {
    flushes: SyncSender<(Arc<File>, Bytes, u64)>,
    done: Receiver<()>,
    out: Option<Flush>,
}

impl Pipeline {
    fn new(write: BenchWrite) -> Self {
        let (flushes, next) = sync_channel::<(Arc<File>, Bytes, u64)>(1);
        let (tell, done) = sync_channel(1);
        thread::spawn(move || {
            for (file, bytes, offset) in next {
                write(&file, &bytes, offset);
                drop(bytes); // gives the buffer back to the log
                tell.send(()).unwrap();
            }
        });
        Self { flushes, done, out: None }
    }

    fn commit(&mut self, log: &mut WriteAheadLog, stream: StreamId, payload: &[u8], records: usize) {
        for _ in 0..records {
            black_box(log.append(stream, 0, &[payload]).unwrap());
        }
        self.settle(log);
        while let Some(flush) = log.next_flush() {
            self.flushes.send((Arc::clone(&flush.file), flush.bytes.clone(), flush.offset)).unwrap();
            self.out = Some(flush);
            if log.urgency() == FlushUrgency::Now {
                self.settle(log); // a roll-over writes two files
            }
        }
        log.reclaim();
    }

    fn settle(&mut self, log: &mut WriteAheadLog) {
        if let Some(flush) = self.out.take() {
            self.done.recv().unwrap();
            log.flush_done(flush, Ok(()));
        }
    }
}

fn append(c: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(folder.path(), LogOptions::default()).unwrap();
    let stream = log.stream("bench").unwrap();
    let mut group = c.benchmark_group("append");
    for payload in [vec![7; RECORD_BYTES], vec![7; 4096]] {
        group.throughput(Throughput::Elements(64));
        group.bench_function(BenchmarkId::new("64 records, flush not written", payload.len()), |b| {
            b.iter(|| commit(&mut log, stream, &payload, 64, |_, _, _| {}));
        });
    }
    group.finish();
}

fn group_commit(c: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = WriteAheadLog::open(&folder.path().join("log"), LogOptions::default()).unwrap();
    let stream = log.stream("bench").unwrap();
    let file = zeroed(&folder.path().join("bare"));
    let mut group = c.benchmark_group("group commit");
    for (size, records) in [(RECORD_BYTES, 1), (RECORD_BYTES, 8), (RECORD_BYTES, 64), (RECORD_BYTES, 512), (4096, 64)] {
        group.throughput(Throughput::Elements(records as u64));
        let (payload, bytes) = (vec![7; size], vec![7; size * records]);
        let records_of = format!("{records} x {size}");
        for (how, write) in WRITES {
            let mut at = 0;
            group.bench_function(BenchmarkId::new(format!("disk {how}"), &records_of), |b| {
                b.iter(|| {
                    write(&file, &bytes, at);
                    at = (at + bytes.len() as u64) % (FILE_BYTES / 2);
                });
            });
            group.bench_function(BenchmarkId::new(format!("log {how}"), &records_of), |b| {
                b.iter(|| commit(&mut log, stream, &payload, records, write));
            });
            let mut pipeline = Pipeline::new(write);
            group.bench_function(BenchmarkId::new(format!("log {how}, appending meanwhile"), &records_of), |b| {
                b.iter(|| pipeline.commit(&mut log, stream, &payload, records));
            });
            pipeline.settle(&mut log);
        }
    }
    group.finish();
}

/// One stream or a thousand, each with a subscriber: the price of an event must be the same.
fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("streams");
    for streams in [1, 1000] {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, _) = WriteAheadLog::open(folder.path(), LogOptions::default()).unwrap();
        let ids: Vec<StreamId> = (0..streams)
            .map(|nth| {
                let stream = log.stream(&format!("broker/default/bench-{nth}")).unwrap();
                log.cursor(stream, "reader", Cursor::at(log.end(stream))).unwrap();
                stream
            })
            .collect();
        let (payload, mut nth) = (vec![7; RECORD_BYTES], 0);
        group.throughput(Throughput::Elements(64));
        group.bench_function(BenchmarkId::new("64 records, flush not written, read and acknowledged", streams), |b| {
            b.iter(|| {
                let touched: Vec<StreamId> = (0..64).map(|more| ids[(nth + more) % streams]).collect();
                nth += 64;
                for stream in &touched {
                    black_box(log.append(*stream, 0, &[&payload]).unwrap());
                }
                while let Some(flush) = log.next_flush() {
                    log.flush_done(flush, Ok(()));
                }
                for stream in &touched {
                    let end = log.end(*stream);
                    log.cursor(*stream, "reader", Cursor::at(end)).unwrap();
                }
                if nth % RECLAIM_EVERY == 0 {
                    log.reclaim();
                }
            });
        });
    }
    group.finish();
}

/// Opens an intact log that is in the page cache.
fn recovery(c: &mut Criterion) {
    let recovered_bytes = std::env::var(RECOVERED_GIB).map_or(RECOVERED_BYTES, |gib| gib.parse::<u64>().unwrap() * GIB);
    let folder = tempfile::tempdir().unwrap();
    let options = LogOptions { log_bytes_max: 2 * recovered_bytes, ..LogOptions::default() };
    let (mut log, _) = WriteAheadLog::open(folder.path(), options.clone()).unwrap();
    let stream = log.stream("bench").unwrap();
    log.cursor(stream, "away", Cursor::at(log.end(stream))).unwrap();
    let payload = vec![7; RECORD_BYTES];
    while log.visible().get() < recovered_bytes {
        for _ in 0..512 {
            log.append(stream, 0, &[&payload]).unwrap();
        }
        while let Some(flush) = log.next_flush() {
            flush.file.write_all_at(&flush.bytes, flush.offset).unwrap();
            log.flush_done(flush, Ok(()));
        }
    }
    drop(log);
    let mut group = c.benchmark_group("recovery");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(recovered_bytes));
    group.bench_function("open, bytes of a cached log", |b| {
        b.iter(|| black_box(WriteAheadLog::open(folder.path(), options.clone()).unwrap().1.events));
    });
    group.finish();
}

/// Cost of a read: the index lookup, the checksum, and a slice of the map.
fn read(c: &mut Criterion) {
    let mut group = c.benchmark_group("read");
    for bytes in [64, RECORD_BYTES, 4096] {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, _) = WriteAheadLog::open(folder.path(), LogOptions::default()).unwrap();
        let stream = log.stream("bench").unwrap();
        for _ in 0..READ_RECORDS {
            log.append(stream, 0, &[&vec![7; bytes]]).unwrap();
        }
        log.flush_blocking().unwrap();
        group.throughput(Throughput::Elements(READ_RECORDS));
        group.bench_function(BenchmarkId::new("records in order", bytes), |b| {
            b.iter(|| {
                let mut from = LogPosition::ORIGIN;
                while let Some(record) = log.read(stream, from) {
                    from = black_box(record).next;
                }
            });
        });
    }
    group.finish();
}

/// Zeroed in small steps: after large writes every small write would write back a large folio.
fn zeroed(path: &std::path::Path) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    for at in (0..FILE_BYTES).step_by(4096) {
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    file.sync_all().unwrap();
    file
}

criterion_group!(benches, append, streams, group_commit, recovery, read);
criterion_main!(benches);
