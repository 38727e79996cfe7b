//! An instance's own view of host information: its control groups and its resolver.
//!
//! In its mount namespace, after its volumes. A start does not fail without it: the instance then sees what the
//! other programs of the host see, and its log says so.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, mount_remount, move_mount};

use super::mount_table;
use super::tree::clone_tree;
use crate::dns::RESOLVER;
use crate::sandbox_spec::SandboxSpec;

/// Where the kernel lets root set the whole host (the read-only paths of container runtimes).
const KERNEL_SETTINGS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
const DEVICES: &str = "/sys";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The host's control groups, as mounted: an instance moves into its own before they are guarded.
pub(crate) struct WritableCgroups(Vec<(PathBuf, MountFlags)>);

/// RT-ISO-03: the host's settings are for reading. In a mount namespace of its own.
pub(crate) fn protect() -> WritableCgroups {
    for path in KERNEL_SETTINGS.map(Path::new).into_iter().filter(|path| path.exists()) {
        mount_over(path, path).unwrap_or_else(|why| warn_writable(path, &why));
    }
    let mut table = mount_table::read().unwrap_or_else(|why| {
        warn_writable(Path::new(DEVICES), &why);
        Vec::new()
    });
    table.retain(|(path, _)| path.starts_with(DEVICES));
    let (groups, others) = table.into_iter().partition(|(path, _)| path.starts_with(CGROUP_ROOT));
    WritableCgroups(others).guard();
    WritableCgroups(groups)
}

impl WritableCgroups {
    /// RT-CG-02
    pub(crate) fn guard(self) {
        for (path, flags) in self.0 {
            match mount_remount(&path, flags | MountFlags::BIND | MountFlags::RDONLY, "") {
                // Hidden behind a later mount: it cannot be written to there either.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(why) => warn_writable(&path, &why.into()),
            }
        }
    }
}

fn warn_writable(path: &Path, why: &io::Error) {
    eprintln!("sluicegate: {} can be written to: {why}", path.display());
}

/// The host's files for an instance, opened before its volumes are mounted: they may hide the paths.
pub(crate) struct HostViews {
    views: Vec<HostView>,
    has_groups: bool,
}

struct HostView {
    tree: io::Result<OwnedFd>,
    target: PathBuf,
    /// The views that it does not get.
    missing_effect: &'static str,
}

pub(crate) fn prepare(place: &SandboxSpec) -> HostViews {
    // A volume at the same path is what the developer wants there.
    let is_taken = |path: &Path| place.binds.iter().any(|bind| path.starts_with(&bind.target));
    let view = |source: &Path, target: &Path, lack| HostView {
        tree: clone_tree(source, false),
        target: target.to_owned(),
        missing_effect: lack,
    };
    let resolver = Path::new(RESOLVER);
    let names = place.resolver.as_deref().filter(|_| !is_taken(resolver));
    let names = names.map(|source| view(source, resolver, "names of other Services are not known here"));
    let groups = place.cgroups.iter().filter(|prefork| !is_taken(&prefork.mount_point));
    let groups =
        groups.map(|prefork| view(&prefork.folder, &prefork.mount_point, "the host's control groups are seen here"));
    HostViews { views: names.into_iter().chain(groups).collect(), has_groups: !place.cgroups.is_empty() }
}

impl HostViews {
    pub(crate) fn mount(self) {
        if self.has_groups {
            // RT-FS-06: paths in /proc/self/cgroup begin at its own group then, as they do in what is mounted.
            let _ = unshare(CloneFlags::CLONE_NEWCGROUP); // only looks differ without it
        }
        for HostView { tree, target, missing_effect: lack } in self.views {
            if let Err(why) = tree.and_then(|tree| attach(&tree, &target)) {
                eprintln!("sluicegate: {lack}: {target:?}: {why}");
            }
        }
    }
}

/// Puts `source` where `target` is, for reading.
fn mount_over(source: &Path, target: &Path) -> io::Result<()> {
    attach(&clone_tree(source, false)?, target)
}

fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let target = target.canonicalize()?; // often a link
    move_mount(tree, "", CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY, "")?)
}
