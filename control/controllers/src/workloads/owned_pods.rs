//! Pods of one owner: found, made and deleted by those that keep numbers of them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::{DeleteParams, ListParams, Preconditions};

use crate::api::{Error, NamespacedObject, is_not_found, now};
use crate::context::ControllerContext;
use crate::event_recorder::{EventMessage, EventSeverity};
use crate::field_managers;
use crate::owned_child::owner_references;
use crate::work_queue::{ControllerKind, WorkItem};
use types::selector;
use types::shared::{controller, is_controlled_by, name, namespace};

/// The objects of kind `K` that `owner` controls, as the store has them now: a cache may lag behind our own writes, and
/// what it lacks would be made twice.
pub(super) async fn owned<K: NamespacedObject>(
    context: &ControllerContext,
    owner: &ObjectMeta,
) -> Result<Vec<K>, Error> {
    owned_with_labels(context, owner, None).await
}

/// The same among objects with these labels, which are found by them.
pub(super) async fn owned_with_labels<K: NamespacedObject>(
    context: &ControllerContext,
    owner: &ObjectMeta,
    labels: Option<&BTreeMap<String, String>>,
) -> Result<Vec<K>, Error> {
    let all: Vec<K> = list(context, namespace(owner), labels).await?;
    Ok(all.into_iter().filter(|one| is_controlled_by(one.meta(), owner)).collect())
}

/// The same, and those that `selector` selects, that nothing controls and that `may_adopt` allows: `owner` controls them
/// from now on.
pub(super) async fn owned_or_adopted<K: NamespacedObject, O: NamespacedObject>(
    context: &ControllerContext,
    owner: &O,
    selector: &LabelSelector,
    may_adopt: fn(&K) -> bool,
) -> Result<Vec<K>, Error> {
    let all: Vec<K> = list(context, namespace(owner.meta()), selector.match_labels.as_ref()).await?;
    let mut owned = Vec::new();
    for mut one in all {
        if is_controlled_by(one.meta(), owner.meta()) {
            owned.push(one);
        } else if is_orphan(one.meta(), selector) && may_adopt(&one) {
            one.meta_mut().owner_references.get_or_insert_default().extend(owner_references(owner).unwrap_or_default());
            owned.push(context.replace(&one).await?);
        }
    }
    Ok(owned)
}

/// Whether `selector` selects it and nothing controls it.
pub(super) fn is_orphan(meta: &ObjectMeta, selector: &LabelSelector) -> bool {
    let empty = BTreeMap::new();
    let labels = selector.match_labels.as_ref().unwrap_or(&empty);
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    let selects_some = !(labels.is_empty() && expressions.is_empty());
    let is_free = controller(meta).is_none() && meta.deletion_timestamp.is_none();
    selects_some && is_free && selector::matches(labels, expressions, meta)
}

async fn list<K: NamespacedObject>(
    context: &ControllerContext,
    namespace: &str,
    labels: Option<&BTreeMap<String, String>>,
) -> Result<Vec<K>, Error> {
    let text = |labels: &BTreeMap<String, String>| {
        labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    };
    let parameters = labels.map_or_else(ListParams::default, |labels| ListParams::default().labels(&text(labels)));
    Ok(context.api::<K>(namespace).list(&parameters).await?.items)
}

/// The work item of the object of this kind that controls `meta`.
pub(super) fn owner_item(kind: ControllerKind, owner_kind: &str, meta: &ObjectMeta) -> Option<WorkItem> {
    let owner: &OwnerReference = controller(meta).filter(|owner| owner.kind == owner_kind)?;
    Some(WorkItem::new(kind, namespace(meta), &owner.name))
}

/// A new Pod of a template.
pub(super) fn from_template<K: Resource<DynamicType = ()>>(owner: &K, template: &PodTemplateSpec) -> Pod {
    let wanted = template.metadata.clone().unwrap_or_default();
    let prefix: String = name(owner.meta()).chars().take(NAME_CHARS_MAX).collect();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{prefix}-")),
            namespace: owner.meta().namespace.clone(),
            labels: wanted.labels,
            annotations: wanted.annotations,
            finalizers: wanted.finalizers,
            owner_references: owner_references(owner),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Characters kept of an owner's name, so that a Pod's is a host's name with its suffix.
const NAME_CHARS_MAX: usize = 57;

/// Deletes an object that is still the same one. One that is gone is as good.
pub(super) async fn delete<K: NamespacedObject>(
    context: &ControllerContext,
    object: &K,
    grace: Option<u32>,
) -> Result<(), Error> {
    let meta = object.meta();
    let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: None };
    let parameters =
        DeleteParams { grace_period_seconds: grace, preconditions: Some(preconditions), ..DeleteParams::background() };
    match context.api::<K>(namespace(meta)).delete(name(meta), &parameters).await {
        Err(why) if is_not_found(&why) => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}

/// Writes the status of an object.
pub(super) async fn write_status<K: NamespacedObject>(context: &ControllerContext, object: &K) -> Result<(), Error> {
    let meta = object.meta();
    context.api::<K>(namespace(meta)).replace_status(name(meta), &field_managers::status_params::<K>(), object).await?;
    Ok(())
}

/// Tells what happened to an object, for `kubectl describe`.
pub(super) async fn tell<K: Resource<DynamicType = ()>>(
    context: &ControllerContext,
    object: &K,
    level: EventSeverity,
    (reason, message): (&str, String),
) {
    let news = EventMessage { level, reason: reason.to_owned(), message };
    context.recorder.record(object, &news, now()).await;
}

/// Whether it is there for good: it neither ended nor is on its way out.
pub(super) fn is_active(pod: &Pod) -> bool {
    let phase = phase(pod);
    pod.metadata.deletion_timestamp.is_none() && phase != "Succeeded" && phase != "Failed"
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// When it became ready, if it is.
pub(super) fn ready_since(pod: &Pod) -> Option<jiff::Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|one| one.type_ == "Ready" && one.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(jiff::Timestamp::UNIX_EPOCH, |at| at.0))
}

/// Starts of its containers after the first ones.
pub(super) fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let lists = status.map(|status| [&status.container_statuses, &status.init_container_statuses]);
    let all = lists.into_iter().flatten().flatten().flatten();
    all.map(|one| one.restart_count).sum()
}
