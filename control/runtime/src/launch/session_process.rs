//! Starts a client's command next to an instance's own program, with streams for the client.

use std::io::{self, PipeWriter};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command};

use container::terminal::Terminal;
use container::{ExecStdin, namespaces};
use rustix::process::getpid;

use super::launcher::{Launcher, nul_error, waiting_command};
use super::{launch_spec, session_words};
use crate::sandbox_spec::SandboxSpec;

#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionStdio {
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

pub(crate) struct SessionProcess {
    pub(crate) child: Child,
    pub(crate) streams: SessionStreams,
}

/// The client's ends of the streams.
#[derive(Debug, Default)]
pub(crate) struct SessionStreams {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) terminal: Option<OwnedFd>,
}

impl Launcher {
    /// Runs `words` in the same way as the instance's own program.
    pub(crate) fn start_session(
        &self,
        words: &[String],
        environment: &[(String, String)],
        stdio: SessionStdio,
    ) -> io::Result<SessionProcess> {
        let stdin = match stdio {
            SessionStdio { tty: true, .. } => ExecStdin::Terminal,
            SessionStdio { stdin: true, .. } => ExecStdin::Inherited,
            SessionStdio { .. } => ExecStdin::Null,
        };
        let Some(container) = &self.container else {
            let encoded = launch_spec::encode_variables(environment).ok_or_else(nul_error)?;
            let arguments = launch_spec::session_arguments(getpid(), &self.sandbox, stdin, Some(words));
            let (words, input) = session_words::pipe(&encoded)?;
            let command = waiting_command(&self.init, self.init.program.as_os_str(), arguments, words.into());
            let terminal = stdio.tty.then(Terminal::of_host).transpose()?;
            return start(command, (stdio, input, terminal), |command| command.spawn());
        };
        let (mut spec, first) = container.entry()?;
        spec.stdin = stdin;
        let joins = SandboxSpec { cgroups: self.sandbox.cgroups.clone(), ..SandboxSpec::default() };
        let encoded = launch_spec::encode_exec(&spec, environment, words).ok_or_else(nul_error)?;
        let arguments = launch_spec::session_arguments(getpid(), &joins, stdin, None);
        let (words, input) = session_words::pipe(&encoded)?;
        let command = waiting_command(&self.init, container.program.path().as_os_str(), arguments, words.into());
        let terminal = stdio.tty.then(|| container_terminal(&first)).transpose()?;
        start(command, (stdio, input, terminal), |command| namespaces::spawn_in_container(&first, command))
    }
}

fn start(
    mut command: Command,
    (stdio, input, terminal): (SessionStdio, PipeWriter, Option<Terminal>),
    spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
) -> io::Result<SessionProcess> {
    let mut streams = SessionStreams::default();
    if let Some(Terminal { controller, process }) = terminal {
        command.stdout(process.try_clone()?).stderr(process);
        streams.terminal = Some(controller);
    } else {
        let ((stdout, stdout_end), (stderr, stderr_end)) = (io::pipe()?, io::pipe()?);
        command.stdout(stdout_end).stderr(stderr_end);
        streams.stdin = stdio.stdin.then(|| input.into());
        (streams.stdout, streams.stderr) = (Some(stdout.into()), Some(stderr.into()));
    }
    // `command` holds the process's ends of the streams until it is dropped.
    let child = spawn(&mut command)?;
    Ok(SessionProcess { child, streams })
}

/// In the container with the first process `first`.
fn container_terminal(first: &OwnedFd) -> io::Result<Terminal> {
    let pid = pid_behind(first)?;
    let terminal = Terminal::of_container(&PathBuf::from(format!("/proc/{pid}/root")));
    // Its process id may be reused by now.
    if pid_behind(first)? != pid {
        return Err(io::Error::other("the container has ended"));
    }
    terminal.map_err(|why| io::Error::new(why.kind(), format!("a terminal in the container's /dev/pts: {why}")))
}

/// The kernel reports -1 once the process has ended.
fn pid_behind(pidfd: &OwnedFd) -> io::Result<u32> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.ok_or_else(|| io::Error::other("the container has ended"))
}
