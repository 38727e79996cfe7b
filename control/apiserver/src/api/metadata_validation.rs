//! Validates the type and metadata of objects of every kind.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::store::DecodedObject;
use crate::store::lifecycle::{FOREGROUND, ORPHAN};
use support::labels;
use support::names::{NOT_A_SUBDOMAIN, is_dns1035_label, label_1035_error, label_error};
use types::field_errors::{AdmissionError, FieldErrors};
use types::kind_registry::KindMeta;

use super::errors::StatusError;

/// Bytes of all annotations of an object, keys and values; Kubernetes' figure.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;
/// Bytes of all labels of an object, keys and values. Kubernetes has no limit of its own; each label is owned, indexed and
/// selected by on its own, so that 700 KB of them kept other writers waiting for seconds.
const LABEL_BYTES_MAX: usize = 256 * 1024;

/// An object of the kind that the path names, with a `metadata` object. Fills in a missing type.
pub(super) fn check_shape<'a>(
    meta: &KindMeta,
    object: &'a mut Value,
) -> Result<&'a mut Map<String, Value>, StatusError> {
    let version = meta.api_version();
    let fields = object.as_object_mut().ok_or_else(|| StatusError::bad_request("the body has to be one object"))?;
    for (field, expected, said) in [("apiVersion", version.as_str(), "API version"), ("kind", meta.kind, "kind")] {
        match text(fields, field)? {
            Some(found) if !found.is_empty() && found != expected => {
                return Err(StatusError::bad_request(format!(
                    "the {said} in the data ({found}) does not match the expected {said} ({expected})"
                )));
            }
            _ => fields.insert(field.into(), expected.into()),
        };
    }
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    metadata.as_object_mut().ok_or_else(|| StatusError::bad_request("metadata has to be an object"))
}

/// Fields that the server sets must have the right type, although the values that clients send are ignored.
pub(super) fn check_system_fields(meta: &KindMeta, metadata: &Map<String, Value>) -> Result<(), StatusError> {
    let wrong = metadata.iter().find(|(name, value)| match (name.as_str(), value) {
        (_, Value::Null) => false,
        ("creationTimestamp" | "deletionTimestamp", value) => {
            value.as_str().is_none_or(|text| text.parse::<jiff::Timestamp>().is_err())
        }
        ("generation" | "deletionGracePeriodSeconds", value) => !value.is_i64(),
        ("managedFields", value) => !value.is_array(),
        ("uid" | "resourceVersion" | "selfLink", value) => !value.is_string(),
        _ => false,
    });
    if metadata.get("generation").and_then(Value::as_i64).is_some_and(|generation| generation < 0) {
        let why = format!("Invalid value: {}: must be greater than or equal to 0", metadata["generation"]);
        let name = metadata.get("name").and_then(Value::as_str).unwrap_or("");
        return Err(StatusError::invalid_field(meta, name, "metadata.generation", why));
    }
    match wrong {
        Some((name, value)) => {
            let why = format!("metadata.{name} cannot be {value}");
            Err(StatusError::from_admission_error(meta, "", AdmissionError::Malformed(why)))
        }
        None => Ok(()),
    }
}

/// Drops lists and maps of metadata that are empty: they say nothing, and Kubernetes keeps none.
pub(super) fn remove_empty(metadata: &mut Map<String, Value>) {
    let is_unset =
        |value: &Value| value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
    let names = ["labels", "annotations", "ownerReferences", "finalizers"];
    metadata.retain(|name, value| !(names.contains(&name.as_str()) && is_unset(value)));
}

/// The same object, and not an older view of it.
pub(super) fn check_identity<'a>(
    meta: &KindMeta,
    before: &DecodedObject,
    new: &'a mut Value,
) -> Result<&'a mut Map<String, Value>, StatusError> {
    let metadata = check_shape(meta, new)?;
    let name = &*before.key.name;
    check_namespace(metadata, meta.namespaced.then_some(&*before.key.namespace))?;
    match text(metadata, "name")? {
        None | Some("") => {
            let why = format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
            return Err(StatusError::bad_request(why));
        }
        Some(found) if found != name => {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({found}) does not match the name on the URL ({name})"
            )));
        }
        Some(_) => {}
    }
    let old = &before.value["metadata"];
    if let Some(uid) = text(metadata, "uid")?.filter(|uid| !uid.is_empty())
        && old["uid"] != uid
    {
        let found = old["uid"].as_str().unwrap_or("");
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(StatusError::conflict(meta, name, &why));
    }
    match text(metadata, "resourceVersion")?.filter(|version| !version.is_empty()) {
        Some(version) if old["resourceVersion"] != version => Err(StatusError::resource_version_conflict(meta, name)),
        None if !allows_unconditional_update(meta) => {
            let why = "Invalid value: 0: must be specified for an update";
            // Here, and only here, Kubernetes names the resource where it names the kind elsewhere.
            let meta = KindMeta { kind: meta.plural, ..*meta };
            Err(StatusError::invalid_field(&meta, name, "metadata.resourceVersion", why))
        }
        _ => Ok(metadata),
    }
}

/// When an object began to go is not for clients to say.
pub(super) fn check_deletion_timestamp(
    meta: &KindMeta,
    before: &DecodedObject,
    metadata: &Map<String, Value>,
) -> Result<(), StatusError> {
    let said = metadata.get("deletionTimestamp").unwrap_or(&Value::Null);
    if said.is_null() || before.value["metadata"]["deletionTimestamp"] == *said {
        return Ok(());
    }
    let why = format!("Invalid value: {said}: field is immutable");
    Err(StatusError::invalid_field(meta, &before.key.name, "metadata.deletionTimestamp", why))
}

/// Whether a PUT may leave out which version it replaces, as Kubernetes decides for its own kinds.
fn allows_unconditional_update(meta: &KindMeta) -> bool {
    match meta.group {
        "" => meta.plural != "serviceaccounts",
        "discovery.k8s.io" | "rbac.authorization.k8s.io" => true,
        _ => false,
    }
}

/// A cluster-scoped object may name a namespace, which is dropped: tools that set a namespace on everything do.
pub(super) fn check_namespace(metadata: &mut Map<String, Value>, namespace: Option<&str>) -> Result<(), StatusError> {
    let found = text(metadata, "namespace")?.unwrap_or("");
    if namespace.is_some_and(|wanted| !found.is_empty() && found != wanted) {
        return Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match namespace {
        Some(namespace) => metadata.insert("namespace".into(), namespace.into()),
        None => metadata.remove("namespace"),
    };
    Ok(())
}

pub(super) fn check_name(meta: &KindMeta, name: &str) -> Result<(), StatusError> {
    if name.is_empty() {
        let why = "Required value: name or generateName is required";
        return Err(StatusError::invalid_field(meta, name, "metadata.name", why));
    }
    match name_error(meta, name) {
        Some(why) => {
            let why = format!("Invalid value: {name:?}: {why}");
            Err(StatusError::invalid_field(meta, name, "metadata.name", why))
        }
        None => Ok(()),
    }
}

/// A name prefix must be a valid start of a name; it may end with a dash.
pub(super) fn check_generate_name(meta: &KindMeta, base: &str) -> Result<(), StatusError> {
    let masked = base.strip_suffix('-').map(|begin| format!("{begin}a"));
    match name_error(meta, masked.as_deref().unwrap_or(base)) {
        Some(why) => {
            let why = format!("Invalid value: {base:?}: {why}");
            Err(StatusError::invalid_field(meta, "", "metadata.generateName", why))
        }
        None => Ok(()),
    }
}

fn name_error(meta: &KindMeta, name: &str) -> Option<String> {
    match (meta.group, meta.kind) {
        // Kubernetes allows these whatever can be a part of a path: `system:discovery`, and `sink.Received.1` of an
        // event of the core group (not of the newer one).
        ("rbac.authorization.k8s.io", _) | ("", "Event") => match name {
            "." | ".." => Some(format!("may not be '{name}'")),
            _ => ['/', '%'].iter().find(|no| name.contains(**no)).map(|no| format!("may not contain '{no}'")),
        },
        ("", "Namespace") => (!labels::is_dns_label(name)).then(|| label_error(name)),
        // These become names of hosts, and no service account or client could use another.
        ("", "Service") => (!is_dns1035_label(name)).then(|| label_1035_error(name)),
        _ if labels::is_subdomain(name) => None,
        _ if name.len() > labels::NAME_CHARS_MAX => {
            Some(format!("must be no more than {} bytes", labels::NAME_CHARS_MAX))
        }
        _ => Some(NOT_A_SUBDOMAIN.into()),
    }
}

/// Labels, annotations, owners and finalizers of an object on its way in.
pub(super) fn check_metadata(meta: &KindMeta, name: &str, metadata: &Map<String, Value>) -> Result<(), StatusError> {
    let mut problems = FieldErrors::default();
    check_labels(metadata, &mut problems);
    check_owners(metadata, &mut problems);
    check_finalizer_names(metadata, &mut problems);
    if problems.list.is_empty() { Ok(()) } else { Err(StatusError::invalid(meta, name, &problems.into_list())) }
}

fn check_labels(metadata: &Map<String, Value>, problems: &mut FieldErrors) {
    let mut bytes = 0;
    for (key, value) in metadata.get("labels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().unwrap_or("");
        bytes += key.len() + value.len();
        let wrong = [(key.as_str(), labels::label_key_error(key)), (value, labels::label_value_error(value))];
        for (text, why) in wrong.into_iter().filter_map(|(text, why)| Some((text, why?))) {
            problems.add("metadata.labels", format!("Invalid value: {text:?}: {why}"));
        }
    }
    if bytes > LABEL_BYTES_MAX {
        problems.add("metadata.labels", format!("Too long: may not be more than {LABEL_BYTES_MAX} bytes"));
    }
    let mut bytes = 0;
    for (key, value) in metadata.get("annotations").and_then(Value::as_object).into_iter().flatten() {
        bytes += key.len() + value.as_str().unwrap_or("").len();
        // Kubernetes takes annotation keys in any case.
        if let Some(why) = labels::label_key_error(&key.to_ascii_lowercase()) {
            problems.add("metadata.annotations", format!("Invalid value: {key:?}: {why}"));
        }
    }
    if bytes > ANNOTATION_BYTES_MAX {
        let why = format!("Too long: may not be more than {ANNOTATION_BYTES_MAX} bytes");
        problems.add("metadata.annotations", why);
    }
}

/// The collector trusts these: a reference without a uid would look like an owner that is gone.
fn check_owners(metadata: &Map<String, Value>, problems: &mut FieldErrors) {
    const AT: &str = "metadata.ownerReferences";
    let references = metadata.get("ownerReferences").and_then(Value::as_array);
    let mut controller: Option<String> = None;
    for reference in references.into_iter().flatten() {
        let field = |name: &str| reference[name].as_str().unwrap_or("");
        let version = field("apiVersion");
        if version.is_empty() || version.split('/').count() > 2 || version.ends_with('/') {
            let why = format!("Invalid value: {version:?}: version must not be empty");
            problems.add(format!("{AT}.apiVersion"), why);
        }
        for name in ["kind", "name", "uid"].into_iter().filter(|name| field(name).is_empty()) {
            problems.add(format!("{AT}.{name}"), "Invalid value: \"\": must not be empty");
        }
        if reference["controller"] == true {
            let this = format!("{}/{}", field("kind"), field("name"));
            if let Some(first) = &controller {
                let why = format!(
                    "Invalid value: Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                problems.add(AT, why);
            }
            controller.get_or_insert(this);
        }
    }
}

fn check_finalizer_names(metadata: &Map<String, Value>, problems: &mut FieldErrors) {
    const AT: &str = "metadata.finalizers";
    let list = metadata.get("finalizers").and_then(Value::as_array);
    let names = || list.into_iter().flatten().filter_map(Value::as_str);
    for name in names() {
        if let Some(why) = labels::label_key_error(name) {
            problems.add(AT, format!("Invalid value: {name:?}: {why}"));
        }
    }
    if [FOREGROUND, ORPHAN].iter().all(|one| names().any(|name| name == *one)) {
        let quoted = json!(list);
        let why = format!("Invalid value: {quoted}: finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        problems.add(AT, why);
    }
}

/// An object that is being deleted gets no new finalizers.
pub(super) fn check_finalizers(meta: &KindMeta, before: &DecodedObject, object: &Value) -> Result<(), StatusError> {
    if !before.head.deleting {
        return Ok(());
    }
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let old: HashSet<String> = list(&before.value).iter().map(Value::to_string).collect();
    match list(object).iter().find(|finalizer| !old.contains(&finalizer.to_string())) {
        Some(new) => {
            let why = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers [{new}]"
            );
            Err(StatusError::invalid_field(meta, &before.key.name, "metadata.finalizers", why))
        }
        None => Ok(()),
    }
}

/// A field that has to be text if it is there.
pub(super) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, StatusError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(StatusError::bad_request(format!("{name} has to be a string"))),
    }
}
