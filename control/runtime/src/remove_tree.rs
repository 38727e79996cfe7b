//! Removes folders with content of programs.
//!
//! A program may nest folders to any depth. [`fs::remove_dir_all`] needs a stack frame and a descriptor for each
//! level, so some thousand levels would end the appliance, or take all its descriptors. Here a nested folder is moved to the top
//! first, and removed there.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// How often `top` may get an entry when it was found empty: another thread removes a folder inside it, and moves what that
/// holds. This is more often than such a folder has levels with a race.
const PASSES_MAX: u32 = 1000;

/// Removes `top` with all that is in it, with three descriptors at most. Follows no symbolic link. Another thread may remove the
/// same folder, or one inside it, at the same time.
pub fn remove_tree(top: &Path) -> io::Result<()> {
    let folder = open_folder(CWD, top)?;
    let (mut moved, mut passes) = (0, 0);
    loop {
        // A folder that is moved to the top while that is listed may be missing in the list.
        while remove_entries(&folder, &mut moved)? {}
        passes += 1;
        match fs::remove_dir(top) {
            Err(why) if why.kind() == io::ErrorKind::DirectoryNotEmpty && passes < PASSES_MAX => {}
            removed => return removed,
        }
    }
}

/// Removes the entries of `top`, and moves the folders inside them to it. Returns whether there were entries.
fn remove_entries(top: &OwnedFd, moved: &mut u64) -> io::Result<bool> {
    let mut found = false;
    for entry in list(top)? {
        let entry = entry?;
        found = true;
        if entry.file_type()?.is_dir() {
            unless_gone(remove_folder(top, &entry.file_name(), moved))?;
        } else {
            unless_gone(unlink(top, &entry.file_name(), AtFlags::empty()))?;
        }
    }
    Ok(found)
}

fn remove_folder(top: &OwnedFd, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    let folder = open_folder(top, name)?;
    for entry in list(&folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unless_gone(move_to_top(top, &folder, &entry.file_name(), moved))?;
        } else {
            unless_gone(unlink(&folder, &entry.file_name(), AtFlags::empty()))?;
        }
    }
    match unlinkat(top, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()), // another thread moved something there: the next pass has it
        removed => Ok(removed?),
    }
}

fn unlink(folder: &OwnedFd, name: &OsStr, flags: AtFlags) -> io::Result<()> {
    Ok(unlinkat(folder, name, flags)?)
}

/// What is gone already was removed, or moved, by another thread.
fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// An empty folder is removed where it is.
fn move_to_top(top: &OwnedFd, folder: &OwnedFd, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        removed => return Ok(removed?),
    }
    loop {
        *moved += 1;
        match renameat(folder, name, top, format!("moved-{moved}")) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {} // the name is taken
            renamed => return Ok(renamed?),
        }
    }
}

fn open_folder(parent: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Removes by descriptor: a program that still runs may put a link in the place of the path.
fn list(folder: &OwnedFd) -> io::Result<fs::ReadDir> {
    fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn deeply_nested_folder_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut folder = open_folder(CWD, &top).unwrap();
        for _ in 0..10_000 {
            mkdirat(&folder, "moved-1", Mode::RWXU).unwrap();
            folder = open_folder(&folder, "moved-1").unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn files_and_links_are_removed_and_link_targets_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (top, other) = (dir.path().join("top"), dir.path().join("other"));
        for folder in [top.join("a/b/c"), top.join("empty"), other.clone()] {
            fs::create_dir_all(folder).unwrap();
        }
        for file in [top.join("x"), top.join("moved-1"), top.join("a/b/x"), other.join("x")] {
            fs::write(file, "").unwrap();
        }
        for link in [top.join("link"), top.join("a/link"), top.join("a/b/c/link")] {
            symlink(&other, link).unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists() && other.join("x").exists());
        assert_eq!(remove_tree(&top).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// As the end of an instance and that of its Revision do.
    #[test]
    fn folder_inside_may_be_removed_at_the_same_time() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..200 {
            let top = dir.path().join(format!("top-{round}"));
            let inner = top.join("7.rootfs");
            for leaf in 0..8 {
                fs::create_dir_all(inner.join(format!("main.{leaf}/upper/a/b/c"))).unwrap();
                fs::write(inner.join(format!("main.{leaf}/upper/a/file")), "").unwrap();
            }
            let other = std::thread::spawn(move || remove_tree(&inner));
            for removed in [remove_tree(&top), other.join().unwrap()] {
                assert!(unless_gone(removed).is_ok());
            }
            assert!(!top.exists(), "round {round}");
        }
    }
}
