//! The child: appends through the real log and reports its acknowledgements, until it is killed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use rustix::io::{ReadWriteFlags, pwritev2};
use wal::{AppendError, Cursor, StreamId, WriteAheadLog};

use super::content::{STREAMS, SUBSCRIBER, batch_records, next_of_stream, record, stream_of};
use super::options;

/// Maximum batches in one flush: a group commit of many senders.
const GROUP_MAX: u32 = 32;
/// Bytes that a stream's subscriber leaves unread. The last one reads in leaps, so that others' segments
/// would wait for it and its records are compacted.
const UNREAD_BYTES: [u64; STREAMS.len()] = [256 << 10, 256 << 10, 64 << 10];
const LEAP_BYTES: u64 = 2 << 20;

/// A stream in this child.
struct WriterStream {
    id: StreamId,
    /// Batches appended by this child and not yet read: number, end, bytes.
    unread: VecDeque<(u64, wal::LogPosition, u64)>,
    bytes: u64,
}

/// Appends from batch number `from` on. Ends only by an error: the parent's kill is the usual end.
pub(super) fn append(folder: &Path, seed: u64, from: u64) -> Result<()> {
    let mut say = io::stdout().lock();
    writeln!(say, "opening")?;
    let (mut log, _) = WriteAheadLog::open(folder, options(seed))?;
    let mut streams = streams(&mut log, from, &mut say)?;
    writeln!(say, "open")?;

    let mut rng = Rng::with_seed(seed ^ from);
    let mut batch = from;
    loop {
        for _ in 0..rng.u32(1..=GROUP_MAX) {
            if !put(&mut log, &mut streams, seed, batch)? {
                break;
            }
            batch += 1;
        }
        let begun = Instant::now();
        let bytes = flush(&mut log, &mut say)?;
        writeln!(say, "ack {batch} {} {} {bytes}", log.durable(), begun.elapsed().as_nanos())?;
        read_on(&mut log, &mut streams, &mut say)?;
        log.reclaim();
        log.move_on();
    }
}

fn streams(log: &mut WriteAheadLog, from: u64, say: &mut impl Write) -> Result<Vec<WriterStream>> {
    let mut streams = Vec::new();
    for (nth, name) in STREAMS.iter().enumerate() {
        let id = log.stream(name)?;
        if log.cursors(id).next().is_none() {
            let first = (from..).find(|batch| stream_of(*batch) == nth).context("a stream has batches")?;
            let mark = log.end(id);
            writeln!(say, "mark {nth} {mark} {first}")?;
            log.cursor(id, SUBSCRIBER, Cursor::at(mark))?;
        }
        streams.push(WriterStream { id, unread: VecDeque::new(), bytes: 0 });
    }
    Ok(streams)
}

/// Appends one batch; false when the log is full for now.
fn put(log: &mut WriteAheadLog, streams: &mut [WriterStream], seed: u64, batch: u64) -> Result<bool> {
    let payloads: Vec<Vec<u8>> = (0..batch_records(seed, batch)).map(|nth| record(seed, batch, nth)).collect();
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [payload.as_slice()]).collect();
    let records: Vec<&[&[u8]]> = parts.iter().map(|parts| parts.as_slice()).collect();
    let Some(stream) = streams.get_mut(stream_of(batch)) else { bail!("no stream for batch {batch}") };
    match log.append_batch(stream.id, batch, &records) {
        Ok(range) => {
            let bytes = range.end.get() - range.start.get();
            stream.unread.push_back((batch, range.end, bytes));
            stream.bytes += bytes;
            Ok(true)
        }
        Err(AppendError::Full { .. }) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// Makes everything durable, in the same way as a core: one write with RWF_DSYNC at a time. Reports each
/// before the next one, whose records depend on it, and before the log gets the result: files whose drop is durable
/// are deleted then, and a kill in between must not make the parent take the drop for a torn write. Returns
/// the bytes.
fn flush(log: &mut WriteAheadLog, say: &mut impl Write) -> Result<u64> {
    let mut bytes = 0;
    while let Some(flush) = log.next_flush() {
        bytes += flush.bytes.len() as u64;
        let result = write_durably(&flush.file, &flush.bytes, flush.offset);
        if result.is_ok() {
            writeln!(say, "flushed {}", flush.end)?;
        }
        log.flush_done(flush, result);
    }
    match log.poison() {
        Some(reason) => bail!("{reason}"),
        None => Ok(bytes),
    }
}

fn write_durably(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::DSYNC)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}

/// Advances the cursors. Each is reported before it is set, so that no unreported one can be found.
fn read_on(log: &mut WriteAheadLog, streams: &mut [WriterStream], say: &mut impl Write) -> Result<()> {
    for (nth, stream) in streams.iter_mut().enumerate() {
        let is_last = nth + 1 == STREAMS.len();
        if is_last && stream.bytes < LEAP_BYTES {
            continue;
        }
        let mut read = None;
        while stream.bytes > UNREAD_BYTES[nth] {
            let Some((batch, end, bytes)) = stream.unread.pop_front() else { break };
            stream.bytes -= bytes;
            read = Some((batch, end));
        }
        if let Some((batch, end)) = read {
            writeln!(say, "mark {nth} {end} {}", next_of_stream(batch))?;
            log.cursor(stream.id, SUBSCRIBER, Cursor::at(end))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wal::{LogOptions, LogPosition};

    use super::*;

    /// A writer whose pipe is closed at the first write, because a child may be killed at any of its lines.
    struct KilledChild;

    impl Write for KilledChild {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A file deleted before its drop was reported durable would look like a lost segment, because the
    /// parent tears everything that was not reported.
    #[test]
    fn file_is_deleted_only_after_reported_drop() {
        let folder = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        let options = || LogOptions { segment_bytes: 16 << 10, log_bytes_max: 4 << 20, ..LogOptions::default() };
        let (mut log, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
        let stream = log.stream("a").unwrap();
        log.cursor(stream, SUBSCRIBER, Cursor::at(LogPosition::ORIGIN)).unwrap();
        for _ in 0..200 {
            log.append(stream, 0, &[&[7; 500]]).unwrap();
        }
        log.cursor(stream, SUBSCRIBER, Cursor::at(log.end(stream))).unwrap();
        flush(&mut log, &mut io::sink()).unwrap();
        assert!(log.reclaim().segments > 4, "more than are kept for use again");
        let before = files();
        assert!(flush(&mut log, &mut KilledChild).is_err());
        drop(log);
        assert_eq!(files(), before);

        let (mut log, recovery) = WriteAheadLog::open(folder.path(), options()).unwrap();
        assert!(recovery.gaps.is_empty() && recovery.leftovers > 0, "{recovery:?}");
        flush(&mut log, &mut io::sink()).unwrap();
        assert!(files() < before);
    }
}
