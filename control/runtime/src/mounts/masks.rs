//! Hides the appliance from instances: the folder with its data, its sockets and the files with its credentials.
//!
//! An instance that runs as root may read any file of the host. In its mount namespace an empty folder covers the
//! appliance's own, and empty files cover its files. The capabilities that instances keep allow neither to
//! unmount those nor to look around them: `/proc/PID/root` of the appliance takes `SYS_PTRACE`.

use std::env;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, mount_remount, move_mount,
};

use super::tree::{clone_tree, create_mount_point};

/// Covers files: a read returns end of file, a connect is refused.
const NOTHING: &str = "/dev/null";

/// Covers `paths` in this process's own mount namespace; what is not there needs no cover. `kept` are seen anyway.
pub(crate) fn cover(paths: &[PathBuf], kept: &[PathBuf]) -> io::Result<()> {
    for path in paths.iter().filter_map(|path| path.canonicalize().ok()) {
        if path.is_dir() { cover_folder(&path, kept)? } else { cover_file(&path)? }
    }
    if !paths.is_empty() {
        leave();
    }
    Ok(())
}

fn cover_folder(path: &Path, kept: &[PathBuf]) -> io::Result<()> {
    let empty = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(empty.as_fd(), "mode", "0555")?;
    fsconfig_create(empty.as_fd())?;
    let top = fsmount(empty.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let mut trees = Vec::new();
    for (kept, below) in kept.iter().filter_map(|kept| Some((kept, kept.strip_prefix(path).ok()?))) {
        if kept.exists() {
            create_mount_point(&top, below, kept.is_dir())?;
            trees.push((clone_tree(kept, false)?, below));
        }
    }
    move_mount(&top, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    for (tree, below) in trees {
        move_mount(&tree, "", &top, below, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    let sealed = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount_remount(path, sealed, "")?)
}

fn cover_file(path: &Path) -> io::Result<()> {
    let nothing = clone_tree(Path::new(NOTHING), false)?;
    Ok(move_mount(&nothing, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A working directory stays what it was, also below a mount: by its path it is what lies there now.
fn leave() {
    let again = env::current_dir().and_then(env::set_current_dir);
    if again.is_err() {
        let _ = env::set_current_dir("/"); // always there
    }
}
