//! The data folder: one process owns it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// Held as long as the process lives; the kernel lets go of it however the process ends.
#[derive(Debug)]
pub(in crate::cli) struct Folder {
    lock: File,
}

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
        bail!(
            "data folder {name} is in use by another sluicegate (process {owner}); \
             stop it, or give this one a folder of its own with --data"
        );
    }
    // Only for the message above: a disk without room for it keeps nobody from starting.
    drop(lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())));
    Ok(Folder { lock })
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
