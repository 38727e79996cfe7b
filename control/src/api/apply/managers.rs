//! `metadata.managedFields`: who set which fields, by applying or by writing.

use serde_json::{Value, json};

use crate::kind::KindMeta;
use crate::store::{Change, Opened};

use super::super::parameters::MANAGER_BYTES_MAX;
use super::fields::Fields;
use super::lists::At;

/// Writers (not appliers) that are remembered apart; Kubernetes' figure. The oldest beyond it share one
/// entry.
const WRITERS_MAX: usize = 10;
const ANCIENT: &str = "ancient-changes";
/// Who stands for the writers of an object for which nobody is noted.
const BEFORE: &str = "before-first-apply";

/// In these groups a list of conditions is one value, as upstream's schemas have it; elsewhere each has an
/// owner. It also keeps the bookkeeping of our controllers' statuses small.
const CONDITIONS_ARE_ONE: &str = super::KNATIVE;

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// Fields of `metadata` that identify an object or belong to the server.
const NOT_OWNED: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];

/// Who writes, to what, and when.
#[derive(Debug, Clone)]
pub(in super::super) struct Writer {
    pub(in super::super) manager: String,
    /// Whether the subresource is written.
    pub(in super::super) status: bool,
    /// The number of a scale is written, and nothing else.
    pub(in super::super) scale: bool,
    pub(in super::super) now: String,
    pub(in super::super) meta: &'static KindMeta,
    /// Of a kind that a client defined.
    pub(in super::super) schema: Option<&'static Value>,
}

#[derive(Debug, Clone)]
pub(super) struct Owner {
    manager: String,
    operation: String,
    api_version: String,
    time: String,
    subresource: String,
    pub(super) fields: Fields,
}

impl Writer {
    /// The fields of `after` that this writer can own and that are not so in `before`.
    pub(super) fn changed(&self, before: Option<&Value>, after: &Value) -> Fields {
        let mut found = Fields::default();
        for (name, inner) in after.as_object().into_iter().flatten() {
            let of_status = name == "status";
            if matches!(name.as_str(), "apiVersion" | "kind")
                || (self.status && !of_status)
                || (of_status && !self.status && self.meta.has_status)
            {
                continue;
            }
            let old = before.and_then(|before| before.get(name));
            let mut inside = match name.as_str() {
                "metadata" => changed_metadata(old, inner),
                _ => Fields::changed(self.at().below(&format!("f:{name}")), old, inner),
            };
            if of_status && self.meta.group.ends_with(CONDITIONS_ARE_ONE) {
                inside.close("f:conditions");
            }
            if !inside.is_empty() {
                found.below.insert(format!("f:{name}"), inside);
            }
        }
        found
    }

    pub(super) fn at(&self) -> At<'static> {
        At::object(self.meta, self.schema)
    }

    /// The subresource that is written; empty: the object itself.
    fn part(&self) -> &'static str {
        match (self.status, self.scale) {
            (true, _) => "status",
            (_, true) => "scale",
            _ => "",
        }
    }

    /// Whether the two differ in nothing that this writer can own.
    fn sees_same(&self, one: &Value, other: &Value) -> bool {
        self.changed(Some(one), other).is_empty() && self.changed(Some(other), one).is_empty()
    }

    fn owner(&self, operation: &str, fields: Fields) -> Owner {
        Owner {
            manager: self.manager.clone(),
            operation: operation.into(),
            api_version: self.meta.api_version(),
            time: self.now.clone(),
            subresource: self.part().into(),
            fields,
        }
    }

    fn is(&self, owner: &Owner, operation: &str) -> bool {
        owner.manager == self.manager && owner.operation == operation && owner.subresource == self.part()
    }
}

impl Owner {
    /// Its place among others.
    fn rank(&self) -> (bool, &str, &str, &str) {
        (self.operation != APPLY, &self.time, &self.manager, &self.subresource)
    }

    /// What somebody is told whose fields these are.
    pub(super) fn told(&self) -> String {
        let part = match self.subresource.as_str() {
            "" => String::new(),
            part => format!(" with subresource {part:?}"),
        };
        let using =
            if self.operation == APPLY { String::new() } else { format!(" using {}", self.api_version) };
        format!("conflict with {:?}{part}{using}", self.manager)
    }
}

/// The owners that an object names. What does not look like one is left out.
pub(super) fn owners(object: &Value) -> Vec<Owner> {
    let entries = object["metadata"]["managedFields"].as_array();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    entries
        .into_iter()
        .flatten()
        .map(|entry| Owner {
            manager: text(&entry["manager"]),
            operation: text(&entry["operation"]),
            api_version: text(&entry["apiVersion"]),
            time: text(&entry["time"]),
            subresource: text(&entry["subresource"]),
            fields: Fields::parse(&entry["fieldsV1"]),
        })
        .collect()
}

/// Writes the owners back, in the order of Kubernetes: who applies first, and then by time; those that own nothing are
/// forgotten.
fn write(object: &mut Value, owners: &[Owner]) {
    let mut owners: Vec<&Owner> = owners.iter().collect();
    owners.sort_by(|one, other| one.rank().cmp(&other.rank()));
    let entries: Vec<Value> = owners
        .into_iter()
        .filter(|owner| !owner.fields.below.is_empty())
        .map(|owner| {
            let mut entry = json!({
                "manager": owner.manager,
                "operation": owner.operation,
                "apiVersion": owner.api_version,
                "time": owner.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": owner.fields.write(),
            });
            if !owner.subresource.is_empty() {
                entry["subresource"] = owner.subresource.clone().into();
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

/// What the writer applied last, and what all others own.
///
/// Of an object that nobody is noted for, all belongs to those who wrote it before: it is not lost without a word.
pub(super) fn split(object: &Value, writer: &Writer) -> (Fields, Vec<Owner>) {
    let mut known = owners(object);
    if known.is_empty() && !writer.status && !writer.scale {
        let unknown = Writer { manager: BEFORE.into(), ..writer.clone() };
        known.push(unknown.owner(UPDATE, unknown.changed(None, object)));
    }
    let (mine, others): (Vec<Owner>, Vec<Owner>) =
        known.into_iter().partition(|owner| writer.is(owner, APPLY));
    (mine.into_iter().next().map(|owner| owner.fields).unwrap_or_default(), others)
}

/// Notes that the writer applied `fields`. Its time moves only with the fields.
pub(super) fn note_applied(
    object: &mut Value,
    before: Option<&Value>,
    mut others: Vec<Owner>,
    writer: &Writer,
    fields: Fields,
) {
    let mut mine = writer.owner(APPLY, fields);
    let known = before.map(owners).unwrap_or_default();
    if let Some(same) = known.iter().find(|owner| writer.is(owner, APPLY) && owner.fields == mine.fields)
        && before.is_some_and(|before| writer.sees_same(before, object))
    {
        mine.time.clone_from(&same.time);
    }
    others.insert(0, mine);
    write(object, &others);
}

/// Notes who changed what by a plain write: the changed fields are the writer's now, and nobody else's.
pub(in super::super) fn track(change: Change, before: Option<&Opened>, writer: &Writer) -> Change {
    match change {
        Change::Put(key, mut object) => {
            note_written(&mut object, before.map(|before| &before.value), writer);
            Change::Put(key, object)
        }
        other => other,
    }
}

fn note_written(object: &mut Value, before: Option<&Value>, writer: &Writer) {
    let changed = writer.changed(before, object);
    let mut owners = owners(object);
    for owner in owners.iter_mut().filter(|owner| (owner.subresource == "status") == writer.status) {
        if !writer.is(owner, UPDATE) {
            owner.fields.subtract(&changed);
        }
        owner.fields.keep_existing(writer.at(), object);
    }
    if !changed.below.is_empty() {
        let mine = owners.iter().position(|owner| writer.is(owner, UPDATE));
        let mut fields = mine.map(|place| owners.remove(place).fields).unwrap_or_default();
        fields.add(&changed);
        owners.push(writer.owner(UPDATE, fields));
    }
    forget_oldest(&mut owners);
    write(object, &owners);
}

/// The owners that a write starts from: those stored, unless the client says something else that makes
/// sense. One empty entry forgets them all; that is how tools start over, and how kubectl moves an object
/// from one way of applying to the other.
pub(in super::super) fn chosen(stored: Option<&Value>, sent: Option<&Value>) -> Option<Value> {
    let entries = sent.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    match entries {
        [Value::Object(empty)] if empty.is_empty() => None,
        [] => stored.cloned(),
        entries if entries.iter().all(is_entry) => sent.cloned(),
        _ => stored.cloned(),
    }
}

fn is_entry(entry: &Value) -> bool {
    let operation = entry["operation"].as_str();
    matches!(operation, Some(APPLY | UPDATE))
        && entry["fieldsType"] == "FieldsV1"
        && entry["fieldsV1"].is_object()
        && entry["apiVersion"].is_string()
        && entry["manager"].as_str().is_some_and(|name| name.len() <= MANAGER_BYTES_MAX)
}

fn changed_metadata(before: Option<&Value>, after: &Value) -> Fields {
    let mut found = Fields::default();
    let fields = after.as_object().into_iter().flatten();
    for (name, inner) in fields.filter(|(name, _)| !NOT_OWNED.contains(&name.as_str())) {
        let element = format!("f:{name}");
        let at = At::whole(None).below("f:metadata").below(&element);
        let inside = Fields::changed(at, before.and_then(|before| before.get(name)), inner);
        if !inside.is_empty() {
            found.below.insert(format!("f:{name}"), inside);
        }
    }
    found
}

/// Lets the oldest writers share one entry. The newest stand last.
fn forget_oldest(owners: &mut Vec<Owner>) {
    while owners.iter().filter(|owner| owner.operation == UPDATE).count() > WRITERS_MAX {
        let Some(first) = owners.iter().position(|owner| owner.operation == UPDATE) else { return };
        let oldest = owners.remove(first);
        let Some(next) = owners.iter_mut().find(|owner| owner.operation == UPDATE) else { return };
        next.manager = ANCIENT.into();
        next.fields.add(&oldest.fields);
    }
}
