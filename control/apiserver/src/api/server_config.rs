//! The API server's view of the appliance that contains it.

use std::path::PathBuf;
use std::sync::Arc;

use super::{AuditLog, AuthenticationSources, Readiness};
use crate::instance_usage::UsageSource;
use crate::request_memory::RequestMemory;
use crate::streaming::instance_streams::InstanceStreams;

/// The API's view of the appliance that contains it.
#[derive(Debug, Default)]
pub struct ApiServerConfig {
    /// Where the runtime keeps what instances write; without it there are no logs.
    pub log_dir: Option<PathBuf>,
    /// Sources of authentication besides being on this host.
    pub authentication: AuthenticationSources,
    pub audit_log: Option<AuditLog>,
    /// The checks of `/readyz`; without them only the store.
    pub readiness: Option<Readiness>,
    /// Opens `exec`, `attach` and `port-forward`; without it there are no instances to open them into.
    pub instance_streams: Option<Arc<dyn InstanceStreams>>,
    /// Measures for `kubectl top`; without it there are no figures.
    pub usage: Option<Arc<dyn UsageSource>>,
    /// Counts what large requests give back.
    pub memory: Arc<RequestMemory>,
}
