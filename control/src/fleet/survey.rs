//! The fleet in figures, for metrics: what the scaler sees and says of each revision, and what runs.

use std::sync::{Arc, PoisonError};

use dataplane::load::BackendLoad;
use dataplane::outcomes::Durations;

use super::crew::Crew;
use super::decide::{Decision, View, excess};
use super::{Fleet, Known, Metric, Plan, Seen, Stage};

/// What the scaler last saw and said.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signs {
    pub metric: Metric,
    /// How much of it one instance is wanted to have.
    pub target: f64,
    /// Over the stable window, of all instances together.
    pub stable: f64,
    /// ... and over the panic window.
    pub panic: f64,
    pub panics: bool,
    /// What runs has room for so much more than the burst that is wanted.
    pub excess: f64,
    /// Instances, without warm spares.
    pub decided: u32,
}

impl Signs {
    pub(super) fn of(plan: &Plan, view: &View, decision: &Decision, panics: bool) -> Self {
        let (metric, target, excess) = (plan.metric, plan.target, excess(plan, view));
        let View { stable, panic, .. } = *view;
        Self { metric, target, stable, panic, panics, excess, decided: decision.count }
    }
}

impl Crew {
    pub(super) fn figures(&self) -> Figures {
        let awake = self.desired > 0 || self.running() > 0;
        Figures {
            load: Arc::clone(&self.load),
            is_limited: self.plan.concurrency_max > 0,
            // Nobody looks at the windows of one that sleeps, and nothing is asked of it.
            signs: if awake { self.signs } else { Signs { stable: 0.0, panic: 0.0, ..self.signs } },
        }
    }
}

/// What a crew is in figures.
#[derive(Debug, Clone)]
pub struct Figures {
    pub load: Arc<BackendLoad>,
    /// Its instances take so many requests at a time and no more.
    pub is_limited: bool,
    pub signs: Signs,
}

/// One revision.
#[derive(Debug, Clone)]
pub struct Surveyed {
    pub key: Arc<str>,
    pub figures: Figures,
    /// Instances that are to run.
    pub desired: u32,
    pub pods: Pods,
}

/// Instances by what they do, as upstream counts Pods: who starts or ends is not ready either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pods {
    pub ready: u32,
    pub not_ready: u32,
    pub pending: u32,
    pub terminating: u32,
}

impl Pods {
    fn of(seen: &[Seen]) -> Self {
        let mut pods = Self::default();
        for one in seen {
            let count = match one.stage {
                Stage::Frozen => continue, // no Pod of upstream stands still
                Stage::Ready => &mut pods.ready,
                _ => &mut pods.not_ready,
            };
            *count += 1;
            match one.stage {
                Stage::Starting => pods.pending += 1,
                Stage::Ending => pods.terminating += 1,
                _ => {}
            }
        }
        pods
    }
}

impl Fleet {
    /// At most `most` revisions, those that run before those that sleep; and how many are left out.
    #[must_use]
    pub fn survey(&self, most: usize) -> (Vec<Surveyed>, usize) {
        let known = self.board.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.iter().collect();
        let awake = |one: &Known| one.observed.desired > 0 || !one.seen.is_empty();
        all.sort_unstable_by(|one, other| (awake(other.1), one.0).cmp(&(awake(one.1), other.0)));
        let left_out = all.len().saturating_sub(most);
        let told = all.into_iter().take(most).map(|(key, one)| Surveyed {
            key: Arc::clone(key),
            figures: one.figures.clone(),
            desired: one.observed.desired,
            pods: Pods::of(&one.seen),
        });
        (told.collect(), left_out)
    }

    /// How long it took, each second, to read the counters of a revision that runs.
    #[must_use]
    pub fn looks(&self) -> &Durations {
        &self.board.looks
    }

    /// Whether the fleet hears what it is told.
    #[must_use]
    pub fn hears(&self) -> bool {
        !self.mail.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn instances_count_as_upstreams_pods() {
        let at = Timestamp::UNIX_EPOCH;
        let seen = |stage| Seen {
            id: 1,
            line: 1,
            began: at,
            restarts: 0,
            stage,
            address: None,
            started: at,
            last: None,
            beside: Vec::new(),
            hindrance: None,
        };
        let stages = [
            Stage::Ready,
            Stage::Ready,
            Stage::Starting,
            Stage::Unready,
            Stage::Waiting,
            Stage::Ending,
            Stage::Frozen,
        ];
        let pods = Pods::of(&stages.map(seen));
        assert_eq!(pods, Pods { ready: 2, not_ready: 4, pending: 1, terminating: 1 });
    }
}
