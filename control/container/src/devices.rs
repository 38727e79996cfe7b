//! A container's `/dev`: what programs expect to find there, and nothing of the host's hardware (RT-FS-09).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid, chmodat, chownat, makedev, mkdirat, mknodat, symlinkat};
use rustix::mount::{MountAttrFlags, MoveMountFlags, move_mount};

use crate::limits::{DEVICES_BYTES_MAX, SHARED_MEMORY_BYTES_MAX};
use crate::mounts::{INERT, attach, new_filesystem};

/// Name, major and minor number of each device that the runtime specification of containers names; all users may use them.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const DEVICE_MODE: Mode = Mode::from_raw_mode(0o666);

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);

/// Not mounted yet.
pub(crate) struct DeviceFilesystem {
    top: OwnedFd,
    /// In the folders of these names.
    subfolders: Vec<(&'static str, OwnedFd)>,
}

/// Makes the devices, and the links of `/dev`, in `top`: the top of an empty file system.
pub fn create_device_nodes(top: &OwnedFd) -> io::Result<()> {
    for (name, major, minor) in DEVICES {
        mknodat(top, name, FileType::CharacterDevice, DEVICE_MODE, makedev(major, minor))?;
        chmodat(top, name, DEVICE_MODE, AtFlags::empty())?; // what is made loses the bits of the umask
    }
    for (name, target) in LINKS {
        symlinkat(target, top, name)?;
    }
    Ok(())
}

impl DeviceFilesystem {
    /// In the IPC namespace that it is for.
    pub(crate) fn create() -> io::Result<Self> {
        let bytes = DEVICES_BYTES_MAX.to_string();
        // Devices are what it is for, so `nodev` is not among its flags.
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let top = new_filesystem("tmpfs", &[("mode", "0755"), ("size", &bytes)], flags)?;
        create_device_nodes(&top)?;
        let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        // 5 is the group of terminals wherever there is one.
        let terminals = new_filesystem("devpts", &[("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")], quiet)?;
        let bytes = SHARED_MEMORY_BYTES_MAX.to_string();
        let shared = new_filesystem("tmpfs", &[("mode", "1777"), ("size", &bytes)], INERT)?;
        let mut subfolders = vec![("pts", terminals), ("shm", shared)];
        // A kernel may be built without message queues.
        subfolders.extend(new_filesystem("mqueue", &[], INERT).ok().map(|queues| ("mqueue", queues)));
        for (name, _) in &subfolders {
            mkdirat(&top, *name, FOLDER_MODE)?;
        }
        Ok(Self { top, subfolders })
    }

    /// It belongs to the user `owner` of the host.
    pub(crate) fn give_to(&self, owner: u32) -> io::Result<()> {
        let (owner, group) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)));
        for (name, ..) in DEVICES {
            chownat(&self.top, name, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let folders = self.subfolders.iter().map(|(_, tree)| tree).chain([&self.top]);
        folders.into_iter().try_for_each(|folder| Ok(chownat(folder, "", owner, group, AtFlags::EMPTY_PATH)?))
    }

    /// Lays it over `folder`.
    pub(crate) fn mount(&self, folder: impl AsFd) -> io::Result<()> {
        attach(&self.top, folder)?;
        for (name, tree) in &self.subfolders {
            move_mount(tree, "", &self.top, *name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        }
        Ok(())
    }
}
