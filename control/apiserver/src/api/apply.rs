//! Server-side apply: a client sends the fields that it manages, and owns those.
//!
//! A field that another owner has set to a different value is a conflict, unless the client takes it by
//! force; a field that the client no longer sends is removed, unless another owner has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::response::Response;
use http::StatusCode;
use serde_json::{Map, Value};

use crate::store::{DecodedObject, ObjectKey, StagedView, WriteOperation};
use types::custom_kinds;
use types::kind_registry::{KindEntry, RequestContext};

use super::decide::Write;
use super::errors::StatusError;
use super::field_ownership::{FieldOwner, FieldSet, FieldWriter, field_location, last_applied, managed_fields, merge};
use super::prepare::{self, CreationContext};
use super::{
    ApiRequest, as_dry_run, body, crd_names, crd_registry, create, field_validation as validation, get,
    metadata_validation,
};

pub(super) const MEDIA: &str = "application/apply-patch+yaml";

/// One apply, without the parts that depend on the stored object.
#[derive(Debug)]
struct ApplyIntent {
    writer: FieldWriter,
    force: bool,
    wanted: Value,
}

pub(super) async fn apply(call: &ApiRequest, bytes: &[u8]) -> Result<Response, StatusError> {
    let entry = call.target.entry;
    let key = call.key()?;
    if call.parameters.field_manager.is_empty() {
        return Err(StatusError::invalid_option(
            "PatchOptions",
            "fieldManager",
            "Required value: is required for apply patch",
        ));
    }
    let writer = call.field_writer();
    let validation = call.field_validation();
    let (mut wanted, duplicates) = parse(bytes, writer.schema)?;
    metadata_validation::check_shape(entry.meta, &mut wanted)?;
    let warnings = if call.server.default_requester.internal {
        validation::check(&entry, validation, &wanted, duplicates)?
    } else {
        check_fields(call, &wanted, &writer)?;
        validation::check_known(&entry, validation, &wanted, duplicates)?
    };
    // Owners refer to the stored version, so that clients of all versions share it.
    entry.partial_to_stored(&mut wanted);
    let stored = entry.as_stored();
    let intent = ApplyIntent { writer, force: call.parameters.force.unwrap_or(false), wanted };

    let namespace = call.target.namespace.clone();
    let requester = call.requester();
    let dry_run = call.parameters.dry_run;
    let created = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&created);
    let now = intent.writer.now.clone();
    let settle = {
        let (namespace, key) = (namespace.clone(), key.clone());
        move |view: &StagedView, change: WriteOperation, is_new: bool| {
            if is_new {
                if let Some(namespace) = &namespace {
                    create::check_namespace_exists(view, entry.meta, &key.name, namespace)?;
                }
                crd_registry::check_still_defined(view, &entry, &key)?;
            }
            tell.store(is_new, Ordering::Relaxed);
            let change = crd_names::assign_names(view, change, &now);
            Ok(if dry_run { as_dry_run(change) } else { change })
        }
    };
    let name = key.clone();
    let crds = Arc::clone(&call.server.crds);
    let decide = move |before: Option<&DecodedObject>| match before {
        Some(before) => intent.apply_to(before, |merged| {
            if intent.writer.status {
                prepare::prepare_status(&stored, before, merged, &requester)
            } else {
                prepare::prepare_update(&stored, before, merged, &requester)
            }
        }),
        None => intent.create_object(&entry, &name, namespace.as_deref(), &requester),
    };
    let judge = move |before: Option<&DecodedObject>| {
        let change = decide(before)?;
        crds.check_capacity(entry.meta, &change)?;
        Ok(change)
    };
    let object = Write { key, bytes: bytes.len(), dry_run, judge, settle }.run(&call.server.store).await?;
    let code = if created.load(Ordering::Relaxed) { StatusCode::CREATED } else { StatusCode::OK };
    Ok(validation::with_warnings(get::object_response(call, code, object.object()), &warnings))
}

/// An unknown field, or a duplicate element, can have no owner: rejected even if the
/// client wants a warning.
fn check_fields(call: &ApiRequest, wanted: &Value, writer: &FieldWriter) -> Result<(), StatusError> {
    let entry = call.target.entry;
    let unknown =
        entry.unknown_fields(wanted).into_iter().min().map(|path| format!(".{path}: field not declared in schema"));
    let Some(why) = unknown.or_else(|| field_location::find_duplicate(writer.location(), wanted)) else {
        return Ok(());
    };
    let text = |field: &str| wanted["metadata"][field].as_str().unwrap_or("");
    let (group, version) = (entry.meta.group, entry.meta.version);
    Err(StatusError::bad_request(format!(
        "failed to create typed patch object ({}/{}; {group}/{version}, Kind={}): {why}",
        text("namespace"),
        text("name"),
        entry.meta.kind
    )))
}

fn parse(bytes: &[u8], schema: Option<&Value>) -> Result<(Value, Vec<String>), StatusError> {
    let (mut wanted, duplicates) =
        body::yaml(bytes).map_err(|why| StatusError::bad_request(format!("error decoding YAML: {why}")))?;
    if !wanted.is_object() {
        return Err(StatusError::bad_request("the body has to be one object"));
    }
    without_nulls(&mut wanted, schema);
    if wanted["metadata"].get("managedFields").is_some_and(|list| list != &Value::Array(Vec::new())) {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    for field in ["apiVersion", "kind"] {
        if !wanted[field].is_string() {
            return Err(StatusError::bad_request(format!("{field} must be set in an apply patch")));
        }
    }
    Ok((wanted, duplicates))
}

/// A field without a value is ignored, unless a custom kind's schema makes it nullable: then null is its value.
fn without_nulls(value: &mut Value, schema: Option<&Value>) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, inner| {
                !inner.is_null() || schema.is_some_and(|schema| custom_kinds::stays_null(schema, name))
            });
            for (name, inner) in fields {
                without_nulls(inner, schema.map(|schema| custom_kinds::below(schema, name)));
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
fn set_name_from_path(object: &mut Value, key: &ObjectKey) -> Result<(), StatusError> {
    let metadata = object
        .as_object_mut()
        .map(|fields| fields.entry("metadata").or_insert_with(|| Map::new().into()))
        .and_then(Value::as_object_mut)
        .ok_or_else(|| StatusError::bad_request("metadata has to be an object"))?;
    let name = metadata.entry("name").or_insert_with(|| Value::from(&*key.name));
    if *name != *key.name {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            name.as_str().unwrap_or(""),
            key.name
        )));
    }
    Ok(())
}

impl ApplyIntent {
    /// Creates an object of this name.
    fn create_object(
        &self,
        entry: &KindEntry,
        key: &ObjectKey,
        namespace: Option<&str>,
        requester: &RequestContext,
    ) -> Result<WriteOperation, StatusError> {
        if self.writer.status {
            return Err(StatusError::not_found(entry.meta, &key.name));
        }
        if !entry.meta.user_creatable && !requester.is_controller() {
            let why = format!("only controllers create {}", entry.meta.plural);
            return Err(StatusError::forbidden(entry.meta, &key.name, &why));
        }
        if let Some(uid) = self.wanted["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(StatusError::conflict(entry.meta, &key.name, &why));
        }
        let mut new = self.wanted.clone();
        entry.complete(&mut new);
        set_name_from_path(&mut new, key)?;
        let birth = CreationContext::now();
        let (key, object) = prepare::prepare_create(&entry.as_stored(), new, namespace, requester, &birth)?;
        Ok(self.create(key, object))
    }

    fn create(&self, key: ObjectKey, mut object: Value) -> WriteOperation {
        let said = self.writer.owned_fields(&self.wanted);
        managed_fields::record_apply(&mut object, None, Vec::new(), (&self.writer, said, true));
        WriteOperation::Put(key, object)
    }

    /// Merges the intent into the stored object; `admit` validates as for any other update.
    fn apply_to(
        &self,
        before: &DecodedObject,
        admit: impl FnOnce(Value) -> Result<WriteOperation, StatusError>,
    ) -> Result<WriteOperation, StatusError> {
        let said = self.writer.owned_fields(&self.wanted);
        let (last, mut others) = managed_fields::split(&before.value, &self.writer);
        let at = self.writer.location();
        let mut merged = merge::merge(at, Some(&before.value), &self.wanted);
        if let Some(last) = last.as_ref().filter(|last| last.fields != said) {
            let mut owned = FieldSet::of(at, &self.wanted);
            others.iter().for_each(|owner| owned.add(&owner.fields));
            merged = merge::prune(at, merged, &last.fields, &owned);
        }
        let mut compared = self.writer.compare(Some(&before.value), &merged);
        let changed = compared.take_changed();
        self.resolve_conflicts(&before.value, (&changed, &compared.removed), &mut others)?;
        if last_applied::should_update(&self.writer, &merged) {
            last_applied::update_annotation(&mut merged, &self.wanted);
        }

        let moved = !changed.is_empty() || !compared.removed.is_empty();
        let (key, mut object) = match admit(merged)? {
            WriteOperation::Put(key, object) => (key, object),
            WriteOperation::NoOp(same) => (same.key.clone(), same.value()),
            other @ (WriteOperation::Delete(..) | WriteOperation::PutPrepared(..)) => return Ok(other),
        };
        managed_fields::record_apply(&mut object, last.as_ref(), others, (&self.writer, said, moved));
        let same = managed_fields::equal_except_times(&object, &before.value);
        Ok(if same { WriteOperation::NoOp(Arc::clone(&before.stored)) } else { WriteOperation::Put(key, object) })
    }

    /// Takes contested fields from their owners by force, or rejects. Removed fields lose their owner.
    fn resolve_conflicts(
        &self,
        before: &Value,
        (set, removed): (&FieldSet, &FieldSet),
        others: &mut Vec<FieldOwner>,
    ) -> Result<(), StatusError> {
        let contested: Vec<FieldSet> = others.iter().map(|owner| owner.fields.intersection(set)).collect();
        if !self.force {
            let allowed = last_applied::takeover_fields(&self.writer, before).unwrap_or_default();
            let mut conflicts = Vec::new();
            for (owner, mut fields) in others.iter().zip(contested) {
                fields.subtract(&allowed);
                let with = owner.description();
                conflicts.extend(merge::paths(&fields).into_iter().map(|path| (with.clone(), path)));
            }
            // As users read them: by owner.
            conflicts.sort_by(|(one, _), (other, _)| one.cmp(other));
            if !conflicts.is_empty() {
                return Err(StatusError::apply_conflict(&conflicts));
            }
        }
        for owner in others.iter_mut() {
            owner.fields.subtract(set);
            owner.fields.subtract(removed);
        }
        others.retain(|owner| !owner.fields.is_empty());
        Ok(())
    }
}
