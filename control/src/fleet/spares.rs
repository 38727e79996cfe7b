//! Instances against cold starts: those beyond the count that is wanted, and those that stand still.
//!
//! A frozen instance counts as not running: it has no part in what the scaler compares the demand with. When more
//! are wanted, thawing comes before starting.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use super::crew::Crew;
use super::member::Phase;

impl Crew {
    /// The scaler's count with the warm spares on top, if any request can come.
    pub(super) fn with_warm(&self, decided: u32) -> u32 {
        let is_wanted = self.plan.reachable && !self.retired && !self.activation.exceeded;
        let spare = if is_wanted { self.plan.spare.warm } else { 0 };
        let most = if self.plan.max == 0 { u32::MAX } else { self.plan.max };
        decided.max(decided.saturating_add(spare).min(most))
    }

    /// Instances that may stand still. None of a version that no request can reach.
    pub(super) fn frozen_max(&self) -> u32 {
        if self.retired || !self.plan.reachable { 0 } else { self.plan.spare.frozen }
    }

    /// Brings back up to `wanted` frozen instances; how many.
    pub(super) fn thaw(&mut self, wanted: u32, now: Instant) -> u32 {
        let mut thawed = 0;
        for member in self.members.iter_mut().filter(|member| member.phase == Phase::Frozen) {
            if thawed == wanted {
                break;
            }
            if Arc::ptr_eq(&member.spec, &self.plan.instance) {
                member.instance.thaw();
                member.phase = Phase::Ready { since: now };
                thawed += 1;
            }
        }
        if thawed > 0 {
            self.asked(now); // like new ones they stay for one idle window
            self.failure = None;
        }
        thawed
    }

    /// Ends frozen instances that are of no use any more: too many, or of another program.
    pub(super) fn let_spares_go(&mut self) {
        let mut room = self.frozen_max();
        for member in self.members.iter_mut().filter(|member| member.phase == Phase::Frozen) {
            if room > 0 && Arc::ptr_eq(&member.spec, &self.plan.instance) {
                room -= 1;
            } else {
                member.stop();
            }
        }
        let frozen = self.count(|phase| phase == Phase::Frozen);
        self.load.frozen.store(frozen, Relaxed);
    }
}
