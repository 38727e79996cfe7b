//! A disk that fails from one moment on: device-mapper's flakey target, where the kernel has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A block device over a file. Removed when dropped; the caller unmounts it before.
pub struct FaultyBlockDevice {
    name: String,
    loop_device: String,
    sectors: u64,
}

/// What happens to writes.
#[derive(Debug, Clone, Copy)]
pub enum BlockFault {
    /// Each is reported done, flush or no flush, and nothing is written: the plug is pulled.
    DropWrites,
    /// Each is an I/O error.
    ErrorWrites,
}

impl FaultyBlockDevice {
    /// Why there is no such device.
    pub const MISSING: &str = "no device-mapper with the flakey target here (it takes root, dmsetup, losetup \
                               and the kernel's dm-flakey)";

    /// `None` where it cannot be made.
    pub fn make(image: &Path, bytes: u64) -> Option<Self> {
        let is_there = run(Command::new("dmsetup").args(["target-version", "flakey"]))
            || run(Command::new("modprobe").arg("dm-flakey"));
        if !is_there {
            return None;
        }
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        let loop_device = String::from_utf8(attached.stdout).ok()?.trim().to_owned();
        // Several tests of a process may each have one.
        let name = format!("sluicegate-{}-{}", std::process::id(), loop_device.rsplit('/').next()?);
        let disk = Self { name, loop_device, sectors: bytes / 512 };
        let made = attached.status.success() && run(disk.dmsetup("create").args(["--table", &disk.linear()]));
        made.then_some(disk)
    }

    /// The kernel's own node: the one under its name takes a udev.
    pub fn path(&self) -> PathBuf {
        let columns = ["--columns", "--noheadings", "-o", "blkdevname"];
        let node = self.dmsetup("info").args(columns).output().unwrap();
        Path::new("/dev").join(String::from_utf8(node.stdout).unwrap().trim())
    }

    /// From here on, until it is repaired. What is on its way is not written first.
    pub fn fail(&self, fault: BlockFault) {
        let feature = match fault {
            BlockFault::DropWrites => "drop_writes",
            BlockFault::ErrorWrites => "error_writes",
        };
        self.change(&format!("0 {} flakey {} 0 0 3600 1 {feature}", self.sectors, self.loop_device));
    }

    pub fn restore(&self) {
        self.change(&self.linear());
    }

    fn linear(&self) -> String {
        format!("0 {} linear {} 0", self.sectors, self.loop_device)
    }

    fn dmsetup(&self, verb: &str) -> Command {
        let mut command = Command::new("dmsetup");
        command.args([verb, &self.name]);
        command
    }

    fn change(&self, table: &str) {
        assert!(run(self.dmsetup("suspend").args(["--noflush", "--nolockfs"])));
        assert!(run(self.dmsetup("reload").args(["--table", table])));
        assert!(run(&mut self.dmsetup("resume")));
    }
}

impl Drop for FaultyBlockDevice {
    fn drop(&mut self) {
        run(self.dmsetup("remove").arg("--force"));
        run(Command::new("losetup").args(["-d", &self.loop_device]));
    }
}

fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
