//! Mounts whose files belong to other users than on disk: those of a user namespace.
//!
//! `mount_setattr` with `MOUNT_ATTR_IDMAP` (Linux 5.12; file systems joined one by one, overlayfs takes such layers since
//! Linux 5.19). On an older kernel, or a file system that cannot do it, [`map`] returns an error and changes nothing.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maps the ids of `mount`, which is attached nowhere yet, to those of the user `namespace`.
pub fn map(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?,
    };
    // SAFETY: the structure has the kernel's layout and lives through the call, which only reads it; the path is an empty
    // C string, so that the descriptor itself is meant; both descriptors stay borrowed during the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    /// What it does takes a user namespace, and is tested where containers have one.
    #[test]
    fn namespace_that_is_none_is_refused() {
        let folder = File::open("/").unwrap();
        assert!(map(folder.as_fd(), folder.as_fd()).is_err());
    }
}
