//! What an instance sees of the host as if it were its own: its control groups, and whom it asks for names.
//!
//! In its mount namespace, after its volumes. None of it is worth failing a start: who goes without reads what everybody
//! on the host reads, and its log says so.

use std::io;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, mount_remount, move_mount};

use super::mount_table;
use super::mounts::clone_tree;
use super::words::Place;
use crate::names::RESOLVER;

/// Where the kernel lets root set the whole host (the read-only paths of container runtimes).
const KNOBS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
const DEVICES: &str = "/sys";
const GROUPS: &str = "/sys/fs/cgroup";

/// The host's control groups, as mounted: an instance moves into its own before they are guarded.
pub(super) struct Unguarded(Vec<(PathBuf, MountFlags)>);

/// RT-ISO-03: the host's settings are for reading. In a mount namespace of one's own.
pub(super) fn guard() -> Unguarded {
    for path in KNOBS.map(Path::new).into_iter().filter(|path| path.exists()) {
        cover(path, path).unwrap_or_else(|why| left_open(path, &why));
    }
    let mut table = mount_table::read().unwrap_or_else(|why| {
        left_open(Path::new(DEVICES), &why);
        Vec::new()
    });
    table.retain(|(path, _)| path.starts_with(DEVICES));
    let (groups, others) = table.into_iter().partition(|(path, _)| path.starts_with(GROUPS));
    Unguarded(others).guard();
    Unguarded(groups)
}

impl Unguarded {
    /// RT-CG-02
    pub(super) fn guard(self) {
        for (path, flags) in self.0 {
            match mount_remount(&path, flags | MountFlags::BIND | MountFlags::RDONLY, "") {
                // Hidden behind a later mount: nobody can write there either.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(why) => left_open(&path, &why.into()),
            }
        }
    }
}

fn left_open(path: &Path, why: &io::Error) {
    eprintln!("sluicegate: {} can be written to: {why}", path.display());
}

pub(super) fn show(place: &Place) {
    // A volume at the same path is what the developer wants there.
    let is_taken = |path: &Path| place.binds.iter().any(|bind| path.starts_with(&bind.target));
    let resolver = Path::new(RESOLVER);
    if let Some(source) = place.resolver.as_deref().filter(|_| !is_taken(resolver))
        && let Err(why) = cover(source, resolver)
    {
        eprintln!("sluicegate: names of other Services are not known here: {resolver:?}: {why}");
    }
    if place.cgroups.is_empty() {
        return;
    }
    // RT-FS-06: paths in /proc/self/cgroup begin at its own group then, as they do in what is mounted.
    let _ = unshare(CloneFlags::CLONE_NEWCGROUP); // only looks differ without it
    for seat in place.cgroups.iter().filter(|seat| !is_taken(&seat.mounted)) {
        if let Err(why) = cover(&seat.folder, &seat.mounted) {
            eprintln!("sluicegate: the host's control groups are seen here: {:?}: {why}", seat.mounted);
        }
    }
}

/// Puts `source` where `target` is, for reading.
fn cover(source: &Path, target: &Path) -> io::Result<()> {
    let target = target.canonicalize()?; // often a link
    let tree = clone_tree(source, false)?;
    move_mount(&tree, "", CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY, "")?)
}
