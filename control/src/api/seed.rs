//! What is there before anybody writes: namespaces, the operator's ConfigMaps, and the definitions of our
//! kinds.
//!
//! Written at every start, by comparing: what is already as it should be is left alone, so a restart
//! changes no version and wakes no watcher.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::access::CONTROLLER_ACCOUNT;
use crate::kind::{Entry, KindMeta, Registry, Requester, Resource};
use crate::kinds::{definition, settings};
use crate::store::{Change, Key, Store, StoreError, Stored, View};

use super::errors::Refusal;
use super::object::{self, Birth};
use super::seed_roles;
use super::{INSIDE_USER, SEED_NAMESPACES};

/// Makes the objects that everybody expects to find.
pub async fn seed(store: &Store, registry: &Registry) -> Result<(), StoreError> {
    let failed = |refusal: Refusal| StoreError::Failed(refusal.message);
    for name in SEED_NAMESPACES {
        let namespace = json!({ "metadata": { "name": name } });
        store
            .write(move |view| make(view, &Entry::of::<Namespace>(), namespace, None))
            .await
            .map_err(failed)?;
    }
    for row in settings::rows() {
        let map = json!({ "metadata": { "name": row.name }, "data": { "_example": row.example } });
        store
            .write(move |view| make(view, &Entry::of::<ConfigMap>(), map, Some(row.namespace)))
            .await
            .map_err(failed)?;
    }
    for (entry, objects) in [
        (Entry::of::<ClusterRole>(), seed_roles::roles()),
        (Entry::of::<ClusterRoleBinding>(), seed_roles::bindings()),
    ] {
        for object in objects {
            store.write(move |view| make(view, &entry, object, None)).await.map_err(failed)?;
        }
    }
    let account = json!({ "metadata": { "name": CONTROLLER_ACCOUNT } });
    store
        .write(move |view| make(view, &Entry::of::<ServiceAccount>(), account, Some(settings::SERVING)))
        .await
        .map_err(failed)?;
    let definitions = definitions(registry);
    for wanted in &definitions {
        let wanted = wanted.clone();
        store.write(move |view| define(view, wanted)).await.map_err(failed)?;
    }
    forget_others(store, &definitions).await.map_err(failed)
}

fn new(entry: &Entry, object: Value) -> Result<(Key, Value), Refusal> {
    new_in(entry, object, None)
}

fn new_in(entry: &Entry, object: Value, namespace: Option<&str>) -> Result<(Key, Value), Refusal> {
    let requester = Requester { user: INSIDE_USER.into(), internal: true, ..Requester::default() };
    object::prepare_new(entry, object, namespace, &requester, &Birth::here_and_now())
}

/// Stores an object, unless there is one of its name: from then on it is its users'.
pub(super) fn make(
    view: &View,
    entry: &Entry,
    object: Value,
    namespace: Option<&str>,
) -> Result<Change, Refusal> {
    let (key, object) = new_in(entry, object, namespace)?;
    Ok(view.get(&key).map_or_else(|| Change::Put(key, object), Change::Keep))
}

/// Stores a definition, unless it is there as it should be.
fn define(view: &View, wanted: Value) -> Result<Change, Refusal> {
    let (key, mut object) = new(&Entry::of::<CustomResourceDefinition>(), wanted)?;
    let Some(before) = view.get(&key).map(|before| before.open()) else {
        return Ok(Change::Put(key, object));
    };
    let same = |field: &str| before.value["metadata"][field] == object["metadata"][field];
    if before.value["spec"] == object["spec"] && same("labels") && same("annotations") {
        return Ok(Change::Keep(before.stored));
    }
    for kept in ["uid", "creationTimestamp"] {
        object["metadata"][kept] = before.value["metadata"][kept].clone();
    }
    let generation = before.value["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
    object["metadata"]["generation"] = generation.into();
    Ok(Change::Put(key, object))
}

/// Deletes the definitions of kinds that this version of the program no longer has.
async fn forget_others(store: &Store, definitions: &[Value]) -> Result<(), Refusal> {
    let stored = store.read().list(&object::resource_of(&CustomResourceDefinition::META), None);
    let known = |name: &str| definitions.iter().any(|one| one["metadata"]["name"] == name);
    // What a client wrote says who wrote it; what we wrote does not.
    let ours = |object: &Stored| object.value()["metadata"]["managedFields"].is_null();
    for object in stored.items.into_iter().filter(|object| ours(object) && !known(&object.key.name)) {
        let gone = move |_: &View| Ok::<_, Refusal>(Change::Delete(object.key.clone(), object.value()));
        store.write(gone).await?;
    }
    Ok(())
}

/// One definition for each kind that is ours; Kubernetes' own have none.
fn definitions(registry: &Registry) -> Vec<Value> {
    // `apps` is a group without a dot; no client can define a kind in such a one.
    let ours = |entry: &&Entry| entry.meta.group.contains('.') && !entry.meta.group.ends_with("k8s.io");
    let mut kinds: Vec<(&KindMeta, Vec<&Entry>)> = Vec::new();
    for entry in registry.entries.iter().filter(ours) {
        let same = |known: &KindMeta| known.group == entry.meta.group && known.plural == entry.meta.plural;
        match kinds.iter_mut().find(|(known, _)| same(known)) {
            Some((_, versions)) => versions.push(entry),
            None => kinds.push((entry.meta, vec![entry])),
        }
    }
    kinds.into_iter().map(|(meta, versions)| definition(meta, &versions)).collect()
}

fn definition(meta: &KindMeta, versions: &[&Entry]) -> Value {
    let name = format!("{}.{}", meta.plural, meta.group);
    let labels = definition::labels(&name).chain(["knative.dev/crd-install"]);
    let mut definition = json!({
        "metadata": {
            "name": name,
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
            "versions": versions
                .iter()
                .enumerate()
                .map(|(index, entry)| version(entry, index == 0))
                .collect::<Vec<_>>(),
        },
    });
    if let Some(types) = definition::event_types(&name) {
        definition["metadata"]["annotations"] = json!({ definition::EVENT_TYPES: types });
    }
    definition
}

fn version(entry: &Entry, storage: bool) -> Value {
    let mut schema = entry.shape();
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
        "schema": { "openAPIV3Schema": schema },
        "additionalPrinterColumns": columns,
    });
    if entry.meta.has_status {
        version["subresources"] = json!({ "status": {} });
    }
    version
}

pub(super) fn definition_status(spec: &Value, now: &Value) -> Value {
    let condition = |kind: &str, reason: &str, message: &str| json!({ "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now });
    json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": spec["names"],
        "storedVersions": [spec["versions"][0]["name"]],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    /// APP-20: what we say of our own kinds is what we would take from a client.
    #[test]
    fn the_definitions_of_our_own_kinds_keep_the_rules_for_definitions() {
        let registry = kinds::registry();
        let definitions = definitions(&registry);
        assert!(definitions.len() > 15);
        for definition in definitions {
            let name = definition["metadata"]["name"].to_string();
            let made = new(&Entry::of::<CustomResourceDefinition>(), definition);
            assert!(made.is_ok(), "{name}: {:?}", made.err());
        }
    }
}
