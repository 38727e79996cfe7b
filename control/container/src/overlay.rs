//! The container's root: an overlay of the layers of its image, with a writable folder on top.
//!
//! `volatile`: nothing of it is synced to disk, and it is never mounted again, so the folder has to be a new one. Layers
//! are named by descriptors, so neither their number nor the length of their paths meets a limit of mount options.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, mount, move_mount,
};

use crate::limits::{LAYERS_MAX, SCRATCH_BYTES_MAX};
use crate::mounts::{clone_of, descriptor_path, new_filesystem};
use crate::user_namespace::UserNamespace;

/// Mounts `layers`, the last of which is the top, below `scratch`, for these `users`, and returns the descriptor of the root.
pub(crate) fn mount_layers(
    layers: &[PathBuf],
    scratch: &Path,
    users: Option<&UserNamespace>,
) -> Result<OwnedFd, String> {
    if layers.is_empty() || layers.len() > LAYERS_MAX {
        return Err(format!("the image has {} layers; a container can have 1 to {LAYERS_MAX}", layers.len()));
    }
    let opened: Vec<OwnedFd> = layers.iter().rev().map(|layer| open_dir(layer)).collect::<Result<_, _>>()?;
    let opened = match users {
        None => opened,
        Some(users) => map_layers(&opened, scratch, users).map_err(|why| format!("the image's layers: {why}"))?,
    };
    let top_of_image = layers.last().map(PathBuf::as_path).unwrap_or(scratch);
    match Writable::create(scratch, top_of_image, users).and_then(|writable| writable.mount_over(&opened)) {
        Err(why) if is_unfit(&why) => {
            eprintln!(
                "sluicegate: {}: overlayfs cannot write here ({why}); files are stored in memory",
                scratch.display()
            );
            let in_memory = || {
                cover_with_memory(scratch)?;
                Writable::create(scratch, top_of_image, users)?.mount_over(&opened)
            };
            in_memory().map_err(|why| format!("the image's layers cannot be mounted: {why}"))
        }
        mounted => {
            mounted.map_err(|why| format!("the image's layers cannot be mounted at {}: {why}", scratch.display()))
        }
    }
}

/// The same layers, whose files belong to `users`. Overlayfs takes only layers that are attached somewhere, so each is, below
/// `scratch`.
fn map_layers(layers: &[OwnedFd], scratch: &Path, users: &UserNamespace) -> io::Result<Vec<OwnedFd>> {
    let folder = scratch.join("layers");
    fs::create_dir(&folder)?;
    let map = |(number, layer): (usize, &OwnedFd)| {
        let (mapped, place) = (clone_of(layer)?, folder.join(number.to_string()));
        fs::create_dir(&place)?;
        users.map(&mapped)?;
        move_mount(&mapped, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(mapped)
    };
    layers.iter().enumerate().map(map).collect()
}

/// Overlayfs cannot write to the file system of the scratch folder: it is an overlay itself, or a network file system.
fn is_unfit(why: &io::Error) -> bool {
    matches!(Errno::from_io_error(why), Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// The writable folder above the image.
struct Writable {
    upper: OwnedFd,
    work: OwnedFd,
    /// Where the whole is mounted.
    merged: PathBuf,
}

impl Writable {
    /// In `scratch`. The root has the owner and the mode that the image's top layer gives it.
    fn create(scratch: &Path, top_of_image: &Path, users: Option<&UserNamespace>) -> io::Result<Self> {
        let [upper, work, merged] = ["upper", "work", "merged"].map(|name| scratch.join(name));
        for folder in [&upper, &work, &merged] {
            fs::create_dir(folder)?;
        }
        let root = fs::metadata(top_of_image)?;
        let [user, group] = [root.uid(), root.gid()].map(|id| users.map_or(id, |users| users.host_id(id)));
        chown(&upper, Some(user), Some(group))?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(root.mode() & 0o7777))?;
        let folder = |path: &Path| open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self { upper: folder(&upper)?, work: folder(&work)?, merged })
    }

    fn mount_over(&self, layers: &[OwnedFd]) -> io::Result<OwnedFd> {
        match self.mount_by_descriptor(layers) {
            Err(Errno::INVAL | Errno::NOSYS) => self.mount_by_options(layers), // before Linux 6.5
            mounted => Ok(mounted?),
        }
    }

    fn mount_by_descriptor(&self, layers: &[OwnedFd]) -> rustix::io::Result<OwnedFd> {
        let fresh = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(fresh.as_fd(), "source", "overlay")?;
        for layer in layers {
            fsconfig_set_string(fresh.as_fd(), "lowerdir+", descriptor_path(layer))?;
        }
        fsconfig_set_string(fresh.as_fd(), "upperdir", descriptor_path(&self.upper))?;
        fsconfig_set_string(fresh.as_fd(), "workdir", descriptor_path(&self.work))?;
        fsconfig_set_flag(fresh.as_fd(), "volatile")?;
        fsconfig_create(fresh.as_fd())?;
        // Device nodes of an image cannot be opened: the container gets a `/dev` of its own.
        let root = fsmount(fresh.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)?;
        move_mount(&root, "", CWD, &self.merged, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(root)
    }

    fn mount_by_options(&self, layers: &[OwnedFd]) -> io::Result<OwnedFd> {
        let lower: Vec<_> = layers.iter().map(descriptor_path).collect();
        let (lower, upper, work) = (lower.join(":"), descriptor_path(&self.upper), descriptor_path(&self.work));
        let options =
            |more: &str| std::ffi::CString::new(format!("lowerdir={lower},upperdir={upper},workdir={work}{more}"));
        let mounted = mount("overlay", &self.merged, "overlay", MountFlags::NODEV, options(",volatile")?.as_c_str());
        if mounted == Err(Errno::INVAL) {
            // Before Linux 5.10 there is no `volatile`: slower, and the same.
            mount("overlay", &self.merged, "overlay", MountFlags::NODEV, options("")?.as_c_str())?;
        } else {
            mounted?;
        }
        Ok(open(&self.merged, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// The hidden folder contains only the folders of the first attempt, which the owner of `scratch` removes.
fn cover_with_memory(scratch: &Path) -> io::Result<()> {
    let bytes = SCRATCH_BYTES_MAX.to_string();
    let flags = MountAttrFlags::MOUNT_ATTR_NODEV;
    let memory = new_filesystem("tmpfs", &[("mode", "0755"), ("size", &bytes)], flags)?;
    Ok(move_mount(memory, "", CWD, scratch, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn open_dir(path: &Path) -> Result<OwnedFd, String> {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(|why| format!("the image's layer {} cannot be opened: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

    use super::*;

    /// Runs `test` on a thread with mounts of its own.
    fn with_own_mounts(test: fn(&Path, &[PathBuf])) {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: mounts need root");
        }
        let run = move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let layers = ["low", "top"].map(|name| dir.path().join(name));
            for layer in &layers {
                fs::create_dir(layer).unwrap();
                fs::write(layer.join("who"), layer.file_name().unwrap().as_encoded_bytes()).unwrap();
            }
            let scratch = dir.path().join("scratch");
            fs::create_dir(&scratch).unwrap();
            test(&scratch, &layers);
        };
        std::thread::spawn(run).join().unwrap();
    }

    fn reads_top_and_writes(root: &Path) {
        assert_eq!(fs::read_to_string(root.join("who")).unwrap(), "top");
        fs::write(root.join("new"), "x").unwrap();
        unmount(root, UnmountFlags::DETACH).unwrap();
    }

    /// As before Linux 6.5.
    #[test]
    fn layers_are_mounted_by_options_too() {
        with_own_mounts(|scratch, layers| {
            let opened: Vec<_> = layers.iter().rev().map(|layer| open_dir(layer).unwrap()).collect();
            let writable = Writable::create(scratch, &layers[1], None).unwrap();
            writable.mount_by_options(&opened).unwrap();
            reads_top_and_writes(&scratch.join("merged"));
            assert!(scratch.join("upper/new").exists());
        });
    }

    /// The data folder may itself lie on an overlay, as it does in a container.
    #[test]
    fn scratch_on_overlay_is_kept_in_memory() {
        with_own_mounts(|scratch, layers| {
            drop(mount_layers(layers, scratch, None).unwrap());
            let nested = scratch.join("merged/nested");
            fs::create_dir(&nested).unwrap();
            drop(mount_layers(layers, &nested, None).unwrap());
            reads_top_and_writes(&nested.join("merged"));
            assert!(nested.join("upper/new").exists());
            for mounted in [&nested, &scratch.join("merged")] {
                unmount(mounted, UnmountFlags::DETACH).unwrap();
            }
            assert!(!scratch.join("upper/nested/upper/new").exists());
        });
    }

    #[test]
    fn image_without_layers_is_refused() {
        assert!(mount_layers(&[], Path::new("/nowhere"), None).unwrap_err().contains("0 layers"));
    }
}
