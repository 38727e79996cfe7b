//! Which appliance process owns which instances, when several use one data folder (a hot restart).
//!
//! Each process claims a range of instance ids: from its first id up to the first of the next claim. The claim is a file
//! `instances/.generations/FIRST.lock`, which its process keeps locked. The kernel releases the lock however the process
//! ends, so instances in a range without a lock have no owner, and those in a locked range belong to another process.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

use crate::limits::GENERATION_IDS;

const FOLDER: &str = ".generations";
const EXTENSION: &str = "lock";
/// Another user with access to a claim could keep it locked.
const FOLDER_MODE: u32 = 0o700;

/// This process's claim, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) first: u64,
    _lock: File,
}

/// All claims of a data folder at one moment, in the order of their ids.
#[derive(Debug)]
pub(crate) struct Claims(Vec<Claim>);

#[derive(Debug)]
struct Claim {
    first: u64,
    path: PathBuf,
    /// The lock of a process that has ended, which keeps others from clearing up after it as well.
    ended: Option<File>,
}

impl Generation {
    /// Claims ids from `preferred` on, or from beyond those of every earlier claim: a wall clock may run back. `instances` is the
    /// folder of that name. The caller holds the lock on the data folder, so no other process claims now.
    pub(crate) fn claim(instances: &Path, preferred: u64) -> io::Result<Self> {
        let folder = instances.join(FOLDER);
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&folder)?;
        let last = firsts(&folder)?.last().map(|(first, _)| *first);
        let first = last.map_or(preferred, |last| preferred.max(last.saturating_add(GENERATION_IDS)));
        let path = folder.join(format!("{first}.{EXTENSION}"));
        let lock = OpenOptions::new().write(true).create_new(true).open(path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { first, _lock: lock })
    }
}

impl Claims {
    /// Looks which of them have a process.
    pub(crate) fn read(instances: &Path) -> io::Result<Self> {
        let read = |(first, path): (u64, PathBuf)| {
            let lock = match File::open(&path) {
                Ok(lock) => lock,
                Err(why) if why.kind() == io::ErrorKind::NotFound => return None, // another process cleared up
                Err(why) => return Some(Err(why)),
            };
            let free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            Some(Ok(Claim { first, path, ended: free.then_some(lock) }))
        };
        firsts(&instances.join(FOLDER))?.into_iter().filter_map(read).collect::<io::Result<_>>().map(Self)
    }

    /// Whether the owner of the instance `id` has ended; `None` if no claim is known.
    pub(crate) fn has_ended(&self, id: u64) -> Option<bool> {
        let owner = self.0.iter().rev().find(|claim| claim.first <= id)?;
        Some(owner.ended.is_some())
    }

    /// Nothing is left of the instances of processes that have ended.
    pub(crate) fn forget_ended(self) {
        for claim in self.0.into_iter().filter(|claim| claim.ended.is_some()) {
            let _ = fs::remove_file(&claim.path); // one that stays covers no instance any more
        }
    }

    /// The claims of other processes that run: `own` is this one's.
    pub(crate) fn of_others(&self, own: u64) -> impl Iterator<Item = &Path> {
        let running = self.0.iter().filter(move |claim| claim.ended.is_none() && claim.first != own);
        running.map(|claim| claim.path.as_path())
    }
}

/// Returns when the process with this claim has ended. Blocks.
pub(crate) fn wait_for_end(claim: &Path) -> io::Result<()> {
    let lock = match File::open(claim) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()), // ended, and cleared up
        lock => lock?,
    };
    Ok(retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?)
}

/// The first ids of all claims, in their order.
fn firsts(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let claims = paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    let numbered = claims.filter_map(|path| Some((path.file_stem()?.to_str()?.parse().ok()?, path)));
    let mut all: Vec<_> = numbered.collect();
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_is_left_once_its_owner_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let first = Generation::claim(dir.path(), 100).unwrap();
        let second = Generation::claim(dir.path(), 10_000_000).unwrap();
        let ended = |id| Claims::read(dir.path()).unwrap().has_ended(id);
        assert_eq!([99, 100, 9_999_999, 10_000_000].map(ended), [None, Some(false), Some(false), Some(false)]);

        drop(first);
        assert_eq!([100, 9_999_999, 10_000_000].map(ended), [Some(true), Some(true), Some(false)]);
        let claims = Claims::read(dir.path()).unwrap();
        assert_eq!(claims.of_others(second.first).count(), 0);
        claims.forget_ended();
        assert_eq!([100, 10_000_000].map(ended), [None, Some(false)]);
    }

    #[test]
    fn claim_after_clock_ran_back_gets_later_ids() {
        let dir = tempfile::tempdir().unwrap();
        let first = Generation::claim(dir.path(), 1_000).unwrap();
        let second = Generation::claim(dir.path(), 5).unwrap();
        assert_eq!(second.first, first.first + GENERATION_IDS);
        let claims = Claims::read(dir.path()).unwrap();
        assert_eq!(claims.of_others(second.first).count(), 1);
        assert_eq!(claims.has_ended(second.first), Some(false));
    }

    #[test]
    fn wait_returns_when_the_claim_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Generation::claim(dir.path(), 7).unwrap();
        let claims = Claims::read(dir.path()).unwrap();
        let path = claims.of_others(0).next().unwrap().to_owned();
        let waits = std::thread::spawn(move || wait_for_end(&path));
        drop(owner);
        waits.join().unwrap().unwrap();
        claims.forget_ended();
        wait_for_end(&dir.path().join(FOLDER).join("8.lock")).unwrap();
    }
}
