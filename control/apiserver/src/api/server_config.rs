//! The appliance around the API, as far as the API needs it.

use std::path::PathBuf;
use std::sync::Arc;

use super::{AuditLog, AuthenticationSources, Readiness};
use crate::streaming::instance_streams::InstanceStreams;

/// What the API needs to know of the appliance around it.
#[derive(Debug, Default)]
pub struct ApiServerConfig {
    /// Where the runtime keeps what instances write; without it there are no logs.
    pub log_dir: Option<PathBuf>,
    /// Sources of authentication besides being on this host.
    pub authentication: AuthenticationSources,
    pub audit_log: Option<AuditLog>,
    /// What `/readyz` depends on; without it on the store alone.
    pub readiness: Option<Readiness>,
    /// Opens `exec`, `attach` and `port-forward`; without it there are no instances to open them into.
    pub instance_streams: Option<Arc<dyn InstanceStreams>>,
}
