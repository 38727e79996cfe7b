//! The inputs of a plan besides the Revision.

use std::path::Path;
use std::time::Duration;

use super::data_sources::RevisionDataSources;
use super::images::ImageStates;
use types::serving::annotations::RUNTIME_VOLUMES;
use types::serving::revision::Revision;
use types::settings::AutoscalerSettings;
use types::shared::annotation;

/// The host, the operator's settings, and what the Revision refers to.
#[derive(Debug, Clone, Copy)]
pub struct PlanInputs<'a> {
    /// Image references and the commands of this host that they run.
    pub images: &'a [(String, Vec<String>)],
    /// Images on this host; `None`: containers cannot run here.
    pub containers: Option<&'a ImageStates>,
    pub sources: &'a RevisionDataSources,
    /// Requests can come, or may come soon.
    pub reachable: bool,
    pub can_mount: bool,
    /// Holds the directories that outlive instances.
    pub state_root: Option<&'a Path>,
    /// Even so, instances have no `/dev` of their own.
    pub host_devices: bool,
    /// `autodetect-http2` in `config-features`.
    pub detect_http2: bool,
    /// `progress-deadline` in `config-deployment`: a start that takes longer has failed.
    pub progress_deadline: Duration,
    /// User and group of instances whose manifest names no user.
    pub default_user: Option<(u32, u32)>,
    /// Manifests come from authors that do not own this host.
    pub guarded: bool,
    pub autoscaler: &'a AutoscalerSettings,
}

/// Its author wants nothing to be mounted.
pub(crate) fn uses_volume_variable(revision: &Revision) -> bool {
    annotation(&revision.metadata, RUNTIME_VOLUMES) == Some("env")
}
