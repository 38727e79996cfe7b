//! Streams into instances: requested by the API, carried out by the runtime.

use std::any::Any;
use std::fmt;
use std::future::pending;
use std::io;
use std::sync::OnceLock;

use apiserver::streaming::instance_streams::{
    ExecExit, ExecProcess, ExecRequest, ForwardedConnection, InstanceStreams, InstanceTarget, ProcessExecRule,
    StreamError,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::sessions::{CommandSession, SessionClient, SessionCommandSpec, SessionError, SessionExit};

use crate::revision::policy::ProcessInstances;

/// The API is built before the runtime, so the runtime's client is set later.
pub struct RuntimeStreams {
    sessions: OnceLock<SessionClient>,
    rule: ProcessExecRule,
}

impl RuntimeStreams {
    /// A command in an instance that is a process is one that a client starts on this host, so the rule for commands of
    /// manifests holds for it too.
    #[must_use]
    pub fn new(processes: ProcessInstances) -> Self {
        let rule = match processes {
            ProcessInstances::Deny => ProcessExecRule::Deny,
            ProcessInstances::AllowList => ProcessExecRule::RequirePolicy,
            ProcessInstances::Allow => ProcessExecRule::Allow,
        };
        Self { sessions: OnceLock::new(), rule }
    }

    /// Sets the runtime's client. Until then there are no instances.
    pub fn connect_runtime(&self, sessions: SessionClient) {
        let _ = self.sessions.set(sessions); // an error: it was connected before
    }
}

impl fmt::Debug for RuntimeStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeStreams").field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl InstanceStreams for RuntimeStreams {
    fn process_exec_rule(&self) -> ProcessExecRule {
        self.rule
    }

    fn find(&self, instance: u64, sidecar: Option<String>) -> BoxFuture<'static, Result<InstanceTarget, StreamError>> {
        let sessions = self.sessions.get().cloned();
        async move {
            let found = sessions.ok_or(StreamError::NotRunning)?.find(instance, sidecar).await.map_err(stream_error)?;
            let mut ended = found.ended;
            let ended = async move {
                let _ = ended.wait_for(|has_ended| *has_ended).await; // an error: it has ended
            };
            Ok(InstanceTarget { is_process: found.is_process, ended: ended.boxed() })
        }
        .boxed()
    }

    fn exec(&self, request: ExecRequest) -> BoxFuture<'static, Result<ExecProcess, StreamError>> {
        let sessions = self.sessions.get().cloned();
        async move {
            let ExecRequest { instance, sidecar, command, stdio } = request;
            let spec = SessionCommandSpec { instance, sidecar, command, stdin: stdio.stdin, tty: stdio.tty };
            let started = sessions.ok_or(StreamError::NotRunning)?.exec(spec).await.map_err(stream_error)?;
            let CommandSession { stdin, stdout, stderr, terminal, exit, guard } = started;
            let exit = async move {
                match exit.await {
                    Ok(SessionExit::Code(code)) => ExecExit::Code(code),
                    Ok(SessionExit::InstanceEnded) => ExecExit::InstanceEnded,
                    Err(_) => pending().await, // the runtime has ended, and so does the appliance
                }
            };
            Ok(ExecProcess { stdin, stdout, stderr, terminal, exit: exit.boxed(), guard: Box::new(guard) })
        }
        .boxed()
    }

    fn connect(&self, instance: u64, port: u16) -> BoxFuture<'static, io::Result<ForwardedConnection>> {
        let sessions = self.sessions.get().cloned();
        async move {
            let sessions = sessions.ok_or_else(|| io::Error::other("there are no instances yet"))?;
            let (stream, guard) = sessions.connect(instance, port).await?;
            Ok(ForwardedConnection { stream, guard: Box::new(guard) as Box<dyn Any + Send> })
        }
        .boxed()
    }
}

fn stream_error(why: SessionError) -> StreamError {
    match why {
        SessionError::NotRunning => StreamError::NotRunning,
        SessionError::Failed(why) => StreamError::Failed(why),
    }
}
