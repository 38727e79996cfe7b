//! A segment's file as memory: the crate's one room with `unsafe`.
//!
//! The map is read-only. Bytes get into the file by `write`, never by a store into the map: so no
//! byte that was not handed to a flush is ever in the page cache, and a full disk is an error
//! instead of a SIGBUS.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};

pub(crate) struct Map {
    /// The whole segment. Only ranges below the durable position may be looked at.
    whole: Bytes,
    /// Shared with the owner inside `whole`: alone here when no reader is left.
    held: Arc<()>,
}

struct Mapped {
    memory: Mmap,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Map {
    /// Maps the first `length` bytes; the file must be at least as long.
    pub(crate) fn new(file: &File, length: u32) -> io::Result<Self> {
        let found = file.metadata()?.len();
        if found < u64::from(length) {
            return Err(io::Error::other(format!("file has {found} bytes, {length} are needed")));
        }
        // SAFETY: a map's bytes must not change under a `&[u8]`, and its file must not shrink.
        // The folder is locked by this process and segments are never cut short (a foreign process
        // that truncates one in spite of the lock gets this process a SIGBUS; the format says so).
        // Bytes change only by flushes, which write at or after the durable position, while only
        // `slice` gives out references, always to ranges below it. A file is written from its
        // beginning again only after `release` proved that no reader is left.
        let memory = unsafe { MmapOptions::new().len(length as usize).map(file)? };
        let held = Arc::new(());
        let whole = Bytes::from_owner(Mapped { memory, _held: Arc::clone(&held) });
        Ok(Self { whole, held })
    }

    /// Bytes below the durable position, without a copy; they keep the map alive.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        (range.start <= range.end && range.end <= self.whole.len()).then(|| self.whole.slice(range))
    }

    /// Gives the map up; true when nobody else holds any of its bytes, so that the file may be
    /// written again.
    pub(crate) fn release(self) -> bool {
        let Self { whole, held } = self;
        drop(whole);
        Arc::into_inner(held).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bytes_outlive_the_map_and_are_known_to_be_held() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let map = Map::new(&file, 8192).unwrap();
        let held = map.slice(10..20).unwrap();
        assert!(!map.release());
        assert_eq!(held, [7; 10][..]);

        assert!(Map::new(&file, 8192).unwrap().release());
    }

    #[test]
    fn a_file_too_short_is_refused_instead_of_faulting_later() {
        let file = tempfile::tempfile().unwrap();
        assert!(Map::new(&file, 4096).is_err());
    }
}
