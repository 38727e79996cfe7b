//! Builds a container's root file system and switches to it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags, UnmountFlags, unmount};
use rustix::process::{fchdir, pivot_root};

use crate::cgroup_views;
use crate::devices::DeviceFilesystem;
use crate::kernel_filesystems::{Masks, clone_proc, mask_sys};
use crate::limits::TMP_BYTES_MAX;
use crate::mounts::{attach, clone_of, clone_tree, descriptor_path, new_filesystem, set_flags};
use crate::overlay::mount_layers;
use crate::spec::{BindMount, ContainerSpec};
use crate::targets::{ContainerRoot, TargetKind, open_in_root, open_or_create};
use crate::user::{self, ProcessCredentials};
use crate::user_namespace::UserNamespace;

const TMP: &str = "/tmp";
const RESOLVER: &str = "/etc/resolv.conf";

/// The parts of a container that are prepared before its image is known.
pub(crate) struct KernelFilesystems {
    pub(crate) devices: DeviceFilesystem,
    pub(crate) sys: OwnedFd,
    pub(crate) masks: Masks,
}

/// Puts the root together, in a mount namespace of this process's own, and says which user the container is.
pub(crate) fn assemble(
    spec: &ContainerSpec,
    kernel: KernelFilesystems,
    users: Option<&UserNamespace>,
) -> Result<(OwnedFd, ProcessCredentials), String> {
    let failed = |what: &'static str| move |why: io::Error| format!("{what} of the container cannot be mounted: {why}");
    // Everything of the host is held before anything of the image is in sight.
    let cgroups = cgroup_views::open(&spec.cgroups);
    let host_id = |id: u32| users.map_or(id, |users| users.host_id(id));
    let binds = open_sources(spec, users)?;
    let root = ContainerRoot { top: mount_layers(&spec.layers, &spec.scratch, users)?, owner: host_id(0) };
    let credentials = user::resolve(&root.top, &spec.user)?;

    let proc = clone_proc().and_then(|tree| attach(tree, kernel_folder(&root, "proc")?));
    proc.map_err(failed("/proc"))?;
    let sys = || {
        attach(&kernel.sys, kernel_folder(&root, "sys")?)?;
        mask_sys(&kernel.masks, &kernel.sys)?;
        cgroups.mount(&kernel.sys)
    };
    sys().map_err(failed("/sys"))?;
    let devices = || {
        users.map_or(Ok(()), |users| kernel.devices.give_to(users.host_id(0)))?;
        kernel.devices.mount(kernel_folder(&root, "dev")?)
    };
    devices().map_err(failed("/dev"))?;
    create_tmp(&root, spec).map_err(failed(TMP))?;

    for (tree, bind) in &binds {
        if bind.is_own {
            chown(descriptor_path(tree), Some(host_id(credentials.uid)), Some(host_id(credentials.gid)))
                .map_err(|why| format!("mountPath {} cannot change its owner: {why}", bind.target.display()))?;
        }
        mount_bind(&root, tree, bind).map_err(|why| mount_error(bind, why))?;
    }
    // At the end: paths may have been created in a volume for the mounts inside of it.
    for (tree, bind) in &binds {
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        flags.set(MountFlags::RDONLY, bind.read_only);
        set_flags(tree, flags).map_err(|why| mount_error(bind, why))?;
    }
    if spec.read_only_root {
        set_flags(&root.top, MountFlags::RDONLY).map_err(|why| format!("the root cannot be made read-only: {why}"))?;
    }
    Ok((root.top, credentials))
}

/// The root is the only one from now on: nothing leads to the host's any more.
pub(crate) fn enter(root: OwnedFd) -> io::Result<()> {
    fchdir(&root)?;
    drop(root);
    pivot_root(".", ".")?;
    // The old root is over the new one now.
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Copies of what will be bound, outer targets before those inside them: files that the platform writes first, then
/// volumes, which may cover those. Files on volumes belong to `users`.
fn open_sources(spec: &ContainerSpec, users: Option<&UserNamespace>) -> Result<Vec<(OwnedFd, BindMount)>, String> {
    let files = write_files(spec, users.map_or(0, |users| users.host_id(0)))
        .map_err(|why| format!("{}: files of the container cannot be written: {why}", spec.scratch.display()))?;
    let mut volumes = spec.mounts.clone();
    volumes.sort_by_key(|bind| bind.target.components().count());
    let clone = |bind: BindMount, users: Option<&UserNamespace>| {
        let tree = clone_volume(&bind.source, bind.sub_path.as_deref());
        let mapped = tree.and_then(|tree| users.map_or(Ok(()), |users| users.map(&tree)).map(|()| tree));
        match mapped {
            Ok(tree) => Ok((tree, bind)),
            Err(why) => Err(mount_error(&bind, why)),
        }
    };
    let files = files.into_iter().map(|bind| clone(bind, None));
    files.chain(volumes.into_iter().map(|bind| clone(bind, users))).collect()
}

/// A copy of the mount at `source`, or at `sub_path` below it. Programs that share the volume may put a link there, so that
/// is resolved inside `source` (CVE-2017-1002101).
pub fn clone_volume(source: &Path, sub_path: Option<&Path>) -> io::Result<OwnedFd> {
    let Some(sub_path) = sub_path else { return clone_tree(source, false) };
    let volume = open(source, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    clone_of(open_in_root(&volume, sub_path, OFlags::PATH)?)
}

/// Where a mount inside of `volume` goes: `below`, made if it is missing. A link there is resolved inside of the volume.
pub fn open_mount_point(volume: &OwnedFd, below: &Path, is_folder: bool) -> io::Result<OwnedFd> {
    let kind = if is_folder { TargetKind::Folder } else { TargetKind::File };
    open_or_create(&ContainerRoot { top: volume.try_clone()?, owner: 0 }, below, kind)
}

/// The mount of `volume`, which is attached, cannot be written to any more.
pub fn make_read_only(volume: &OwnedFd) -> io::Result<()> {
    set_flags(volume, MountFlags::RDONLY)
}

/// RT-FS-05, RT-FS-06, RT-FS-07: `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`. The first two belong to `owner`.
fn write_files(spec: &ContainerSpec, owner: u32) -> io::Result<Vec<BindMount>> {
    let folder = spec.scratch.join("etc");
    fs::DirBuilder::new().mode(0o755).create(&folder)?;
    let hostname = &spec.hostname;
    let hosts = format!(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t{hostname}\n::1\t{hostname}\n"
    );
    let mut binds = Vec::new();
    for (name, text) in [("hosts", hosts), ("hostname", format!("{hostname}\n"))] {
        let source = folder.join(name);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&source)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        if owner != 0 {
            chown(&source, Some(owner), Some(owner))?;
        }
        binds.push(BindMount {
            source,
            sub_path: None,
            target: Path::new("/etc").join(name),
            read_only: spec.read_only_root,
            is_own: false,
        });
    }
    let resolver = spec.resolver.clone().unwrap_or_else(|| PathBuf::from(RESOLVER));
    if resolver.exists() {
        let target = RESOLVER.into();
        binds.push(BindMount { source: resolver, sub_path: None, target, read_only: true, is_own: false });
    }
    Ok(binds)
}

/// A folder of this name at the top of the image: never a link, which could lead what the kernel tells elsewhere.
fn kernel_folder(root: &ContainerRoot, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(root, name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => {}
        made => made.and_then(|()| root.own(root, name))?,
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(root, name, flags, Mode::empty()).map_err(|why| match why {
        Errno::NOTDIR | Errno::LOOP => io::Error::other(format!("the image has no folder /{name}, but something else")),
        why => why.into(),
    })
}

/// RT-FS-02: every program may write to `/tmp`; in memory, where the root cannot be written to.
fn create_tmp(root: &ContainerRoot, spec: &ContainerSpec) -> io::Result<()> {
    if matches!(open_in_root(root, Path::new(TMP), OFlags::PATH), Err(Errno::NOENT)) {
        let made = open_or_create(root, Path::new(TMP), TargetKind::Folder)?;
        // By the descriptor: the path may be a link of the image's.
        fs::set_permissions(descriptor_path(&made), fs::Permissions::from_mode(0o1777))?;
    }
    let is_volume = spec.mounts.iter().any(|bind| bind.target == Path::new(TMP));
    if !spec.read_only_root || is_volume {
        return Ok(());
    }
    let bytes = TMP_BYTES_MAX.to_string();
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let memory = new_filesystem("tmpfs", &[("mode", "1777"), ("size", &bytes)], flags)?;
    attach(memory, open_or_create(root, Path::new(TMP), TargetKind::Folder)?)
}

fn mount_bind(root: &ContainerRoot, tree: &OwnedFd, bind: &BindMount) -> io::Result<()> {
    attach(tree, open_or_create(root, &bind.target, TargetKind::of(tree)?)?)
}

fn mount_error(bind: &BindMount, why: io::Error) -> String {
    format!("mountPath {} cannot be mounted: {why}", bind.target.display())
}
