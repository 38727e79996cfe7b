//! The mount system calls that this crate needs.
//!
//! Everything is addressed by descriptors: a path that an image or another container can change is resolved once, within the
//! container's root, and never again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, StatVfsMountFlags, fstatvfs};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, mount_remount, move_mount, open_tree,
};

/// Flags for kernel file systems: no program needs set-user-ID bits, devices or executables there.
pub(crate) const INERT: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// A file system of this kind, mounted nowhere. Its source in `/proc/mounts` is the name of its kind, as in other runtimes.
pub(crate) fn new_filesystem(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> io::Result<OwnedFd> {
    let fresh = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(fresh.as_fd(), "source", kind)?;
    for (name, value) in options {
        fsconfig_set_string(fresh.as_fd(), *name, *value)?;
    }
    fsconfig_create(fresh.as_fd())?;
    Ok(fsmount(fresh.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// A copy of what is mounted at `path`, attached to nothing yet.
pub(crate) fn clone_tree(path: &Path, with_mounts_below: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, with_mounts_below);
    Ok(open_tree(CWD, path, flags)?)
}

/// The same of what `folder` is.
pub(crate) fn clone_of(folder: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(folder, "", flags)?)
}

/// Puts `tree` where `target` is.
pub(crate) fn attach(tree: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let by_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", target, "", by_descriptor)?)
}

/// Sets the flags of an attached mount with the top `top`, in addition to those of its source.
pub(crate) fn set_flags(top: &OwnedFd, flags: MountFlags) -> io::Result<()> {
    let now = fstatvfs(top)?.f_flag;
    let mut kept = MountFlags::BIND | flags;
    for (has, keeps) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        kept.set(keeps, kept.contains(keeps) || now.contains(has));
    }
    Ok(mount_remount(descriptor_path(top), kept, "")?)
}

/// The kernel's name for what a descriptor of this process is open on.
pub(crate) fn descriptor_path(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
