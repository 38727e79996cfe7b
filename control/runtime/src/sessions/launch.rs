//! Starts a client's command beside an instance's own program, with streams for the client.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command};

use container::terminal::Terminal;
use container::{ExecStdin, namespaces};
use rustix::process::getpid;

use super::session_words;
use crate::runtime::launch_spec::{self, SandboxSpec};
use crate::runtime::launcher::{Launcher, nul_error, waiting_command};

#[derive(Debug, Clone, Copy)]
pub(super) struct SessionStdio {
    pub(super) stdin: bool,
    pub(super) tty: bool,
}

pub(super) struct SessionProcess {
    pub(super) child: Child,
    pub(super) streams: SessionStreams,
}

/// The client's ends.
#[derive(Debug, Default)]
pub(super) struct SessionStreams {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) terminal: Option<OwnedFd>,
}

impl Launcher {
    /// Runs `words` as the instance's own program runs.
    pub(super) fn start_session(
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
            let command = waiting_command(&self.init, self.init.program.as_os_str(), arguments);
            let terminal = stdio.tty.then(Terminal::of_host).transpose()?;
            return start(command, &encoded, (stdio, terminal), |command| command.spawn());
        };
        let (mut spec, first) = container.entry()?;
        spec.stdin = stdin;
        let joins = SandboxSpec { cgroups: self.sandbox.cgroups.clone(), ..SandboxSpec::default() };
        let encoded = launch_spec::encode_beside(&spec, environment, words).ok_or_else(nul_error)?;
        let arguments = launch_spec::session_arguments(getpid(), &joins, stdin, None);
        let command = waiting_command(&self.init, container.program.path().as_os_str(), arguments);
        let terminal = stdio.tty.then(|| container_terminal(&first)).transpose()?;
        start(command, &encoded, (stdio, terminal), |command| namespaces::spawn_beside(&first, command))
    }
}

fn start(
    mut command: Command,
    words: &[u8],
    (stdio, terminal): (SessionStdio, Option<Terminal>),
    spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
) -> io::Result<SessionProcess> {
    let (words, input) = session_words::pipe(words)?;
    command.stdin(words);
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

/// In the container whose first process is behind `first`.
fn container_terminal(first: &OwnedFd) -> io::Result<Terminal> {
    let pid = pid_behind(first)?;
    let terminal = Terminal::of_container(&PathBuf::from(format!("/proc/{pid}/root")));
    // Its number may be another process's by now.
    if pid_behind(first)? != pid {
        return Err(io::Error::other("the container has ended"));
    }
    terminal.map_err(|why| io::Error::new(why.kind(), format!("a terminal in the container's /dev/pts: {why}")))
}

/// The kernel says -1 once the process is gone.
fn pid_behind(pidfd: &OwnedFd) -> io::Result<u32> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.ok_or_else(|| io::Error::other("the container has ended"))
}
