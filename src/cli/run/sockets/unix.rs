//! The API's Unix socket: its owner's alone, and never taken from a process that lives.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::config::Config;

/// Binds `--api-socket`, if there is one. `beside`: whoever listens there is being taken over from.
pub(super) fn listen(config: &Config, beside: bool) -> Result<Option<UnixListener>> {
    let path = config.api_socket.as_deref().filter(|_| config.kubeconfig.is_none());
    path.map(|path| bind(path, beside).with_context(|| format!("--api-socket {}", path.display())))
        .transpose()
}

fn bind(path: &Path, beside: bool) -> Result<UnixListener> {
    let name = path.file_name().context("this is no name of a file")?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(parent).with_context(|| parent.display().to_string())?;
    // Through the folder's descriptor: a path may be of any length, where a socket's address has 108 bytes.
    let near = |name: &Path| -> PathBuf {
        Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)
    };
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            bail!("a file is there that is no socket; move it away")
        }
        Ok(_) if !beside && UnixStream::connect(near(Path::new(name))).is_ok() => {
            bail!("another process listens there; stop it or choose another path")
        }
        Ok(_) => {} // a dead process left it
        Err(why) if why.kind() == ErrorKind::NotFound => {}
        Err(why) => return Err(why.into()),
    }
    // Bound under another name and then put in place: there is no moment at which it is open to others, or absent.
    let mut fresh = std::ffi::OsString::from(".");
    fresh.push(name);
    fresh.push(format!(".{}", std::process::id()));
    let fresh = Path::new(&fresh);
    let _ = std::fs::remove_file(parent.join(fresh)); // usually there is none; else binding says so
    let listener = UnixListener::bind(near(fresh))?;
    std::fs::set_permissions(parent.join(fresh), Permissions::from_mode(0o600))?;
    std::fs::rename(parent.join(fresh), path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_processs_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let path = deep.join("api.sock");
        let first = bind(&path, false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(bind(&path, false).unwrap_err().to_string().contains("another process"));
        let second = bind(&path, true).unwrap();
        drop((first, second));
        bind(&path, false).unwrap();
        assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "mine").unwrap();
        assert!(bind(&path, true).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
