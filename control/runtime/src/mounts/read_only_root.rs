//! An instance that can write to its volumes and `/tmp`, and to none of the host's other files.
//!
//! Every mount that the instance sees is made read-only in its own namespace. What is not a file of the disk
//! (`/proc`, `/sys`, `/dev`) is unchanged: it has its own rules, and programs need `/dev/null`.

use std::io;
use std::path::Path;

use container::BindMount;
use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, mount_remount, move_mount};

use super::mount_table;
use super::tree::clone_tree;

/// RT-FS-02: the folder that every program may write to.
const TMP: &str = "/tmp";
const EXCLUDED_MOUNTS: [&str; 4] = [TMP, "/proc", "/sys", "/dev"];

/// In a namespace of its own, with `binds` made already; those that may be written to stay so.
pub(crate) fn remount_read_only(binds: &[BindMount]) -> Result<(), String> {
    let failed = |what: &Path, why: io::Error| {
        format!("readOnlyRootFilesystem: {} cannot be made read-only: {why}", what.display())
    };
    // A mount of its own, so that it does not become read-only with the folder above it.
    let own = || {
        let tree = clone_tree(Path::new(TMP), true)?;
        Ok(move_mount(&tree, "", CWD, TMP, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    };
    own().map_err(|why| failed(Path::new(TMP), why))?;
    // The table names what a link leads to.
    let volumes: Vec<_> = binds.iter().filter_map(|bind| bind.target.canonicalize().ok()).collect();
    for (path, flags) in mount_table::read().map_err(|why| failed(Path::new("/"), why))? {
        let is_volume = volumes.iter().any(|volume| path.starts_with(volume));
        if is_volume || EXCLUDED_MOUNTS.iter().any(|left| path.starts_with(left)) {
            continue;
        }
        match mount_remount(&path, flags | MountFlags::BIND | MountFlags::RDONLY, "") {
            // Hidden behind a later mount: it cannot be written to there either.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(why) => return Err(failed(&path, why.into())),
            Ok(()) => {}
        }
    }
    Ok(())
}
