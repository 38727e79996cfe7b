//! Folders in memory: `emptyDir` with the medium `Memory`, a tmpfs at the instance's own folder, so that all of its
//! containers find the same one there.
//!
//! Mounted in the appliance's own mount namespace, for as long as the instance runs; mounts that a killed appliance
//! left are unmounted at the next start. Written data counts as memory of the process that writes it.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, move_mount, unmount,
};

use super::{EMPTY_DIR_SUFFIX, mount_table};
use crate::names::instance_id;

/// At `folder`, which exists. Without `bytes_max` it takes half of the host's memory at most, as the kernel has it.
pub(crate) fn mount(folder: &Path, bytes_max: Option<u64>) -> io::Result<()> {
    let memory = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(memory.as_fd(), "mode", "0777")?; // as a folder on disk has it
    if let Some(bytes) = bytes_max {
        fsconfig_set_string(memory.as_fd(), "size", bytes.to_string())?;
    }
    fsconfig_create(memory.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let top = fsmount(memory.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    Ok(move_mount(top, "", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A process that still has it open keeps it until then.
pub(crate) fn unmount_tmpfs(folder: &Path) -> io::Result<()> {
    Ok(unmount(folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// The mounts below `instances` of instances that `is_left`.
pub(crate) fn unmount_leftovers(instances: &Path, is_left: &dyn Fn(u64) -> bool) {
    let Ok(instances) = instances.canonicalize() else { return }; // no instance has ever been started
    let table = match mount_table::read() {
        Ok(table) => table,
        Err(why) => {
            return tracing::warn!(%why, "volumes in memory of the last run may stay behind: no mount table");
        }
    };
    // INSTANCES/NAMESPACE/REVISION/ID.empty/VOLUME
    let is_leftover = |path: &Path| {
        let below = path.strip_prefix(&instances).ok()?;
        let own = below.iter().nth(2)?.to_str()?.strip_suffix(EMPTY_DIR_SUFFIX)?;
        Some(is_left(instance_id(own)?))
    };
    for (path, _) in table.iter().rev().filter(|(path, _)| is_leftover(path) == Some(true)) {
        if let Err(why) = unmount_tmpfs(path) {
            tracing::warn!(folder = %path.display(), %why, "a volume in memory of the last run stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mounts::may_mount;

    /// The mounts of a killed appliance are unmounted, and those that its successor has mounted since are not.
    #[test]
    fn only_what_was_left_is_unmounted() {
        if !may_mount() {
            return eprintln!("skipped: only root mounts memory");
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("default/hello-00001/7.empty/scratch");
        fs::create_dir_all(&folder).unwrap();
        mount(&folder, Some(1 << 20)).unwrap();
        fs::write(folder.join("in-memory"), "x").unwrap();
        let stays = |id_end| {
            unmount_leftovers(dir.path(), &|id| id < id_end);
            folder.join("in-memory").exists()
        };
        assert!(stays(7));
        assert!(!stays(8));
        assert!(unmount_tmpfs(&folder).is_err(), "it was mounted once");
    }
}
