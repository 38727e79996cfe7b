//! The autoscaler's metrics: the scaler's inputs and decisions for each revision, and its instances.

use std::sync::{Arc, PoisonError};

use contract::load::BackendLoad;
use contract::request_histograms::DurationHistogram;

use super::decide::{ScalingDecision, ScalingInputs, excess_burst_capacity};
use super::{Autoscaler, InstancePhase, InstanceStatus, RevisionPlan, RevisionSnapshot, ScalingMetric};

/// The last inputs and decision of the scaler.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ScalingSignals {
    pub metric: ScalingMetric,
    /// How much of it one instance is wanted to have.
    pub target: f64,
    /// Over the stable window, of all instances together.
    pub stable: f64,
    /// ... and over the panic window.
    pub panic: f64,
    pub is_panicking: bool,
    /// How far the capacity of running instances exceeds the requested burst.
    pub excess_burst_capacity: f64,
    /// Instances, without warm spares.
    pub desired: u32,
}

impl ScalingSignals {
    pub(super) fn of(plan: &RevisionPlan, view: &ScalingInputs, decision: &ScalingDecision, panics: bool) -> Self {
        let (metric, target, excess) = (plan.metric, plan.target, excess_burst_capacity(plan, view));
        let ScalingInputs { stable, panic, .. } = *view;
        Self {
            metric,
            target,
            stable,
            panic,
            is_panicking: panics,
            excess_burst_capacity: excess,
            desired: decision.count,
        }
    }
}

/// The figures of one revision scaler.
#[derive(Debug, Clone)]
pub struct ScalingFigures {
    pub load: Arc<BackendLoad>,
    /// Concurrency limit of each instance.
    pub is_limited: bool,
    pub signals: ScalingSignals,
}

/// One revision.
#[derive(Debug, Clone)]
pub struct RevisionMetrics {
    pub key: Arc<str>,
    pub figures: ScalingFigures,
    /// Instances that are to run.
    pub desired: u32,
    pub pod_counts: PodCounts,
}

/// Instances by phase, as upstream counts Pods: an instance that starts or ends is not ready either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodCounts {
    pub ready: u32,
    pub not_ready: u32,
    pub pending: u32,
    pub terminating: u32,
}

impl PodCounts {
    fn count(seen: &[InstanceStatus]) -> Self {
        let mut pods = Self::default();
        for one in seen {
            let count = match one.phase {
                InstancePhase::Frozen => continue, // no Pod of upstream stands still
                InstancePhase::Ready => &mut pods.ready,
                _ => &mut pods.not_ready,
            };
            *count += 1;
            match one.phase {
                InstancePhase::Starting => pods.pending += 1,
                InstancePhase::Terminating => pods.terminating += 1,
                _ => {}
            }
        }
        pods
    }
}

impl Autoscaler {
    /// At most `most` revisions, those that run before those that sleep; and how many are left out.
    #[must_use]
    pub fn revision_metrics(&self, most: usize) -> (Vec<RevisionMetrics>, usize) {
        let known = self.snapshot.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.iter().collect();
        let awake = |one: &RevisionSnapshot| one.status.desired > 0 || !one.instances.is_empty();
        all.sort_unstable_by(|one, other| (awake(other.1), one.0).cmp(&(awake(one.1), other.0)));
        let left_out = all.len().saturating_sub(most);
        let reported = all.into_iter().take(most).map(|(key, one)| RevisionMetrics {
            key: Arc::clone(key),
            figures: one.figures.clone(),
            desired: one.status.desired,
            pod_counts: PodCounts::count(&one.instances),
        });
        (reported.collect(), left_out)
    }

    /// How long it took, each second, to read the counters of a revision that runs.
    #[must_use]
    pub fn sample_durations(&self) -> &DurationHistogram {
        &self.snapshot.sample_durations
    }

    /// Whether the autoscaler's task runs and receives messages.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.messages.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn instances_count_as_upstreams_pods() {
        let at = Timestamp::UNIX_EPOCH;
        let seen = |stage| InstanceStatus {
            id: 1,
            lineage: 1,
            created_at: at,
            restarts: 0,
            phase: stage,
            address: None,
            started_at: at,
            last_termination: None,
            sidecars: Vec::new(),
            not_ready_reason: None,
        };
        let stages = [
            InstancePhase::Ready,
            InstancePhase::Ready,
            InstancePhase::Starting,
            InstancePhase::Unready,
            InstancePhase::BackOff,
            InstancePhase::Terminating,
            InstancePhase::Frozen,
        ];
        let pods = PodCounts::count(&stages.map(seen));
        assert_eq!(pods, PodCounts { ready: 2, not_ready: 4, pending: 1, terminating: 1 });
    }
}
