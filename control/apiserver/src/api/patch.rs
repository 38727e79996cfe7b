//! PATCH: changes some fields of an object, without a previous read.

use std::sync::{Arc, OnceLock};

use axum::response::Response;
use http::StatusCode;
use json_patch::jsonptr::Pointer;
use json_patch::{AddOperation, PatchOperation, ReplaceOperation, TestOperation};
use serde_json::Value;

use crate::store::{DecodedObject, OBJECT_BYTES_MAX, StagedView};
use types::kind_registry::KindEntry;

use super::decide::Write;
use super::errors::StatusError;
use super::{
    ApiRequest, apply, as_dry_run, body, crd_names, document_tree, field_ownership, field_validation, get, prepare,
    strategic_merge, weight,
};

/// Operations of one JSON patch; Kubernetes' figure.
const OPERATIONS_MAX: usize = 10_000;
/// Memory for the values that one patch copies or moves within the object, in bytes. Without it, thirty copies that
/// each double the object would fill any memory.
const COPY_BYTES_MAX: usize = OBJECT_BYTES_MAX;
/// Elements of lists that one patch may shift. Each operation on the front of a long list moves all of it.
const SHIFTED_ELEMENTS_MAX: usize = 10_000_000;
/// Maximum nesting of an object; what the parsers of bodies allow. Operations can nest values
/// inside each other, and everything that walks an object is recursive.
const DEPTH_MAX: usize = 128;

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
const ACCEPTED_SCALE: &str = "application/json-patch+json, application/merge-patch+json";
const ACCEPTED_CORE: &str = "application/json-patch+json, application/merge-patch+json, \
     application/strategic-merge-patch+json, application/apply-patch+yaml";

#[derive(Debug)]
pub(super) enum PatchDocument {
    /// RFC 7386
    Merge(Value),
    /// RFC 6902
    Json(json_patch::Patch),
    /// Kubernetes' own format, for its own kinds.
    Strategic(Value),
}

pub(super) async fn patch(call: &ApiRequest, bytes: &[u8]) -> Result<Response, StatusError> {
    let key = call.key()?;
    let entry = call.target.entry;
    let status = call.target.status;
    let requester = call.requester();
    let dry_run = call.parameters.dry_run;
    let writer = call.field_writer();
    let media = body::content_type(&call.headers).unwrap_or_default();
    if media == apply::MEDIA {
        return apply::apply(call, bytes).await;
    }
    if call.parameters.force.is_some() {
        let why = "Forbidden: may not be specified for non-apply patch";
        return Err(StatusError::invalid_option("PatchOptions", "force", why));
    }
    let (patch, duplicates) = parse(&entry, &media, bytes)?;
    let validation = call.field_validation();
    let warnings = Arc::new(OnceLock::new());
    let tell = Arc::clone(&warnings);
    let judge = {
        let (name, writer, crds) = (key.name.clone(), writer.clone(), Arc::clone(&call.server.crds));
        move |before: Option<&DecodedObject>| {
            let before = before.ok_or_else(|| StatusError::not_found(entry.meta, &name))?;
            let new = apply_patch(&patch, entry.from_stored(before.value.clone()))?;
            let found = field_validation::check(&entry, validation, &new, duplicates.clone())
                .map_err(StatusError::for_patch)?;
            tell.get_or_init(|| found);
            let sent = writer.user_object(&entry, &new);
            let change = if status {
                prepare::prepare_status(&entry, before, new, &requester)
            } else {
                prepare::prepare_update(&entry, before, new, &requester)
            };
            let change = change.map_err(StatusError::for_patch)?;
            crds.check_capacity(entry.meta, &change)?;
            Ok(field_ownership::track_update(change, Some(before), &writer, sent.as_ref()))
        }
    };
    let settle = move |view: &StagedView, change, _| {
        let change = crd_names::assign_names(view, change, &writer.now);
        Ok(if dry_run { as_dry_run(change) } else { change })
    };
    let written = Write { key, bytes: bytes.len(), dry_run, judge, settle }.run(&call.server.store);
    let response = get::object_response(call, StatusCode::OK, written.await?.object());
    Ok(field_validation::with_warnings(response, warnings.get().map_or(&[][..], Vec::as_slice)))
}

/// Whether strategic merge patches are accepted: for Kubernetes' own kinds. Kinds with a definition may be in groups of that
/// name too.
pub(super) fn is_core(entry: &KindEntry) -> bool {
    let group = entry.meta.group;
    !entry.has_definition() && (group.is_empty() || group.ends_with(".k8s.io") || ["apps", "batch"].contains(&group))
}

/// The patch, and the fields that stand twice in it, as warnings.
pub(super) fn parse(entry: &KindEntry, media: &str, bytes: &[u8]) -> Result<(PatchDocument, Vec<String>), StatusError> {
    parse_of(entry, media, bytes, if is_core(entry) { ACCEPTED_CORE } else { ACCEPTED })
}

/// For subresources that are not objects of their own, so that nothing can be applied to them.
pub(super) fn parse_of_scale(entry: &KindEntry, media: &str, bytes: &[u8]) -> Result<PatchDocument, StatusError> {
    parse_of(entry, media, bytes, ACCEPTED_SCALE).map(|(patch, _)| patch)
}

fn parse_of(
    entry: &KindEntry,
    media: &str,
    bytes: &[u8],
    accepted: &str,
) -> Result<(PatchDocument, Vec<String>), StatusError> {
    let core = is_core(entry);
    let kind = match media {
        "application/json-patch+json" => return parse_operations(bytes),
        "application/merge-patch+json" => PatchDocument::Merge,
        "application/strategic-merge-patch+json" if core => PatchDocument::Strategic,
        _ => return Err(StatusError::unsupported_media_type(accepted)),
    };
    let (patch, duplicates) = body::json(bytes)?;
    if !patch.is_object() {
        return Err(StatusError::bad_request("error decoding patch: a merge patch has to be one object"));
    }
    Ok((kind(patch), duplicates))
}

fn parse_operations(bytes: &[u8]) -> Result<(PatchDocument, Vec<String>), StatusError> {
    let wrong = |why: String| StatusError::bad_request(format!("error decoding patch: {why}"));
    let (list, duplicates) = document_tree::read_json(bytes).map_err(|why| wrong(why.to_string()))?;
    let Value::Array(operations) = list else { return Err(wrong("a JSON patch has to be a list".to_owned())) };
    if operations.len() > OPERATIONS_MAX {
        return Err(StatusError::too_many_operations(operations.len(), OPERATIONS_MAX));
    }
    let patch: Result<Vec<PatchOperation>, _> = operations.into_iter().map(operation).collect();
    let patch = patch.map_err(|why| StatusError::invalid_patch(&why.to_string()))?;
    Ok((PatchDocument::Json(json_patch::Patch(patch)), duplicates))
}

/// One operation. A missing value is `null`, as Kubernetes reads it.
fn operation(mut said: Value) -> Result<PatchOperation, serde_json::Error> {
    // Reading an operation copies its value twice.
    let mut value = said.get_mut("value").map(Value::take).unwrap_or_default();
    let takes = matches!(said["op"].as_str(), Some("add" | "replace" | "test"));
    if let Some(fields) = said.as_object_mut().filter(|_| takes) {
        fields.insert("value".to_owned(), Value::Null);
    }
    let mut operation = serde_json::from_value(said)?;
    match &mut operation {
        PatchOperation::Add(AddOperation { value: place, .. })
        | PatchOperation::Replace(ReplaceOperation { value: place, .. })
        | PatchOperation::Test(TestOperation { value: place, .. }) => std::mem::swap(place, &mut value),
        PatchOperation::Copy(_) | PatchOperation::Move(_) | PatchOperation::Remove(_) => {}
    }
    Ok(operation)
}

/// `object` with the changes of the patch.
pub(super) fn apply_patch(patch: &PatchDocument, object: Value) -> Result<Value, StatusError> {
    apply_to(patch, object).map_err(|why| StatusError::invalid_patch(&why))
}

fn apply_to(patch: &PatchDocument, mut object: Value) -> Result<Value, String> {
    match patch {
        PatchDocument::Merge(patch) => json_patch::merge(&mut object, patch),
        PatchDocument::Strategic(patch) => strategic_merge::merge(&mut object, patch)?,
        PatchDocument::Json(patch) => {
            let (mut copied_bytes, mut pushed_aside) = (0, 0);
            for operation in &patch.0 {
                check_growth(operation, &object, &mut copied_bytes)?;
                pushed_aside += shifted_elements(operation, &object);
                if pushed_aside > SHIFTED_ELEMENTS_MAX {
                    return Err(format!("the patch moves more than {SHIFTED_ELEMENTS_MAX} elements of lists"));
                }
                let operation = kubernetes_operation(operation, &object);
                json_patch::patch_unsafe(&mut object, operation.as_slice()).map_err(|why| why.to_string())?;
            }
        }
    }
    Ok(object)
}

/// Kubernetes' patches are a little wider than RFC 6902: a field of an object that is not there can be replaced, and
/// is `null` to a test. `None`: there is nothing to do.
fn kubernetes_operation(operation: &PatchOperation, object: &Value) -> Option<PatchOperation> {
    let absent = |path: &Pointer| object.pointer(path.as_str()).is_none();
    let in_object =
        |path: &Pointer| path.parent().and_then(|parent| object.pointer(parent.as_str())).is_some_and(Value::is_object);
    match operation {
        PatchOperation::Test(test) if test.value.is_null() && absent(&test.path) && in_object(&test.path) => None,
        PatchOperation::Replace(replace) if absent(&replace.path) && in_object(&replace.path) => {
            let (path, value) = (replace.path.clone(), replace.value.clone());
            Some(PatchOperation::Add(AddOperation { path, value }))
        }
        other => Some(other.clone()),
    }
}

/// Rejects an operation before it makes the object too deep, or copies more than a patch may.
fn check_growth(operation: &PatchOperation, object: &Value, copied_bytes: &mut usize) -> Result<(), String> {
    let (path, value) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Copy(copy) => (&copy.path, object.pointer(copy.from.as_str())),
        PatchOperation::Move(moved) => (&moved.path, object.pointer(moved.from.as_str())),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    let Some(value) = value else { return Ok(()) };
    if matches!(operation, PatchOperation::Copy(_) | PatchOperation::Move(_)) {
        *copied_bytes = weight::within(value, COPY_BYTES_MAX - *copied_bytes)
            .map(|bytes| *copied_bytes + bytes)
            .ok_or_else(|| format!("the patch copies more than {COPY_BYTES_MAX} bytes"))?;
    }
    if path.tokens().count() + depth(value) > DEPTH_MAX {
        return Err(format!("the patch nests more than {DEPTH_MAX} levels"));
    }
    Ok(())
}

/// The number of elements after the position in a list at which an operation inserts or removes one.
fn shifted_elements(operation: &PatchOperation, object: &Value) -> usize {
    let behind = |path: &Pointer| {
        let list = path.parent().and_then(|parent| object.pointer(parent.as_str())).and_then(Value::as_array);
        let at = path.last().and_then(|last| last.decoded().parse::<usize>().ok());
        list.zip(at).map_or(0, |(list, at)| list.len().saturating_sub(at))
    };
    match operation {
        PatchOperation::Add(add) => behind(&add.path),
        PatchOperation::Remove(remove) => behind(&remove.path),
        PatchOperation::Copy(copy) => behind(&copy.path),
        PatchOperation::Move(moved) => behind(&moved.from).saturating_add(behind(&moved.path)),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json_patch(object: Value, operations: Value) -> Result<Value, String> {
        apply_to(&PatchDocument::Json(serde_json::from_value(operations).unwrap()), object)
    }

    /// APP-28: JSON patch.
    #[test]
    fn operations_apply_in_order_and_a_failing_test_refuses_all() {
        let object = json!({ "a": { "b": 1 } });
        let patched = json_patch(
            object.clone(),
            json!([
                { "op": "test", "path": "/a/b", "value": 1 },
                { "op": "add", "path": "/a/c", "value": [1] },
                { "op": "add", "path": "/a/c/-", "value": 2 },
                { "op": "move", "from": "/a/b", "path": "/d" },
            ]),
        );
        assert_eq!(patched.unwrap(), json!({ "a": { "c": [1, 2] }, "d": 1 }));
        let refused = json_patch(object, json!([{ "op": "test", "path": "/a/b", "value": 2 }]));
        assert!(refused.is_err());
    }

    /// APP-28: an invalid operation does not fit any object, and a missing value is null.
    #[test]
    fn an_operation_that_is_none_is_refused_as_a_patch_that_does_not_fit() {
        let media = "application/json-patch+json";
        let entry = KindEntry::of::<k8s_openapi::api::core::v1::Namespace>();
        for wrong in [r#"[{"op":"frob","path":"/a"}]"#, r#"[{"op":"add","value":1}]"#, r#"[{"op":"add","path":"a"}]"#] {
            assert_eq!(parse(&entry, media, wrong.as_bytes()).unwrap_err().code, 422, "{wrong}");
        }
        assert_eq!(parse(&entry, media, b"{}").unwrap_err().code, 400);
        let (patch, _) = parse(&entry, media, br#"[{"op":"add","path":"/a"}]"#).unwrap();
        assert_eq!(apply_to(&patch, json!({})).unwrap(), json!({ "a": null }));
    }

    #[test]
    fn what_is_not_there_can_be_replaced_and_is_null() {
        let object = json!({ "a": { "b": 1 }, "list": [1] });
        let patched = json_patch(
            object.clone(),
            json!([
                { "op": "test", "path": "/a/none", "value": null },
                { "op": "replace", "path": "/a/new", "value": 2 },
            ]),
        );
        assert_eq!(patched.unwrap(), json!({ "a": { "b": 1, "new": 2 }, "list": [1] }));
        for path in ["/none/new", "/list/7"] {
            let operation = json!([{ "op": "replace", "path": path, "value": 2 }]);
            assert!(json_patch(object.clone(), operation).is_err(), "{path}");
        }
    }

    #[test]
    fn thirty_copies_that_double_the_object_do_not_fill_the_memory() {
        let double = json!({ "op": "copy", "from": "", "path": "/again" });
        let doubles: Vec<Value> =
            (0..30).map(|n| json!({ "op": "copy", "from": "", "path": format!("/{n}") })).collect();
        assert!(json_patch(json!({ "a": "x".repeat(100) }), json!([double])).is_ok());
        let why = json_patch(json!({ "a": "x".repeat(100) }), doubles.into()).unwrap_err();
        assert!(why.contains("copies more"), "{why}");
        // Small objects take a hundred times their text.
        let double = |n: usize| json!({ "op": "copy", "from": "/x", "path": format!("/x/c{n}") });
        let operations: Vec<Value> = (0..13).map(double).collect();
        assert!(json_patch(json!({ "x": { "a": {} } }), operations.into()).unwrap_err().contains("copies more"));
    }

    /// Ten thousand of them took half a minute, on the thread of all writes.
    #[test]
    fn a_long_list_is_not_pushed_aside_by_every_operation() {
        let object = json!({ "list": vec![0; 100_000] });
        let patch = |path: &str| {
            let operation = json!({ "op": "add", "path": path, "value": 1 });
            json_patch(object.clone(), vec![operation; 200].into())
        };
        let why = patch("/list/0").unwrap_err();
        assert!(why.contains("elements of lists"), "{why}");
        assert_eq!(patch("/list/-").unwrap()["list"].as_array().map(Vec::len), Some(100_200));
    }

    #[test]
    fn values_stacked_onto_each_other_stop_at_the_depth_limit() {
        let operations: Vec<Value> =
            (0..200).map(|level| json!({ "op": "add", "path": "/a".repeat(level + 1), "value": {} })).collect();
        let why = json_patch(json!({}), operations.into()).unwrap_err();
        assert!(why.contains("levels"), "{why}");
    }

    /// APP-29: strategic merge is for core kinds.
    #[test]
    fn a_patch_type_that_is_not_offered_is_named_in_the_refusal() {
        let custom = KindEntry::of::<types::eventing::broker::Broker>();
        for media in ["application/strategic-merge-patch+json", "text/plain", ""] {
            assert_eq!(parse(&custom, media, b"{}").unwrap_err().code, 415, "{media}");
        }
        let core = KindEntry::of::<k8s_openapi::api::coordination::v1::Lease>();
        assert!(parse(&core, "application/strategic-merge-patch+json", b"{}").is_ok());
    }
}
