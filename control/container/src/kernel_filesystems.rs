//! `/proc` and `/sys` of a container: its own processes, and harmless host information, read-only.
//!
//! The lists are those of runc and containerd. Masked paths are covered with files that the appliance opened before the container's root
//! became visible: a link that an image has in place of `/dev/null` is never followed (CVE-2025-31133).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, makedev, open, openat2};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags, MoveMountFlags, move_mount};

use crate::mounts::{INERT, attach, clone_of, clone_tree, new_filesystem, set_flags};

const PROC: &str = "/proc";
/// Relative to `/proc`.
const MASKED_PROC: [&str; 10] = [
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
];
/// Where the kernel lets root set the whole host.
const READ_ONLY_PROC: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];
/// Relative to `/sys`.
const MASKED_SYS: [&str; 2] = ["firmware", "devices/virtual/powercap"];

/// The covers of masked paths.
pub(crate) struct Masks {
    /// The host's `/dev/null`, proven to be it.
    null: OwnedFd,
    empty: OwnedFd,
}

impl Masks {
    pub(crate) fn open() -> io::Result<Self> {
        let null = open("/dev/null", OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&null)?;
        let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
        if !is_device || found.st_rdev != makedev(1, 3) {
            return Err(io::Error::other("/dev/null of the host is not the null device"));
        }
        let flags = INERT | MountAttrFlags::MOUNT_ATTR_RDONLY;
        let empty = new_filesystem("tmpfs", &[("mode", "0555"), ("size", "4k")], flags)?;
        Ok(Self { null, empty })
    }

    /// Covers `path` below `top`. What is not there needs no cover.
    fn cover(&self, top: &OwnedFd, path: &str) -> io::Result<()> {
        let Some(target) = open_below(top, path)? else { return Ok(()) };
        let is_folder = FileType::from_raw_mode(fstat(&target)?.st_mode) == FileType::Directory;
        let empty = || {
            // A file system that is attached once is copied from then on.
            clone_of(&self.empty).or_else(|_| {
                let flags = INERT | MountAttrFlags::MOUNT_ATTR_RDONLY;
                new_filesystem("tmpfs", &[("mode", "0555"), ("size", "4k")], flags)
            })
        };
        let cover = if is_folder { empty()? } else { clone_of(&self.null)? };
        attach(cover, target)
    }
}

/// Lays the `/proc` of this process's own pid namespace over the one it sees, masked. From then on this process names
/// its descriptors there.
pub(crate) fn mount_proc(masks: &Masks) -> io::Result<()> {
    let proc = new_filesystem("proc", &[], INERT)?;
    move_mount(&proc, "", CWD, PROC, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    for path in MASKED_PROC {
        masks.cover(&proc, path)?;
    }
    for path in READ_ONLY_PROC {
        let Some(target) = open_below(&proc, path)? else { continue };
        let tree = clone_of(&target)?;
        attach(&tree, target)?;
        set_flags(&tree, MountFlags::RDONLY)?;
    }
    Ok(())
}

/// A copy of what [`mount_proc`] made, with all that is mounted in it.
pub(crate) fn clone_proc() -> io::Result<OwnedFd> {
    clone_tree(Path::new(PROC), true)
}

/// `/sys`, for reading, mounted nowhere yet.
pub(crate) fn create_sys() -> io::Result<OwnedFd> {
    new_filesystem("sysfs", &[], INERT | MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// To be done once it is attached.
pub(crate) fn mask_sys(masks: &Masks, sys: &OwnedFd) -> io::Result<()> {
    MASKED_SYS.iter().try_for_each(|path| masks.cover(sys, path))
}

/// The entry at `path` below `top`, which is the top of a kernel file system. Follows no symbolic link.
pub(crate) fn open_below(top: impl AsFd, path: &str) -> io::Result<Option<OwnedFd>> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(top, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT) => Ok(None),
        Err(why) => Err(why.into()),
    }
}
