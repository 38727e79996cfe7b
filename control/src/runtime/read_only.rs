//! An instance that can write to its volumes and `/tmp`, and to nothing else of the host's files.
//!
//! Every mount that the instance sees is made read-only in its own namespace. What is no file of the disk
//! (`/proc`, `/sys`, `/dev`) stays as it is: it has rules of its own, and programs need `/dev/null`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, mount_remount, move_mount};

use super::mounts::{Bind, clone_tree};

/// RT-FS-02: the folder that every program may write to.
const TEMPORARY: &str = "/tmp";
const LEFT_ALONE: [&str; 4] = [TEMPORARY, "/proc", "/sys", "/dev"];

/// In a namespace of its own, with `binds` made already; those that may be written to stay so.
pub(super) fn make(binds: &[Bind]) -> Result<(), String> {
    let failed = |what: &Path, why: io::Error| {
        format!("readOnlyRootFilesystem: {} cannot be made read-only: {why}", what.display())
    };
    // A mount of its own, so that it does not become read-only with the folder above it.
    let own = || {
        let tree = clone_tree(Path::new(TEMPORARY), true)?;
        Ok(move_mount(&tree, "", CWD, TEMPORARY, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    };
    own().map_err(|why| failed(Path::new(TEMPORARY), why))?;
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(|why| failed(Path::new("/"), why))?;
    for (path, flags) in table.lines().filter_map(parse) {
        let is_volume = binds.iter().any(|bind| path.starts_with(&bind.target));
        if is_volume || LEFT_ALONE.iter().any(|left| path.starts_with(left)) {
            continue;
        }
        match mount_remount(&path, flags | MountFlags::BIND | MountFlags::RDONLY, "") {
            // Hidden behind a later mount: nobody can write there either.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(why) => return Err(failed(&path, why.into())),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Where something is mounted, and the flags that it must keep, out of a line of `mountinfo`.
fn parse(line: &str) -> Option<(PathBuf, MountFlags)> {
    let mut words = line.split(' ').skip(4);
    let (path, options) = (words.next()?, words.next()?);
    let mut flags = MountFlags::empty();
    for option in options.split(',') {
        flags |= match option {
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "relatime" => MountFlags::RELATIME,
            _ => MountFlags::empty(),
        };
    }
    Some((unescape(path), flags))
}

/// The kernel writes blanks and backslashes in octal.
fn unescape(path: &str) -> PathBuf {
    let mut text = path.to_owned();
    for (written, meant) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(written, meant);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_place_and_what_it_must_keep() {
        let line = "36 35 98:0 /mnt1 /mnt\\040two rw,nosuid,noexec,relatime master:1 - ext3 /dev/root rw";
        let (path, flags) = parse(line).unwrap();
        assert_eq!(path, Path::new("/mnt two"));
        assert_eq!(flags, MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::RELATIME);
        assert_eq!(parse("36 35"), None);
    }
}
