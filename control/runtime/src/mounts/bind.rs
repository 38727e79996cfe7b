//! The volumes of an instance at their mount paths, in its own mount namespace.
//!
//! A container creates a mount path that its image lacks; the host's folders are not ours to change. So
//! the nearest existing folder is covered by an empty one in memory, in which everything that was there
//! is bound again, and the missing path is created. If that folder is `/` itself, the cover becomes the
//! instance's root. A path inside of another volume is created in that volume, as containers do it. Needs root; runs in the instance's own process, before the program starts.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use container::BindMount;
use container::limits::LINKS_MAX;
use container::rootfs::{clone_volume, make_read_only, open_mount_point};
use rustix::fs::{CWD, FileType, fstat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create, fsmount, fsopen,
    mount_change, move_mount,
};
use rustix::process::{chroot, fchdir};

use super::devices::{self, InstanceDevices};
use super::masks;
use super::tree::{clone_tree, create_mount_point};
use crate::sandbox_spec::SandboxSpec;

/// Covering a folder binds each of its entries again, some 10 µs each; a folder with more than this is
/// no place for a mount path that does not exist.
const COVERED_ENTRIES_MAX: usize = 2_000;

/// Makes the binds of `place` in this process's own namespace, outer ones before those inside them, and before them its masks
/// and the instance's own `devices`.
pub(crate) fn mount_all(place: &SandboxSpec, devices: Option<InstanceDevices>) -> Result<(), String> {
    // Sources may come to lie behind a mask, behind a cover or outside a new root, so they are opened before.
    let mut volumes = place.binds.iter().map(Volume::open).collect::<Result<Vec<_>, _>>()?;
    volumes.sort_by_key(|volume| volume.bind.target.components().count());
    masks::cover(&place.masks, &place.unmasked)
        .map_err(|why| format!("the appliance's own files cannot be covered: {why}"))?;
    if let Some(devices) = devices {
        let targets = volumes.iter().map(|volume| (volume.bind.target.as_path(), volume.is_folder));
        devices.mount(targets).unwrap_or_else(|why| devices::warn_unavailable(&why));
    }
    resolve_targets(&mut volumes)?;

    let mut missing: BTreeMap<PathBuf, Vec<MissingMountPath<'_>>> = BTreeMap::new();
    for volume in volumes.iter().filter(|volume| !volume.target.exists() && volume.outer(&volumes).is_none()) {
        let (folder, below) = split_existing(&volume.target);
        missing.entry(folder).or_default().push(MissingMountPath { volume, below });
    }
    for (folder, inside) in missing {
        cover_with_tmpfs(&folder, &inside).map_err(|why| mount_error(inside[0].volume.bind, why))?;
    }
    for volume in &volumes {
        volume.attach(volume.outer(&volumes)).map_err(|why| mount_error(volume.bind, why))?;
    }
    // At the end: paths may have been created in them for the mounts inside.
    for volume in volumes.iter().filter(|volume| volume.bind.read_only) {
        make_read_only(&volume.tree).map_err(|why| mount_error(volume.bind, why))?;
    }
    Ok(())
}

/// A volume that is opened, and mounted later.
struct Volume<'a> {
    bind: &'a BindMount,
    tree: OwnedFd,
    /// A folder, or a file.
    is_folder: bool,
    /// The mount path, without links that lead to missing paths.
    target: PathBuf,
}

impl<'a> Volume<'a> {
    fn open(bind: &'a BindMount) -> Result<Self, String> {
        let tree = clone_volume(&bind.source, bind.sub_path.as_deref()).map_err(|why| mount_error(bind, why))?;
        let kind = fstat(&tree).map(|found| FileType::from_raw_mode(found.st_mode));
        let is_folder = kind.map_err(|why| mount_error(bind, why))? == FileType::Directory;
        Ok(Self { bind, tree, is_folder, target: bind.target.clone() })
    }

    /// The volume inside of which it is mounted, and its path there.
    fn outer<'v>(&self, volumes: &'v [Volume<'_>]) -> Option<(&'v OwnedFd, &Path)> {
        let outside = volumes.iter().filter(|other| other.target != self.target && other.is_folder);
        let below = outside.filter_map(|other| Some((&other.tree, self.target.strip_prefix(&other.target).ok()?)));
        below.min_by_key(|(_, below)| below.components().count())
    }

    /// Inside of a volume, other programs may have put a link at the path, so that is resolved in that volume.
    fn attach(&self, outer: Option<(&OwnedFd, &Path)>) -> io::Result<()> {
        let source_only = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        let Some((volume, below)) = outer else {
            return Ok(move_mount(&self.tree, "", CWD, &self.target, source_only)?);
        };
        let target = open_mount_point(volume, below, self.is_folder)?;
        Ok(move_mount(&self.tree, "", target, "", source_only | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH)?)
    }
}

/// A mount path that has to be made.
struct MissingMountPath<'a> {
    volume: &'a Volume<'a>,
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

/// Where each mount path leads by now. What is inside of another volume is resolved there, when that is mounted.
fn resolve_targets(volumes: &mut [Volume<'_>]) -> Result<(), String> {
    for at in 0..volumes.len() {
        let (before, rest) = volumes.split_at_mut(at);
        let volume = &mut rest[0];
        let inside = before.iter().rev().find_map(|outer| {
            let below = volume.bind.target.strip_prefix(&outer.bind.target).ok()?;
            Some(outer.target.join(below)).filter(|_| outer.is_folder && !below.as_os_str().is_empty())
        });
        volume.target = match inside {
            Some(target) => target,
            None => real_path(&volume.bind.target).map_err(|why| mount_error(volume.bind, why))?,
        };
    }
    // A link may lead into another volume.
    volumes.sort_by_key(|volume| volume.target.components().count());
    Ok(())
}

/// Where `path` leads, also if one of its parts is a link to a missing path: that is what has to be made.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let dangling =
            path.ancestors().find_map(|part| Some((part, fs::read_link(part).ok().filter(|_| !part.exists())?)));
        let Some((link, leads_to)) = dangling else {
            let (folder, below) = split_existing(&path);
            return Ok(path.canonicalize().unwrap_or_else(|_| folder.join(below)));
        };
        let below = path.strip_prefix(link).unwrap_or(Path::new(""));
        path = link.parent().unwrap_or(Path::new("/")).join(leads_to).join(below).components().collect();
    }
    Err(rustix::io::Errno::LOOP.into())
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
        create_mount_point(&top, &missing.below, missing.volume.is_folder)?;
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
