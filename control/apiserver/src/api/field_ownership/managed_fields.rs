//! `metadata.managedFields`: the manager of each field, with its operation, Apply or Update.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::store::{DecodedObject, WriteOperation};

use super::super::query_parameters::MANAGER_BYTES_MAX;
use super::field_set::FieldSet;
use super::field_writer::FieldWriter;

/// Writers (not appliers) that are remembered apart; Kubernetes' figure. The oldest beyond it share one
/// entry for each version.
const UPDATE_MANAGERS_MAX: usize = 10;
const ANCIENT_MANAGER: &str = "ancient-changes";
/// The manager of objects without recorded managers.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct FieldOwner {
    manager: String,
    operation: String,
    api_version: String,
    /// When it last changed something; empty: never.
    time: String,
    subresource: String,
    pub(in super::super) fields: FieldSet,
}

impl FieldWriter {
    fn owner(&self, operation: &str, fields: FieldSet) -> FieldOwner {
        FieldOwner {
            manager: self.manager.clone(),
            operation: operation.into(),
            api_version: self.meta.api_version(),
            time: self.now.clone(),
            subresource: self.subresource().into(),
            fields,
        }
    }

    /// An applier is the same in all versions; a writer of another version is another.
    fn is(&self, owner: &FieldOwner, operation: &str) -> bool {
        owner.manager == self.manager
            && owner.operation == operation
            && owner.subresource == self.subresource()
            && (operation == APPLY || owner.api_version == self.meta.api_version())
    }
}

impl FieldOwner {
    /// Its place among others.
    fn sort_key(&self) -> (bool, &str, &str, &str, &str) {
        (self.operation != APPLY, &self.time, &self.manager, &self.api_version, &self.subresource)
    }

    /// The name of the owner in conflict messages.
    pub(in super::super) fn description(&self) -> String {
        let part = match self.subresource.as_str() {
            "" => String::new(),
            part => format!(" with subresource {part:?}"),
        };
        let using = if self.operation == APPLY { String::new() } else { format!(" using {}", self.api_version) };
        format!("conflict with {:?}{part}{using}", self.manager)
    }
}

/// The owners that an object names. What does not look like one is left out.
pub(in super::super) fn owners(object: &Value) -> Vec<FieldOwner> {
    let entries = object["metadata"]["managedFields"].as_array();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    entries
        .into_iter()
        .flatten()
        .map(|entry| FieldOwner {
            manager: text(&entry["manager"]),
            operation: text(&entry["operation"]),
            api_version: text(&entry["apiVersion"]),
            time: text(&entry["time"]),
            subresource: text(&entry["subresource"]),
            fields: FieldSet::parse(&entry["fieldsV1"]),
        })
        .collect()
}

/// Writes the owners back, in the order of Kubernetes: appliers first, and then by time; those that own nothing are
/// forgotten.
fn write(object: &mut Value, mut owners: Vec<FieldOwner>) {
    owners.sort_by(|one, other| one.sort_key().cmp(&other.sort_key()));
    let entries: Vec<Value> = owners
        .into_iter()
        .filter(|owner| !owner.fields.children.is_empty())
        .map(|owner| {
            let mut entry = json!({
                "manager": owner.manager,
                "operation": owner.operation,
                "apiVersion": owner.api_version,
                "fieldsType": "FieldsV1",
            });
            // Not in the macro, which copies what it is given.
            entry["fieldsV1"] = owner.fields.into_value();
            for (name, text) in [("time", owner.time), ("subresource", owner.subresource)] {
                if !text.is_empty() {
                    entry[name] = text.into();
                }
            }
            entry
        })
        .collect();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        if entries.is_empty() {
            metadata.remove("managedFields");
        } else {
            metadata.insert("managedFields".into(), entries.into());
        }
    }
}

/// The fields that the writer applied last, and the fields of all others.
///
/// In an object without recorded managers, all fields belong to an earlier writer, so that they are not lost silently.
pub(in super::super) fn split(object: &Value, writer: &FieldWriter) -> (Option<FieldOwner>, Vec<FieldOwner>) {
    let mut known = owners(object);
    if known.is_empty() {
        let unknown = FieldWriter { manager: BEFORE_FIRST_APPLY.into(), ..writer.clone() };
        known.push(unknown.owner(UPDATE, unknown.compare(None, object).take_changed()));
    }
    let mine = known.iter().position(|owner| writer.is(owner, APPLY)).map(|place| known.remove(place));
    (mine, known)
}

/// Notes that the writer applied `fields`. Its time moves only with the object.
pub(in super::super) fn record_apply(
    object: &mut Value,
    last: Option<&FieldOwner>,
    mut others: Vec<FieldOwner>,
    (writer, fields, moved): (&FieldWriter, FieldSet, bool),
) {
    let mut mine = writer.owner(APPLY, fields);
    if !moved {
        mine.time = last.map(|last| last.time.clone()).unwrap_or_default();
    }
    others.push(mine);
    write(object, others);
}

/// Whether two objects differ in nothing but the times of their owners.
pub(in super::super) fn equal_except_times(one: &Value, other: &Value) -> bool {
    let (own, others) = (&one["metadata"], &other["metadata"]);
    own["resourceVersion"] == others["resourceVersion"]
        && equal_without("metadata", one, other)
        && equal_without("managedFields", own, others)
        && match (own["managedFields"].as_array(), others["managedFields"].as_array()) {
            (Some(own), Some(others)) => {
                own.len() == others.len()
                    && own.iter().zip(others).all(|(one, other)| equal_without("time", one, other))
            }
            _ => own["managedFields"] == others["managedFields"],
        }
}

/// Whether two values are equal apart from the field `name`.
fn equal_without(name: &str, one: &Value, other: &Value) -> bool {
    let (Some(own), Some(others)) = (one.as_object(), other.as_object()) else { return one == other };
    let others_of = |fields: &'_ serde_json::Map<String, Value>| fields.len() - usize::from(fields.contains_key(name));
    others_of(own) == others_of(others)
        && own.iter().all(|(field, value)| field == name || others.get(field) == Some(value))
}

/// Records the manager of a plain write: it becomes the only owner of the changed fields. `sent`: see
/// [`Writer::sent`].
pub(in super::super) fn track_update(
    change: WriteOperation,
    before: Option<&DecodedObject>,
    writer: &FieldWriter,
    sent: Option<&Value>,
) -> WriteOperation {
    match change {
        WriteOperation::Put(key, mut object) => {
            record_update(&mut object, before.map(|before| &before.value), writer, sent);
            WriteOperation::Put(key, object)
        }
        other => other,
    }
}

fn record_update(object: &mut Value, before: Option<&Value>, writer: &FieldWriter, sent: Option<&Value>) {
    let mut owners = owners(object);
    // For an existing object without recorded managers, the first apply records the earlier writer.
    if owners.is_empty() && before.is_some() {
        write(object, owners);
        return;
    }
    let mut compared = writer.compare(before, sent.filter(|_| writer.defaults_by_webhook()).unwrap_or(object));
    let mut set = compared.take_changed();
    set.retain_existing(writer.location(), object);
    if let (Some(sent), Some(spec)) = (sent, set.children.get_mut("f:spec")) {
        let chosen = writer.server_assigned_fields().iter().filter(|name| sent["spec"].get(**name).is_none());
        chosen.for_each(|name| drop(spec.children.remove(&format!("f:{name}"))));
        set.children.retain(|_, inner| !inner.is_empty());
    }
    let mine = owners.iter().position(|owner| writer.is(owner, UPDATE));
    let mut fields = mine.map(|place| owners.remove(place));
    for owner in owners.iter_mut().chain(&mut fields) {
        owner.fields.subtract(&compared.removed);
        owner.fields.subtract(&set);
    }
    if !set.is_empty() {
        set.append(fields.take().map(|owner| owner.fields).unwrap_or_default());
        fields = Some(writer.owner(UPDATE, set));
    }
    owners.extend(fields);
    owners.retain(|owner| !owner.fields.is_empty());
    merge_oldest(&mut owners);
    write(object, owners);
}

/// The owners that a write starts from: those stored, unless the client says something else that makes
/// sense. A list that is empty, or has one empty entry, forgets them all; that is how tools start over, and how kubectl
/// moves an object from one way of applying to the other.
pub(in super::super) fn effective_managed_fields(stored: Option<&Value>, sent: Option<&Value>) -> Option<Value> {
    match sent.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => None,
        Some([Value::Object(empty)]) if empty.is_empty() => None,
        Some(entries) if entries.iter().all(is_entry) => sent.cloned(),
        _ => stored.cloned(),
    }
}

fn is_entry(entry: &Value) -> bool {
    let operation = entry["operation"].as_str();
    matches!(operation, Some(APPLY | UPDATE))
        && entry["fieldsType"] == "FieldsV1"
        && entry["fieldsV1"].is_object()
        && entry["apiVersion"].as_str().is_some_and(|version| !version.is_empty())
        && entry["manager"].as_str().is_some_and(|name| name.len() <= MANAGER_BYTES_MAX)
}

/// Merges the oldest entries of each version into one.
fn merge_oldest(owners: &mut Vec<FieldOwner>) {
    let written = |owner: &&FieldOwner| owner.operation == UPDATE;
    let mut count = owners.iter().filter(written).count();
    if count <= UPDATE_MANAGERS_MAX {
        return;
    }
    owners.sort_by(|one, other| one.sort_key().cmp(&other.sort_key()));
    let first = owners.iter().take_while(|owner| owner.operation == APPLY).count();
    let mut kept: Vec<FieldOwner> = owners.drain(..first).collect();
    let mut oldest: HashMap<String, usize> = HashMap::new();
    for owner in owners.drain(..) {
        let place = oldest.get(&owner.api_version).copied().filter(|_| count > UPDATE_MANAGERS_MAX);
        let Some(shared) = place.and_then(|place| kept.get_mut(place)) else {
            oldest.entry(owner.api_version.clone()).or_insert(kept.len());
            kept.push(owner);
            continue;
        };
        shared.manager = ANCIENT_MANAGER.into();
        shared.subresource = String::new();
        shared.fields.append(owner.fields);
        shared.time = owner.time;
        count -= 1;
    }
    *owners = kept;
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::kind_registry::KindMeta;

    fn writer(group: &'static str, kind: &'static str, has_status: bool) -> FieldWriter {
        let meta = KindMeta { group, kind, has_status, ..types::kind_registry::CORE };
        FieldWriter {
            manager: "m".into(),
            status: false,
            scale: false,
            now: "2026-01-01T00:00:00Z".into(),
            meta: Box::leak(Box::new(meta)),
            schema: None,
        }
    }

    /// The fields noted of a new object.
    fn of_new(writer: &FieldWriter, mut object: Value) -> Value {
        let sent = object.clone();
        record_update(&mut object, None, writer, Some(&sent));
        object["metadata"]["managedFields"][0]["fieldsV1"].take()
    }

    /// APP-30: the sets that Kubernetes notes of new objects: of its own kinds, and of those of a definition.
    #[test]
    fn a_new_object_is_owned_as_kubernetes_notes_it() {
        let labelled = json!({ "name": "x", "uid": "u", "labels": { "a": "b" } });
        let labels = json!({ "f:labels": { ".": {}, "f:a": {} } });
        assert_eq!(
            of_new(&writer("", "ConfigMap", false), json!({ "metadata": labelled, "data": { "k": "v" } })),
            json!({ "f:metadata": labels, "f:data": { ".": {}, "f:k": {} } })
        );
        let port = json!({ "port": 80, "protocol": "TCP", "targetPort": 80 });
        assert_eq!(
            of_new(
                &writer("", "Service", true),
                json!({ "metadata": labelled,
                "spec": { "ports": [port], "selector": { "a": "b" }, "type": "ClusterIP" } })
            ),
            json!({ "f:metadata": labels, "f:spec": { "f:selector": {}, "f:type": {}, "f:ports": { ".": {},
                r#"k:{"port":80,"protocol":"TCP"}"#: { ".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {} } } } })
        );
        let container = json!({ "name": "c", "image": "i", "resources": {} });
        assert_eq!(
            of_new(
                &writer("apps", "Deployment", true),
                json!({ "metadata": labelled, "spec": {
                "replicas": 1, "selector": { "matchLabels": { "a": "b" } }, "strategy": { "type": "Recreate" },
                "template": { "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [container] } } } })
            ),
            json!({ "f:metadata": labels, "f:spec": { "f:replicas": {}, "f:selector": {},
                "f:strategy": { "f:type": {} }, "f:template": { "f:metadata": labels, "f:spec": {
                "f:containers": { r#"k:{"name":"c"}"#: { ".": {}, "f:name": {}, "f:image": {}, "f:resources": {} } } } } } })
        );
        assert_eq!(
            of_new(
                &writer("serving.knative.dev", "Service", true),
                json!({ "metadata": { "name": "x" },
                "spec": { "template": { "spec": { "containers": [container] } } } })
            ),
            json!({ "f:spec": { ".": {}, "f:template": { ".": {}, "f:spec": { ".": {}, "f:containers": {} } } } })
        );
    }

    /// APP-30: a default of a webhook has no owner; neither has what the server sets when it stores.
    #[test]
    fn what_the_server_puts_in_by_itself_is_nobodys() {
        let fields = |writer: &FieldWriter, sent: Value, stored: Value| {
            let mut object = stored;
            record_update(&mut object, None, writer, Some(&sent));
            owners(&object).first().map_or(Value::Null, |owner| owner.fields.clone().into_value())
        };
        let plain = json!({ "metadata": {}, "spec": { "a": 1 } });
        let filled = json!({ "metadata": { "annotations": { "creator": "c" } }, "spec": { "a": 1, "b": 2 } });
        let knative = writer("eventing.knative.dev", "Broker", true);
        assert_eq!(fields(&knative, plain, filled), json!({ "f:spec": { ".": {}, "f:a": {} } }));

        let service = writer("", "Service", true);
        let (sent, stored) = (json!({ "spec": {} }), json!({ "metadata": {}, "spec": { "clusterIP": "1" } }));
        assert_eq!(fields(&service, sent, stored.clone()), Value::Null);
        assert_eq!(fields(&service, stored.clone(), stored), json!({ "f:spec": { "f:clusterIP": {} } }));
    }

    /// APP-30: a status that was not there is a field by itself, but not of Kubernetes' own kinds.
    #[test]
    fn a_first_status_is_owned_with_what_is_in_it() {
        for (group, kind, expected) in [
            ("", "Pod", json!({ "f:status": { "f:phase": {} } })),
            ("serving.knative.dev", "Route", json!({ "f:status": { ".": {}, "f:phase": {} } })),
        ] {
            let writer = FieldWriter { status: true, ..writer(group, kind, true) };
            let entry = writer.owner(APPLY, FieldSet::parse(&json!({ "f:x": {} })));
            let mut before = json!({ "metadata": {}, "spec": {} });
            write(&mut before, vec![entry]);
            let mut after = before.clone();
            after["status"] = json!({ "phase": "x" });
            record_update(&mut after, Some(&before), &writer, None);
            assert_eq!(after["metadata"]["managedFields"][1]["fieldsV1"], expected, "{kind}");
        }
    }

    /// APP-30: the eleventh writer shares an entry with the oldest of its version.
    #[test]
    fn the_oldest_writers_of_a_version_share_an_entry() {
        let one = writer("", "ConfigMap", false);
        let mut owners: Vec<FieldOwner> = (0..12)
            .map(|n| {
                let fields = FieldSet::parse(&json!({ "f:data": { format!("f:{n}"): {} } }));
                let time = format!("2026-01-01T00:00:{n:02}Z");
                FieldOwner { manager: format!("m{n}"), time, ..one.owner(UPDATE, fields) }
            })
            .collect();
        owners[0].api_version = "v0".into();
        merge_oldest(&mut owners);
        let named: Vec<&str> = owners.iter().map(|owner| owner.manager.as_str()).collect();
        assert_eq!(named, ["m0", ANCIENT_MANAGER, "m4", "m5", "m6", "m7", "m8", "m9", "m10", "m11"]);
        assert_eq!(owners[1].time, "2026-01-01T00:00:03Z");
        assert_eq!(owners[1].fields.clone().into_value(), json!({ "f:data": { "f:1": {}, "f:2": {}, "f:3": {} } }));
    }
}
