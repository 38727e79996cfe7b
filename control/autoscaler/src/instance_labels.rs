//! Labels of an instance and its revision for the cores' request logs and metrics.

use std::sync::Arc;

use contract::load::{BackendLoad, RevisionLabels};
use contract::table::{InstanceStart, Protocol, StartupDuration};
use tokio::time::Instant;

use super::EndpointSink;
use super::instance::Instance;
use runtime::{InstanceSpec, pod_name};

/// The counters of `key`, which say whose they are.
pub(super) fn backend_load(key: &str, spec: &InstanceSpec, sink: &dyn EndpointSink) -> Arc<BackendLoad> {
    let load = sink.load(key);
    load.labels.get_or_init(|| {
        let (service, configuration) = (spec.service.as_str().into(), spec.configuration.as_str().into());
        Box::new(RevisionLabels { service, configuration })
    });
    load
}

impl Instance {
    /// Where it comes from; it is ready `now`.
    pub(super) fn endpoint_info(&self, found: Option<Protocol>, now: Instant) -> Box<InstanceStart> {
        let start = self.handle.spawned().map(|spawned| StartupDuration {
            spawn: spawned.duration_since(self.started),
            listen: now.duration_since(spawned),
        });
        Box::new(InstanceStart {
            pod: pod_name(&self.spec.revision, self.lineage).into(),
            start,
            found,
            unrestricted: false,
        })
    }
}
