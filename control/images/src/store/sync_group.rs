//! One `syncfs` for all layers that wait for one.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tokio::sync::Mutex;

use crate::error::Error;

/// A flush covers every layer that was written before it started, so all layers that wait share the next flush.
#[derive(Debug, Default)]
pub(super) struct SyncGroup {
    requested: AtomicU64,
    /// The last request that a flush has covered.
    completed: Mutex<u64>,
}

impl SyncGroup {
    /// Returns when everything that was written to the file system of `root` before the call is on the disk.
    pub(super) async fn sync(&self, root: &Path) -> Result<(), Error> {
        let own = self.requested.fetch_add(1, SeqCst) + 1;
        let mut completed = self.completed.lock().await;
        if *completed >= own {
            return Ok(());
        }
        let covers = self.requested.load(SeqCst);
        let folder = root.to_owned();
        let flush = move || -> io::Result<()> { Ok(rustix::fs::syncfs(File::open(folder)?)?) };
        let flushed = tokio::task::spawn_blocking(flush).await.map_err(io::Error::other).flatten();
        flushed.map_err(|why| Error::storage(root, "flushing layers", &why))?;
        *completed = covers;
        Ok(())
    }
}
