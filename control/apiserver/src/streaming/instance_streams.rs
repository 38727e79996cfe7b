//! The interface of the runtime that the API needs for streams into instances.

use std::any::Any;
use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use futures_util::future::BoxFuture;

/// A command that a client runs in a container of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecRequest {
    pub instance: u64,
    /// `None`: the container that serves.
    pub sidecar: Option<String>,
    pub command: Vec<String>,
    pub stdio: RequestedStdio,
}

/// The streams that a client asks for. With a terminal there is no stderr of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestedStdio {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// A running process, seen from the API. Dropping it ends the process.
pub struct ExecProcess {
    pub stdin: Option<OwnedFd>,
    /// Both outputs are read, whether the client asks for them or not.
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// The controlling side of its terminal, instead of the three above. It does not block.
    pub terminal: Option<OwnedFd>,
    pub exit: BoxFuture<'static, ExecExit>,
    /// Ends the process when it is dropped.
    pub guard: Box<dyn Any + Send>,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecExit {
    /// With this code; a signal counts as 128 and its number, as in shells.
    Code(i32),
    /// Together with its instance.
    InstanceEnded,
    /// The attached process has ended.
    Detached,
}

/// Why a stream is not opened.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The instance, or this container of it, does not run.
    #[error("the container does not run")]
    NotRunning,
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// A container of a running instance.
pub struct InstanceTarget {
    /// It is a process of this host and not a container.
    pub is_process: bool,
    /// Resolves when the instance has ended.
    pub ended: BoxFuture<'static, ()>,
}

/// Whether clients may run commands in instances that are processes of this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcessExecRule {
    Deny,
    /// A client needs the verb `use` for the instance policy `process`.
    RequirePolicy,
    #[default]
    Allow,
}

/// A connection to a port of an instance.
pub struct ForwardedConnection {
    /// It does not block.
    pub stream: TcpStream,
    /// Held for as long as the connection is used.
    pub guard: Box<dyn Any + Send>,
}

/// Opens streams into instances.
pub trait InstanceStreams: fmt::Debug + Send + Sync {
    fn process_exec_rule(&self) -> ProcessExecRule;
    fn find(&self, instance: u64, sidecar: Option<String>) -> BoxFuture<'static, Result<InstanceTarget, StreamError>>;
    fn exec(&self, request: ExecRequest) -> BoxFuture<'static, Result<ExecProcess, StreamError>>;
    /// `port` is a container port.
    fn connect(&self, instance: u64, port: u16) -> BoxFuture<'static, io::Result<ForwardedConnection>>;
}
