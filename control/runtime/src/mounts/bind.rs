//! The volumes of an instance at their mount paths, in its own mount namespace.
//!
//! A container creates a mount path that its image lacks; the host's folders are not ours to change. So
//! the nearest existing folder is covered by an empty one in memory, in which everything that was there
//! is bound again, and the missing path is created. If that folder is `/` itself, the cover becomes the
//! instance's root. Needs root; runs in the instance's own process, before the program starts.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use container::BindMount;
use container::rootfs::clone_volume;
use rustix::fs::{CWD, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsmount, fsopen, mount_change, mount_remount, move_mount,
};
use rustix::process::{chroot, fchdir};

use super::devices::{self, InstanceDevices};
use super::tree::{clone_tree, create_mount_point};
use super::{is_folder, masks};
use crate::sandbox_spec::SandboxSpec;

/// Covering a folder binds each of its entries again, some 10 µs each; a folder with more than this is
/// no place for a mount path that does not exist.
const COVERED_ENTRIES_MAX: usize = 2_000;

/// Makes the binds of `place` in this process's own namespace, outer ones before those inside them, and before them its masks
/// and the instance's own `devices`.
pub(crate) fn mount_all(place: &SandboxSpec, devices: Option<InstanceDevices>) -> Result<(), String> {
    let binds = &place.binds;
    // Sources may come to lie behind a cover or outside a new root, so they are held from before.
    let mut held = Vec::with_capacity(binds.len());
    for bind in binds {
        let tree = clone_volume(&bind.source, bind.sub_path.as_deref()).map_err(|why| mount_error(bind, why))?;
        held.push((tree, bind));
    }
    held.sort_by_key(|(_, bind)| bind.target.components().count());
    masks::cover(&place.masks, &place.unmasked)
        .map_err(|why| format!("the appliance's own files cannot be covered: {why}"))?;
    if let Some(devices) = devices {
        devices.mount(binds).unwrap_or_else(|why| devices::warn_unavailable(&why));
    }

    let mut missing: BTreeMap<PathBuf, Vec<MissingMountPath<'_>>> = BTreeMap::new();
    for bind in binds.iter().filter(|bind| !bind.target.exists()) {
        let (folder, below) = split_existing(&bind.target);
        missing.entry(folder).or_default().push(MissingMountPath { bind, below });
    }
    for (folder, inside) in missing {
        cover_with_tmpfs(&folder, &inside).map_err(|why| mount_error(inside[0].bind, why))?;
    }
    for (tree, bind) in held {
        attach(&tree, bind).map_err(|why| mount_error(bind, why))?;
    }
    Ok(())
}

/// A mount path that has to be made.
struct MissingMountPath<'a> {
    bind: &'a BindMount,
    /// The missing part of the path.
    below: PathBuf,
}

fn mount_error(bind: &BindMount, why: impl Display) -> String {
    format!("mountPath {} cannot be mounted: {why}", bind.target.display())
}

pub(crate) fn enter_namespace() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    // The host's later mounts are seen; ours stay ours.
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

fn attach(tree: &OwnedFd, bind: &BindMount) -> io::Result<()> {
    move_mount(tree, "", CWD, &bind.target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    if bind.read_only {
        mount_remount(&bind.target, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    Ok(())
}

/// The nearest folder above `path` that exists, by its real name, and what of `path` is below it.
fn split_existing(path: &Path) -> (PathBuf, PathBuf) {
    let above = path.ancestors().skip(1).find(|above| above.is_dir()).unwrap_or(Path::new("/"));
    let below = path.strip_prefix(above).unwrap_or(path).to_owned();
    (above.canonicalize().unwrap_or_else(|_| above.to_owned()), below)
}

/// Lays a folder in memory over `folder` that holds all of it, and the missing paths of `inside`.
fn cover_with_tmpfs(folder: &Path, inside: &[MissingMountPath<'_>]) -> io::Result<()> {
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    if entries.len() > COVERED_ENTRIES_MAX {
        let (folder, found) = (folder.display(), entries.len());
        return Err(io::Error::other(format!(
            "{folder} has {found} entries, limit {COVERED_ENTRIES_MAX}: make the path on this host"
        )));
    }
    let memory = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(memory.as_fd())?;
    let top = fsmount(memory.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;

    let mut trees = Vec::with_capacity(entries.len());
    for entry in entries {
        let (path, name, kind) = (entry.path(), entry.file_name(), entry.file_type()?);
        if kind.is_symlink() {
            symlinkat(fs::read_link(&path)?, &top, &name)?;
        } else {
            create_mount_point(&top, Path::new(&name), kind.is_dir())?;
            trees.push((clone_tree(&path, true)?, name));
        }
    }
    for missing in inside {
        create_mount_point(&top, &missing.below, is_folder(missing.bind))?;
    }
    move_mount(&top, "", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    for (tree, name) in &trees {
        move_mount(tree, "", &top, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    if folder == Path::new("/") {
        fchdir(&top)?;
        chroot(".")?;
    }
    Ok(())
}
