//! The old process: waits for a successor, and hands over everything in order.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::Result;

use super::handover::PendingHandover;
use super::pending::Pending;
use super::{SOCKET, socket_path};

/// The socket for successors.
pub(in crate::cli::run) struct HandoverListener {
    listener: UnixListener,
}

impl HandoverListener {
    /// Only the holder of the folder's lock may call this: an existing socket belongs to a dead process, or
    /// to a predecessor that has handed over everything.
    pub(in crate::cli::run) fn open(folder: &Path) -> Result<Self> {
        let handle = File::open(folder)?;
        let path = socket_path(&handle);
        let _ = std::fs::remove_file(folder.join(SOCKET)); // usually there is none; else binding says so
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(folder.join(SOCKET), std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Passes every request to `tell`, on a thread of its own.
    pub(in crate::cli::run) fn watch(self, tell: impl Fn(PendingHandover) + Send + 'static) -> Result<()> {
        std::thread::Builder::new().name("takeover".to_owned()).spawn(move || {
            let mut pending = Pending::default();
            loop {
                let ready = pending.wait(&self.listener);
                pending.read(&tell);
                if ready {
                    pending.accept(&self.listener);
                }
            }
        })?;
        Ok(())
    }
}
