//! An instance's own `/dev`: the devices that programs expect, and none of the host's hardware (RT-FS-09).
//!
//! A folder in memory, created while the prefork process waits for its launch spec, and mounted once the needed devices of the
//! host are open. Where it cannot be created the instance sees the host's, and its log says so.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use container::create_device_nodes;
use rustix::fs::{AtFlags, CWD, Mode, mkdirat, statat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    move_mount,
};

use super::tree::create_mount_point;
use crate::limits::{DEVICES_BYTES_MAX, SHARED_MEMORY_BYTES_MAX};

/// Where programs look for devices.
const FOLDER: &str = "/dev";

const TERMINALS: &str = "pts";
const SHARED_MEMORY: &str = "shm";
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);

/// Not mounted yet.
pub(crate) struct InstanceDevices {
    top: OwnedFd,
    /// In the folders of these names.
    subfolders: [(&'static str, OwnedFd); 2],
}

pub(crate) fn create() -> io::Result<InstanceDevices> {
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let bytes = DEVICES_BYTES_MAX.to_string();
    let top = new_filesystem("tmpfs", &[("mode", "0755"), ("size", &bytes)], MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    create_device_nodes(&top)?;
    for name in [TERMINALS, SHARED_MEMORY] {
        mkdirat(&top, name, FOLDER_MODE)?;
    }
    // 5 is the group of terminals on every distribution; processes with terminals find it there.
    let terminals = new_filesystem("devpts", &[("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")], quiet)?;
    let bytes = SHARED_MEMORY_BYTES_MAX.to_string();
    let no_devices = quiet | MountAttrFlags::MOUNT_ATTR_NODEV;
    let shared = new_filesystem("tmpfs", &[("mode", "1777"), ("size", &bytes)], no_devices)?;
    Ok(InstanceDevices { top, subfolders: [(TERMINALS, terminals), (SHARED_MEMORY, shared)] })
}

/// A file system of this kind, mounted nowhere.
fn new_filesystem(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> io::Result<OwnedFd> {
    let fresh = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(fresh.as_fd(), *name, *value)?;
    }
    fsconfig_create(fresh.as_fd())?;
    Ok(fsmount(fresh.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

impl InstanceDevices {
    /// Lays it over the host's, with something to mount on for those of the `targets` that are inside: a folder, or a file.
    pub(crate) fn mount<'a>(self, targets: impl Iterator<Item = (&'a Path, bool)>) -> io::Result<()> {
        for (target, is_folder) in targets {
            let Ok(below) = target.strip_prefix(FOLDER) else { continue };
            if matches!(statat(&self.top, below, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
                create_mount_point(&self.top, below, is_folder)?;
            }
        }
        let within = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&self.top, "", CWD, Path::new(FOLDER), within)?;
        for (name, tree) in &self.subfolders {
            move_mount(tree, "", &self.top, *name, within)?;
        }
        Ok(())
    }
}

/// None of it is worth failing a start.
pub(crate) fn warn_unavailable(why: &io::Error) {
    eprintln!("sluicegate: the host's /dev is seen: {why}");
}
