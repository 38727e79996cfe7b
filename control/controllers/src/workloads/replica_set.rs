//! ReplicaSets: keeps as many Pods of a template as are wanted.

use futures_util::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use std::time::Duration;

use super::limits::BURST_PODS_MAX;
use super::owned_pods::{
    delete, from_template, is_active, is_orphan, owned_or_adopted, owned_with_labels, owner_item, ready_since, tell,
    write_status,
};
use crate::api::Error;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::event_recorder::EventSeverity;
use crate::work_queue::{ControllerKind, WorkItem};
use types::shared::{controller, name, namespace};

const KIND: ControllerKind = ControllerKind::new("ReplicaSet");

#[derive(Debug)]
pub struct ReplicaSetController;

impl Controller for ReplicaSetController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<ReplicaSet>(KIND);
        watches
            .enqueue::<Pod, _>(|change| newest(change).and_then(|pod| owner_item(KIND, "ReplicaSet", &pod.metadata)));
        // A Pod without an owner may be adopted. Pods of Revisions have one.
        watches.call::<Pod>(move |change| {
            let Some(pod) = newest(change).filter(|pod| controller(&pod.metadata).is_none()) else { return };
            for set in context.caches.replica_sets.list(namespace(&pod.metadata)) {
                if set.spec.as_ref().is_some_and(|spec| is_orphan(&pod.metadata, &spec.selector)) {
                    context.enqueue(WorkItem::new(KIND, namespace(&set.metadata), name(&set.metadata)));
                }
            }
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(set) = context.caches.replica_sets.get(&item.namespace, &item.name) else { return Ok(()) };
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let spec = set.spec.clone().unwrap_or_default();
    let labels = spec.selector.match_labels.as_ref();
    let pods: Vec<Pod> = owned_or_adopted(context, &*set, &spec.selector, is_active).await?;
    let active: Vec<&Pod> = pods.iter().filter(|pod| is_active(pod)).collect();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    if active.len() < wanted {
        let template = spec.template.clone().unwrap_or_default();
        let missing = (wanted - active.len()).min(BURST_PODS_MAX);
        let made = (0..missing).map(|_| async {
            let pod = context.create(&from_template(&*set, &template)).await?;
            Ok::<_, Error>(name(&pod.metadata).to_owned())
        });
        let made = try_join_all(made).await;
        let told = match &made {
            Ok(names) => {
                let names = names.join(", ");
                (EventSeverity::Normal, ("SuccessfulCreate", format!("Created pod: {names}")))
            }
            Err(why) => (EventSeverity::Warning, ("FailedCreate", format!("Error creating: {why}"))),
        };
        tell(context, &*set, told.0, told.1).await;
        made?;
    } else if active.len() > wanted {
        let mut surplus = active.clone();
        surplus.sort_by_key(|pod| removal_order(pod));
        for pod in surplus.into_iter().take((active.len() - wanted).min(BURST_PODS_MAX)) {
            delete(context, pod, None).await?;
            let gone = ("SuccessfulDelete", format!("Deleted pod: {}", name(&pod.metadata)));
            tell(context, &*set, EventSeverity::Normal, gone).await;
        }
    }
    let pods: Vec<Pod> = owned_with_labels(context, &set.metadata, labels).await?;
    let min_ready = Duration::from_secs(u64::try_from(spec.min_ready_seconds.unwrap_or(0)).unwrap_or(0));
    let (status, next) = status(&pods, min_ready, set.metadata.generation, Timestamp::now());
    if let Some(next) = next {
        context.queue.add_after_unless_sooner(item, next);
    }
    if set.status.as_ref() != Some(&status) {
        write_status(context, &ReplicaSet { status: Some(status), ..(*set).clone() }).await?;
    }
    Ok(())
}

/// Pods that are not ready go first, and of the others the youngest.
fn removal_order(pod: &Pod) -> (bool, std::cmp::Reverse<Option<Timestamp>>) {
    let created = pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
    (ready_since(pod).is_some(), std::cmp::Reverse(created))
}

/// The status of a set with these Pods, and when the next of them has been ready for long enough.
fn status(
    pods: &[Pod],
    min_ready: Duration,
    generation: Option<i64>,
    now: Timestamp,
) -> (ReplicaSetStatus, Option<Duration>) {
    let active = pods.iter().filter(|pod| is_active(pod));
    let ready: Vec<Timestamp> = active.clone().filter_map(ready_since).collect();
    let left = |since: &Timestamp| {
        let been = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
        min_ready.saturating_sub(been)
    };
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let available = ready.iter().filter(|since| left(since).is_zero()).count();
    let terminating = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
    let next = ready.iter().map(left).filter(|left| !left.is_zero()).min();
    let status = ReplicaSetStatus {
        replicas: count(active.clone().count()),
        fully_labeled_replicas: Some(count(active.count())),
        ready_replicas: Some(count(ready.len())),
        available_replicas: Some(count(available)),
        terminating_replicas: Some(count(terminating)),
        observed_generation: generation,
        conditions: None,
    };
    (status, next)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ready_since: Option<i64>) -> Pod {
        let at = Timestamp::from_second(ready_since.unwrap_or(0)).unwrap();
        let ready = json!({ "type": "Ready", "status": if ready_since.is_some() { "True" } else { "False" },
            "lastTransitionTime": at.to_string() });
        serde_json::from_value(json!({ "status": { "phase": "Running", "conditions": [ready] } })).unwrap()
    }

    #[test]
    fn ready_pod_is_available_after_min_ready_seconds() {
        let now = Timestamp::from_second(100).unwrap();
        let pods = [pod(Some(80)), pod(Some(95)), pod(None)];
        let (status, next) = status(&pods, Duration::from_secs(10), Some(3), now);
        assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (3, Some(2), Some(1)));
        assert_eq!(next, Some(Duration::from_secs(5)));
    }

    #[test]
    fn unready_pods_are_removed_first() {
        assert!(removal_order(&pod(None)) < removal_order(&pod(Some(1))));
    }
}
