//! Starts a process through init, and detects its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use container::namespaces;
use container::program::ProtectedProgram;
use contract::target_policy::TargetPolicy;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, getpid};

use super::InitProgram;
use super::container_launcher::ContainerLauncher;
use super::launch_spec;
use super::waiting_process::WaitingProcess;
use crate::process::child::signal_group;
use crate::sandbox_spec::SandboxSpec;

/// Builds commands that run through init.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub(crate) init: InitProgram,
    pub(crate) sandbox: SandboxSpec,
    /// It is a container.
    pub(crate) container: Option<ContainerLauncher>,
    /// The addresses that its probes may connect to.
    pub(crate) targets: Arc<TargetPolicy>,
}

impl Launcher {
    /// Turns the prefork process `waiting` into the instance, or starts a new process if there is none, after the
    /// step `before`, which a prefork process has done already.
    pub(crate) fn start(
        &self,
        waiting: Option<&mut WaitingProcess>,
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
        waiting: Option<&mut WaitingProcess>,
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
                spawn_first_process(&self.init, &container.program, &joins, stdin_file(&encoded)?)?
            }
        };
        container.started(&child).inspect_err(|_| {
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        Ok(child)
    }

    /// Starts a new process, whose output goes to pipes, without the prefork pool.
    pub(crate) fn start_fresh(&self, words: &[String], environment: &[(String, String)]) -> io::Result<Child> {
        self.start(None, words, environment, || {})
    }

    /// Runs `words` next to the instance's own program, and in its container if it has one.
    pub(crate) fn start_in_container(
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
        let encoded = launch_spec::encode_exec(&spec, environment, words).ok_or_else(nul_error)?;
        let arguments = launch_spec::join_arguments(getpid(), &joins);
        let stdin = stdin_file(&encoded)?;
        let mut command = waiting_command(&self.init, container.program.path().as_os_str(), arguments, stdin);
        command.stdout(output.try_clone()?).stderr(output);
        namespaces::spawn_in_container(&first, &mut command)
    }

    /// Returns when there is something to probe.
    pub(crate) async fn until_started(&self, child: &Child) {
        if let Some(container) = &self.container {
            container.until_started(child.id()).await;
        }
    }

    /// RT-LIFE-05: asks the instance to end.
    pub(crate) fn terminate(&self, child: &Child) {
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
        let stdin = stdin_file(&variables)?;
        let mut command = waiting_command(&self.init, self.init.program.as_os_str(), arguments, stdin);
        command.stdout(stdout).stderr(stderr).spawn()
    }
}

pub(super) fn nul_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the command or a variable contains a NUL byte; remove it")
}

/// A memfd with `words`, as the stdin of a process. A pipe takes 64 KiB at most before its reader reads, and the thread
/// that runs all instances must not wait for one of them.
fn stdin_file(words: &[u8]) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create("launch-spec", MemfdFlags::CLOEXEC)?);
    file.write_all(words)?;
    file.rewind()?;
    Ok(file.into())
}

/// A prefork process in `place`, which waits for the rest of its arguments on stdin.
pub(crate) fn spawn_waiting(init: &InitProgram, place: &SandboxSpec) -> io::Result<Child> {
    let words = launch_spec::prefork_arguments(getpid(), place);
    waiting_command(init, init.program.as_os_str(), words, Stdio::piped()).spawn()
}

/// The same as the first process of a pid namespace, from a `program` that its container cannot write to.
pub(crate) fn spawn_first_process(
    init: &InitProgram,
    program: &ProtectedProgram,
    place: &SandboxSpec,
    stdin: Stdio,
) -> io::Result<Child> {
    let words = launch_spec::first_process_arguments(getpid(), place);
    namespaces::spawn_first_process(&mut waiting_command(init, program.path().as_os_str(), words, stdin))
}

pub(super) fn waiting_command(init: &InitProgram, program: &OsStr, words: Vec<OsString>, stdin: Stdio) -> Command {
    let mut command = Command::new(program);
    command.arg0("sluicegate").args(&init.arguments).args(words).env_clear();
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
