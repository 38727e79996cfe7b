//! One instance of a revision, and what it is doing.

use std::sync::Arc;
use std::time::Duration;

use dataplane::table::Endpoint;
use tokio::time::Instant;

use super::limits::{DRAIN_MAX, DRAIN_STEP, DRAIN_TUNNELS};
use super::seen::{Doing, Stage};
use crate::runtime::{Beside, Instance, InstanceSpec};

pub(super) struct Member {
    pub(super) id: u64,
    pub(super) line: u64,
    /// What it was started by.
    pub(super) spec: Arc<InstanceSpec>,
    pub(super) started: Instant,
    pub(super) instance: Box<dyn Instance>,
    pub(super) phase: Phase,
    /// There from the first readiness on.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    pub(super) beside: Vec<Beside>,
    /// Why it is not ready, as far as it is known.
    pub(super) hindrance: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Ready {
        since: Instant,
    },
    /// It refused a connection or a probe: no requests until it proved well again.
    Doubted {
        since: Instant,
    },
    /// Out of the table; ends when its last request has ([`Member::has_drained`]).
    Draining {
        since: Instant,
        look_at: Instant,
        /// Somebody deleted it, or it was doubted: it does not come back, and is not frozen.
        for_good: bool,
    },
    /// Stands still until it is wanted again.
    Frozen,
    Stopping,
}

impl Member {
    /// What it shows to others.
    pub(super) fn doing(&self) -> Doing {
        let stage = match self.phase {
            Phase::Starting => Stage::Starting,
            Phase::Ready { .. } => Stage::Ready,
            Phase::Doubted { .. } => Stage::Unready,
            Phase::Frozen => Stage::Frozen,
            Phase::Draining { .. } | Phase::Stopping => Stage::Ending,
        };
        let address = self.endpoint.as_ref().map(|endpoint| endpoint.address);
        let (beside, hindrance) = (self.beside.clone(), self.hindrance.clone());
        Doing { id: self.id, stage, address, beside, hindrance }
    }

    pub(super) fn stop(&mut self) {
        if self.phase != Phase::Stopping {
            self.phase = Phase::Stopping;
            self.instance.stop();
        }
    }

    /// Out of the table, and to end when its last request has; at once if it takes none and has none. One that was doubted goes for
    /// good: nobody knows that it is well.
    pub(super) fn drain(&mut self, now: Instant, for_good: bool) {
        let draining = |for_good| Phase::Draining { since: now, look_at: now + DRAIN_STEP, for_good };
        match self.phase {
            Phase::Ready { .. } => self.phase = draining(for_good),
            Phase::Doubted { .. } if self.in_flight() > 0 => self.phase = draining(true),
            Phase::Draining { since, look_at, for_good: already } => {
                self.phase = Phase::Draining { since, look_at, for_good: already || for_good };
            }
            Phase::Starting | Phase::Doubted { .. } | Phase::Frozen | Phase::Stopping => self.stop(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Draining { .. } | Phase::Frozen | Phase::Stopping)
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.in_flight())
    }

    /// A draining one waits for its requests, and for WebSockets only so long; for nothing beyond [`DRAIN_MAX`].
    pub(super) fn has_drained(&self, waited: Duration) -> bool {
        let requests = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.load.requests());
        self.in_flight() == 0 || requests == 0 && waited >= DRAIN_TUNNELS || waited >= DRAIN_MAX
    }

    /// Unready ones go before ready ones, idle ones before busy ones, young ones before old ones.
    pub(super) fn cost(&self) -> (bool, u32, std::cmp::Reverse<u64>) {
        (matches!(self.phase, Phase::Ready { .. }), self.in_flight(), std::cmp::Reverse(self.id))
    }
}
