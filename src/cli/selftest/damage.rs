//! Damage by a power cut and by a bad disk, applied to a copy of a folder.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fastrand::Rng;
use wal::LogPosition;

/// Size that a disk writes atomically.
const SECTOR_BYTES: usize = 512;
/// Maximum bits flipped in one copy.
const FLIPS_MAX: usize = 3;
/// The bytes of a record before its payload: checksum and the fields it covers.
const RECORD_HEAD_BYTES: u64 = 40;

/// One flipped bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BitFlip {
    file: PathBuf,
    offset: u64,
    bit: u8,
}

impl fmt::Display for BitFlip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bit {} of byte {} of {}", self.bit, self.offset, self.file.display())
    }
}

/// Makes `to` a copy of the log in `from`.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("copying {} to {}", from.display(), to.display());
    if to.exists() {
        fs::remove_dir_all(to).with_context(failed)?;
    }
    fs::create_dir(to).with_context(failed)?;
    if !from.exists() {
        return Ok(()); // the first child was killed before it began
    }
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        fs::copy(entry.path(), to.join(entry.file_name())).with_context(failed)?;
    }
    Ok(())
}

/// Locations of records: by file, its base, and the records' offsets with their lengths.
type RecordLocations = BTreeMap<PathBuf, (u64, Vec<(u64, u64)>)>;

fn records(folder: &Path) -> Result<RecordLocations> {
    let mut records = RecordLocations::new();
    if !wal::is_log(folder) {
        return Ok(records);
    }
    wal::dump(folder, &mut |_, _| {}, &mut |entry| {
        let offset = u64::from(entry.offset);
        // The first record of a file is its snapshot, whose position says where the file begins; that of a
        // compacted event would not.
        let base = entry.position.get().saturating_sub(offset);
        let (_, locations) = records.entry(entry.file.to_owned()).or_insert((base, Vec::new()));
        locations.push((offset, RECORD_HEAD_BYTES + entry.payload.len() as u64));
        Ok(())
    })?;
    Ok(records)
}

/// Keeps, loses or corrupts each sector of what no flush had confirmed. Returns the number of changed
/// bytes.
pub(super) fn tear(folder: &Path, durable: LogPosition, rng: &mut Rng) -> Result<u64> {
    let mut changed = 0;
    for (path, (base, _)) in records(folder)? {
        let failed = || format!("tearing {}", path.display());
        let mut bytes = fs::read(&path).with_context(failed)?;
        let from = usize::try_from(durable.get().saturating_sub(base)).unwrap_or(usize::MAX);
        let Some(tail) = bytes.get_mut(from..) else { continue };
        let Some(last) = tail.iter().rposition(|byte| *byte != 0) else { continue };
        let (often, cut) = (rng.u32(0..=8), rng.usize(0..=last));
        let as_prefix = rng.bool();
        let mut at = 0;
        while at <= last {
            let end = (at + SECTOR_BYTES - (from + at) % SECTOR_BYTES).min(tail.len());
            let piece = &mut tail[at..end];
            let is_kept = if as_prefix { end <= cut } else { rng.u32(0..8) < often };
            if !is_kept {
                changed += piece.len() as u64;
                piece.fill(0);
                // Random bytes instead of nothing; but a segment's first sector is complete or absent.
                if rng.bool() && from + at >= SECTOR_BYTES {
                    rng.fill(piece);
                }
            }
            at = end;
        }
        fs::write(&path, &bytes).with_context(failed)?;
    }
    Ok(changed)
}

/// Flips up to [`FLIPS_MAX`] bits in records below `proven`; `None` when there are none yet.
pub(super) fn flip(folder: &Path, proven: LogPosition, rng: &mut Rng) -> Result<Option<Vec<BitFlip>>> {
    let mut locations = Vec::new();
    for (path, (base, records)) in records(folder)? {
        let below = records.into_iter().filter(|(offset, bytes)| base + offset + bytes <= proven.get());
        locations.extend(below.map(|(offset, bytes)| (path.clone(), offset, bytes)));
    }
    if locations.is_empty() {
        return Ok(None);
    }
    let mut flips = Vec::new();
    for _ in 0..rng.usize(1..=FLIPS_MAX) {
        let (path, offset, bytes) = &locations[rng.usize(0..locations.len())];
        let flip = BitFlip { file: path.clone(), offset: offset + rng.u64(0..*bytes), bit: rng.u8(0..8) };
        if flips.contains(&flip) {
            continue; // it would be flipped back
        }
        let failed = || format!("flipping {flip}");
        let file = File::options().read(true).write(true).open(path).with_context(failed)?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, flip.offset).with_context(failed)?;
        file.write_all_at(&[byte[0] ^ (1 << flip.bit)], flip.offset).with_context(failed)?;
        flips.push(flip);
    }
    Ok(Some(flips))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wal::{LogOptions, WriteAheadLog};

    fn filled(folder: &Path) -> LogPosition {
        let options = LogOptions { segment_bytes: 16 << 10, log_bytes_max: 1 << 20, ..LogOptions::default() };
        let (mut log, _) = WriteAheadLog::open(folder, options).unwrap();
        let stream = log.stream("a").unwrap();
        for _ in 0..40 {
            log.append(stream, 0, &[&[7; 500]]).unwrap();
        }
        log.flush_blocking().unwrap();
        log.durable()
    }

    #[test]
    fn only_unconfirmed_bytes_are_torn() {
        let folder = tempfile::tempdir().unwrap();
        let durable = filled(folder.path());
        let before = records(folder.path()).unwrap();
        assert_eq!(tear(folder.path(), durable, &mut Rng::with_seed(1)).unwrap(), 0);
        assert_eq!(records(folder.path()).unwrap(), before);

        let confirmed = LogPosition::new(20_000);
        let torn = (0..20).map(|seed| tear(folder.path(), confirmed, &mut Rng::with_seed(seed)).unwrap());
        assert!(torn.max() > Some(0));
        for (path, (base, locations)) in records(folder.path()).unwrap() {
            let kept = |records: &[(u64, u64)]| {
                records.iter().copied().filter(|(at, bytes)| base + at + bytes <= 20_000).collect::<Vec<_>>()
            };
            assert_eq!(kept(&locations), kept(&before[&path].1));
        }
    }

    #[test]
    fn flip_changes_one_bit_of_proven_record() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path());
        assert_eq!(flip(folder.path(), LogPosition::ORIGIN, &mut Rng::with_seed(1)).unwrap(), None);
        let flips = flip(folder.path(), LogPosition::new(9000), &mut Rng::with_seed(1)).unwrap().unwrap();
        assert!(flips.iter().all(|flip| (64..9000).contains(&flip.offset)), "{flips:?}");
        assert!(!wal::inspect(folder.path(), &mut |_, _| {}).unwrap().gaps.is_empty());
    }
}
