//! The initial objects: namespaces, the operator's ConfigMaps, our GatewayClass, and the definitions of our
//! kinds.
//!
//! Checked at every start: an object that is already as it should be is left alone, so a restart
//! changes no version and wakes no watcher. All writes are submitted at once, so that they share their commits: one
//! after the other they took 150 ms of a first start.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::{iter, thread};

use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::access::CONTROLLER_ACCOUNT;
use crate::store::{ObjectKey, ObjectStore, StagedView, StoreError, StoredObject, WriteOperation};
use types::gateway_api::gateway_class::GatewayClass;
use types::kind_registry::{KindEntry, KindMeta, KindRegistry, RequestContext, ResourceStrategy};
use types::{crd, gateway_api, settings};

use super::IN_PROCESS_USER;
use super::errors::StatusError;
use super::prepare::{self, CreationContext};
use super::seed_roles;

/// The namespaces that exist from the first start on.
pub(super) const SEED_NAMESPACES: [&str; 4] = ["default", "knative-serving", "knative-eventing", "kube-system"];

/// Makes everything that is there before anybody writes.
///
/// # Errors
/// The store's.
pub async fn seed(store: &ObjectStore, registry: &KindRegistry) -> Result<(), StoreError> {
    seed_objects(store, registry).await?;
    seed_definitions(store, definitions(registry)?).await
}

/// Creates the objects that clients expect, except definitions.
///
/// # Errors
/// The store's.
pub async fn seed_objects(store: &ObjectStore, registry: &KindRegistry) -> Result<(), StoreError> {
    let named = |name: &str| json!({ "metadata": { "name": name } });
    let namespaces = SEED_NAMESPACES.map(|name| (KindEntry::of::<Namespace>(), named(name), None));
    let settings = settings::config_maps().map(|row| {
        let map = json!({ "metadata": { "name": row.name }, "data": { "_example": row.example } });
        (KindEntry::of::<ConfigMap>(), map, Some(row.namespace))
    });
    let roles = seed_roles::roles(registry).into_iter().map(|role| (KindEntry::of::<ClusterRole>(), role, None));
    let bindings = seed_roles::bindings().into_iter();
    let bindings = bindings.map(|binding| (KindEntry::of::<ClusterRoleBinding>(), binding, None));
    let account = (KindEntry::of::<ServiceAccount>(), named(CONTROLLER_ACCOUNT), Some(settings::SERVING));
    let all = namespaces.into_iter().chain(settings).chain(roles).chain(bindings).chain([account, gateway_class()]);
    let write =
        |(entry, object, namespace)| store.write(move |view| create_if_missing(view, &entry, object, namespace));
    try_join_all(all.map(write)).await.map(drop).map_err(to_store_error)
}

/// The class of Gateways that this appliance serves.
fn gateway_class() -> (KindEntry, Value, Option<&'static str>) {
    let spec = json!({
        "controllerName": gateway_api::CONTROLLER_NAME,
        "description": "Gateways of this appliance, on the ports that it listens on.",
    });
    let class = json!({ "metadata": { "name": gateway_api::DEFAULT_CLASS }, "spec": spec });
    (KindEntry::of::<GatewayClass>(), class, None)
}

/// Whether an earlier start defined our kinds.
#[must_use]
pub fn has_definitions(store: &ObjectStore) -> bool {
    store.read().list(&prepare::resource_of(&CustomResourceDefinition::META), None).into_iter().next().is_some()
}

/// Stores these definitions of our kinds, and deletes those of kinds that this version of the program no longer has.
///
/// # Errors
/// The store's.
pub async fn seed_definitions(store: &ObjectStore, definitions: Vec<SeedDefinition>) -> Result<(), StoreError> {
    let stored = store.read().list(&prepare::resource_of(&CustomResourceDefinition::META), None);
    let known = |key: &ObjectKey| definitions.iter().any(|one| one.key == *key);
    // Objects of clients name their writer; ours do not.
    let ours = |object: &StoredObject| {
        object.key.name.ends_with("knative.dev") && object.value()["metadata"]["managedFields"].is_null()
    };
    let others: Vec<_> = stored.into_iter().filter(|object| !known(&object.key) && ours(object)).collect();
    let forget = others.into_iter().map(|object| {
        store.write(move |_: &StagedView| {
            Ok::<_, StatusError>(WriteOperation::Delete(object.key.clone(), object.value()))
        })
    });
    let define = definitions.into_iter().map(|one| store.write(move |view| Ok(upsert_definition(view, one))));
    try_join_all(define).await.map_err(to_store_error)?;
    try_join_all(forget).await.map(drop).map_err(to_store_error)
}

fn to_store_error(refusal: StatusError) -> StoreError {
    StoreError::WriterFailed(refusal.message)
}

fn prepare(entry: &KindEntry, object: Value, namespace: Option<&str>) -> Result<(ObjectKey, Value), StatusError> {
    let requester = RequestContext { user: IN_PROCESS_USER.into(), internal: true, ..RequestContext::default() };
    prepare::prepare_create(entry, object, namespace, &requester, &CreationContext::now())
}

/// Stores an object, unless there is one of its name: from then on it is its users'.
pub(super) fn create_if_missing(
    view: &StagedView,
    entry: &KindEntry,
    object: Value,
    namespace: Option<&str>,
) -> Result<WriteOperation, StatusError> {
    let (key, object) = prepare(entry, object, namespace)?;
    Ok(view.get(&key).map_or_else(|| WriteOperation::Put(key, object), WriteOperation::NoOp))
}

/// Stores a definition, unless it is there as it should be.
fn upsert_definition(view: &StagedView, SeedDefinition { key, mut object }: SeedDefinition) -> WriteOperation {
    let Some(before) = view.get(&key).map(|before| before.decode()) else {
        return WriteOperation::Put(key, object);
    };
    let same = |field: &str| before.value["metadata"][field] == object["metadata"][field];
    if before.value["spec"] == object["spec"] && same("labels") && same("annotations") {
        return WriteOperation::NoOp(before.stored);
    }
    for kept in ["uid", "creationTimestamp"] {
        object["metadata"][kept] = before.value["metadata"][kept].clone();
    }
    let generation = before.value["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
    object["metadata"]["generation"] = generation.into();
    WriteOperation::Put(key, object)
}

/// A definition of one of our kinds, ready to be stored.
#[derive(Debug)]
pub struct SeedDefinition {
    key: ObjectKey,
    object: Value,
}

/// One for each kind that is ours; Kubernetes' own have none. Their schemas are large: they take 30 ms of a processor,
/// so two make them side by side.
///
/// # Errors
/// One of them keeps to none of the rules for definitions, which a test would have shown.
pub fn definitions(registry: &KindRegistry) -> Result<Vec<SeedDefinition>, StoreError> {
    // `apps` is a group without a dot; no client can define a kind in such a one.
    let ours = |entry: &&KindEntry| entry.meta.group.contains('.') && !entry.meta.group.ends_with("k8s.io");
    let mut kinds: Vec<(&KindMeta, Vec<&KindEntry>)> = Vec::new();
    for entry in registry.entries.iter().filter(ours) {
        let same = |known: &KindMeta| known.group == entry.meta.group && known.plural == entry.meta.plural;
        match kinds.iter_mut().find(|(known, _)| same(known)) {
            Some((_, versions)) => versions.push(entry),
            None => kinds.push((entry.meta, vec![entry])),
        }
    }
    let queue = Mutex::new(kinds.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || iter::from_fn(next).map(admit).collect::<Result<Vec<_>, _>>();
    thread::scope(|scope| {
        let spawned = scope.spawn(work);
        let mut all = work()?;
        all.extend(spawned.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        Ok(all)
    })
}

fn admit((meta, versions): &(&KindMeta, Vec<&KindEntry>)) -> Result<SeedDefinition, StoreError> {
    let object = definition(meta, versions);
    prepare(&KindEntry::of::<CustomResourceDefinition>(), object, None)
        .map(|(key, object)| SeedDefinition { key, object })
        .map_err(to_store_error)
}

fn definition(meta: &KindMeta, versions: &[&KindEntry]) -> Value {
    let labels = meta.labels().chain(["knative.dev/crd-install"]);
    let mut definition = json!({
        "metadata": {
            "name": format!("{}.{}", meta.plural, meta.group),
            "labels": labels.map(|label| (label.to_owned(), "true".into())).collect::<serde_json::Map<_, _>>(),
        },
        "spec": {
            "group": meta.group,
            "scope": if meta.namespaced { "Namespaced" } else { "Cluster" },
            "names": {
                "kind": meta.kind,
                "listKind": format!("{}List", meta.kind),
                "plural": meta.plural,
                "singular": meta.singular,
                "shortNames": meta.short_names,
                "categories": meta.categories,
            },
            "conversion": { "strategy": "None" },
        },
    });
    // `json!` would copy them.
    let versions = versions.iter().enumerate().map(|(index, entry)| version(entry, index == 0));
    definition["spec"]["versions"] = versions.collect();
    if let Some(types) = meta.event_types {
        definition["metadata"]["annotations"] = json!({ crd::EVENT_TYPES: types });
    }
    definition
}

fn version(entry: &KindEntry, storage: bool) -> Value {
    let mut schema = entry.openapi_schema();
    schema["type"] = "object".into();
    schema["properties"]["metadata"] = json!({ "type": "object" });
    let columns: Vec<Value> = entry
        .meta
        .columns
        .iter()
        .map(|column| {
            let mut said = json!({ "name": column.name, "type": column.format, "jsonPath": column.path });
            if column.priority != 0 {
                said["priority"] = column.priority.into();
            }
            said
        })
        .collect();
    let mut version = json!({
        "name": entry.meta.version,
        "served": true,
        "storage": storage,
        "schema": {},
        "additionalPrinterColumns": columns,
    });
    version["schema"]["openAPIV3Schema"] = schema; // moved: `json!` would copy it
    if let Some(deprecation) = entry.deprecated {
        version["deprecated"] = true.into();
        version["deprecationWarning"] = deprecation.into();
    }
    if entry.meta.has_status {
        version["subresources"] = json!({ "status": {} });
    }
    version
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-20: what we say of our own kinds is what we would take from a client.
    #[test]
    fn the_definitions_of_our_own_kinds_keep_the_rules_for_definitions() {
        let definitions = definitions(&types::registry());
        assert!(definitions.as_ref().is_ok_and(|all| all.len() > 15), "{definitions:?}");
    }
}
