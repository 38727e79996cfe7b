//! Terminals: a pair of descriptors, of which one is a process's controlling terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, makedev, open, openat2};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio::{dup2_stdin, stdin, stdout};

use crate::mounts::descriptor_path;

/// The kernel's number of devpts (statfs(2)).
const DEVPTS_MAGIC: i64 = 0x1cd1;
const PTMX: &str = "dev/pts/ptmx";

/// Both sides of a new terminal.
#[derive(Debug)]
pub struct Terminal {
    /// For the other end of the line. It does not block.
    pub controller: OwnedFd,
    /// For the process.
    pub process: OwnedFd,
}

impl Terminal {
    /// A terminal of this host.
    pub fn of_host() -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        Self::of(openpt(flags)?)
    }

    /// A terminal of the container whose root is at `root` (`/proc/PID/root`), so that programs there find it in their
    /// `/dev/pts`. What is at that path is the container's choice, so it is proven to be a terminal multiplexer first.
    pub fn of_container(root: &Path) -> io::Result<Self> {
        let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(&root, PTMX, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within)?;
        let status = fstat(&found)?;
        let is_device = FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice;
        if !is_device || status.st_rdev != makedev(5, 2) || fstatfs(&found)?.f_type != DEVPTS_MAGIC {
            return Err(io::Error::other("/dev/pts/ptmx of the container is not a terminal multiplexer"));
        }
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        Self::of(openat2(CWD, descriptor_path(&found), flags, Mode::empty(), ResolveFlags::empty())?)
    }

    fn of(controller: OwnedFd) -> io::Result<Self> {
        unlockpt(&controller)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let process = ioctl_tiocgptpeer(&controller, flags)?;
        rustix::io::ioctl_fionbio(&controller, true)?;
        Ok(Self { controller, process })
    }
}

/// Makes the terminal at stdout this process's stdin and its controlling terminal. It has to lead a session of its own.
pub fn take_controlling() -> io::Result<()> {
    dup2_stdin(stdout())?;
    Ok(rustix::process::ioctl_tiocsctty(stdin())?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn terminal_passes_bytes_both_ways() {
        let Ok(Terminal { controller, process }) = Terminal::of_host() else {
            return eprintln!("skipped: needs /dev/ptmx");
        };
        let (mut controller, mut process) = (File::from(controller), File::from(process));
        controller.write_all(b"in\n").unwrap();
        let mut line = [0; 3];
        process.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"in\n");
        process.write_all(b"out").unwrap();
        let mut echo = [0; 7];
        controller.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"in\r\nout");
    }

    #[test]
    fn path_that_is_no_multiplexer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("dev/pts")).unwrap();
        std::fs::write(dir.path().join(PTMX), "").unwrap();
        assert!(Terminal::of_container(dir.path()).is_err());
        std::fs::remove_file(dir.path().join(PTMX)).unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join(PTMX)).unwrap();
        assert!(Terminal::of_container(dir.path()).is_err());
    }
}
