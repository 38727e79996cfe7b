//! The disk: what a power cut leaves of a write, of a deletion, and of a recovery.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use sluicegate_wal::Flush;

pub(crate) const SECTOR_BYTES: u64 = 512;

pub(crate) fn cut_power_during(flush: &Flush, rng: &mut Rng) {
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
pub(crate) struct DeletedFiles {
    pub(crate) home: PathBuf,
    pub(crate) names: PathBuf,
}

impl DeletedFiles {
    pub(crate) fn remember(&self) {
        for entry in fs::read_dir(&self.home).unwrap().map(Result::unwrap) {
            let name = self.names.join(entry.file_name());
            if entry.file_name() != "LOCK" && !name.exists() {
                fs::hard_link(entry.path(), name).unwrap();
            }
        }
    }

    /// Restores some deleted files, and deletes the others permanently.
    pub(crate) fn resurrect(&self, rng: &mut Rng) {
        for entry in fs::read_dir(&self.names).unwrap().map(Result::unwrap) {
            let name = self.home.join(entry.file_name());
            if !name.exists() && rng.bool() {
                fs::hard_link(entry.path(), name).unwrap();
            }
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// The files of a folder by name, without the lock.
pub(crate) type FolderFiles = BTreeMap<String, Vec<u8>>;

pub(crate) fn files(home: &Path) -> FolderFiles {
    let mut files = FolderFiles::new();
    for entry in fs::read_dir(home).into_iter().flatten().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name != "LOCK" {
            files.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    files
}

/// A crash between `before` and `after`: each file has its old contents, its new contents, or a mix of
/// sectors. This is more than a power cut can do, because steps that wait for each other are mixed, too.
pub(crate) fn cut_between(home: &Path, before: &FolderFiles, after: &FolderFiles, rng: &mut Rng) {
    for name in before.keys().chain(after.keys()) {
        let path = home.join(name);
        let left = match (before.get(name), after.get(name)) {
            (Some(old), Some(new)) => Some(mix(old, new, rng)),
            // Created: complete, absent, or a name with part of the contents.
            (None, Some(new)) if rng.bool() => Some(mix(&[], new, rng)),
            (Some(old), None) if rng.bool() => Some(old.clone()),
            _ => None,
        };
        match left {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None if path.exists() => fs::remove_file(&path).unwrap(),
            None => {}
        }
    }
}

fn mix(old: &[u8], new: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut mixed = if rng.bool() { old.to_vec() } else { new.to_vec() };
    let sector = SECTOR_BYTES as usize;
    for at in (0..mixed.len()).step_by(sector) {
        let end = mixed.len().min(at + sector);
        let from = if rng.bool() { old } else { new };
        match from.get(at..end) {
            Some(bytes) => mixed[at..end].copy_from_slice(bytes),
            None => mixed[at..end].fill(0), // the file is longer already, and nothing is written there yet
        }
    }
    mixed
}
