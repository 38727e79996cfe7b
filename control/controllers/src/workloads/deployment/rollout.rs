//! The steps of a rollout: values in, values out.

use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use types::shared::name;
use types::workloads::deployment::share;

/// A set that is to have another number of Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScaleStep {
    pub(super) set: String,
    pub(super) replicas: i32,
}

/// What a rollout keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RolloutLimits {
    pub(super) replicas: i32,
    /// Pods beyond that number.
    pub(super) surge: i32,
    /// Pods below it that are available.
    pub(super) unavailable: i32,
}

impl RolloutLimits {
    pub(super) fn of(spec: &DeploymentSpec) -> Self {
        let replicas = spec.replicas.unwrap_or(1);
        let bounds = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
        let quarter = IntOrString::String("25%".into());
        let of =
            |bound: Option<IntOrString>| share(&bound.unwrap_or_else(|| quarter.clone()), replicas).unwrap_or((0, 0));
        let ((_, surge), (unavailable, _)) = (of(bounds.max_surge), of(bounds.max_unavailable));
        // Both zero would let nothing move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable.min(replicas) };
        Self { replicas, surge, unavailable }
    }
}

fn wanted(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

fn step(set: &ReplicaSet, replicas: i32) -> Option<ScaleStep> {
    (wanted(set) != replicas).then(|| ScaleStep { set: name(&set.metadata).to_owned(), replicas })
}

/// A paused Deployment starts nothing new; its number still counts for the set that has its Pods.
pub(super) fn while_paused(limits: RolloutLimits, current: &ReplicaSet, others: &[ReplicaSet]) -> Vec<ScaleStep> {
    let all = std::iter::once(current).chain(others);
    let with_pods: Vec<&ReplicaSet> = all.filter(|set| wanted(set) > 0).collect();
    match with_pods.as_slice() {
        [only] => step(only, limits.replicas).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Nothing of the new template before the last Pod of others is gone: `leaving` are still there.
pub(super) fn recreate(
    limits: RolloutLimits,
    current: &ReplicaSet,
    others: &[ReplicaSet],
    leaving: usize,
) -> Vec<ScaleStep> {
    let down: Vec<_> = others.iter().filter_map(|set| step(set, 0)).collect();
    if down.is_empty() && leaving == 0 { step(current, limits.replicas).into_iter().collect() } else { down }
}

/// Pods of the new template come as the surge allows, and those of others go as enough are available.
pub(super) fn rolling_update(limits: RolloutLimits, current: &ReplicaSet, others: &[ReplicaSet]) -> Vec<ScaleStep> {
    let mut steps = Vec::new();
    let old_total: i32 = others.iter().map(wanted).sum();
    let own = wanted(current);
    let room = (limits.replicas.saturating_add(limits.surge) - old_total - own).max(0);
    let grown = if own > limits.replicas { limits.replicas } else { (own + room).min(limits.replicas) };
    steps.extend(step(current, grown));
    // What is not available of the new template counts as if it were not there.
    let missing = (own - available(current)).max(0);
    let mut removable = old_total + own - (limits.replicas - limits.unavailable) - missing;
    let mut left: Vec<(&ReplicaSet, i32)> = others.iter().map(|set| (set, wanted(set))).collect();
    left.sort_by_key(|(set, _)| set.metadata.creation_timestamp.as_ref().map(|at| at.0));
    // Those that are not available go first: they help no request.
    for (set, count) in &mut left {
        let useless = (*count - available(set)).clamp(0, removable.max(0));
        (*count, removable) = (*count - useless, removable - useless);
    }
    let all_available: i32 = available(current) + others.iter().map(available).sum::<i32>();
    let mut removable = (all_available - (limits.replicas - limits.unavailable)).max(0);
    for (set, count) in &mut left {
        let gone = (*count).min(removable).min(available(set));
        (*count, removable) = (*count - gone, removable - gone);
    }
    steps.extend(left.into_iter().filter_map(|(set, count)| step(set, count)));
    steps
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(name: &str, replicas: i32, available: i32) -> ReplicaSet {
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "replicas": replicas, "selector": {} },
            "status": { "replicas": replicas, "availableReplicas": available } }))
        .unwrap()
    }

    fn limits(replicas: i32, surge: i32, unavailable: i32) -> RolloutLimits {
        RolloutLimits { replicas, surge, unavailable }
    }

    fn told(steps: Vec<ScaleStep>) -> Vec<(String, i32)> {
        steps.into_iter().map(|step| (step.set, step.replicas)).collect()
    }

    #[test]
    fn rolling_update_keeps_to_surge_and_availability() {
        // One beyond the number may come, and none may be missing.
        let first = rolling_update(limits(3, 1, 0), &set("new", 0, 0), &[set("old", 3, 3)]);
        assert_eq!(told(first), [("new".to_owned(), 1)]);
        let waits = rolling_update(limits(3, 1, 0), &set("new", 1, 0), &[set("old", 3, 3)]);
        assert_eq!(told(waits), []);
        let next = rolling_update(limits(3, 1, 0), &set("new", 1, 1), &[set("old", 3, 3)]);
        assert_eq!(told(next), [("old".to_owned(), 2)]);
        let last = rolling_update(limits(3, 1, 0), &set("new", 3, 3), &[set("old", 1, 1)]);
        assert_eq!(told(last), [("old".to_owned(), 0)]);
    }

    #[test]
    fn rolling_update_without_surge_removes_first() {
        let first = rolling_update(limits(2, 0, 1), &set("new", 0, 0), &[set("old", 2, 2)]);
        assert_eq!(told(first), [("old".to_owned(), 1)]);
        let next = rolling_update(limits(2, 0, 1), &set("new", 0, 0), &[set("old", 1, 1)]);
        assert_eq!(told(next), [("new".to_owned(), 1)]);
    }

    #[test]
    fn unavailable_pods_of_old_templates_go_first() {
        let steps = rolling_update(limits(2, 1, 0), &set("new", 1, 0), &[set("broken", 1, 0), set("old", 2, 2)]);
        assert_eq!(told(steps), [("broken".to_owned(), 0)]);
    }

    #[test]
    fn recreate_waits_for_the_last_pod_of_others() {
        let (new, old) = (set("new", 0, 0), set("old", 2, 2));
        assert_eq!(told(recreate(limits(2, 0, 0), &new, &[old], 2)), [("old".to_owned(), 0)]);
        assert_eq!(told(recreate(limits(2, 0, 0), &new, &[set("old", 0, 0)], 1)), []);
        assert_eq!(told(recreate(limits(2, 0, 0), &new, &[set("old", 0, 0)], 0)), [("new".to_owned(), 2)]);
    }

    #[test]
    fn number_of_a_settled_deployment_is_scaled_both_ways() {
        assert_eq!(told(rolling_update(limits(5, 1, 0), &set("new", 2, 2), &[])), [("new".to_owned(), 5)]);
        assert_eq!(told(rolling_update(limits(5, i32::MAX, 0), &set("new", 2, 2), &[])), [("new".to_owned(), 5)]);
        assert_eq!(told(rolling_update(limits(1, 1, 0), &set("new", 2, 2), &[])), [("new".to_owned(), 1)]);
        assert_eq!(told(rolling_update(limits(0, 0, 1), &set("new", 2, 2), &[])), [("new".to_owned(), 0)]);
    }
}
