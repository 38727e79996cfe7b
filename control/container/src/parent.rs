//! Whether the parent still runs, from another pid namespace, in which it has no process id.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{Signal, set_parent_process_death_signal};

/// A line of `/proc/self/stat` is some 300 bytes.
const STAT_BYTES: usize = 1024;

/// This process's line in the parent's `/proc`, opened while that is in sight.
pub(crate) struct Parent {
    stat: File,
    pid: i32,
}

impl Parent {
    /// `pid`: as the parent calls itself.
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        Ok(Self { stat: File::open("/proc/self/stat")?, pid })
    }

    /// This process ends with the thread that started it. The kernel forgets that when the user changes, so it is to be
    /// said after that.
    pub(crate) fn die_with(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before the line above, and then no signal comes.
        let mut line = [0; STAT_BYTES];
        let count = self.stat.read_at(&mut line, 0)?;
        match parent_in(&line[..count]) {
            Some(pid) if pid == self.pid => Ok(()),
            _ => Err(io::Error::other("the appliance has ended")),
        }
    }
}

/// The fourth field. The second is the program's name in parentheses, and may hold any bytes.
fn parent_in(stat: &[u8]) -> Option<i32> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_read_behind_any_program_name() {
        assert_eq!(parent_in(b"7 (a) 1 (b) S 42 7 7 0"), Some(42));
        assert_eq!(parent_in(b"7 (a"), None);
        assert_eq!(parent_in(b""), None);
    }
}
