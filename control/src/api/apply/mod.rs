//! Server-side apply: a client sends the fields it has an opinion on, and owns those.
//!
//! A field that another owner has a different opinion on is a conflict, unless the client takes it by
//! force; a field that the client no longer sends goes, unless another owner wants it.

mod blank;
mod fields;
mod last_applied;
mod lists;
mod managers;
mod merge;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::response::Response;
use http::StatusCode;
use serde_json::{Map, Value};

use crate::kind::{Entry, Requester};
use crate::kinds::custom;
use crate::store::{Change, Key, Opened, View};

use super::decide::Write;
use super::errors::Refusal;
use super::object::{self, Birth};
use super::{Call, body, create, customs, fields as validation, get, naming, rehearse, rules};

pub(super) use managers::{chosen, track};
pub(super) use writer::Writer;

use fields::{Compared, Fields};
use managers::Owner;

pub(super) const MEDIA: &str = "application/apply-patch+yaml";

/// How the groups of Knative's kinds end, whose schemas differ from those of Kubernetes' own.
const KNATIVE: &str = "knative.dev";

/// One apply, as far as it does not depend on what is stored.
#[derive(Debug)]
struct Intent {
    writer: Writer,
    force: bool,
    wanted: Value,
}

pub(super) async fn apply(call: &Call, bytes: &[u8]) -> Result<Response, Refusal> {
    let entry = call.target.entry;
    let key = call.key()?;
    if call.parameters.field_manager.is_empty() {
        return Err(Refusal::invalid_option(
            "PatchOptions",
            "fieldManager",
            "Required value: is required for apply patch",
        ));
    }
    let writer = call.writer();
    let validation = call.validation();
    let (mut wanted, duplicates) = parse(bytes, writer.schema)?;
    rules::check_shape(entry.meta, &mut wanted)?;
    if !call.server.requester.internal {
        check_fields(call, &wanted, &writer)?;
    }
    let warnings = validation::check(&entry, validation, &wanted, duplicates)?;
    // Owners speak of the form that is stored, so that clients of all forms meet in it.
    entry.store_part(&mut wanted);
    let stored = entry.as_stored();
    let intent = Intent { writer, force: call.parameters.force.unwrap_or(false), wanted };

    let namespace = call.target.namespace.clone();
    let requester = call.requester();
    let dry_run = call.parameters.dry_run;
    let created = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&created);
    let now = intent.writer.now.clone();
    let settle = {
        let (namespace, key) = (namespace.clone(), key.clone());
        move |view: &View, change: Change, is_new: bool| {
            if is_new {
                if let Some(namespace) = &namespace {
                    create::check_home(view, entry.meta, &key.name, namespace)?;
                }
                customs::check_stays(view, &entry, &key)?;
            }
            tell.store(is_new, Ordering::Relaxed);
            let change = naming::settle(view, change, &now);
            Ok(if dry_run { rehearse(change) } else { change })
        }
    };
    let name = key.clone();
    let customs = Arc::clone(&call.server.customs);
    let decide = move |before: Option<&Opened>| match before {
        Some(before) => intent.onto(before, |merged| {
            if intent.writer.status {
                object::prepare_status(&stored, before, merged, &requester)
            } else {
                object::prepare_update(&stored, before, merged, &requester)
            }
        }),
        None => intent.anew(&entry, &name, namespace.as_deref(), &requester),
    };
    let judge = move |before: Option<&Opened>| {
        let change = decide(before)?;
        customs.check_room(entry.meta, &change)?;
        Ok(change)
    };
    let object = Write { key, bytes: bytes.len(), dry_run, judge, settle }.run(&call.server.store).await?;
    let code = if created.load(Ordering::Relaxed) { StatusCode::CREATED } else { StatusCode::OK };
    Ok(validation::warn(get::one(call, code, object.object()), &warnings))
}

/// A field that the kind does not know, or an element that stands twice, can have no owner: refused whatever the
/// client wants to be told.
fn check_fields(call: &Call, wanted: &Value, writer: &Writer) -> Result<(), Refusal> {
    let entry = call.target.entry;
    let unknown = entry
        .unknown_in(wanted)
        .into_iter()
        .min()
        .map(|path| format!(".{path}: field not declared in schema"));
    let Some(why) = unknown.or_else(|| lists::ambiguous(writer.at(), wanted)) else { return Ok(()) };
    let text = |field: &str| wanted["metadata"][field].as_str().unwrap_or("");
    let (group, version) = (entry.meta.group, entry.meta.version);
    Err(Refusal::bad_request(format!(
        "failed to create typed patch object ({}/{}; {group}/{version}, Kind={}): {why}",
        text("namespace"),
        text("name"),
        entry.meta.kind
    )))
}

fn parse(bytes: &[u8], schema: Option<&Value>) -> Result<(Value, Vec<String>), Refusal> {
    let mut wanted =
        body::yaml(bytes).map_err(|why| Refusal::bad_request(format!("error decoding YAML: {why}")))?;
    let duplicates = body::duplicates(bytes);
    if !wanted.is_object() {
        return Err(Refusal::bad_request("the body has to be one object"));
    }
    without_nulls(&mut wanted, schema);
    if wanted["metadata"].get("managedFields").is_some_and(|list| list != &Value::Array(Vec::new())) {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    for field in ["apiVersion", "kind"] {
        if !wanted[field].is_string() {
            return Err(Refusal::bad_request(format!("{field} must be set in an apply patch")));
        }
    }
    Ok((wanted, duplicates))
}

/// A field without a value is no opinion, unless the schema of a client's kind lets it be null: then null is its value.
fn without_nulls(value: &mut Value, schema: Option<&Value>) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, inner| {
                !inner.is_null() || schema.is_some_and(|schema| custom::stays_null(schema, name))
            });
            for (name, inner) in fields {
                without_nulls(inner, schema.map(|schema| custom::below(schema, name)));
            }
        }
        Value::Array(items) => {
            let schema = schema.map(|schema| &schema["items"]);
            items.iter_mut().for_each(|item| without_nulls(item, schema));
        }
        _ => {}
    }
}

/// The path names the object; a body that leaves the name out means the same.
fn name_it(object: &mut Value, key: &Key) -> Result<(), Refusal> {
    let metadata = object
        .as_object_mut()
        .map(|fields| fields.entry("metadata").or_insert_with(|| Map::new().into()))
        .and_then(Value::as_object_mut)
        .ok_or_else(|| Refusal::bad_request("metadata has to be an object"))?;
    let name = metadata.entry("name").or_insert_with(|| Value::from(&*key.name));
    if *name != *key.name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            name.as_str().unwrap_or(""),
            key.name
        )));
    }
    Ok(())
}

impl Intent {
    /// A new object by this name.
    fn anew(
        &self,
        entry: &Entry,
        key: &Key,
        namespace: Option<&str>,
        requester: &Requester,
    ) -> Result<Change, Refusal> {
        if self.writer.status {
            return Err(Refusal::not_found(entry.meta, &key.name));
        }
        if !entry.meta.developers_create && !requester.is_controller() {
            let why = format!("only controllers create {}", entry.meta.plural);
            return Err(Refusal::forbidden(entry.meta, &key.name, &why));
        }
        if let Some(uid) = self.wanted["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Refusal::conflict(entry.meta, &key.name, &why));
        }
        let mut new = self.wanted.clone();
        entry.complete(&mut new);
        name_it(&mut new, key)?;
        let birth = Birth::here_and_now();
        let (key, object) = object::prepare_new(&entry.as_stored(), new, namespace, requester, &birth)?;
        Ok(self.first(key, object))
    }

    fn first(&self, key: Key, mut object: Value) -> Change {
        let said = self.writer.said(&self.wanted);
        managers::note_applied(&mut object, None, Vec::new(), (&self.writer, said, true));
        Change::Put(key, object)
    }

    /// Lays the intent over what is stored; `admit` is the way in of any other update.
    fn onto(
        &self,
        before: &Opened,
        admit: impl FnOnce(Value) -> Result<Change, Refusal>,
    ) -> Result<Change, Refusal> {
        let said = self.writer.said(&self.wanted);
        let (last, mut others) = managers::split(&before.value, &self.writer);
        let at = self.writer.at();
        let mut merged = merge::merge(at, Some(&before.value), &self.wanted);
        if let Some(last) = last.as_ref().filter(|last| last.fields != said) {
            let mut owned = Fields::of(at, &self.wanted);
            others.iter().for_each(|owner| owned.add(&owner.fields));
            merged = merge::prune(at, merged, &last.fields, &owned);
        }
        let compared = self.writer.compare(Some(&before.value), &merged);
        self.settle(&before.value, &compared, &mut others)?;
        if last_applied::is_wanted(&self.writer, &merged) {
            last_applied::note(&mut merged, &self.wanted);
        }

        let moved = !compared.set().is_empty() || !compared.removed.is_empty();
        let (key, mut object) = match admit(merged)? {
            Change::Put(key, object) => (key, object),
            Change::Keep(same) => (same.key.clone(), same.value()),
            other @ (Change::Delete(..) | Change::PutPrepared(..)) => return Ok(other),
        };
        managers::note_applied(&mut object, last.as_ref(), others, (&self.writer, said, moved));
        let same = managers::same_but_for_times(&object, &before.value);
        Ok(if same { Change::Keep(Arc::clone(&before.stored)) } else { Change::Put(key, object) })
    }

    /// Takes contested fields from their owners by force, or refuses. What goes is nobody's any more.
    fn settle(&self, before: &Value, compared: &Compared, others: &mut Vec<Owner>) -> Result<(), Refusal> {
        let set = compared.set();
        let contested: Vec<Fields> = others.iter().map(|owner| owner.fields.shared(&set)).collect();
        if !self.force {
            let allowed = last_applied::allowed(&self.writer, before).unwrap_or_default();
            let mut conflicts = Vec::new();
            for (owner, mut fields) in others.iter().zip(contested) {
                fields.subtract(&allowed);
                let with = owner.told();
                conflicts.extend(merge::paths(&fields).into_iter().map(|path| (with.clone(), path)));
            }
            // As people look for them: by owner.
            conflicts.sort_by(|(one, _), (other, _)| one.cmp(other));
            if !conflicts.is_empty() {
                return Err(Refusal::contested(&conflicts));
            }
        }
        for owner in others.iter_mut() {
            owner.fields.subtract(&set);
            owner.fields.subtract(&compared.removed);
        }
        others.retain(|owner| !owner.fields.is_empty());
        Ok(())
    }
}
