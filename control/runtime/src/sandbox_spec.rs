//! The confinement of an instance: decided by the appliance, carried out in the instance's own process.

use std::path::PathBuf;

use container::{BindMount, CgroupView, ContainerSpec};

use crate::InstanceCredentials;

/// The confinement of an instance, and its view of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SandboxSpec {
    /// Control groups to join, before anything else is done.
    pub(crate) cgroups: Vec<CgroupView>,
    /// Its `/etc/resolv.conf`.
    pub(crate) resolver: Option<PathBuf>,
    pub(crate) binds: Vec<BindMount>,
    /// Hidden paths.
    pub(crate) masks: Vec<PathBuf>,
    /// Visible paths inside of the hidden ones.
    pub(crate) unmasked: Vec<PathBuf>,
    /// Entered last, because it may be in a volume.
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) credentials: InstanceCredentials,
    /// Its host name, where it may set one: programs distinguish each other by it.
    pub(crate) hostname: Option<String>,
    pub(crate) read_only_root: bool,
    /// It has no `/dev` of its own.
    pub(crate) host_devices: bool,
    /// It is a container: then this says all but its control groups.
    pub(crate) container: Option<Box<ContainerSpec>>,
}
