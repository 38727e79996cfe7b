//! The API's Unix socket: accessible to its owner only, and never taken from a live process.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use crate::config::RunConfig;

/// A listener that is not at its path yet. Every possible error of the path has been reported by then.
pub(in crate::cli::run) struct PreparedSocket {
    listener: UnixListener,
    path: PathBuf,
    folder: File,
    /// Its temporary path, next to the final one.
    fresh: PathBuf,
}

/// Prepares `--api-socket`, if configured.
///
/// # Errors No socket can be created there, or something else exists there.
pub(in crate::cli::run) fn prepare(config: &RunConfig) -> Result<Option<PreparedSocket>> {
    let path = config.api_socket.as_deref().filter(|_| config.kubeconfig.is_none());
    path.map(PreparedSocket::new).transpose()
}

impl PreparedSocket {
    fn new(path: &Path) -> Result<Self> {
        Self::try_new(path).with_context(|| format!("--api-socket {}", path.display()))
    }

    fn try_new(path: &Path) -> Result<Self> {
        let name = path.file_name().context("this is not a file name")?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = File::open(parent).with_context(|| parent.display().to_string())?;
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                bail!("the path exists and is not a socket; move it away")
            }
            Ok(_) => {} // a running process listens there, or a dead one left it: see `publish`
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => return Err(why.into()),
        }
        // Bound under another name and then renamed: at no moment is it open to others, or absent.
        let mut fresh = std::ffi::OsString::from(".");
        fresh.push(name);
        fresh.push(format!(".{}", std::process::id()));
        let _ = std::fs::remove_file(parent.join(&fresh)); // usually there is none; else binding says so
        let listener = UnixListener::bind(near(&folder, Path::new(&fresh)))?;
        let prepared = Self { listener, path: path.to_owned(), folder, fresh: parent.join(fresh) };
        std::fs::set_permissions(&prepared.fresh, Permissions::from_mode(0o600))?;
        prepared.listener.set_nonblocking(true)?;
        Ok(prepared)
    }

    /// Renames it to its path. `is_handover`: the process that may listen there is being replaced.
    ///
    /// # Errors Another process listens there.
    pub(super) fn publish(self, is_handover: bool) -> Result<UnixListener> {
        let listens = || {
            self.path.file_name().is_some_and(|name| UnixStream::connect(near(&self.folder, Path::new(name))).is_ok())
        };
        let named = || format!("--api-socket {}", self.path.display());
        if !is_handover && listens() {
            return Err(anyhow!("another process listens there; stop it or choose another path")).with_context(named);
        }
        std::fs::rename(&self.fresh, &self.path).with_context(named)?;
        self.listener.try_clone().with_context(named)
    }
}

impl Drop for PreparedSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.fresh); // usually it was renamed
    }
}

/// Through the folder's descriptor: a path may be of any length, where a socket's address has 108 bytes.
fn near(folder: &File, name: &Path) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_process_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let path = deep.join("api.sock");
        let bind =
            |path: &Path, is_handover| PreparedSocket::new(path).and_then(|prepared| prepared.publish(is_handover));
        let first = bind(&path, false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refusal = bind(&path, false).map(drop).unwrap_err();
        assert!(format!("{refusal:#}").contains("another process"), "{refusal:#}");
        let second = bind(&path, true).unwrap();
        drop((first, second));
        bind(&path, false).unwrap();
        assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 1);
    }

    #[test]
    fn file_that_is_no_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "mine").unwrap();
        assert!(PreparedSocket::new(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
