//! Starting a process through init, and noticing its end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use dataplane::target_policy::TargetPolicy;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::launch_spec::{self, SandboxSpec};
use super::prefork_pool::PreforkProcess;
use super::process::InitProgram;

/// Makes commands that run through init.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    pub(super) init: InitProgram,
    pub(super) sandbox: SandboxSpec,
    /// Where its probes may connect.
    pub(super) targets: Arc<TargetPolicy>,
}

impl Launcher {
    /// Turns the prefork process `waiting` into the instance, or starts a new process if there is none, after the
    /// step `before`, which a prefork process has done already.
    pub(super) fn start(
        &self,
        waiting: Option<&mut PreforkProcess>,
        words: &[String],
        environment: &[(String, String)],
        before: impl FnOnce(),
    ) -> io::Result<Child> {
        let told = waiting.and_then(|waiting| {
            let orders = launch_spec::encode(&self.sandbox, environment, words)?;
            waiting.launch(&orders)
        });
        told.map_or_else(
            || {
                before();
                self.command(words, environment).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
            },
            Ok,
        )
    }

    /// RT-FD-01, RT-FD-03: stdin is at its end, and there is no terminal.
    pub(super) fn command(&self, words: &[String], environment: &[(String, String)]) -> Command {
        let mut command = Command::new(&self.init.program);
        command
            .arg0("sluicegate")
            .args(&self.init.arguments)
            .args(launch_spec::arguments(getpid(), &self.sandbox, words))
            .env_clear()
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }
}

/// A child process that is killed, with its process group, when this is dropped.
pub(super) struct ChildGuard(pub(super) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            signal_group(&self.0, Signal::KILL);
            let _ = self.0.wait(); // at once: nothing survives SIGKILL
        }
    }
}

/// A descriptor that becomes readable when the process ends.
pub(super) fn pidfd(child: &Child) -> io::Result<AsyncFd<OwnedFd>> {
    readable(pidfd_open(pid(child), PidfdFlags::NONBLOCK)?)
}

pub(super) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(deprecated, reason = "the new one is unsafe; an OwnedFd keeps its descriptor, which is all it asks")]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Returns when the process behind `pidfd` has ended. It still has to be waited for.
pub(super) async fn exited(pidfd: &AsyncFd<OwnedFd>) {
    // Readiness is never cleared: an ended process stays ended. An error means that the reactor is
    // gone, and then waiting for the child right away is the best that is left.
    if let Ok(mut guard) = pidfd.readable().await {
        guard.retain_ready();
    }
}

/// Signals all processes in the instance's group. Only while the leader is not yet reaped, so that the number still
/// means this group.
pub(super) fn signal_group(child: &Child, signal: Signal) {
    // In its first moments init has not made its group yet; then it is alone.
    if kill_process_group(pid(child), signal).is_err() {
        let _ = kill_process(pid(child), signal);
    }
}

pub(super) fn pid(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("the kernel's pids are positive i32")
}
