//! Instances that avoid cold starts: spare ones beyond the desired count, and frozen ones.
//!
//! A frozen instance counts as not running: it is not part of the capacity that the scaler compares with the demand. When more
//! instances are needed, thawing comes before starting.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use super::instance::LifecyclePhase;
use super::revision_scaler::RevisionScaler;

impl RevisionScaler {
    /// The scaler's count with the warm spares on top, if any request can come.
    pub(super) fn add_warm_spares(&self, decided: u32) -> u32 {
        let is_wanted = self.plan.reachable && !self.retired && !self.activation.exceeded;
        let spare = if is_wanted { self.plan.spare.warm } else { 0 };
        let most = if self.plan.max_scale == 0 { u32::MAX } else { self.plan.max_scale };
        decided.max(decided.saturating_add(spare).min(most))
    }

    /// Instances that may stand still. None of a version that no request can reach.
    pub(super) fn frozen_max(&self) -> u32 {
        if self.retired || !self.plan.reachable { 0 } else { self.plan.spare.frozen }
    }

    /// Brings back up to `wanted` frozen instances; how many.
    pub(super) fn thaw(&mut self, wanted: u32, now: Instant) -> u32 {
        let mut thawed = 0;
        for member in self.instances.iter_mut().filter(|member| member.phase == LifecyclePhase::Frozen) {
            if thawed == wanted {
                break;
            }
            if Arc::ptr_eq(&member.spec, &self.plan.instance) {
                member.handle.thaw();
                member.phase = LifecyclePhase::Ready { since: now };
                thawed += 1;
            }
        }
        if thawed > 0 {
            self.record_demand(now); // like new ones they stay for one idle window
            self.last_failure = None;
        }
        thawed
    }

    /// Ends frozen instances that are of no use any more: too many, or of another program.
    pub(super) fn stop_unused_frozen(&mut self) {
        let mut capacity = self.frozen_max();
        for member in self.instances.iter_mut().filter(|member| member.phase == LifecyclePhase::Frozen) {
            if capacity > 0 && Arc::ptr_eq(&member.spec, &self.plan.instance) {
                capacity -= 1;
            } else {
                member.stop();
            }
        }
        let frozen = self.count(|phase| phase == LifecyclePhase::Frozen);
        self.load.frozen.store(frozen, Relaxed);
    }
}
