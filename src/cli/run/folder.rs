//! The data folder: one process owns it.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// A dying process lets go of its files within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);

/// Held as long as the process lives; the kernel lets go of it however the process ends.
#[derive(Debug)]
pub(in crate::cli) struct Folder {
    lock: File,
}

/// Another process has the folder.
#[derive(Debug)]
pub(in crate::cli) struct InUse(String);

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InUse {}

impl Drop for Folder {
    /// Closing would not do: a child that is just being started has the descriptor as well, until its exec.
    fn drop(&mut self) {
        if let Err(why) = flock(&self.lock, FlockOperation::Unlock) {
            tracing::warn!(%why, "the data folder's lock is held until this process ends");
        }
    }
}

/// Makes the folder if need be and takes it.
///
/// # Errors
/// It cannot be made, or another process has it.
pub(in crate::cli) fn take(folder: &Path) -> Result<Folder> {
    let name = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("data folder {name} cannot be made"))?;
    let path = folder.join("lock");
    let mut lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("{} cannot be opened", path.display()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut owner = String::new();
        drop(lock.read_to_string(&mut owner)); // only for the message
        let owner = owner.trim();
        let told = format!(
            "data folder {name} is in use by another sluicegate (process {owner}); \
             stop it, replace it with --hot-restart, or give this one a folder of its own with --data"
        );
        return Err(InUse(told).into());
    }
    // Only for the message above: a disk without room for it keeps nobody from starting.
    drop(lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())));
    Ok(Folder { lock })
}

/// The same, for a start that follows another process: a killed one holds the lock until the kernel is done with it.
///
/// # Errors
/// As [`take`].
pub(in crate::cli) fn take_patiently(folder: &Path) -> Result<Folder> {
    let begin = Instant::now();
    loop {
        match take(folder) {
            Err(_) if begin.elapsed() < PATIENCE => {
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

    /// Between fork and exec the child of any thread has every descriptor, and a successor cannot wait for its exec.
    #[test]
    fn a_child_that_is_being_started_does_not_hold_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path()).unwrap();
        let inherited = first.lock.try_clone().unwrap();
        drop(first);
        take(folder.path()).unwrap();
        drop(inherited);
    }

    #[test]
    fn the_second_owner_is_refused_with_the_first_ones_number_until_it_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path()).unwrap();

        let why = take(folder.path()).unwrap_err().to_string();
        assert!(why.contains(&format!("process {}", std::process::id())), "{why}");

        drop(first);
        take(folder.path()).unwrap();
    }
}
