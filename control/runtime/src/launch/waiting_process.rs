//! A process that waits for its launch spec.

use std::io::Write;
use std::process::Child;

use rustix::io::ioctl_fionbio;

use crate::limits::LAUNCH_SPEC_BYTES_MAX;

/// Ends when this is dropped, unless it has become an instance.
pub(crate) struct WaitingProcess(Option<Child>);

impl WaitingProcess {
    /// `child` reads its launch spec from a pipe, its stdin.
    pub(crate) fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Sends the launch spec. `None`: it could not be sent, and the process is gone.
    pub(crate) fn launch(&mut self, encoded: &[u8]) -> Option<Child> {
        if encoded.len() > LAUNCH_SPEC_BYTES_MAX {
            return None;
        }
        // If the write fails half-way, the pipe stays open until the process is killed: with its end, the process would run a
        // part of a launch spec.
        let stdin = self.0.as_mut()?.stdin.as_mut()?;
        // A pipe may be smaller where a user has many, and the thread that runs all instances must not wait for one of them.
        ioctl_fionbio(&*stdin, true).ok()?;
        stdin.write_all(encoded).ok()?;
        let mut child = self.0.take()?;
        drop(child.stdin.take()); // the end of the pipe is the end of the launch spec
        Some(child)
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill(); // it may be over already
            let _ = child.wait(); // at once: nothing survives SIGKILL
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::pipe::fcntl_setpipe_size;

    use super::*;

    /// `sleep` stands for a process that does not read yet.
    #[test]
    fn pipe_stays_open_after_half_a_launch_spec() {
        let child = Command::new("sleep").arg("60").stdin(Stdio::piped()).spawn().unwrap();
        fcntl_setpipe_size(child.stdin.as_ref().unwrap(), 4096).unwrap();
        let mut waiting = WaitingProcess::new(child);
        assert!(waiting.launch(&[b'x'; 2 * 4096]).is_none());
        assert!(waiting.0.as_ref().unwrap().stdin.is_some());
    }
}
