//! A child process: its exit, its signals, its process id.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A child process that is killed, with its process group, when this is dropped.
pub(crate) struct ChildGuard(pub(crate) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            signal_group(&self.0, Signal::KILL);
            let _ = self.0.wait(); // at once: nothing survives SIGKILL
        }
    }
}

/// A descriptor that becomes readable when the process ends.
pub(crate) fn pidfd(child: &Child) -> io::Result<AsyncFd<OwnedFd>> {
    readable(pidfd_open(pid(child), PidfdFlags::NONBLOCK)?)
}

pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(deprecated, reason = "the new one is unsafe; an OwnedFd keeps its descriptor, which is all it asks")]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Returns when the process behind `pidfd` has ended. It still has to be waited for.
pub(crate) async fn exited(pidfd: &AsyncFd<OwnedFd>) {
    // Readiness is never cleared: an ended process stays ended. An error means that the reactor is
    // gone, and then waiting for the child right away is the best that is left.
    if let Ok(mut guard) = pidfd.readable().await {
        guard.retain_ready();
    }
}

/// Signals all processes in the instance's group. Only while the leader is not yet reaped, so that the number still
/// means this group.
pub(crate) fn signal_group(child: &Child, signal: Signal) {
    // In its first moments init has not made its group yet; then it is alone.
    if kill_process_group(pid(child), signal).is_err() {
        let _ = kill_process(pid(child), signal);
    }
}

pub(crate) fn pid(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("the kernel's pids are positive i32")
}
