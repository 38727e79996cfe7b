//! Our own program file, as containers are started from it: a file that the container cannot write to (CVE-2019-5736).
//!
//! A process in a container can open the program that started it as `/proc/PID/exe`, and a root there could write to it
//! once it is no longer busy. So it is started from a read-only overlay of its folder, which shares its pages with
//! the original; or, where that is not possible, from a sealed copy in memory.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use crate::mounts::{INERT, descriptor_path, new_filesystem};

const THIS_PROGRAM: &str = "/proc/self/exe";

/// It stays usable for as long as this is held.
#[derive(Debug)]
pub struct ProtectedProgram {
    file: OwnedFd,
}

impl ProtectedProgram {
    /// This program itself, also if its file was replaced meanwhile.
    pub fn of_this() -> io::Result<Self> {
        Self::open(Path::new(THIS_PROGRAM))
    }

    /// The program at `path`. Needs root.
    pub fn open(path: &Path) -> io::Result<Self> {
        let original = File::open(path)?;
        let file = match read_only_view(path, &original) {
            Ok(file) => file,
            Err(_) => sealed_copy(&original)?,
        };
        Ok(Self { file })
    }

    /// Where it can be started from by this process and its threads.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        descriptor_path(&self.file).into()
    }
}

fn read_only_view(path: &Path, original: &File) -> io::Result<OwnedFd> {
    let real = fs::canonicalize(path)?;
    let (found, wanted) = (fs::metadata(&real)?, original.metadata()?);
    if (found.dev(), found.ino()) != (wanted.dev(), wanted.ino()) {
        return Err(io::Error::other("the file was replaced"));
    }
    let (Some(folder), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(io::Error::other("the program has no folder"));
    };
    let folder = File::open(folder)?;
    // An overlay that cannot be written to has two layers at least.
    let empty = new_filesystem("tmpfs", &[("size", "4k")], INERT)?;
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in [descriptor_path(&folder), descriptor_path(&empty)] {
        fsconfig_set_string(overlay.as_fd(), "lowerdir+", layer)?;
    }
    fsconfig_create(overlay.as_fd())?;
    let flags =
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let top = fsmount(overlay.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    Ok(openat(top, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

fn sealed_copy(original: &File) -> io::Result<OwnedFd> {
    let copy = memfd_create("sluicegate", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    io::copy(&mut &*original, &mut File::from(copy.try_clone()?))?;
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn sealed_copy_runs_and_cannot_be_written() {
        let copy = sealed_copy(&File::open("/bin/true").unwrap()).unwrap();
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        assert!(std::process::Command::new(&path).status().unwrap().success());
        assert!(rustix::io::write(&copy, b"x").is_err());
    }

    #[test]
    fn view_of_program_runs_and_cannot_be_written() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let view = read_only_view(Path::new("/bin/true"), &File::open("/bin/true").unwrap()).unwrap();
        let path = format!("/proc/self/fd/{}", view.as_raw_fd());
        assert!(std::process::Command::new(&path).status().unwrap().success());
        let refused = fs::OpenOptions::new().write(true).open(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    }
}
