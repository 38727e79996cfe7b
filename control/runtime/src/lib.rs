#![forbid(unsafe_code)]
//! The instance runtime: an instance is a started program that answers requests at an address.
//!
//! [`Runtime`] is the boundary between "how many" (the autoscaler) and "how". Starting returns at once; the
//! instance's state is reported through its [`InstanceReporter`]: `Ready` and `Unready`, in the end exactly one
//! `Gone`. The process runtime is the implementation for programs of this host; see [`ProcessRuntime`]. Deliberately
//! Out of scope: when to start or stop (autoscaler), which requests go where (cores).

pub mod capabilities;
mod cgroup;
mod cleanup;
pub mod dns;
pub mod environment;
mod host;
mod instance_ids;
mod launch;
pub mod limits;
mod logs;
mod mounts;
mod names;
mod ports;
mod probes;
mod process;
mod remove_tree;
mod report;
mod resources;
mod restart;
mod sandbox_spec;
pub mod sessions;
mod spec;
mod supervisor;
pub mod usage;
mod user_ids;
pub mod volumes;

pub use cleanup::kill_leftovers;
pub use environment::{PLATFORM_VARIABLES, SEARCH_PATH};
pub use host::HostConfig;
pub use instance_ids::InstanceIds;
pub use launch::{InitProgram, init};
pub use logs::OutputTally;
pub use mounts::may_mount;
pub use names::{deployment_name, pod_name};
pub use ports::InstancePorts;
pub use remove_tree::remove_tree;
pub use report::{ExitCause, InstanceExit, InstanceHandle, InstanceReport, InstanceReporter, Runtime, SidecarStatus};
pub use resources::ResourceLimits;
pub use restart::RestartPolicy;
pub use spec::{
    ContainerImage, InstanceCredentials, InstanceSpec, PodIdentity, ProbeCheck, ProbeSpec, Sidecar,
    TerminationMessagePath,
};
pub use supervisor::ProcessRuntime;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An instance of `hello-00001` that runs `command`.
    pub(crate) fn spec(command: &[&str]) -> InstanceSpec {
        InstanceSpec {
            pod: None,
            image: None,
            namespace: "default".into(),
            revision: "hello-00001".into(),
            service: "hello".into(),
            configuration: "hello-conf".into(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            env: Vec::new(),
            port: 8080,
            other_ports: Vec::new(),
            working_dir: None,
            volumes: Vec::new(),
            mounts: Vec::new(),
            reload_volume: None,
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
            restart: RestartPolicy::default(),
        }
    }
}
