//! How an object is deleted: at once, or marked and retained until it has no finalizers.
//!
//! Values in, values out; the API and the collector share these rules.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{DecodedObject, ObjectKey, WriteOperation, pod_deletion};

/// The finalizer that holds an owner until its blocking dependents are deleted.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer that holds an owner until its dependents no longer name it.
pub const ORPHAN: &str = "orphan";

/// The only kind with its own lifecycle.
const NAMESPACES: &str = "/namespaces";

pub use types::core_kinds::NAMESPACE_FINALIZER;

/// The resource of definitions in the store.
pub const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";
/// The finalizer of a custom kind's definition, which holds it until all objects of the kind are deleted.
pub const CUSTOM_RESOURCE_CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// What happens to an owner's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropagationPolicy {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They are orphaned.
    Orphan,
}

/// Deletes `before`, or marks it if it has finalizers. A repeated request changes nothing.
#[must_use]
pub fn start_delete(before: &DecodedObject, policy: PropagationPolicy, now: &str) -> WriteOperation {
    start_graceful_delete(before, policy, None, now)
}

/// The same, for a Pod with this many seconds from SIGTERM to SIGKILL; `None`: those of its manifest.
#[must_use]
pub fn start_graceful_delete(
    before: &DecodedObject,
    policy: PropagationPolicy,
    grace: Option<i64>,
    now: &str,
) -> WriteOperation {
    let mut object = before.value.clone();
    let grace = pod_deletion::grace_seconds(&before.key, &object, grace);
    let metadata = &mut object["metadata"];
    let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
    match policy {
        // A propagation policy was chosen already; a plain deletion does not revoke it.
        PropagationPolicy::Background => {}
        PropagationPolicy::Foreground => replace_finalizer(&mut finalizers, FOREGROUND, ORPHAN),
        PropagationPolicy::Orphan => replace_finalizer(&mut finalizers, ORPHAN, FOREGROUND),
    }
    if !finalizers.is_empty() {
        metadata["finalizers"] = finalizers.into();
    }
    if metadata["deletionTimestamp"].is_string() {
        pod_deletion::shorten(metadata, grace, now);
    } else {
        metadata["deletionTimestamp"] = pod_deletion::seconds_after(now, grace).into();
        if !is_namespace(&before.key) {
            metadata["deletionGracePeriodSeconds"] = grace.into();
        }
        if has_generation(&before.key) {
            metadata["generation"] = (metadata["generation"].as_i64().unwrap_or(0) + 1).into();
        }
    }
    if is_namespace(&before.key) {
        object["status"]["phase"] = "Terminating".into();
    }
    if has_finalizers(&before.key, &object) {
        return finish_update(before, object);
    }
    WriteOperation::Delete(before.key.clone(), before.value.clone())
}

/// Completes a change: an unchanged object stays untouched, and one that only waited for its finalizers is deleted.
#[must_use]
pub fn finish_update(before: &DecodedObject, object: Value) -> WriteOperation {
    if object == before.value {
        return WriteOperation::NoOp(Arc::clone(&before.stored));
    }
    if is_deleting(&object) && !has_finalizers(&before.key, &object) {
        return WriteOperation::Delete(before.key.clone(), object);
    }
    WriteOperation::Put(before.key.clone(), object)
}

#[must_use]
pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Whether the object still has finalizers. A namespace has a second list.
#[must_use]
pub fn has_finalizers(key: &ObjectKey, object: &Value) -> bool {
    let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    some(&object["metadata"]["finalizers"])
        || (is_namespace(key) && some(&object["spec"]["finalizers"]))
        || pod_deletion::is_held(key, object)
}

/// The object without one of its finalizers.
#[must_use]
pub fn without_finalizer(object: &Value, name: &str) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object["metadata"].as_object_mut()
        && let Some(list) = fields.get_mut("finalizers").and_then(Value::as_array_mut)
    {
        list.retain(|one| one != name);
        if list.is_empty() {
            fields.remove("finalizers");
        }
    }
    object
}

/// A namespace without the finalizer that it has until it is empty.
#[must_use]
pub fn without_namespace_finalizer(namespace: &Value) -> Value {
    let mut namespace = namespace.clone();
    if let Some(spec) = namespace.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(list) = spec.get_mut("finalizers").and_then(Value::as_array_mut)
    {
        list.retain(|one| one != NAMESPACE_FINALIZER);
        if list.is_empty() {
            spec.remove("finalizers");
        }
    }
    namespace
}

/// Deletes the definition `before` of a client's kind, or marks it while objects of the kind exist: the holders of those
/// has to reach them.
#[must_use]
pub fn start_definition_delete(
    before: &DecodedObject,
    has_objects: bool,
    policy: PropagationPolicy,
    now: &str,
) -> WriteOperation {
    if !has_objects || is_deleting(&before.value) {
        return start_delete(before, policy, now);
    }
    let mut marked = DecodedObject { value: before.value.clone(), stored: Arc::clone(&before.stored) };
    let mut finalizers = marked.value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.push(CUSTOM_RESOURCE_CLEANUP.into());
    marked.value["metadata"]["finalizers"] = finalizers.into();
    if let Some(conditions) = marked.value["status"]["conditions"].as_array_mut() {
        conditions.push(json!({ "type": "Terminating", "status": "True", "lastTransitionTime": now,
            "reason": "InstanceDeletionInProgress", "message": "CustomResource deletion is in progress" }));
    }
    start_delete(&marked, policy, now)
}

/// The key of the definition of the kind whose objects are stored under `resource`.
#[must_use]
pub fn definition_key(resource: &str) -> ObjectKey {
    let (group, plural) = resource.split_once('/').unwrap_or_default();
    let name = format!("{plural}.{group}");
    ObjectKey { resource: DEFINITIONS.into(), namespace: "".into(), name: name.as_str().into() }
}

/// The resource of the objects of the kind that the definition `name` defines.
#[must_use]
pub fn resource_of_definition(name: &str) -> Arc<str> {
    let (plural, group) = name.split_once('.').unwrap_or((name, ""));
    format!("{group}/{plural}").into()
}

/// The key of the namespace `name`.
#[must_use]
pub fn namespace_key(name: &str) -> ObjectKey {
    ObjectKey { resource: Arc::from(NAMESPACES), namespace: "".into(), name: name.into() }
}

#[must_use]
pub fn is_namespace(key: &ObjectKey) -> bool {
    &*key.resource == NAMESPACES
}

/// Kubernetes' own kinds that are only stored, besides those of the core group.
const DATA: [&str; 5] = [
    "coordination.k8s.io/leases",
    "rbac.authorization.k8s.io/clusterrolebindings",
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/rolebindings",
    "rbac.authorization.k8s.io/roles",
];

/// Whether `metadata.generation` counts the changes of the spec. Kubernetes' own data kinds have none; those that clients
/// define have one, in groups like `gateway.networking.k8s.io` too.
#[must_use]
pub fn has_generation(key: &ObjectKey) -> bool {
    !key.resource.starts_with('/') && !DATA.contains(&&*key.resource)
}

fn replace_finalizer(finalizers: &mut Vec<Value>, chosen: &str, other: &str) {
    finalizers.retain(|one| one != other);
    if !finalizers.iter().any(|one| one == chosen) {
        finalizers.push(chosen.into());
    }
}
