//! The boundary between the autoscaler and a runtime: commands in, reports out.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use contract::table::Protocol;
use jiff::Timestamp;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::ports::InstancePorts;
use crate::spec::InstanceSpec;

/// An implementation that runs instances.
pub trait Runtime: Send + Sync {
    /// Starts an instance under `id` (never used before) and returns at once. `line` is the id of the first of the
    /// instances that it replaces.
    fn start(&self, id: u64, line: u64, spec: Arc<InstanceSpec>, reporter: InstanceReporter)
    -> Box<dyn InstanceHandle>;
    /// The files of volumes have changed, which running instances get without a restart.
    fn refresh(&self, spec: Arc<InstanceSpec>);
    /// The revision is gone for good: what was kept of its instances may go too. All of them are over.
    fn remove_revision(&self, namespace: &str, revision: &str);
    /// There is no revision any more: nothing is kept ready for the next start.
    fn idle(&self) {}
}

/// The handle of one started instance. Dropping it is the same as [`InstanceHandle::stop`].
pub trait InstanceHandle: Send {
    /// Sends SIGTERM and, after the grace period, SIGKILL. `Gone` follows.
    fn stop(&self);
    /// The same with another grace period than the manifest's. Called again, it ends the instance sooner, and never later.
    fn stop_within(&self, grace: Duration) {
        let _ = grace;
        self.stop();
    }
    /// Probes it again: `Ready` follows, or `Gone` after it was ended for not answering.
    fn verify(&self);
    /// Gives it no more processor time, and does not probe it, until it is thawed or stopped. It has to be ready.
    fn freeze(&self);
    /// It is as ready as it was, which no report repeats: if it was in doubt when it was frozen, `Unready` follows, and then
    /// `Ready` once it passes its readiness probe.
    fn thaw(&self);
    /// When its process began to run, as far as is known.
    fn spawned(&self) -> Option<Instant> {
        None
    }
}

/// The state of a sidecar or an init container: an init container is ready when it has succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SidecarStatus {
    pub name: String,
    pub ready: bool,
    pub restarts: u32,
    /// The status of an init container.
    pub started_at: Option<Timestamp>,
    /// When it last ended.
    pub finished_at: Option<Timestamp>,
    /// How it last ended, if it has ended.
    pub last_exit: Option<InstanceExit>,
    /// It has a process; one that has ended and has none waits for its next start.
    pub is_running: bool,
    /// It has ended, and is not started again.
    pub ended: bool,
}

/// A report of an instance's runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceReport {
    /// It passed its readiness probe and takes requests at `address`; `protocol` is set if it was detected.
    Ready { address: SocketAddr, protocol: Option<Protocol> },
    /// Where its further ports are; said once, before it is ready, by an instance that has some.
    Ports(InstancePorts),
    /// It failed its readiness probe since; `Ready` may follow.
    Unready,
    /// Its other containers, as far as they were started, are so now.
    Sidecars(Vec<SidecarStatus>),
    /// It is not ready yet, for this reason.
    NotReadyReason(String),
    /// Its own program has ended and is started again after a delay. The other containers run on.
    Restarting(InstanceExit),
    /// It was started again.
    Restarted,
    /// It has ended, with all its processes.
    Exited(InstanceExit),
}

/// How an instance ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceExit {
    pub cause: ExitCause,
    /// One sentence and the last lines of its output.
    pub message: String,
}

/// Why an instance ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCause {
    Exited(i32),
    Signaled(i32),
    /// It wanted more memory than its manifest allows.
    OutOfMemory,
    /// It did not pass its readiness probe within `startup_max`.
    NotReady,
    /// It stopped taking connections and did not recover.
    Unreachable,
    /// It failed its startup or liveness probe, for this reason.
    Unhealthy(String),
    /// It could not be started at all.
    NotStarted,
}

impl fmt::Display for ExitCause {
    /// The value of a condition's reason: `ExitCode1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "ExitCode{code}"),
            Self::Signaled(signal) => write!(f, "Signal{signal}"),
            Self::OutOfMemory => f.write_str("OOMKilled"),
            Self::NotReady => f.write_str("ProgressDeadlineExceeded"),
            Self::Unreachable => f.write_str("Unreachable"),
            Self::Unhealthy(_) => f.write_str("Unhealthy"),
            Self::NotStarted => f.write_str("StartFailed"),
        }
    }
}

/// Sends one instance's reports to the caller that started it. Holds at most a few reports per instance and
/// container, so the queue behind it needs no bound of its own.
#[derive(Debug, Clone)]
pub struct InstanceReporter {
    id: u64,
    queue: UnboundedSender<(u64, InstanceReport)>,
}

impl InstanceReporter {
    #[must_use]
    pub fn new(id: u64, queue: UnboundedSender<(u64, InstanceReport)>) -> Self {
        Self { id, queue }
    }

    pub fn ready(&self, address: SocketAddr, protocol: Option<Protocol>) {
        self.send(InstanceReport::Ready { address, protocol });
    }

    pub fn ports(&self, ports: InstancePorts) {
        self.send(InstanceReport::Ports(ports));
    }

    pub fn unready(&self) {
        self.send(InstanceReport::Unready);
    }

    pub fn sidecars(&self, others: Vec<SidecarStatus>) {
        self.send(InstanceReport::Sidecars(others));
    }

    pub fn not_ready_reason(&self, why: String) {
        self.send(InstanceReport::NotReadyReason(why));
    }

    pub fn restarting(&self, exit: InstanceExit) {
        self.send(InstanceReport::Restarting(exit));
    }

    pub fn restarted(&self) {
        self.send(InstanceReport::Restarted);
    }

    pub fn exited(&self, gone: InstanceExit) {
        self.send(InstanceReport::Exited(gone));
    }

    fn send(&self, report: InstanceReport) {
        // The receiver is gone only while the appliance ends; the instance ends by itself then.
        let _ = self.queue.send((self.id, report));
    }
}
