//! What the log costs: an append by itself, and a group commit beside the bare disk in the same run.
//!
//! `disk` is a ready buffer of the same payload bytes, written at rising offsets into an allocated
//! and zeroed file: by pwrite and fdatasync, or by one write with RWF_DSYNC. `log` appends record by
//! record and makes its flush durable in the same two ways.

#![allow(clippy::unwrap_used)] // a bench that cannot write has nothing to measure

use std::fs::File;
use std::hint::black_box;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustix::io::{ReadWriteFlags, pwritev2};
use sluicegate_wal::{Log, Options, Position, StreamId};

const RECORD_BYTES: usize = 512;
const FILE_BYTES: u64 = 64 << 20;
const READ_RECORDS: u64 = 1000;

type Write = fn(&File, &[u8], u64);

const WRITES: [(&str, Write); 2] = [("fdatasync", write_and_sync), ("dsync", write_through)];

fn write_and_sync(file: &File, bytes: &[u8], offset: u64) {
    file.write_all_at(bytes, offset).unwrap();
    file.sync_data().unwrap();
}

fn write_through(file: &File, bytes: &[u8], offset: u64) {
    let written = pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::DSYNC).unwrap();
    assert_eq!(written, bytes.len());
}

fn commit(log: &mut Log, stream: StreamId, payload: &[u8], records: usize, write: Write) {
    for _ in 0..records {
        black_box(log.append(stream, 0, &[payload]).unwrap());
    }
    while let Some(flush) = log.next_flush() {
        write(&flush.file, &flush.bytes, flush.offset);
        log.flush_done(flush, Ok(()));
    }
    log.reclaim(); // nobody subscribes, so the space comes round
}

fn append(c: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = Log::open(folder.path(), Options::default()).unwrap();
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
    let (mut log, _) = Log::open(&folder.path().join("log"), Options::default()).unwrap();
    let stream = log.stream("bench").unwrap();
    let payload = vec![7; RECORD_BYTES];
    let file = zeroed(&folder.path().join("bare"));
    let mut group = c.benchmark_group("group commit of 512 bytes");
    for records in [1, 8, 64, 512] {
        group.throughput(Throughput::Elements(records as u64));
        let bytes = vec![7; RECORD_BYTES * records];
        for (how, write) in WRITES {
            let mut at = 0;
            group.bench_function(BenchmarkId::new(format!("disk {how}"), records), |b| {
                b.iter(|| {
                    write(&file, &bytes, at);
                    at = (at + bytes.len() as u64) % (FILE_BYTES / 2);
                });
            });
            group.bench_function(BenchmarkId::new(format!("log {how}"), records), |b| {
                b.iter(|| commit(&mut log, stream, &payload, records, write));
            });
        }
    }
    group.finish();
}

/// What a read costs: the index, the checksum, and a slice of the map.
fn read(c: &mut Criterion) {
    let mut group = c.benchmark_group("read");
    for bytes in [64, RECORD_BYTES, 4096] {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(folder.path(), Options::default()).unwrap();
        let stream = log.stream("bench").unwrap();
        for _ in 0..READ_RECORDS {
            log.append(stream, 0, &[&vec![7; bytes]]).unwrap();
        }
        log.flush_blocking().unwrap();
        group.throughput(Throughput::Elements(READ_RECORDS));
        group.bench_function(BenchmarkId::new("records in order", bytes), |b| {
            b.iter(|| {
                let mut from = Position::ORIGIN;
                while let Some(record) = log.read(stream, from) {
                    from = black_box(record).next;
                }
            });
        });
    }
    group.finish();
}

/// Zeroed in small steps: after large ones every small write would write back a large folio.
fn zeroed(path: &std::path::Path) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    for at in (0..FILE_BYTES).step_by(4096) {
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    file.sync_all().unwrap();
    file
}

criterion_group!(benches, append, group_commit, read);
criterion_main!(benches);
