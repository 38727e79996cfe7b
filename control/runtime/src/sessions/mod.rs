//! Clients' sessions in running instances: commands, and connections to their ports.
//!
//! A client talks to a [`SessionClient`] from any thread. A command is started on the runtime's thread, as the instance itself
//! was: in its control groups, as its user, with its variables, and in its container if it has one. The descriptors of its
//! streams go to the client. The command ends when the client drops its session, and when the instance ends.

mod connect;
mod reaper;
mod registry;

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::host::HostContext;
use crate::launch::session_process::{SessionProcess, SessionStdio, SessionStreams};
use crate::limits::SESSION_INSTANCE_END_WAIT;
use crate::process::child::{exited, pid, pidfd, signal_group};
use crate::usage::InstanceProcesses;
use registry::SessionHold;
pub(super) use registry::{InstanceRegistration, InstanceSessions, SessionRegistry};

/// Exit codes of programs that a signal ended, as shells count them.
const SIGNAL_BASE: i32 = 128;

/// A command in a container of an instance; in the one that serves, if no sidecar is named.
#[derive(Debug, Clone, Default)]
pub struct SessionCommandSpec {
    pub instance: u64,
    pub sidecar: Option<String>,
    pub command: Vec<String>,
    pub stdin: bool,
    pub tty: bool,
}

/// A running command. Dropping it ends the command.
#[derive(Debug)]
pub struct CommandSession {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// The controlling side of its terminal, instead of the three above.
    pub terminal: Option<OwnedFd>,
    pub exit: oneshot::Receiver<SessionExit>,
    pub guard: SessionGuard,
}

/// Ends what it belongs to when it is dropped.
#[derive(Debug)]
pub struct SessionGuard(#[expect(dead_code, reason = "its end is what matters")] oneshot::Sender<()>);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionExit {
    /// With this code; a signal counts as 128 and its number.
    Code(i32),
    InstanceEnded,
}

/// A container of a running instance.
#[derive(Debug)]
pub struct RunningContainer {
    pub is_process: bool,
    /// True when the instance has ended, as its end is.
    pub ended: watch::Receiver<bool>,
}

#[derive(Debug)]
pub enum SessionError {
    /// The instance does not run, or has no such container.
    NotRunning,
    Failed(io::Error),
}

/// The way to the runtime's thread.
#[derive(Clone)]
pub struct SessionClient(Arc<dyn Fn(SessionCommand) -> bool + Send + Sync>);

/// A request of a client to the runtime's thread.
pub(super) enum SessionCommand {
    Find { instance: u64, sidecar: Option<String>, reply: oneshot::Sender<Option<RunningContainer>> },
    Exec { spec: SessionCommandSpec, reply: oneshot::Sender<Result<CommandSession, SessionError>> },
    Connect { instance: u64, port: u16, reply: oneshot::Sender<io::Result<(TcpStream, SessionGuard)>> },
    Processes { reply: oneshot::Sender<Vec<InstanceProcesses>> },
}

impl SessionClient {
    pub(super) fn new(send: impl Fn(SessionCommand) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(send))
    }

    /// # Errors
    /// The instance does not run, or has no such container.
    pub async fn find(&self, instance: u64, sidecar: Option<String>) -> Result<RunningContainer, SessionError> {
        let (reply, found) = oneshot::channel();
        (self.0)(SessionCommand::Find { instance, sidecar, reply });
        found.await.ok().flatten().ok_or(SessionError::NotRunning)
    }

    /// Runs a command.
    ///
    /// # Errors
    /// The instance does not run, or the command cannot be started.
    pub async fn exec(&self, spec: SessionCommandSpec) -> Result<CommandSession, SessionError> {
        let (reply, started) = oneshot::channel();
        (self.0)(SessionCommand::Exec { spec, reply });
        started.await.unwrap_or(Err(SessionError::NotRunning))
    }

    /// The processes of all running instances.
    pub async fn processes(&self) -> Vec<InstanceProcesses> {
        let (reply, all) = oneshot::channel();
        (self.0)(SessionCommand::Processes { reply });
        all.await.unwrap_or_default()
    }

    /// Connects to a port of the instance. It stays thawed for as long as the guard is held.
    ///
    /// # Errors
    /// The instance does not run, has no such port, or does not listen there.
    pub async fn connect(&self, instance: u64, port: u16) -> io::Result<(TcpStream, SessionGuard)> {
        let (reply, connected) = oneshot::channel();
        (self.0)(SessionCommand::Connect { instance, port, reply });
        connected.await.unwrap_or_else(|_| Err(io::Error::other("the instance has ended")))
    }
}

/// Carries out `command`, on a task of its own if that takes time. A reply that does not arrive was for a client that has left.
pub(super) fn handle(registry: &Rc<SessionRegistry>, host: &Rc<HostContext>, command: SessionCommand) {
    match command {
        SessionCommand::Find { instance, sidecar, reply } => {
            let found = registry.get(instance).and_then(|sessions| sessions.running_container(sidecar.as_deref()));
            let _ = reply.send(found);
        }
        SessionCommand::Processes { reply } => {
            let _ = reply.send(registry.processes());
        }
        SessionCommand::Exec { spec, reply } => {
            let registry = Rc::clone(registry);
            drop(spawn_local(async move {
                let _ = reply.send(start(&registry, spec).await);
            }));
        }
        SessionCommand::Connect { instance, port, reply } => {
            let (registry, host) = (Rc::clone(registry), Rc::clone(host));
            drop(spawn_local(async move {
                let connected = connect::connect(&registry, &host, instance, port).await;
                let connected = connected.map(|(stream, hold)| {
                    let (guard, dropped) = oneshot::channel();
                    drop(spawn_local(async move {
                        let _ = dropped.await; // it is dropped, and never sent
                        drop(hold);
                    }));
                    (stream, SessionGuard(guard))
                });
                let _ = reply.send(connected);
            }));
        }
    }
}

async fn start(registry: &SessionRegistry, spec: SessionCommandSpec) -> Result<CommandSession, SessionError> {
    let sessions = registry.get(spec.instance).ok_or(SessionError::NotRunning)?;
    let hold = sessions.hold().await?;
    let container = sessions.container(spec.sidecar.as_deref()).ok_or(SessionError::NotRunning)?;
    let stdio = SessionStdio { stdin: spec.stdin, tty: spec.tty };
    let mark = reaper::SessionMark::new();
    let mut environment = container.environment.to_vec();
    environment.push(mark.variable());
    if spec.tty && !environment.iter().any(|(name, _)| name == "TERM") {
        environment.push(("TERM".into(), "xterm".into()));
    }
    let started = container.launcher.start_session(&spec.command, &environment, stdio);
    let SessionProcess { child, streams } = started.map_err(SessionError::Failed)?;
    let (guard, left) = oneshot::channel();
    let (report, exit) = oneshot::channel();
    drop(spawn_local(supervise(child, (mark, hold), left, report)));
    let SessionStreams { stdin, stdout, stderr, terminal } = streams;
    Ok(CommandSession { stdin, stdout, stderr, terminal, exit, guard: SessionGuard(guard) })
}

/// Until the command has ended, with all that it started.
async fn supervise(
    mut child: std::process::Child,
    (mark, hold): (reaper::SessionMark, SessionHold),
    left: oneshot::Receiver<()>,
    report: oneshot::Sender<SessionExit>,
) {
    let leader = pid(&child);
    let mut ended = hold.ended();
    let is_killed = match pidfd(&child) {
        Ok(pidfd) => {
            let is_killed = tokio::select! {
                biased;
                () = exited(&pidfd) => false,
                _ = left => true,
                _ = ended.wait_for(|has_ended| *has_ended) => true,
            };
            if is_killed {
                signal_group(&child, Signal::KILL);
                exited(&pidfd).await;
            }
            is_killed
        }
        Err(why) => {
            tracing::warn!(%why, "a client's command cannot be watched and is killed");
            signal_group(&child, Signal::KILL);
            true
        }
    };
    // It is not reaped yet, so its number still names its session.
    let status = waitid(WaitId::Pid(leader), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok().flatten();
    let signal = status.as_ref().and_then(|status| status.terminating_signal());
    let code = status.and_then(|status| status.exit_status()).or(signal.map(|signal| SIGNAL_BASE + signal));
    let mut exit = SessionExit::Code(code.unwrap_or(SIGNAL_BASE));
    let mut session = Some(leader);
    if is_killed {
        exit = SessionExit::InstanceEnded;
    } else if signal == Some(Signal::KILL.as_raw()) {
        // The kernel kills a command together with its container. The container's first process ends when all others are
        // reaped, and that is what tells us of its end.
        let _ = child.wait();
        session = None;
        if timeout(SESSION_INSTANCE_END_WAIT, ended.wait_for(|has_ended| *has_ended)).await.is_ok() {
            exit = SessionExit::InstanceEnded;
        }
    }
    let _ = report.send(exit); // the client may have left
    mark.kill_all(session).await;
    let _ = child.wait(); // at once: it has ended
    tracing::debug!(pid = leader.as_raw_nonzero(), ?exit, "a client's command ended");
    drop(hold);
}
