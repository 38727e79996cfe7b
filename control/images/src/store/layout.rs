//! The store's folders, and writes that survive a power cut.
//!
//! ```text
//! layers/sha256-HEX/layer.json   what the layer is; a shared lock on it pins the layer
//! layers/sha256-HEX/fs/          its files
//! records/HEX.json               one image: its reference, configuration and layers
//! records/HEX.PID-N.part         the same while it is written
//! staging/PID-N/                 the work of one process; removed when that process has ended
//! ```
//! A layer is complete when its folder is in `layers`: a rename puts it there after its bytes are on the disk.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::error::Error;
use crate::limits::RECORD_WRITE_TIMEOUT;
use crate::unpack::remove_tree;

/// The extension of a file that is not renamed yet.
const PART: &str = "part";

#[derive(Debug)]
pub(super) struct Layout {
    pub(super) root: PathBuf,
    /// This process's part of `staging`.
    staging: PathBuf,
    /// Held while this process lives, so that another one does not take its staging for a leftover.
    _lock: File,
    next: AtomicU64,
}

impl Layout {
    /// Opens or makes the store at `root`, and removes what processes that are gone have left.
    pub(super) fn open(root: &Path) -> Result<Self, Error> {
        let failed = |why: io::Error| Error::storage(root, "the image store", &why);
        for folder in ["layers", "records", "staging"] {
            // Files with setuid bits lie below: for root only.
            DirBuilder::new().recursive(true).mode(0o700).create(root.join(folder)).map_err(failed)?;
        }
        let (staging, lock) = own_staging(&root.join("staging")).map_err(failed)?;
        let layout = Self { root: root.to_owned(), staging, _lock: lock, next: AtomicU64::new(0) };
        layout.sweep().map_err(failed)?;
        remove_unfinished(&layout.records()).map_err(failed)?;
        Ok(layout)
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(super) fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    pub(super) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.layers().join(diff_id.file_name())
    }

    pub(super) fn layer_files(&self, diff_id: &Digest) -> PathBuf {
        self.layer(diff_id).join("fs")
    }

    pub(super) fn layer_record(&self, diff_id: &Digest) -> PathBuf {
        self.layer(diff_id).join("layer.json")
    }

    /// A new folder to work in.
    pub(super) fn stage(&self) -> Result<StagedFolder, Error> {
        let path = self.staging.join(format!("work-{}", self.next.fetch_add(1, Relaxed)));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|why| Error::storage(&path, "a working folder", &why))?;
        Ok(StagedFolder { path })
    }

    /// Removes the staging folders whose process is gone.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("staging"))? {
            let path = entry?.path();
            if path == self.staging {
                continue;
            }
            // Held until the folder is gone, so that a process that starts cannot take a folder that is being removed.
            let lock = File::open(path.join("lock"));
            let is_leftover = match &lock {
                Ok(lock) => flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
                // Its process ended between the two steps that made it, or is between them: the name says which.
                Err(_) => !is_alive(&path),
            };
            if is_leftover && let Err(why) = remove_tree(&path) {
                // It costs space, not the store; the next start tries again.
                tracing::warn!(path = %path.display(), %why, "files of a process that has ended cannot be removed");
            }
        }
        Ok(())
    }
}

/// Removes the records in `folder` that a process was killed over.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let age = |about: fs::Metadata| about.modified().ok()?.elapsed().ok();
        let is_old = || fs::metadata(&path).ok().and_then(age).is_some_and(|age| age > RECORD_WRITE_TIMEOUT);
        if path.extension().is_some_and(|extension| extension == PART)
            && is_old()
            && let Err(why) = fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %why, "a record that was never finished cannot be removed");
        }
    }
    Ok(())
}

fn is_alive(staging: &Path) -> bool {
    let pid = staging.file_name().and_then(|name| name.to_str()?.split('-').next()?.parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

fn own_staging(parent: &Path) -> io::Result<(PathBuf, File)> {
    loop {
        let path = parent.join(format!("{}-{:08x}", std::process::id(), fastrand::u32(..)));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        let lock = File::create(path.join("lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // Another process takes it for a leftover in this moment.
            Err(Errno::WOULDBLOCK) => continue,
            locked => locked?,
        }
        // Another process may have removed it before the lock was held.
        if path.join("lock").exists() {
            return Ok((path, lock));
        }
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        let _ = remove_tree(&self.staging); // else the next process removes it
    }
}

/// A folder in `staging`; removed with all its content when it is dropped.
#[derive(Debug)]
pub(super) struct StagedFolder {
    pub(super) path: PathBuf,
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        if let Err(why) = remove_tree(&self.path) {
            tracing::warn!(path = %self.path.display(), %why, "a folder of an image pull cannot be removed");
        }
    }
}

/// Replaces a small file such that it is whole or as before after a power cut.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Unique, as two processes may write the same record.
    let temporary = path.with_extension(format!("{}-{:08x}.{PART}", std::process::id(), fastrand::u32(..)));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // it may not be there
    }
    written?;
    sync_parent(path)
}

pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_that_was_never_finished_is_removed() {
        let root = tempfile::tempdir().expect("a folder");
        drop(Layout::open(root.path()).expect("opened"));
        let [old, new, whole] =
            ["a.1-2.part", "b.1-2.part", "a.json"].map(|name| root.path().join("records").join(name));
        for path in [&old, &new, &whole] {
            fs::write(path, "{").expect("written");
        }
        let before = std::time::SystemTime::now() - 2 * RECORD_WRITE_TIMEOUT;
        for path in [&old, &whole] {
            File::options().write(true).open(path).expect("opened").set_modified(before).expect("set");
        }
        drop(Layout::open(root.path()).expect("opened"));
        assert_eq!([old, new, whole].map(|path| path.exists()), [false, true, true]);
    }

    #[test]
    fn leftovers_of_ended_processes_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let first = Layout::open(root.path()).expect("opened");
        let staged = first.stage().expect("made");
        let left = root.path().join("staging/4000000000-0/work-1/deep");
        fs::create_dir_all(&left).expect("made");
        fs::write(root.path().join("staging/4000000000-0/lock"), "").expect("written");

        let second = Layout::open(root.path()).expect("opened");
        assert!(!left.exists(), "a leftover is there still");
        assert!(staged.path.exists(), "the work of a living process was removed");
        drop(staged);
        drop((first, second));
        assert_eq!(fs::read_dir(root.path().join("staging")).expect("read").count(), 0);
    }
}
