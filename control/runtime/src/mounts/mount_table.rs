//! The mounts that this process sees.

use std::fs;
use std::io;
use std::path::PathBuf;

use rustix::mount::MountFlags;

/// Each mount point, in the order in which they were mounted, and the flags that a remount must keep.
pub(crate) fn read() -> io::Result<Vec<(PathBuf, MountFlags)>> {
    Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(parse).collect())
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
    use std::path::Path;

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
