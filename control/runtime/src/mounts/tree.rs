//! Detached mount trees, and their targets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::mount::{OpenTreeFlags, open_tree};

const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// A copy of what is mounted at `path`, attached to nothing yet.
pub(crate) fn clone_tree(path: &Path, with_mounts_below: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, with_mounts_below);
    Ok(open_tree(CWD, path, flags)?)
}

/// Makes something to mount on: a folder or a file, with the folders above it.
pub(crate) fn create_mount_point(top: &OwnedFd, below: &Path, is_folder: bool) -> io::Result<()> {
    let above = below.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    for folder in above.collect::<Vec<_>>().into_iter().rev().chain(is_folder.then_some(below)) {
        match mkdirat(top, folder, FOLDER_MODE) {
            Err(why) if why != rustix::io::Errno::EXIST => return Err(why.into()),
            _ => {}
        }
    }
    if !is_folder {
        drop(openat(top, below, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, FILE_MODE)?);
    }
    Ok(())
}
