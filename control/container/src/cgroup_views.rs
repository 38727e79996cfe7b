//! A container's view of its control groups: only its own, read-only (RT-CG-02, RT-CG-03).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};
use rustix::mount::{MountAttrFlags, MountFlags};

use crate::kernel_filesystems::open_below;
use crate::mounts::{INERT, attach, clone_tree, new_filesystem, set_flags};
use crate::spec::CgroupView;

/// Below `/sys`.
const FOLDER: &str = "fs/cgroup";
const MOUNT_POINT: &str = "/sys/fs/cgroup";

/// Opened while the host's files can still be reached.
pub(crate) struct CgroupTrees(Vec<(OwnedFd, String)>);

/// A container runs without them too, so a control group that cannot be opened is left out, and the log says so.
pub(crate) fn open(views: &[CgroupView]) -> CgroupTrees {
    let one = |view: &CgroupView| {
        let name = view.mount_point.strip_prefix(MOUNT_POINT).ok()?.to_str()?.to_owned();
        match clone_tree(&view.folder, false) {
            Ok(tree) => Some((tree, name)),
            Err(why) => {
                eprintln!("sluicegate: {} is not seen in the container: {why}", view.folder.display());
                None
            }
        }
    };
    CgroupTrees(views.iter().filter_map(one).collect())
}

impl CgroupTrees {
    /// Below the attached `sys`.
    pub(crate) fn mount(self, sys: &OwnedFd) -> io::Result<()> {
        let Some(folder) = open_below(sys, FOLDER)? else { return Ok(()) };
        if let [(tree, name)] = &*self.0
            && name.is_empty()
        {
            attach(tree, folder)?;
            return set_flags(tree, flags());
        }
        // Several hierarchies: a folder for each, side by side.
        let top =
            new_filesystem("tmpfs", &[("mode", "0755"), ("size", "64k")], INERT & !MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        attach(&top, folder)?;
        for (tree, name) in
            self.0.iter().filter(|(_, name)| !name.is_empty() && Path::new(name).components().count() == 1)
        {
            match mkdirat(&top, name.as_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(why) => return Err(why.into()),
            }
            let place = openat(&top, name.as_str(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            attach(tree, place)?;
            set_flags(tree, flags())?;
            link_controllers(&top, name)?;
        }
        set_flags(&top, MountFlags::RDONLY)
    }
}

/// Several controllers may share a hierarchy, `cpu,cpuacct`: programs look for each of them by its own name.
fn link_controllers(top: &OwnedFd, name: &str) -> io::Result<()> {
    for controller in name.split(',').filter(|controller| *controller != name) {
        symlinkat(name, top, controller)?;
    }
    Ok(())
}

fn flags() -> MountFlags {
    MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC
}
