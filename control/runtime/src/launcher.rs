//! Starting a process through init, and noticing its end.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use container::namespaces;
use container::program::ProtectedProgram;
use dataplane::target_policy::TargetPolicy;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::container_launcher::ContainerLauncher;
use super::launch_spec::{self, SandboxSpec};
use super::prefork_pool::PreforkProcess;
use super::process::InitProgram;

/// Makes commands that run through init.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) init: InitProgram,
    pub(super) sandbox: SandboxSpec,
    /// It is a container.
    pub(super) container: Option<ContainerLauncher>,
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
        if let Some(container) = &self.container {
            return self.start_container(container, waiting, (words, environment), before);
        }
        let launched = waiting.and_then(|waiting| {
            let encoded = launch_spec::encode(&self.sandbox, environment, words)?;
            waiting.launch(&encoded)
        });
        launched.map_or_else(
            || {
                before();
                self.spawn(words, environment, Stdio::piped(), Stdio::piped())
            },
            Ok,
        )
    }

    fn start_container(
        &self,
        container: &ContainerLauncher,
        waiting: Option<&mut PreforkProcess>,
        (words, environment): (&[String], &[(String, String)]),
        before: impl FnOnce(),
    ) -> io::Result<Child> {
        let joins = SandboxSpec { cgroups: self.sandbox.cgroups.clone(), ..SandboxSpec::default() };
        let place = SandboxSpec { container: Some(container.next_spec()?), ..joins.clone() };
        let encoded = launch_spec::encode(&place, environment, words).ok_or_else(nul_error)?;
        let mut child = match waiting.and_then(|waiting| waiting.launch(&encoded)) {
            Some(child) => child,
            None => {
                before();
                send_words(spawn_first_process(&self.init, &container.program, &joins)?, &encoded)
            }
        };
        container.started(&child).inspect_err(|_| {
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        Ok(child)
    }

    /// Starts a new process, whose output goes to pipes, without the prefork pool.
    pub(super) fn start_fresh(&self, words: &[String], environment: &[(String, String)]) -> io::Result<Child> {
        self.start(None, words, environment, || {})
    }

    /// Runs `words` beside the instance's own program, and in its container if it is one.
    pub(super) fn start_beside(
        &self,
        words: &[String],
        environment: &[(String, String)],
        output: io::PipeWriter,
    ) -> io::Result<Child> {
        let Some(container) = &self.container else {
            return self.spawn(words, environment, output.try_clone()?.into(), output.into());
        };
        let (spec, first) = container.entry()?;
        let joins = SandboxSpec { cgroups: self.sandbox.cgroups.clone(), ..SandboxSpec::default() };
        let encoded = launch_spec::encode_beside(&spec, environment, words).ok_or_else(nul_error)?;
        let arguments = launch_spec::beside_arguments(getpid(), &joins);
        let mut command = waiting_command(&self.init, container.program.path().as_os_str(), arguments);
        command.stdout(output.try_clone()?).stderr(output);
        Ok(send_words(namespaces::spawn_beside(&first, &mut command)?, &encoded))
    }

    /// Returns when there is something to probe.
    pub(super) async fn until_started(&self, child: &Child) {
        if let Some(container) = &self.container {
            container.until_started(child.id()).await;
        }
    }

    /// RT-LIFE-05: asks the instance to end.
    pub(super) fn terminate(&self, child: &Child) {
        match &self.container {
            Some(container) => container.terminate(child),
            None => signal_group(child, Signal::TERM),
        }
    }

    /// RT-FD-03: there is no terminal.
    fn spawn(
        &self,
        words: &[String],
        environment: &[(String, String)],
        stdout: Stdio,
        stderr: Stdio,
    ) -> io::Result<Child> {
        let variables = launch_spec::encode_variables(environment).ok_or_else(nul_error)?;
        let arguments = launch_spec::arguments(getpid(), &self.sandbox, words);
        let mut command = waiting_command(&self.init, self.init.program.as_os_str(), arguments);
        Ok(send_words(command.stdout(stdout).stderr(stderr).spawn()?, &variables))
    }
}

pub(super) fn nul_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the command or a variable contains a NUL byte; remove it")
}

/// Writes `words` to the stdin of `child`, and closes it.
fn send_words(mut child: Child, words: &[u8]) -> Child {
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(words); // fails only if it has ended, and then its log says why
    }
    child
}

/// A process that waits at `place` for the rest of its words, on its stdin.
pub(super) fn spawn_waiting(init: &InitProgram, place: &SandboxSpec) -> io::Result<Child> {
    let words = launch_spec::prefork_arguments(getpid(), place);
    waiting_command(init, init.program.as_os_str(), words).spawn()
}

/// The same as the first process of a pid namespace, from a `program` that its container cannot write to.
pub(super) fn spawn_first_process(
    init: &InitProgram,
    program: &ProtectedProgram,
    place: &SandboxSpec,
) -> io::Result<Child> {
    let words = launch_spec::first_process_arguments(getpid(), place);
    namespaces::spawn_first_process(&mut waiting_command(init, program.path().as_os_str(), words))
}

pub(super) fn waiting_command(init: &InitProgram, program: &OsStr, words: Vec<OsString>) -> Command {
    let mut command = Command::new(program);
    command.arg0("sluicegate").args(&init.arguments).args(words).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
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
