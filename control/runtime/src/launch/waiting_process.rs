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
        let mut stdin = self.0.as_mut()?.stdin.take()?;
        // A pipe may be smaller where a user has many, and the thread that runs all instances must not wait for one of them.
        ioctl_fionbio(&stdin, true).ok()?;
        stdin.write_all(encoded).ok()?; // and with the end of the pipe it has all of them
        self.0.take()
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
