//! One instance of a revision, and its state.

use std::sync::Arc;
use std::time::Duration;

use contract::table::Endpoint;
use tokio::time::Instant;

use super::instance_status::{InstancePhase, InstanceSnapshot};
use super::limits::{DRAIN_CHECK_INTERVAL, DRAIN_TIMEOUT, WEBSOCKET_DRAIN_TIMEOUT};
use runtime::{InstanceHandle, InstanceSpec, SidecarStatus};

pub(super) struct Instance {
    pub(super) id: u64,
    pub(super) lineage: u64,
    /// The reason of its start.
    pub(super) spec: Arc<InstanceSpec>,
    pub(super) started: Instant,
    pub(super) handle: Box<dyn InstanceHandle>,
    pub(super) phase: LifecyclePhase,
    /// There from the first readiness on.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    pub(super) sidecars: Vec<SidecarStatus>,
    /// Why it is not ready, as far as it is known.
    pub(super) not_ready_reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecyclePhase {
    Starting,
    Ready {
        since: Instant,
    },
    /// It refused a connection or a probe: no requests until it proved well again.
    Suspect {
        since: Instant,
    },
    /// Out of the table; ends when its last request has ([`Member::has_drained`]).
    Draining {
        since: Instant,
        look_at: Instant,
        /// A client deleted it, or it was suspect: it is not reused, and not frozen.
        for_good: bool,
    },
    /// Stands still until it is wanted again.
    Frozen,
    Stopping,
}

impl Instance {
    /// Its published snapshot.
    pub(super) fn snapshot(&self) -> InstanceSnapshot {
        let stage = match self.phase {
            LifecyclePhase::Starting => InstancePhase::Starting,
            LifecyclePhase::Ready { .. } => InstancePhase::Ready,
            LifecyclePhase::Suspect { .. } => InstancePhase::Unready,
            LifecyclePhase::Frozen => InstancePhase::Frozen,
            LifecyclePhase::Draining { .. } | LifecyclePhase::Stopping => InstancePhase::Terminating,
        };
        let address = self.endpoint.as_ref().and_then(|endpoint| endpoint.address.socket_addr());
        let (sidecar_states, not_ready_reason) = (self.sidecars.clone(), self.not_ready_reason.clone());
        InstanceSnapshot { id: self.id, phase: stage, address, sidecars: sidecar_states, not_ready_reason }
    }

    pub(super) fn stop(&mut self) {
        if self.phase != LifecyclePhase::Stopping {
            self.phase = LifecyclePhase::Stopping;
            self.handle.stop();
        }
    }

    /// Out of the table, and to end when its last request has; at once if it takes none and has none. One that was doubted goes for
    /// good, because it may be unhealthy.
    pub(super) fn drain(&mut self, now: Instant, for_good: bool) {
        let draining =
            |for_good| LifecyclePhase::Draining { since: now, look_at: now + DRAIN_CHECK_INTERVAL, for_good };
        match self.phase {
            LifecyclePhase::Ready { .. } => self.phase = draining(for_good),
            LifecyclePhase::Suspect { .. } if self.in_flight() > 0 => self.phase = draining(true),
            LifecyclePhase::Draining { since, look_at, for_good: already } => {
                self.phase = LifecyclePhase::Draining { since, look_at, for_good: already || for_good };
            }
            LifecyclePhase::Starting
            | LifecyclePhase::Suspect { .. }
            | LifecyclePhase::Frozen
            | LifecyclePhase::Stopping => self.stop(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !matches!(self.phase, LifecyclePhase::Draining { .. } | LifecyclePhase::Frozen | LifecyclePhase::Stopping)
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.in_flight())
    }

    /// A draining one waits for its requests, and for WebSockets only so long; for nothing beyond [`DRAIN_MAX`].
    pub(super) fn has_drained(&self, waited: Duration) -> bool {
        let requests = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.requests());
        self.in_flight() == 0 || requests == 0 && waited >= WEBSOCKET_DRAIN_TIMEOUT || waited >= DRAIN_TIMEOUT
    }

    /// Unready ones go before ready ones, idle ones before busy ones, young ones before old ones.
    pub(super) fn removal_cost(&self) -> (bool, u32, std::cmp::Reverse<u64>) {
        (matches!(self.phase, LifecyclePhase::Ready { .. }), self.in_flight(), std::cmp::Reverse(self.id))
    }
}
