//! The file `segments.state`: which segments hold acknowledged events (layout in FORMAT.md).
//!
//! A lost older segment is missed by the snapshot of a newer one. Nothing in the segments shows the loss of
//! the newest one: a file that was emptied or removed looks like one that was prepared and never used.
//! Therefore this file names the newest segment. It is written after the first flush of the segment and
//! before anything in that flush counts as durable. So a named segment was on the disk, and an event is
//! acknowledged only when its segment is named.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::codec::{u32_at, u64_at};
use crate::error::Error;
use crate::header::BASE_MAX;
use crate::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::segment::{fill, is_disk_full, read_up_to, sync_folder};

const FILE_NAME: &str = "segments.state";
const MAGIC: [u8; 8] = *b"SLUICSEG";
const FORMAT: u32 = 1;
/// Size of a slot, in bytes: a page, so that a write never reads the disk first.
const SLOT_BYTES: u32 = 4096;
/// Two slots are written in turn, because the one that is being written may be torn.
const SLOTS: u32 = 2;
/// Bytes of a slot that are used: less than a sector.
const USED_BYTES: usize = 64;

/// One slot: the segments that were in use when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentState {
    /// Rises with every write, and chooses the slot.
    pub(crate) sequence: u64,
    /// Base of the oldest segment.
    pub(crate) lowest: u64,
    /// Base, capacity and file number of the newest segment.
    pub(crate) base: u64,
    pub(crate) capacity: u32,
    pub(crate) number: u64,
}

impl SegmentState {
    /// Where the slot of this sequence number begins in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.sequence % u64::from(SLOTS) * u64::from(SLOT_BYTES)
    }

    /// The position after the newest segment.
    pub(crate) fn limit(&self) -> u64 {
        self.base.saturating_add(self.capacity.into())
    }

    /// A whole slot.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; SLOT_BYTES as usize];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[12..16].copy_from_slice(&self.capacity.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..32].copy_from_slice(&self.lowest.to_le_bytes());
        out[32..40].copy_from_slice(&self.base.to_le_bytes());
        out[40..48].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc32c::crc32c(&out[..USED_BYTES - 4]);
        out[USED_BYTES - 4..USED_BYTES].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` for a slot that was never written, is torn, or has a later format.
    fn decode(slot: &[u8]) -> Option<Self> {
        let used = slot.get(..USED_BYTES)?;
        let is_ours = used.starts_with(&MAGIC) && u32_at(used, 8)? == FORMAT;
        if !is_ours || u32_at(used, USED_BYTES - 4)? != crc32c::crc32c(&used[..USED_BYTES - 4]) {
            return None;
        }
        let state = Self {
            sequence: u64_at(used, 16)?,
            lowest: u64_at(used, 24)?,
            base: u64_at(used, 32)?,
            capacity: u32_at(used, 12)?,
            number: u64_at(used, 40)?,
        };
        let is_valid = state.lowest <= state.base
            && state.base <= BASE_MAX
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&state.capacity);
        is_valid.then_some(state)
    }
}

pub(crate) fn path(folder: &Path) -> PathBuf {
    folder.join(FILE_NAME)
}

/// The newest state that was written, `None` for a log that has none: a new one, or one of an older
/// version.
pub(crate) fn read(folder: &Path) -> Result<Option<SegmentState>, Error> {
    let path = path(folder);
    match File::open(&path) {
        Ok(file) => newest(&file).map_err(Error::io(&path, "read the segment state")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(&path, "open the segment state")(error)),
    }
}

fn newest(file: &File) -> io::Result<Option<SegmentState>> {
    let mut bytes = vec![0; (SLOTS * SLOT_BYTES) as usize];
    let length = read_up_to(file, &mut bytes)?;
    let slots = bytes[..length].chunks(SLOT_BYTES as usize);
    Ok(slots.filter_map(SegmentState::decode).max_by_key(|state| state.sequence))
}

/// Opens the file for writing; creates it when it is missing. `None` when the disk has no space for it: the
/// log works without it, as in older versions, until the next start.
pub(crate) fn open(folder: &Path) -> Result<Option<File>, Error> {
    let path = path(folder);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if is_disk_full(&error) => return Ok(None),
        Err(error) => return Err(Error::io(&path, "open the segment state")(error)),
    };
    match allocate(&file, folder) {
        Ok(()) => Ok(Some(file)),
        Err(error) if is_disk_full(&error) => {
            fs::remove_file(&path).map_err(Error::io(&path, "remove an incomplete segment state"))?;
            Ok(None)
        }
        Err(error) => Err(Error::io(&path, "allocate the segment state")(error)),
    }
}

/// Allocates the slots, so that a later write needs no space.
fn allocate(file: &File, folder: &Path) -> io::Result<()> {
    let length = u32::try_from(file.metadata()?.len()).unwrap_or(u32::MAX);
    if length < SLOTS * SLOT_BYTES {
        fill(file, length, SLOTS * SLOT_BYTES)?;
        sync_folder(folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn state(sequence: u64) -> SegmentState {
        SegmentState { sequence, lowest: 1 << 20, base: sequence << 20, capacity: 1 << 20, number: sequence }
    }

    #[test]
    fn torn_slot_leaves_previous_state() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(folder.path()).unwrap().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None, "allocated, and never written");
        for sequence in 1..6 {
            let (next, before) = (state(sequence), read(folder.path()).unwrap());
            for cut in 1..USED_BYTES {
                file.write_all_at(&next.encode()[..cut], next.offset()).unwrap();
                let found = read(folder.path()).unwrap();
                assert!(found == before || found == Some(next), "sequence {sequence}, {cut} bytes: {found:?}");
            }
            file.write_all_at(&next.encode(), next.offset()).unwrap();
            assert_eq!(read(folder.path()).unwrap(), Some(next));
        }
    }

    #[test]
    fn slot_with_damage_or_other_format_is_ignored() {
        let good = state(7).encode();
        assert_eq!(SegmentState::decode(&good), Some(state(7)));
        for at in 0..USED_BYTES {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            assert_eq!(SegmentState::decode(&damaged), None, "byte {at}");
        }
        assert_eq!(SegmentState::decode(&[]), None);
        let impossible = SegmentState { base: u64::MAX, ..state(7) };
        assert_eq!(SegmentState::decode(&impossible.encode()), None);
    }

    #[test]
    fn missing_or_short_file_has_no_state() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        fs::write(path(folder.path()), b"SLUICSEG").unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let file = open(folder.path()).unwrap().unwrap();
        assert_eq!(file.metadata().unwrap().len(), u64::from(SLOTS * SLOT_BYTES));
    }
}
