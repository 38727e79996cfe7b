//! What an instance is confined to: decided by the appliance, carried out in the instance's own process.

use std::path::PathBuf;

use container::{BindMount, CgroupView, ContainerSpec};

use crate::InstanceCredentials;

/// What an instance is confined to, and what it sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SandboxSpec {
    /// Control groups to join, before anything else is done.
    pub(crate) cgroups: Vec<CgroupView>,
    /// What it is to find as its `/etc/resolv.conf`.
    pub(crate) resolver: Option<PathBuf>,
    pub(crate) binds: Vec<BindMount>,
    /// What it is not to see.
    pub(crate) masks: Vec<PathBuf>,
    /// What it sees all the same, inside of those.
    pub(crate) unmasked: Vec<PathBuf>,
    /// Entered last, because it may be in a volume.
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) credentials: InstanceCredentials,
    /// What it calls itself, where it may: by this, programs tell each other apart.
    pub(crate) hostname: Option<String>,
    pub(crate) read_only_root: bool,
    /// It has no `/dev` of its own.
    pub(crate) host_devices: bool,
    /// It is a container: then this says all but its control groups.
    pub(crate) container: Option<Box<ContainerSpec>>,
}
