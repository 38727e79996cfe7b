//! The specification of a container: written by the appliance, read in the container's own process.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::path_text;
use crate::user::UserSpec;

/// One container, but for its command and its variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerSpec {
    /// The unpacked layers of its image; the last one is the top.
    #[serde(with = "path_text")]
    pub layers: Vec<PathBuf>,
    /// An empty folder of its own, on a file system that overlayfs can write to. It is never used twice.
    #[serde(with = "path_text")]
    pub scratch: PathBuf,
    /// Volumes, at their paths inside.
    pub mounts: Vec<BindMount>,
    /// Its `/etc/resolv.conf`; without it, the host's.
    #[serde(with = "path_text")]
    pub resolver: Option<PathBuf>,
    pub hostname: String,
    /// Its own control groups, for reading.
    pub cgroups: Vec<CgroupView>,
    /// Nothing but volumes and `/tmp` can be written to.
    pub read_only_root: bool,
    /// Made if it is missing.
    #[serde(with = "path_text")]
    pub working_dir: Option<PathBuf>,
    pub user: UserSpec,
    /// With a user namespace: the host's id of the root inside. The host's next 65,535 ids follow.
    pub first_host_id: Option<u32>,
    /// Its capabilities, as bits (capabilities(7)).
    pub capabilities: u64,
    /// The parent's process, as the parent calls it. The container ends if that has ended meanwhile.
    pub parent: i32,
}

/// A folder or file of the host that a container sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMount {
    #[serde(with = "path_text")]
    pub source: PathBuf,
    /// Only this file or folder below `source`, and never one outside of it.
    #[serde(default, with = "path_text")]
    pub sub_path: Option<PathBuf>,
    #[serde(with = "path_text")]
    pub target: PathBuf,
    pub read_only: bool,
    /// It belongs to the container's user from the start on.
    #[serde(default)]
    pub is_own: bool,
}

/// A control group, and where programs look for its hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupView {
    #[serde(with = "path_text")]
    pub folder: PathBuf,
    #[serde(with = "path_text")]
    pub mount_point: PathBuf,
}
