//! The folder that one layer is unpacked to, reached by descriptors only.
//!
//! The kernel resolves each path with the layer's folder as its root (`openat2`, `RESOLVE_IN_ROOT`), so neither `..`
//! nor a symbolic link of the layer leads out of it. The last component is never followed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, XattrFlags, fsetxattr, makedev,
    mkdirat, mknodat, open, openat, openat2, readlinkat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::entry_name::DEPTH_MAX;

/// Links that are followed for one path, as in the kernel.
const LINKS_MAX: usize = 40;
const FOLDER_MODE: Mode = Mode::from_bits_retain(0o755);
/// overlayfs's attribute for "hide all below in the lower layers".
pub const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";

type Components = [Vec<u8>];

#[derive(Debug)]
pub(super) struct RootFolder {
    root: OwnedFd,
    /// The folder of the last entry: most entries are in the same one as the entry before.
    last: Option<(Vec<Vec<u8>>, OwnedFd)>,
    folders_made: u64,
}

/// How a path in the layer is resolved. Mounts are not crossed: a layer has none.
fn in_root() -> ResolveFlags {
    ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
}

/// How a single name is opened in its folder.
pub(super) fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV
}

fn folder_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC
}

impl RootFolder {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root, last: None, folders_made: 0 }
    }

    /// Folders that were made because an entry is in them. One entry can bring up to [`DEPTH_MAX`].
    pub(super) fn folders_made(&self) -> u64 {
        self.folders_made
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Must be called when a folder may have been removed or a link may lead elsewhere than before.
    pub(super) fn forget_last(&mut self) {
        self.last = None;
    }

    /// The folder that `path` leads to; what is missing of it is made.
    pub(super) fn folder(&mut self, path: &Components) -> io::Result<BorrowedFd<'_>> {
        let is_last = self.last.as_ref().is_some_and(|(last, _)| last == path);
        if !is_last {
            self.last = None;
            let opened = match self.open_existing(path) {
                Err(Errno::NOENT | Errno::NOTDIR) => self.make_folders(path)?,
                opened => opened?,
            };
            self.last = Some((path.to_vec(), opened));
        }
        self.last.as_ref().map(|(_, folder)| folder.as_fd()).ok_or_else(|| io::Error::from(Errno::NOENT))
    }

    /// The folder that `path` leads to, if it is there.
    pub(super) fn open_existing(&self, path: &Components) -> Result<OwnedFd, Errno> {
        if path.is_empty() {
            return openat(&self.root, c".", folder_flags(), Mode::empty());
        }
        let joined = path.join(&b'/');
        loop {
            match openat2(&self.root, joined.as_slice(), folder_flags(), Mode::empty(), in_root()) {
                // Any rename on this host while `..` is resolved, in a link too (openat2(2)).
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
    }

    /// Walks `path` and makes what is missing, also behind links whose target is only in a lower layer.
    fn make_folders(&mut self, path: &Components) -> io::Result<OwnedFd> {
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut pending: VecDeque<Vec<u8>> = path.iter().cloned().collect();
        let mut links = 0;
        while let Some(part) = pending.pop_front() {
            match part.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    done.pop();
                    continue;
                }
                _ if done.len() >= DEPTH_MAX => return Err(Errno::NAMETOOLONG.into()),
                _ => {}
            }
            let at = self.open_existing(&done)?;
            match kind_of(at.as_fd(), &part) {
                Ok((FileType::Directory, _)) => done.push(part),
                Ok((FileType::Symlink, _)) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = readlinkat(&at, part.as_slice(), Vec::new())?.into_bytes();
                    if target.starts_with(b"/") {
                        done.clear();
                    }
                    target.split(|byte| *byte == b'/').rev().for_each(|part| pending.push_front(part.to_vec()));
                }
                Ok((_, stat)) if is_whiteout(&stat) => {
                    unlinkat(&at, part.as_slice(), AtFlags::empty())?;
                    mkdirat(&at, part.as_slice(), FOLDER_MODE)?;
                    set_opaque(at.as_fd(), &part)?;
                    done.push(part);
                }
                Ok(_) => return Err(Errno::NOTDIR.into()),
                Err(Errno::NOENT) => {
                    mkdirat(&at, part.as_slice(), FOLDER_MODE)?;
                    self.folders_made += 1;
                    done.push(part);
                }
                Err(why) => return Err(why.into()),
            }
        }
        Ok(self.open_existing(&done)?)
    }
}

/// The type of `name` itself, and all else about it.
pub(super) fn kind_of(folder: BorrowedFd<'_>, name: &[u8]) -> Result<(FileType, Stat), Errno> {
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((FileType::from_raw_mode(stat.st_mode), stat))
}

pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == makedev(0, 0)
}

pub(super) fn make_whiteout(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    Ok(mknodat(folder, name, FileType::CharacterDevice, Mode::empty(), makedev(0, 0))?)
}

/// A descriptor of the folder `name` itself that attributes can be set on.
pub(super) fn open_folder(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(folder, name, flags, Mode::empty(), beneath())
}

pub(super) fn set_opaque(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let opened = open_folder(folder, name)?;
    Ok(fsetxattr(opened, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?)
}

/// Removes `name` and, if it is a folder, everything in it. Follows no link.
pub(super) fn remove(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => remove_folder(folder, name),
        removed => Ok(removed?),
    }
}

/// Removes the tree at `path`, however deep it is; missing is removed, too.
///
/// # Errors
/// If a part of it cannot be removed.
pub fn remove_tree(path: &std::path::Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL.into()) };
    let opened = match open(parent, folder_flags(), Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    match remove(opened.as_fd(), std::os::unix::ffi::OsStrExt::as_bytes(name)) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Uses three descriptors for any depth: what is two levels down is moved up one level before it is removed.
fn remove_folder(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let top =
        openat(folder, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let mut moved = 0_u64;
    loop {
        let mut is_empty = true;
        for entry in Dir::read_from(&top)?.filter(|entry| !entry.as_ref().is_ok_and(is_dots)) {
            is_empty = false;
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            match unlinkat(&top, name, AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => {
                    empty_folder(top.as_fd(), name, &mut moved)?;
                    unlinkat(&top, name, AtFlags::REMOVEDIR)?;
                }
                Err(Errno::NOENT) => {}
                removed => removed?,
            }
        }
        if is_empty {
            return Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?);
        }
    }
}

fn empty_folder(top: BorrowedFd<'_>, name: &[u8], moved: &mut u64) -> io::Result<()> {
    let inner =
        openat(top, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        let mut is_empty = true;
        for entry in Dir::read_from(&inner)?.filter(|entry| !entry.as_ref().is_ok_and(is_dots)) {
            is_empty = false;
            let entry = entry?;
            let name = entry.file_name();
            match unlinkat(&inner, name, AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => loop {
                    *moved += 1;
                    let up = format!(".removed-{moved}");
                    match renameat_with(&inner, name, top, up.as_str(), RenameFlags::NOREPLACE) {
                        Err(Errno::EXIST) => {} // a name of the layer's: the next number
                        renamed => {
                            renamed?;
                            break;
                        }
                    }
                },
                Err(Errno::NOENT) => {}
                removed => removed?,
            }
        }
        if is_empty {
            return Ok(());
        }
    }
}

fn is_dots(entry: &rustix::fs::DirEntry) -> bool {
    matches!(entry.file_name().to_bytes(), b"." | b"..")
}

/// Opens a folder to unpack to.
///
/// # Errors
/// If it is no folder.
pub(super) fn open_root(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<Vec<u8>> {
        super::super::entry_name::components(text.as_bytes()).expect("valid")
    }

    #[test]
    fn folder_behind_a_dangling_link_is_made_inside_the_root() {
        let outside = tempfile::tempdir().expect("a folder");
        let root = outside.path().join("root");
        std::fs::create_dir(&root).expect("made");
        for (target, link) in [("/usr/lib", "lib"), ("../../../../escaped", "up"), ("lib/x/../y", "twice")] {
            std::os::unix::fs::symlink(target, root.join(link)).expect("made");
        }
        let mut folder = RootFolder::new(open_root(&root).expect("opened"));
        for (name, made) in [("lib/a", "usr/lib/a"), ("up/b", "escaped/b"), ("twice", "usr/lib/y")] {
            folder.folder(&path(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert!(root.join(made).is_dir(), "{name}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).expect("read").count(), 1);
    }

    #[test]
    fn loop_of_links_is_refused() {
        let root = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("b", root.path().join("a")).expect("made");
        std::os::unix::fs::symlink("a", root.path().join("b")).expect("made");
        let mut folder = RootFolder::new(open_root(root.path()).expect("opened"));
        assert!(folder.folder(&path("a/x")).is_err());
    }

    #[test]
    fn tree_deeper_than_descriptors_is_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let top = root.path().join("top");
        std::fs::create_dir(&top).expect("made");
        let mut at = open_root(&top).expect("opened");
        for _ in 0..3000 {
            mkdirat(&at, c"d", FOLDER_MODE).expect("made");
            mkdirat(&at, c".removed-7", FOLDER_MODE).expect("made");
            at = open_folder(at.as_fd(), b"d").expect("opened");
        }
        std::os::unix::fs::symlink(root.path(), top.join("link")).expect("made");
        remove_tree(&top).expect("removed");
        assert!(root.path().exists() && !top.exists());
        remove_tree(&top).expect("missing is removed");
    }
}
