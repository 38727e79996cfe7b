#![forbid(unsafe_code)]
//! The instance runtime: an instance is a started program that answers requests at an address.
//!
//! [`Runtime`] is the boundary between "how many" (the autoscaler) and "how". Starting returns at once; the
//! instance's state is reported through its [`InstanceReporter`]: `Ready` and `Unready`, in the end exactly one
//! `Gone`. The process runtime is the implementation for programs of this host; see [`ProcessRuntime`]. Deliberately
//! left to others: when to start or stop (autoscaler), which requests go where (cores).

pub mod capabilities;
mod cgroup_reaper;
mod cgroups;
mod commands;
mod container_launcher;
mod device_filesystem;
pub mod dns;
pub mod environment;
mod exit;
mod freezer;
mod generations;
mod host_context;
mod host_processes;
mod host_views;
pub mod init;
mod init_containers;
mod instance_log;
mod instance_records;
mod launch_spec;
mod launcher;
pub mod limits;
mod masks;
mod mount_table;
mod mounts;
mod output_capture;
mod output_limiter;
mod pace;
mod port_allocator;
mod precise_sleep;
mod prefork_pool;
mod probe;
mod probe_exec;
mod probe_grpc;
mod probe_http2;
mod probe_tls;
mod process;
mod process_reaper;
mod read_only_root;
mod remove_tree;
mod resources;
pub mod sessions;
mod sidecars;
mod termination_message;
mod tmpfs;
pub mod volumes;

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use capabilities::Capabilities;
use dataplane::table::Protocol;
use jiff::Timestamp;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use volumes::{InstanceMount, InstanceVolume};

pub use environment::{PLATFORM_VARIABLES, SEARCH_PATH};
pub use host_context::HostConfig;
pub use mounts::can_mount as may_mount;
pub use pace::OutputTally;
pub use process::{InitProgram, ProcessRuntime, kill_leftovers};
pub use resources::ResourceLimits;

pub(crate) use crate as runtime;
use support::child_name::child_name;
pub(crate) use support::{blocking, sha256};

/// What to run, and how to detect that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceSpec {
    pub namespace: String,
    pub revision: String,
    /// Empty when no Service owns the Configuration.
    pub service: String,
    pub configuration: String,
    /// What it is a container of; without one it is a process of this host.
    pub image: Option<ContainerImage>,
    /// Program and arguments; a program without a slash is looked up in the instance's PATH.
    pub command: Vec<String>,
    /// The developer's variables; the platform's (PORT, K_…) win over them.
    pub env: Vec<(String, String)>,
    /// Where it is to listen, if that port can be made its own (RT-PORT-03).
    pub port: u16,
    /// `None`: the directory that the appliance runs in, or the root of the container.
    pub working_dir: Option<PathBuf>,
    pub volumes: Vec<InstanceVolume>,
    pub mounts: Vec<InstanceMount>,
    pub credentials: InstanceCredentials,
    /// Nothing but volumes and `/tmp` can be written to.
    pub read_only_root: bool,
    pub resources: ResourceLimits,
    /// The instance may leave a message about its end.
    pub termination_message: Option<TerminationMessagePath>,
    /// The others wait until this has passed; an instance that fails it is ended.
    pub startup: Option<ProbeSpec>,
    /// Passed: it gets requests. Failed after that, if it has a period: it gets none until it passes again.
    pub readiness: ProbeSpec,
    /// Failed: it is ended.
    pub liveness: Option<ProbeSpec>,
    /// The manifest does not name the protocol: it is detected when the instance is ready (RT-PORT-02).
    pub detect_http2: bool,
    /// From the start to the first passed probe; after it the start has failed.
    pub startup_timeout: Duration,
    /// From SIGTERM to SIGKILL.
    pub termination_grace_period: Duration,
    /// What runs before it, one after the other, each to its end.
    pub init_containers: Vec<Sidecar>,
    /// What runs beside it, as long as it does.
    pub sidecars: Vec<Sidecar>,
}

impl InstanceSpec {
    /// Its own and those of its other containers.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Self> {
        self.init_containers.iter().chain(&self.sidecars).map(|other| &other.spec).chain([self])
    }
}

/// The image that a container is made of, on this host.
#[derive(Debug, Clone)]
pub struct ContainerImage {
    /// A folder for each layer, the top-most last.
    pub layers: Arc<[PathBuf]>,
    /// As the image says it: `USER[:GROUP]`, names or numbers; empty: root.
    pub user: String,
    /// What its program is asked to end with.
    pub stop_signal: Signal,
    /// Keeps the layers where they are.
    pub pin: Arc<dyn Any + Send + Sync>,
}

impl PartialEq for ContainerImage {
    fn eq(&self, other: &Self) -> bool {
        (&self.layers, &self.user, self.stop_signal) == (&other.layers, &other.user, other.stop_signal)
    }
}

impl Eq for ContainerImage {}

/// Another container of the same instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    pub name: String,
    /// It is ready when it says so; else as soon as it runs. One that runs before the others is never asked.
    pub has_readiness_probe: bool,
    /// How it runs. Its `port` is the one its probes use, its resources are counted with the instance's, and it has
    /// no init containers or sidecars of its own.
    pub spec: InstanceSpec,
}

/// Where an instance writes a message about its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminationMessagePath {
    /// At this path, which is mounted, or where the variable says.
    Path(PathBuf),
    /// Where the variable says.
    Variable,
}

/// User, group and privileges of an instance. By default: the appliance's user and group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstanceCredentials {
    pub user: Option<u32>,
    pub group: Option<u32>,
    /// An instance that would be root is not started.
    pub run_as_non_root: bool,
    /// What it keeps of root's power, if it is root.
    pub capabilities: Capabilities,
}

/// A question that an instance is asked again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    pub check: ProbeCheck,
    /// Before the first attempt.
    pub initial_delay: Duration,
    /// Between attempts. Zero, for readiness: as fast as possible until it passed; then see [`ProbeSpec::periodic`].
    pub period: Duration,
    /// Of one attempt.
    pub timeout: Duration,
    /// This many failures in a row count.
    pub failures_max: u32,
    /// This many successes in a row count.
    pub successes_min: u32,
}

/// All of them aim at the instance's own port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeCheck {
    /// It accepts a connection.
    Tcp,
    /// The same at another address of this host.
    TcpAt { host: String },
    /// It answers GET `path` with a status from 200 to 399.
    Http { path: String, headers: Vec<(String, String)>, tls: bool },
    /// It says SERVING by gRPC's health protocol.
    Grpc { service: String },
    /// The command, run with the instance's environment, exits with 0.
    Exec { command: Vec<String> },
}

impl ProbeSpec {
    /// The readiness check of a ready instance; without a period Kubernetes' own, and then an instance that only has
    /// to listen is not checked.
    #[must_use]
    pub fn periodic(&self) -> Option<Self> {
        match (self.period.is_zero(), &self.check) {
            (true, ProbeCheck::Tcp | ProbeCheck::TcpAt { .. }) => None,
            (true, _) => Some(Self { period: limits::PROBE_PERIOD, ..self.clone() }),
            (false, _) => Some(self.clone()),
        }
    }

    /// The default readiness probe: as soon as possible, once.
    #[must_use]
    pub fn single(check: ProbeCheck) -> Self {
        Self {
            check,
            initial_delay: Duration::ZERO,
            period: Duration::ZERO,
            timeout: limits::PROBE_TIMEOUT,
            failures_max: limits::PROBE_FAILURES_MAX,
            successes_min: 1,
        }
    }
}

/// An implementation that runs instances.
pub trait Runtime: Send + Sync {
    /// Starts an instance under `id` (never used before) and returns at once. `line` is the id of the first of the
    /// instances that it replaces.
    fn start(&self, id: u64, line: u64, spec: Arc<InstanceSpec>, reporter: InstanceReporter)
    -> Box<dyn InstanceHandle>;
    /// What running instances can be given without a restart has changed: the files of their volumes.
    fn refresh(&self, spec: Arc<InstanceSpec>);
    /// The revision is gone for good: what was kept of its instances may go too. All of them are over.
    fn remove_revision(&self, namespace: &str, revision: &str);
    /// There is no revision any more: nothing is kept ready for the next start.
    fn idle(&self) {}
}

/// The name of a Revision's Deployment; its Pods' names begin with it.
#[must_use]
pub fn deployment_name(revision: &str) -> String {
    child_name(revision, "-deployment")
}

/// The name of the Pod that shows instances of `line`.
#[must_use]
pub fn pod_name(revision: &str, mut line: u64) -> String {
    const BASE36: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut letters = Vec::new();
    loop {
        letters.push(BASE36[(line % 36) as usize]);
        line /= 36;
        if line == 0 {
            break;
        }
    }
    letters.reverse();
    format!("{}-{}", deployment_name(revision), String::from_utf8_lossy(&letters))
}

/// What that Pod's instances call their host: as much of the name as a host's may have.
fn host_name(pod: &str) -> &str {
    pod[..pod.floor_char_boundary(limits::HOST_NAME_BYTES_MAX)].trim_end_matches(['-', '.'])
}

/// The handle of one started instance. Dropping it is the same as [`InstanceHandle::stop`].
pub trait InstanceHandle: Send {
    /// Sends SIGTERM and, after the grace period, SIGKILL. `Gone` follows.
    fn stop(&self);
    /// Probes it again: `Ready` follows, or `Gone` after it was ended for not answering.
    fn verify(&self);
    /// Gives it no more processor time, and does not probe it, until it is thawed or stopped. It has to be ready.
    fn freeze(&self);
    fn thaw(&self);
    /// When its process began to run, as far as is known.
    fn spawned(&self) -> Option<Instant> {
        None
    }
}

/// How a container is that runs beside the instance's own, or before it: that one is ready when it has ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarStatus {
    pub name: String,
    pub ready: bool,
    pub restarts: u32,
    /// Of one that runs before the others.
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

/// A report of an instance's runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceReport {
    /// It passed its readiness probe and takes requests at `address`; `protocol` is set if it was detected.
    Ready { address: SocketAddr, protocol: Option<Protocol> },
    /// It failed its readiness probe since; `Ready` may follow.
    Unready,
    /// Its other containers, as far as they were started, are so now.
    Sidecars(Vec<SidecarStatus>),
    /// It is not ready yet, for this reason.
    NotReadyReason(String),
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

    pub fn unready(&self) {
        self.send(InstanceReport::Unready);
    }

    pub fn sidecars(&self, others: Vec<SidecarStatus>) {
        self.send(InstanceReport::Sidecars(others));
    }

    pub fn not_ready_reason(&self, why: String) {
        self.send(InstanceReport::NotReadyReason(why));
    }

    pub fn exited(&self, gone: InstanceExit) {
        self.send(InstanceReport::Exited(gone));
    }

    fn send(&self, report: InstanceReport) {
        // The receiver is gone only while the appliance ends; the instance ends by itself then.
        let _ = self.queue.send((self.id, report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instance of `hello-00001` that runs `command`.
    pub(crate) fn spec(command: &[&str]) -> InstanceSpec {
        InstanceSpec {
            image: None,
            namespace: "default".into(),
            revision: "hello-00001".into(),
            service: "hello".into(),
            configuration: "hello-conf".into(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            env: Vec::new(),
            port: 8080,
            working_dir: None,
            volumes: Vec::new(),
            mounts: Vec::new(),
            credentials: InstanceCredentials::default(),
            read_only_root: false,
            resources: ResourceLimits::default(),
            termination_message: None,
            startup: None,
            readiness: ProbeSpec::single(ProbeCheck::Tcp),
            liveness: None,
            detect_http2: false,
            startup_timeout: Duration::from_secs(10),
            termination_grace_period: Duration::from_secs(10),
            init_containers: Vec::new(),
            sidecars: Vec::new(),
        }
    }
}
