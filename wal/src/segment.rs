//! Segment files: prepared ahead, used once, and recycled when they have no readers.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, fstatvfs};

use crate::header::SegmentHeader;
use crate::limits::FREE_SHARE;
use crate::map::SegmentMap;
use crate::position::LogPosition;

/// Files are numbered from 1 on and never reach this; a larger name is not a segment file, and the number
/// after it could overflow.
const NUMBER_MAX: u64 = 1 << 62;

/// Zeros are written in steps of this many bytes.
const ZERO_STEP_BYTES: usize = 1 << 20;
/// Bytes at the beginning of a recycled file that are wiped: without its header nothing in it is valid.
const WIPE_BYTES: usize = 4096;

/// A file in use.
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<File>,
    pub(crate) path: PathBuf,
    pub(crate) map: SegmentMap,
    /// Set when the segment is dropped: its file is deleted when everything below this is durable.
    pub(crate) dropped_at: Option<LogPosition>,
    /// End of the snapshot.
    pub(crate) begun: u32,
    /// End of the last record.
    pub(crate) used: u32,
    /// Damaged: its live records are not compacted.
    pub(crate) keep: bool,
    /// Its file was found truncated, unreadable or removed, and this was reported.
    pub(crate) broken: bool,
    /// Its file has no name any more: its live records are compacted.
    pub(crate) removed: bool,
}

impl Segment {
    pub(crate) fn new(SpareSegment { file, path }: SpareSegment, header: SegmentHeader) -> io::Result<Self> {
        let map = SegmentMap::new(&file, header.capacity)?;
        Ok(Self::of(SpareSegment { file, path }, header, map))
    }

    pub(crate) fn of(SpareSegment { file, path }: SpareSegment, header: SegmentHeader, map: SegmentMap) -> Self {
        let file = Arc::new(file);
        Self {
            header,
            file,
            path,
            map,
            dropped_at: None,
            begun: 0,
            used: 0,
            keep: false,
            broken: false,
            removed: false,
        }
    }

    /// Bytes of records without the snapshot.
    pub(crate) const fn body_bytes(&self) -> u32 {
        self.used - self.begun
    }

    pub(crate) const fn base(&self) -> u64 {
        self.header.base
    }

    /// The position after the last byte of the segment: the base of the next one.
    pub(crate) const fn limit(&self) -> u64 {
        self.header.base + self.header.capacity as u64
    }
}

/// An empty file: allocated, zeroed (or wiped) and durable in its folder.
#[derive(Debug)]
pub struct SpareSegment {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

impl SpareSegment {
    /// Its capacity, in bytes.
    pub(crate) fn capacity(&self) -> io::Result<u32> {
        u32::try_from(self.file.metadata()?.len()).map_err(io::Error::other)
    }
}

/// The slow part of a roll-over, to be run on a thread that may block. Pass the result to
/// [`crate::WriteAheadLog::spare_ready`].
#[derive(Debug)]
pub struct SegmentPreparation {
    pub(crate) folder: PathBuf,
    pub(crate) number: u64,
    /// The preferred size, and the minimum that is accepted on a small disk.
    pub(crate) capacity: u32,
    pub(crate) capacity_min: u32,
    pub(crate) recycled: Option<SpareSegment>,
}

impl SegmentPreparation {
    /// Allocates and zeroes a file, or wipes a used one; waits for the disk.
    pub fn run(self) -> io::Result<SpareSegment> {
        if let Some(spare) = self.recycled {
            return match wipe(&spare.file) {
                Ok(()) => Ok(spare),
                Err(error) => {
                    // The file is not referenced any more, and the next attempt creates another; if this fails too, recovery finds it.
                    let _: io::Result<()> = fs::remove_file(&spare.path);
                    Err(error)
                }
            };
        }
        let path = path_of(&self.folder, self.number);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        match self.fill(&file) {
            Ok(()) => Ok(SpareSegment { file, path }),
            Err(error) => {
                // Half a file would take space that was already short; if this fails too, recovery finds
                // it.
                let _: io::Result<()> = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Makes it as large as preferred, or as the disk allows.
    fn fill(&self, file: &File) -> io::Result<()> {
        let mut capacity = self.fitting(file)?;
        loop {
            match fill(file, 0, capacity) {
                Ok(()) => return sync_folder(&self.folder),
                Err(why) if is_disk_full(&why) && capacity > self.capacity_min => {
                    file.set_len(0)?;
                    capacity = (capacity / 2).max(self.capacity_min);
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// A share of the free space on the disk: a segment that takes all of it leaves none for the next one,
    /// which is needed before this one is reclaimed.
    fn fitting(&self, file: &File) -> io::Result<u32> {
        let disk = fstatvfs(file)?;
        let share = disk.f_bavail.saturating_mul(disk.f_frsize) / FREE_SHARE;
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let whole = if share == 0 { 0 } else { 1 << share.ilog2() };
        Ok(self.capacity.min(whole.max(self.capacity_min)))
    }
}

/// Whether the disk is full, or the quota of the user is exceeded.
pub(crate) fn is_disk_full(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Allocates and zeroes from `from` to `capacity`, durably. It writes real zeros, not just an allocation:
/// the first write to an unwritten extent makes a flush a journal commit as well. Then it drops the pages
/// from the cache, because large folios left by large writes would be written back whole for every small
/// flush (1 MiB instead of 4 KiB; 320 µs instead of 60).
pub(crate) fn fill(file: &File, from: u32, capacity: u32) -> io::Result<()> {
    fallocate(file, FallocateFlags::empty(), 0, capacity.into())?;
    let zeros = vec![0; ZERO_STEP_BYTES.min(capacity as usize)];
    let mut at = from as usize;
    while at < capacity as usize {
        let step = zeros.len().min(capacity as usize - at);
        file.write_all_at(&zeros[..step], at as u64)?;
        at += step;
    }
    file.sync_all()?;
    forget_pages(file)
}

pub(crate) fn wipe(file: &File) -> io::Result<()> {
    zero(file, 0, WIPE_BYTES)
}

/// Overwrites a range with zeros, durably.
pub(crate) fn zero(file: &File, from: usize, to: usize) -> io::Result<()> {
    file.write_all_at(&vec![0; to - from], from as u64)?;
    file.sync_data()
}

pub(crate) fn forget_pages(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Asks the kernel to have the whole file cached soon.
pub(crate) fn read_ahead(file: &File) {
    let _: Result<(), _> = fadvise(file, 0, None, Advice::WillNeed); // advice: without it reading is slower
}

/// The path of the segment file with this number.
pub(crate) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:010}.seg"))
}

/// The number in the name of a segment file; `None` for other files.
pub(crate) fn file_number(path: &Path) -> Option<u64> {
    let number = path.file_name()?.to_str()?.strip_suffix(".seg")?.parse().ok()?;
    (number <= NUMBER_MAX).then_some(number)
}

/// The name of a file is durable only when its folder is synced.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Whether a file has no name left in any folder. One system call that does not wait for the disk, so it
/// can be made before each acknowledgement.
pub(crate) fn is_unlinked(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// Reads from the start of the file until `out` is full or the file ends. Returns the number of bytes.
pub(crate) fn read_up_to(file: &File, out: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < out.len() {
        match file.read_at(&mut out[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
