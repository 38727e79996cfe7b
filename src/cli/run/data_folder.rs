//! The data folder: one process owns it.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, OFlags, flock};

/// Others may traverse it: instances of other users have their volumes below it.
const FOLDER_MODE: u32 = 0o755;
/// Any user who can open the file, even to read it, can lock it and prevent a start.
const LOCK_MODE: u32 = 0o600;

/// A dying process releases its files within milliseconds.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);

/// Held as long as the process lives; the kernel releases it however the process ends.
#[derive(Debug)]
pub(in crate::cli) struct DataFolder {
    lock: File,
}

/// Another process has the folder.
#[derive(Debug)]
pub(in crate::cli) struct FolderInUse(String);

impl fmt::Display for FolderInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FolderInUse {}

impl Drop for DataFolder {
    /// Closing is not enough: a child that is just being started has the descriptor as well, until its
    /// exec.
    fn drop(&mut self) {
        if let Err(why) = flock(&self.lock, FlockOperation::Unlock) {
            tracing::warn!(%why, "the data folder's lock is held until this process ends");
        }
    }
}

/// Creates the folder if needed and locks it.
///
/// # Errors It cannot be created, or another process has it.
pub(in crate::cli) fn take(folder: &Path) -> Result<DataFolder> {
    let name = folder.display();
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder);
    made.with_context(|| format!("data folder {name} cannot be created"))?;
    warn_if_shared(folder);
    let path = folder.join("lock");
    let mut lock = open(&path).with_context(|| format!("{} cannot be opened", path.display()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut owner = String::new();
        drop(lock.read_to_string(&mut owner)); // only for the message
        let owner = owner.trim();
        let message = format!(
            "data folder {name} is in use by another sluicegate (process {owner}); \
             stop it, replace it with --hot-restart, or give this one a folder of its own with --data"
        );
        return Err(FolderInUse(message).into());
    }
    // Only for the message above: a full disk must not prevent a start.
    drop(lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())));
    Ok(DataFolder { lock })
}

/// Opens the lock's file for this user alone, also one that an earlier version left open to others.
fn open(path: &Path) -> Result<File> {
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(LOCK_MODE)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    let there = lock.metadata()?;
    // The process id is written into it: not through a link into another file.
    ensure!(there.is_file() && there.nlink() == 1, "it is not a regular file with a single link; move it away");
    if there.mode() & 0o777 & !LOCK_MODE != 0 {
        lock.set_permissions(Permissions::from_mode(LOCK_MODE)).context("other users may lock it")?;
    }
    Ok(lock)
}

/// Files that others may write, they may replace: the objects, and with them the programs that are run.
fn warn_if_shared(folder: &Path) {
    let mode = std::fs::metadata(folder).map_or(0, |there| there.mode());
    if mode & 0o002 != 0 {
        let (folder, mode) = (folder.display(), format!("{:04o}", mode & 0o7777));
        tracing::warn!(%folder, mode, "every user of this host may write to the data folder: chmod o-w");
    }
}

/// The same, for a start that follows another process: a killed one holds the lock until the kernel is done
/// with it.
///
/// # Errors As [`take`].
pub(in crate::cli) fn take_with_retry(folder: &Path) -> Result<DataFolder> {
    let begin = Instant::now();
    loop {
        match take(folder) {
            Err(_) if begin.elapsed() < LOCK_WAIT_MAX => {
                #[allow(clippy::disallowed_methods, reason = "nothing runs yet but this thread")]
                std::thread::sleep(STEP);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn lock_file_is_restricted_to_owner() {
        let folder = tempfile::tempdir().unwrap();
        let (data, path) = (folder.path().join("data"), folder.path().join("data/lock"));
        drop(take(&data).unwrap());
        assert_eq!((mode(&path), mode(&data) & 0o022), (0o600, 0));
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        drop(take(&data).unwrap());
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn linked_lock_is_rejected_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, path) = (folder.path().join("victim"), folder.path().join("lock"));
        std::fs::write(&victim, "mine").unwrap();
        for link in [std::os::unix::fs::symlink::<&Path, &Path>, std::fs::hard_link::<&Path, &Path>] {
            link(&victim, &path).unwrap();
            assert!(take(folder.path()).is_err());
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::create_dir(&path).unwrap();
        assert!(take(folder.path()).is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
    }

    /// Between fork and exec the child of any thread has every descriptor, and a successor cannot wait for
    /// its exec.
    #[test]
    fn starting_child_does_not_hold_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path()).unwrap();
        let inherited = first.lock.try_clone().unwrap();
        drop(first);
        take(folder.path()).unwrap();
        drop(inherited);
    }

    #[test]
    fn second_owner_is_rejected_with_pid_until_release() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path()).unwrap();

        let why = take(folder.path()).unwrap_err().to_string();
        assert!(why.contains(&format!("process {}", std::process::id())), "{why}");

        drop(first);
        take(folder.path()).unwrap();
    }
}
