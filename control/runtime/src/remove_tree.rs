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

/// Removes `top` with all that is in it, with three descriptors at most. Follows no symbolic link.
pub fn remove_tree(top: &Path) -> io::Result<()> {
    let folder = open_folder(CWD, top)?;
    let mut moved = 0;
    // A folder that is moved to the top while that is listed may be missing in the list.
    while remove_entries(&folder, &mut moved)? {}
    fs::remove_dir(top)
}

/// Removes the entries of `top`, and moves the folders inside them to it. Returns whether there were entries.
fn remove_entries(top: &OwnedFd, moved: &mut u64) -> io::Result<bool> {
    let mut found = false;
    for entry in list(top)? {
        let entry = entry?;
        found = true;
        if entry.file_type()?.is_dir() {
            remove_folder(top, &entry.file_name(), moved)?;
        } else {
            unlinkat(top, &*entry.file_name(), AtFlags::empty())?;
        }
    }
    Ok(found)
}

fn remove_folder(top: &OwnedFd, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    let folder = open_folder(top, name)?;
    for entry in list(&folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            move_to_top(top, &folder, &entry.file_name(), moved)?;
        } else {
            unlinkat(&folder, &*entry.file_name(), AtFlags::empty())?;
        }
    }
    Ok(unlinkat(top, name, AtFlags::REMOVEDIR)?)
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
}
