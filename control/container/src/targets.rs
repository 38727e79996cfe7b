//! Finds or creates mount targets inside a container's root, with no way out of it.
//!
//! A mount path may be missing, lead over symbolic links of the image, or be in a volume that another container changes
//! meanwhile. The kernel resolves each step below the root (`RESOLVE_IN_ROOT`), and only the
//! descriptor is used afterwards, never the path again.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Uid, chownat, fstat, fstatfs, mkdirat,
    openat, openat2, readlinkat,
};
use rustix::io::Errno;

use crate::limits::LINKS_MAX;

const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// The root of a container, below which targets are found or made.
pub(crate) struct ContainerRoot {
    pub(crate) top: OwnedFd,
    /// Owns what is made: the container's root.
    pub(crate) owner: u32,
}

impl AsFd for ContainerRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.top.as_fd()
    }
}

impl ContainerRoot {
    /// `name` was made in `folder`.
    pub(crate) fn own(&self, folder: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<()> {
        match self.owner {
            0 => Ok(()), // as it is
            id => {
                let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
                chownat(folder, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }
}

/// The type of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetKind {
    Folder,
    File,
}

impl TargetKind {
    pub(crate) fn of(source: &OwnedFd) -> io::Result<Self> {
        let is_folder = FileType::from_raw_mode(fstat(source)?.st_mode) == FileType::Directory;
        Ok(if is_folder { Self::Folder } else { Self::File })
    }
}

/// Opens `path` below `root` with `flags`.
pub(crate) fn open_in_root(root: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    loop {
        match openat2(root.as_fd(), relative, flags | OFlags::CLOEXEC, Mode::empty(), within) {
            Err(Errno::AGAIN | Errno::INTR) => {} // something was renamed meanwhile
            opened => return opened,
        }
    }
}

/// The entry at `path`, created if it is missing, with the folders above it. Its type fits a mount of `kind`.
pub(crate) fn open_or_create(root: &ContainerRoot, path: &Path, kind: TargetKind) -> io::Result<OwnedFd> {
    let target = create(root, path, kind, &mut LINKS_MAX.clone())?;
    if TargetKind::of(&target)? != kind {
        let (is, wanted) = match kind {
            TargetKind::Folder => ("a file", "a folder"),
            TargetKind::File => ("a folder", "a file"),
        };
        return Err(io::Error::other(format!("there is {is} already, and {wanted} cannot be mounted on it")));
    }
    // Nothing is mounted over what the kernel tells of itself.
    if fstatfs(&target)?.f_type == PROC_SUPER_MAGIC {
        return Err(io::Error::other("it leads into /proc"));
    }
    Ok(target)
}

fn create(root: &ContainerRoot, path: &Path, kind: TargetKind, links: &mut usize) -> io::Result<OwnedFd> {
    match open_in_root(root, path, OFlags::PATH) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let (mut above, mut folder) = (PathBuf::from("/"), open_in_root(root, Path::new("/"), OFlags::PATH)?);
    let names: Vec<&OsStr> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            Component::ParentDir => Some(OsStr::new("..")),
            _ => None,
        })
        .collect();
    for (at, name) in names.iter().enumerate() {
        let is_last = at + 1 == names.len();
        let here = above.join(name);
        let made = if is_last { kind } else { TargetKind::Folder };
        folder = match open_in_root(root, &here, OFlags::PATH) {
            Err(Errno::NOENT) => create_one(root, (&folder, &above), name, made, links)?,
            opened => opened?,
        };
        above = here;
    }
    Ok(folder)
}

/// Makes `name` in `folder`, which `above` led to. A link to nothing is followed, and what it names is made.
fn create_one(
    root: &ContainerRoot,
    (folder, above): (&OwnedFd, &Path),
    name: &OsStr,
    kind: TargetKind,
    links: &mut usize,
) -> io::Result<OwnedFd> {
    if let Ok(link) = readlinkat(folder, name, Vec::new()) {
        *links = links.checked_sub(1).ok_or(Errno::LOOP)?;
        let target = PathBuf::from(std::ffi::OsString::from_vec(link.into_bytes()));
        return create(root, &above.join(target), kind, links); // one that begins with a slash begins at the root
    }
    match kind {
        TargetKind::Folder => match mkdirat(folder, name, FOLDER_MODE) {
            Err(Errno::EXIST) => {}
            made => made.and_then(|()| root.own(folder, name))?,
        },
        TargetKind::File => {
            let fresh = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
            match openat(folder, name, fresh, FILE_MODE) {
                Err(Errno::EXIST) => {}
                made => made.and_then(|_| root.own(folder, name))?,
            }
        }
    }
    let opened = openat2(
        folder,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    );
    Ok(opened?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::mounts::descriptor_path;

    fn root() -> (tempfile::TempDir, ContainerRoot) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/etc")).unwrap();
        fs::create_dir_all(dir.path().join("host")).unwrap();
        let root = rustix::fs::open(dir.path().join("root"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        (dir, ContainerRoot { top: root, owner: 0 })
    }

    fn made(root: &ContainerRoot, path: &str, kind: TargetKind) -> PathBuf {
        fs::read_link(descriptor_path(&open_or_create(root, Path::new(path), kind).unwrap())).unwrap()
    }

    #[test]
    fn missing_mount_path_is_created_inside_root() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        assert_eq!(made(&root, "/a/b/c", TargetKind::Folder), inside.join("a/b/c"));
        assert_eq!(made(&root, "/a/b/file", TargetKind::File), inside.join("a/b/file"));
        assert_eq!(made(&root, "/../../up", TargetKind::Folder), inside.join("up"));
        assert_eq!(made(&root, "/etc", TargetKind::Folder), inside.join("etc"));
    }

    /// CVE-2021-30465 and its kind: neither an absolute nor a relative link leads out.
    #[test]
    fn symlinked_mount_path_stays_inside_root() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        let host = dir.path().join("host");
        symlink(&host, inside.join("absolute")).unwrap();
        symlink("../host", inside.join("relative")).unwrap();
        symlink("/etc/../../../var/data", inside.join("dangling")).unwrap();
        made(&root, "/absolute/x", TargetKind::Folder);
        made(&root, "/relative/y", TargetKind::File);
        assert_eq!(made(&root, "/dangling", TargetKind::Folder), inside.join("var/data"));
        assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
    }

    #[test]
    fn link_to_itself_is_refused() {
        let (dir, root) = root();
        symlink("/loop/x", dir.path().join("root/loop")).unwrap();
        assert!(open_or_create(&root, Path::new("/loop/y"), TargetKind::Folder).is_err());
    }

    #[test]
    fn folder_is_not_mounted_on_file() {
        let (dir, root) = root();
        fs::write(dir.path().join("root/etc/hosts"), "").unwrap();
        let refused = open_or_create(&root, Path::new("/etc/hosts"), TargetKind::Folder).unwrap_err();
        assert!(refused.to_string().contains("a file"), "{refused}");
        assert!(open_or_create(&root, Path::new("/etc"), TargetKind::File).is_err());
    }
}
