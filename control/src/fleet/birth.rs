//! What cores are told of an instance and its revision, for those who read of their requests.

use std::sync::Arc;

use dataplane::load::{BackendLoad, Whose};
use dataplane::table::{Born, Protocol, Start};
use tokio::time::Instant;

use super::crew::Hands;
use super::member::Member;
use crate::runtime::{InstanceSpec, pod_name};

/// The counters of `key`, which say whose they are.
pub(super) fn load(key: &str, spec: &InstanceSpec, hands: &Hands) -> Arc<BackendLoad> {
    let load = hands.sink.load(key);
    load.whose.get_or_init(|| {
        let (service, configuration) = (spec.service.as_str().into(), spec.configuration.as_str().into());
        Box::new(Whose { service, configuration })
    });
    load
}

impl Member {
    /// Where it comes from; it is ready `now`.
    pub(super) fn born(&self, found: Option<Protocol>, now: Instant) -> Box<Born> {
        let start = self.instance.spawned().map(|spawned| Start {
            spawn: spawned.duration_since(self.started),
            listen: now.duration_since(spawned),
        });
        Box::new(Born { pod: pod_name(&self.spec.revision, self.line).into(), start, found })
    }
}
