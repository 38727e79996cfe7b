//! A Revision's PodAutoscaler and Metric: created with it, and updated with its settings and its scale.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;

use super::scale::ScalingConfig;
use crate::api::is_not_found;
use crate::api::{Error, NamespacedObject, now};
use crate::context::ControllerContext;
use crate::field_managers;
use crate::owned_child::owner_references;
use types::autoscaling::metric::{self, Metric, MetricSpec, MetricStatus};
use types::autoscaling::pod_autoscaler::{
    ACTIVE, CONDITIONS, PodAutoscaler, PodAutoscalerSpec, PodAutoscalerStatus, SCALE_TARGET_INITIALIZED, SKS_READY,
    ScaleTarget,
};
use types::serving::annotations::{AUTOSCALING, REVISION, REVISION_UID, ROUTING_STATE, autoscaling, inherited};
use types::serving::revision::{self, Revision};
use types::shared::{ConditionStatus, HasConditions, Status, is_controlled_by, label, name, namespace};

/// Brings both objects to what `revision`, with its newest status, and its scale say.
pub(super) async fn reconcile(
    context: &ControllerContext,
    revision: &Revision,
    scale: &ScalingConfig,
) -> Result<(), Error> {
    let (ns, own) = (namespace(&revision.metadata), name(&revision.metadata));
    let wanted = pod_autoscaler(revision, scale);
    let found = context.caches.pod_autoscalers.get(ns, own);
    let Some(kept) = apply(context, found.as_deref(), wanted).await? else { return Ok(()) };
    let mut after = kept.clone();
    after.status = Some(status(&kept, revision, now()));
    write_status(context, &kept, &after).await?;

    let wanted = metric(revision, &kept, scale);
    let found = context.caches.metrics.get(ns, own);
    let Some(kept) = apply(context, found.as_deref(), wanted).await? else { return Ok(()) };
    let mut after = kept.clone();
    after.status = Some(metric_status(&kept, now()));
    write_status(context, &kept, &after).await
}

/// The fields that are compared for a drift.
trait HasSpec: NamespacedObject {
    type Spec: PartialEq + Clone;
    fn spec(&self) -> &Self::Spec;
    fn spec_mut(&mut self) -> &mut Self::Spec;
}

impl HasSpec for PodAutoscaler {
    type Spec = PodAutoscalerSpec;
    fn spec(&self) -> &PodAutoscalerSpec {
        &self.spec
    }
    fn spec_mut(&mut self) -> &mut PodAutoscalerSpec {
        &mut self.spec
    }
}

impl HasSpec for Metric {
    type Spec = MetricSpec;
    fn spec(&self) -> &MetricSpec {
        &self.spec
    }
    fn spec_mut(&mut self) -> &mut MetricSpec {
        &mut self.spec
    }
}

/// Creates `wanted`, or resets what was changed of it. `None`: the kind is not served here, or the object is
/// another owner's.
async fn apply<K: HasSpec>(context: &ControllerContext, found: Option<&K>, wanted: K) -> Result<Option<K>, Error> {
    let Some(found) = found else {
        return match context.create(&wanted).await {
            Ok(made) => Ok(Some(made)),
            // A cluster need not have the kind; nothing here depends on it.
            Err(Error::Api(why)) if is_not_found(&why) => Ok(None),
            Err(why) => Err(why),
        };
    };
    let owner = wanted.meta().owner_references.as_ref().and_then(|owners| owners.first());
    let is_ours = owner.is_some_and(|owner| {
        let uid = ObjectMeta { uid: Some(owner.uid.clone()), ..ObjectMeta::default() };
        is_controlled_by(found.meta(), &uid)
    });
    if !is_ours || found.meta().deletion_timestamp.is_some() {
        return Ok(None);
    }
    let same = found.spec() == wanted.spec()
        && found.meta().labels == wanted.meta().labels
        && found.meta().annotations == wanted.meta().annotations;
    if same {
        return Ok(Some(found.clone()));
    }
    let mut reset = found.clone();
    *reset.spec_mut() = wanted.spec().clone();
    reset.meta_mut().labels.clone_from(&wanted.meta().labels);
    reset.meta_mut().annotations.clone_from(&wanted.meta().annotations);
    Ok(Some(context.replace(&reset).await?))
}

/// Without an event for each change: a scaler's readiness follows its traffic all day.
async fn write_status<K: NamespacedObject>(context: &ControllerContext, before: &K, after: &K) -> Result<(), Error> {
    if before != after && context.leadership.is_leader() {
        let api: Api<K> = context.api(namespace(after.meta()));
        api.replace_status(name(after.meta()), &field_managers::status_params::<K>(), after).await?;
    }
    Ok(())
}

fn metadata(revision: &Revision, scale: &ScalingConfig) -> ObjectMeta {
    let meta = &revision.metadata;
    let mut labels = inherited(meta.labels.as_ref(), &[]);
    labels.insert(REVISION.to_owned(), name(meta).to_owned());
    labels.insert(REVISION_UID.to_owned(), meta.uid.clone().unwrap_or_default());
    let mut annotations = inherited(meta.annotations.as_ref(), &[]);
    annotations.retain(|key, _| key.starts_with(AUTOSCALING));
    for (key, value) in [("class", scale.class.as_str()), ("metric", scale.metric.as_str())] {
        if autoscaling(meta, key).is_none() {
            annotations.insert(format!("{AUTOSCALING}{key}"), value.to_owned());
        }
    }
    ObjectMeta {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: owner_references(revision),
        ..ObjectMeta::default()
    }
}

fn pod_autoscaler(revision: &Revision, scale: &ScalingConfig) -> PodAutoscaler {
    let meta = &revision.metadata;
    // As upstream: what fails and has no instance ready is not reached, whatever sends to it.
    let fails = [revision::RESOURCES_AVAILABLE, revision::CONTAINER_HEALTHY]
        .iter()
        .any(|kind| revision.condition(kind).is_some_and(|c| c.status == ConditionStatus::False));
    let has_ready = revision.status.as_ref().is_some_and(|status| status.actual_replicas > Some(0));
    let reachability = match label(meta, ROUTING_STATE) {
        _ if fails && !has_ready => "Unreachable",
        Some("active") => "Reachable",
        Some("reserve") => "Unreachable",
        _ => "",
    };
    let spec = PodAutoscalerSpec {
        container_concurrency: revision.spec.container_concurrency.unwrap_or(0),
        scale_target_ref: ScaleTarget {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: format!("{}-deployment", name(meta)),
        },
        reachability: reachability.to_owned(),
        protocol_type: if revision.spec.uses_h2c() { "h2c" } else { "http1" }.to_owned(),
    };
    let mut object = PodAutoscaler::new(namespace(meta), name(meta), spec);
    object.metadata = metadata(revision, scale);
    object
}

/// The Revision's Active is the scaler's; a scaler without traffic is not Ready, as upstream shows it.
fn status(kept: &PodAutoscaler, revision: &Revision, now: Timestamp) -> PodAutoscalerStatus {
    let mut status = kept.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match revision.condition(revision::ACTIVE) {
        Some(active) if active.status == ConditionStatus::True => conditions.mark_true(ACTIVE),
        Some(active) if active.status == ConditionStatus::False => {
            conditions.mark_false(ACTIVE, &active.reason, &active.message);
        }
        Some(active) => conditions.mark_unknown(ACTIVE, &active.reason, &active.message),
        None => {}
    }
    if revision.is_ready() {
        conditions.mark_true(SCALE_TARGET_INITIALIZED);
        conditions.mark_true(SKS_READY);
    } else if conditions.status_of(SCALE_TARGET_INITIALIZED) != ConditionStatus::True {
        conditions.mark_unknown(SCALE_TARGET_INITIALIZED, "Initializing", "The initial scale was not reached yet.");
        conditions.mark_unknown(SKS_READY, "NotReady", "SKS Services are not ready yet.");
    }
    let shown = revision.status.as_ref();
    status.desired_scale = shown.and_then(|status| status.desired_replicas);
    status.actual_scale = shown.and_then(|status| status.actual_replicas);
    status.service_name = name(&revision.metadata).to_owned();
    status.metrics_service_name = format!("{}-private", name(&revision.metadata));
    status.base = Status {
        observed_generation: kept.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

fn metric(revision: &Revision, autoscaler: &PodAutoscaler, scale: &ScalingConfig) -> Metric {
    let nanoseconds = |span: std::time::Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    let spec = MetricSpec {
        stable_window: nanoseconds(scale.stable_window),
        panic_window: nanoseconds(scale.panic_window),
        scrape_target: format!("{}-private", name(&revision.metadata)),
    };
    let meta = &autoscaler.metadata;
    let mut object = Metric::new(namespace(meta), name(meta), spec);
    object.metadata = ObjectMeta { owner_references: owner_references(autoscaler), ..metadata(revision, scale) };
    object
}

fn metric_status(kept: &Metric, now: Timestamp) -> MetricStatus {
    let mut status = kept.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = metric::CONDITIONS.manage(&before, now);
    conditions.mark_true("Ready");
    status.base = Status {
        observed_generation: kept.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::revision::scale::scale;
    use types::settings::AutoscalerSettings;

    fn revision(active: &str, reason: &str, ready: &str) -> Revision {
        serde_json::from_value(json!({
            "metadata": {"name": "a-1", "namespace": "ns", "uid": "u", "generation": 1,
                "labels": {"serving.knative.dev/service": "a", "serving.knative.dev/routingState": "active"},
                "annotations": {"autoscaling.knative.dev/min-scale": "1", "other": "x"}},
            "spec": {"containers": [{"image": "a", "ports": [{"name": "h2c", "containerPort": 1}]}],
                "containerConcurrency": 5},
            "status": {"observedGeneration": 1, "desiredReplicas": 2, "actualReplicas": 1, "conditions": [
                {"type": "Active", "status": active, "reason": reason, "message": "m"},
                {"type": "Ready", "status": ready}]}
        }))
        .unwrap()
    }

    fn made(revision: &Revision) -> PodAutoscaler {
        pod_autoscaler(revision, &scale(revision, &AutoscalerSettings::default()))
    }

    fn words(status: &PodAutoscalerStatus) -> Vec<String> {
        let shown = |c: &types::shared::Condition| format!("{} {:?} {}", c.kind, c.status, c.reason);
        status.base.conditions.iter().map(shown).collect()
    }

    #[test]
    fn it_carries_what_the_revision_says_about_scaling_and_nothing_else() {
        let object = made(&revision("True", "", "True"));
        assert_eq!((object.spec.container_concurrency, object.spec.protocol_type.as_str()), (5, "h2c"));
        assert_eq!(object.spec.reachability, "Reachable");
        assert_eq!(object.spec.scale_target_ref.name, "a-1-deployment");
        let annotations: Vec<_> = object.metadata.annotations.unwrap().into_iter().collect();
        let expected = [("class", "kpa.autoscaling.knative.dev"), ("metric", "concurrency"), ("min-scale", "1")];
        assert_eq!(
            annotations,
            expected.map(|(key, value)| (format!("autoscaling.knative.dev/{key}"), value.to_owned()))
        );
        assert_eq!(object.metadata.labels.unwrap()["serving.knative.dev/revision"], "a-1");
    }

    #[test]
    fn failing_revision_without_replicas_is_unreachable() {
        let mut failing = revision("False", "ExitCode3", "False");
        let status = failing.status.as_mut().unwrap();
        let healthy = json!({"type": "ContainerHealthy", "status": "False", "reason": "ExitCode3"});
        status.base.conditions.push(serde_json::from_value(healthy).unwrap());
        assert_eq!(made(&failing).spec.reachability, "Reachable", "one of its instances is ready");
        failing.status.as_mut().unwrap().actual_replicas = Some(0);
        assert_eq!(made(&failing).spec.reachability, "Unreachable");
    }

    /// A scaled-to-zero Revision is Ready and its scaler is not, as upstream shows both.
    #[test]
    fn its_conditions_follow_the_revisions() {
        let now = Timestamp::from_second(1).unwrap();
        let begun = revision("Unknown", "Queued", "Unknown");
        let mut object = made(&begun);
        let first = status(&object, &begun, now);
        assert_eq!(
            words(&first),
            [
                "Active Unknown Queued",
                "Ready Unknown Queued",
                "SKSReady Unknown NotReady",
                "ScaleTargetInitialized Unknown Initializing"
            ]
        );
        object.status = Some(first);
        let ready = revision("True", "", "True");
        let second = status(&object, &ready, now);
        assert!(words(&second).iter().all(|line| line.ends_with(" True ")), "{second:?}");
        assert_eq!((second.desired_scale, second.actual_scale), (Some(2), Some(1)));
        object.status = Some(second);
        let asleep = status(&object, &revision("False", "NoTraffic", "True"), now);
        assert_eq!(words(&asleep)[1], "Ready False NoTraffic");
    }
}
