//! Reads and scans segments on several threads, ahead of the thread that applies them in order.
//!
//! A segment is read through its map: the pages are loaded into the cache, and no byte is copied.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use bytes::Bytes;

use crate::error::Error;
use crate::header::SegmentHeader;
use crate::limits::READERS_MAX;
use crate::map::{SegmentMap, populate};
use crate::scan::{ScanResult, scan};
use crate::segment::{read_ahead, read_up_to};

/// A file with a valid header.
pub(crate) struct SegmentCandidate {
    pub(crate) header: SegmentHeader,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

/// The result of reading a segment.
pub(crate) struct SegmentScan {
    pub(crate) header: SegmentHeader,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// `None` when the file is too short to map, or cannot be read in places.
    pub(crate) map: Option<SegmentMap>,
    /// As many bytes as the header says; zeros beyond the end of the file.
    pub(crate) bytes: Bytes,
    /// Length of the file.
    pub(crate) length: usize,
    pub(crate) scan: ScanResult,
}

/// Reads all candidates, each with a flag whether another one follows, and passes them to `take` in order.
/// A segment with a base below `durable_before` was followed by another one, even if that one is lost.
///
/// # Errors The first error of a file or of `take`; nothing after it is passed on.
pub(crate) fn read_in_order(
    candidates: Vec<SegmentCandidate>,
    durable_before: u64,
    mut take: impl FnMut(SegmentScan) -> Result<(), Error>,
) -> Result<(), Error> {
    let count = candidates.len();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let readers = READERS_MAX.min(cores).min(count / 2).max(1);
    let mut shares: Vec<Vec<(SegmentCandidate, bool)>> = (0..readers).map(|_| Vec::new()).collect();
    for (nth, candidate) in candidates.into_iter().enumerate() {
        let continued = nth + 1 < count || candidate.header.base < durable_before;
        shares[nth % readers].push((candidate, continued));
    }
    if let [share] = &mut shares[..] {
        // Not enough work for a thread.
        return share.drain(..).try_for_each(|(candidate, continued)| take(read(candidate, continued)?));
    }
    thread::scope(|scope| {
        let start = |share: Vec<(SegmentCandidate, bool)>| {
            // One result ahead of `take`, and one being read: this bounds the mapped memory.
            let (done, next) = sync_channel(1);
            scope.spawn(move || {
                for (candidate, continued) in share {
                    if done.send(read(candidate, continued)).is_err() {
                        return; // stopped by an error
                    }
                }
            });
            next
        };
        let readings: Vec<Receiver<_>> = shares.into_iter().map(start).collect();
        for nth in 0..count {
            let Ok(reading) = readings[nth % readers].recv() else { break }; // it panicked, and the scope panics too
            take(reading?)?;
        }
        Ok(())
    })
}

fn read(candidate: SegmentCandidate, continued: bool) -> Result<SegmentScan, Error> {
    let SegmentCandidate { header, file, path } = candidate;
    let capacity = header.capacity as usize;
    if let Some((map, bytes)) = map_whole(&file, header.capacity) {
        let scan = scan(&bytes, &header, continued);
        if !map.is_broken() {
            return Ok(SegmentScan { header, file, path, map: Some(map), bytes, length: capacity, scan });
        }
    }
    // Too short, or a page cannot be loaded: reading tells which.
    let mut bytes = vec![0; capacity];
    let length = read_up_to(&file, &mut bytes).map_err(Error::io(&path, "read a segment (see its disk's log)"))?;
    let scan = scan(&bytes, &header, continued);
    Ok(SegmentScan { header, file, path, map: None, bytes: bytes.into(), length, scan })
}

/// Maps the first `length` bytes; `None` when the file is shorter.
pub(crate) fn map_whole(file: &File, length: u32) -> Option<(SegmentMap, Bytes)> {
    let map = SegmentMap::new(file, length).ok()?;
    let bytes = map.slice(0..length as usize)?;
    read_ahead(file);
    populate(&bytes);
    Some((map, bytes))
}
