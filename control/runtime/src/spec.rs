//! The specification of an instance: its program, its sandbox, and its probes.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::capabilities::Capabilities;
use crate::limits;
use crate::resources::ResourceLimits;
use crate::restart::RestartPolicy;
use crate::volumes::{InstanceMount, InstanceVolume};

/// The program to run, and how its readiness is detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceSpec {
    pub namespace: String,
    pub revision: String,
    /// Empty when no Service owns the Configuration.
    pub service: String,
    pub configuration: String,
    /// The Pod that it runs, if it is no instance of a Revision.
    pub pod: Option<PodIdentity>,
    /// Its image and container settings; without them it is a process of this host.
    pub image: Option<ContainerImage>,
    /// Program and arguments; a program without a slash is looked up in the instance's PATH.
    pub command: Vec<String>,
    /// The developer's variables; the platform's (PORT, K_…) win over them.
    pub env: Vec<(String, String)>,
    /// Where it is to listen, if that port can be made its own (RT-PORT-03).
    pub port: u16,
    /// Further ports that are its own, if that can be done; else they are the host's. At most [`limits::OTHER_PORTS_MAX`].
    pub other_ports: Vec<u16>,
    /// `None`: the directory that the appliance runs in, or the root of the container.
    pub working_dir: Option<PathBuf>,
    pub volumes: Vec<InstanceVolume>,
    pub mounts: Vec<InstanceMount>,
    /// The program gets SIGHUP when the files of this volume change.
    pub reload_volume: Option<String>,
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
    /// Its init containers, which run one after the other, each to its end.
    pub init_containers: Vec<Sidecar>,
    /// The sidecars, which run as long as it does.
    pub sidecars: Vec<Sidecar>,
    /// What follows its end.
    pub restart: RestartPolicy,
}

impl InstanceSpec {
    /// Its own and those of its other containers.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Self> {
        self.init_containers.iter().chain(&self.sidecars).map(|other| &other.spec).chain([self])
    }
}

/// A Pod that clients wrote. Its programs have the variables of its manifest, and none of Knative's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodIdentity {
    pub name: String,
    pub uid: String,
}

/// The image that a container is made of, on this host.
#[derive(Debug, Clone)]
pub struct ContainerImage {
    /// A folder for each layer, the top-most last.
    pub layers: Arc<[PathBuf]>,
    /// As the image says it: `USER[:GROUP]`, names or numbers; empty: root.
    pub user: String,
    /// The signal that stops its program.
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
    /// Its capabilities, if it is root.
    pub capabilities: Capabilities,
    /// `hostUsers: false`: its users are others than the host's, also its root. Containers only.
    pub has_user_namespace: bool,
}

/// A question that an instance is asked again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    pub check: ProbeCheck,
    /// The port of the instance that it asks; `None`: the container's own.
    pub port: Option<u16>,
    /// Before the first attempt.
    pub initial_delay: Duration,
    /// Between attempts. Zero, for readiness: as fast as possible until it passed; then see [`ProbeSpec::periodic`].
    pub period: Duration,
    /// The timeout of one attempt.
    pub timeout: Duration,
    /// This many failures in a row count.
    pub failures_max: u32,
    /// This many successes in a row count.
    pub successes_min: u32,
}

/// How it is asked.
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
    /// It runs: for programs that listen nowhere.
    Running,
}

impl ProbeSpec {
    /// The readiness check of a ready instance; without a period Kubernetes' own, and then an instance that only has
    /// to listen is not checked.
    #[must_use]
    pub fn periodic(&self) -> Option<Self> {
        match (self.period.is_zero(), &self.check) {
            (true, ProbeCheck::Tcp | ProbeCheck::TcpAt { .. }) | (_, ProbeCheck::Running) => None,
            (true, _) => Some(Self { period: limits::PROBE_PERIOD, ..self.clone() }),
            (false, _) => Some(self.clone()),
        }
    }

    /// The readiness of a program that listens nowhere: it has run for [`limits::RUNNING_READY_AFTER`].
    #[must_use]
    pub fn running() -> Self {
        Self { initial_delay: limits::RUNNING_READY_AFTER, ..Self::single(ProbeCheck::Running) }
    }

    /// The default readiness probe: as soon as possible, once.
    #[must_use]
    pub fn single(check: ProbeCheck) -> Self {
        Self {
            check,
            port: None,
            initial_delay: Duration::ZERO,
            period: Duration::ZERO,
            timeout: limits::PROBE_TIMEOUT,
            failures_max: limits::PROBE_FAILURES_MAX,
            successes_min: 1,
        }
    }
}
