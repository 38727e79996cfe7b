//! Server-side apply: a client sends the fields it has an opinion on, and owns those.
//!
//! A field that another owner has a different opinion on is a conflict, unless the client takes it by
//! force; a field that the client no longer sends goes, unless another owner wants it. Deciding is done
//! against the newest state on the writer's thread, like every other write.

mod fields;
mod lists;
mod managers;
mod merge;

use std::sync::{Arc, OnceLock};

use axum::response::Response;
use http::StatusCode;
use serde_json::{Map, Value};

use crate::store::{Change, Key, Opened};

use super::errors::Refusal;
use super::object::{self, Birth};
use super::{Call, create, fields as validation, get, rehearse, rules};

pub(super) use managers::{Writer, chosen, track};

use fields::Fields;
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
    let (mut wanted, duplicates) = parse(bytes)?;
    rules::check_shape(entry.meta, &mut wanted)?;
    if !call.server.requester.internal {
        check_fields(call, &wanted, &writer)?;
    }
    let warnings = validation::check(&entry, validation, &wanted, duplicates)?;
    // Owners speak of the form that is stored, so that clients of all forms meet in it.
    entry.store(&mut wanted);
    let stored = entry.as_stored();
    let intent = Intent { writer, force: call.parameters.force.unwrap_or(false), wanted };

    let namespace = call.target.namespace.clone();
    let requester = call.requester();
    let dry_run = call.parameters.dry_run;
    let birth = Birth::here_and_now();
    let created = Arc::new(OnceLock::new());
    let tell = Arc::clone(&created);
    let written = call.server.store.write(move |view| {
        let change = match view.get(&key).map(|before| before.open()) {
            Some(before) => intent.onto(&before, |merged| {
                if intent.writer.status {
                    object::prepare_status(&stored, &before, merged, &requester)
                } else {
                    object::prepare_update(&stored, &before, merged, &requester)
                }
            })?,
            None if intent.writer.status => return Err(Refusal::not_found(entry.meta, &key.name)),
            None if !entry.meta.developers_create && !requester.is_controller() => {
                let why = format!("only controllers create {}", entry.meta.plural);
                return Err(Refusal::forbidden(entry.meta, &key.name, &why));
            }
            None => {
                tell.get_or_init(|| ());
                let mut new = intent.wanted.clone();
                name_it(&mut new, &key)?;
                let (key, object) =
                    object::prepare_new(&stored, new, namespace.as_deref(), &requester, &birth)?;
                if let Some(namespace) = &namespace {
                    create::check_home(view, entry.meta, &key.name, namespace)?;
                }
                intent.first(key, object)
            }
        };
        Ok::<_, Refusal>(if dry_run { rehearse(change) } else { change })
    });
    let object = written.await?;
    let code = if created.get().is_some() { StatusCode::CREATED } else { StatusCode::OK };
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

fn parse(bytes: &[u8]) -> Result<(Value, Vec<String>), Refusal> {
    let mut wanted: Value = serde_norway::from_slice(bytes)
        .map_err(|why| Refusal::bad_request(format!("error decoding YAML: {why}")))?;
    let duplicates = validation::duplicates(serde_norway::Deserializer::from_slice(bytes));
    if !wanted.is_object() {
        return Err(Refusal::bad_request("the body has to be one object"));
    }
    without_nulls(&mut wanted);
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

/// A field without a value is no opinion.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, inner| !inner.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
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
    fn fields(&self) -> Fields {
        self.writer.changed(None, &self.wanted)
    }

    fn first(&self, key: Key, mut object: Value) -> Change {
        managers::note_applied(&mut object, None, Vec::new(), &self.writer, self.fields());
        Change::Put(key, object)
    }

    /// Lays the intent over what is stored; `admit` is the way in of any other update.
    fn onto(
        &self,
        before: &Opened,
        admit: impl FnOnce(Value) -> Result<Change, Refusal>,
    ) -> Result<Change, Refusal> {
        let mine = self.fields();
        let (last, mut others) = managers::split(&before.value, &self.writer);
        let at = self.writer.at();
        let mut merged = merge::merge(at, Some(&before.value), &self.wanted);
        self.settle(&before.value, &merged, &mine, &mut others)?;

        let mut gone = last;
        gone.subtract_wanted(at, &mine, Some(&self.wanted));
        let claims: Vec<&Fields> = others.iter().map(|owner| &owner.fields).chain([&mine]).collect();
        merge::remove(at, &mut merged, &gone, &claims);

        let (key, mut object) = match admit(merged)? {
            Change::Put(key, object) => (key, object),
            Change::Keep(same) => (same.key.clone(), same.value()),
            leaves @ Change::Delete(..) => return Ok(leaves),
        };
        managers::note_applied(&mut object, Some(&before.value), others, &self.writer, mine);
        let same = object == before.value;
        Ok(if same { Change::Keep(Arc::clone(&before.stored)) } else { Change::Put(key, object) })
    }

    /// Takes contested fields from their owners by force, or refuses.
    fn settle(
        &self,
        before: &Value,
        merged: &Value,
        mine: &Fields,
        others: &mut [Owner],
    ) -> Result<(), Refusal> {
        let mut conflicts = Vec::new();
        for owner in others {
            let clashes = merge::clashes(self.writer.at(), mine, &owner.fields, before, merged);
            if self.force {
                owner.fields.subtract(&clashes);
            } else {
                let with = owner.told();
                conflicts.extend(merge::paths(&clashes).into_iter().map(|path| (with.clone(), path)));
            }
        }
        // As people look for them: by owner.
        conflicts.sort();
        if conflicts.is_empty() { Ok(()) } else { Err(Refusal::contested(&conflicts)) }
    }
}
