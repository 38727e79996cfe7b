//! What every object's type and metadata must look like, whatever its kind.

use serde_json::{Map, Value, json};

use crate::kind::KindMeta;
use crate::store::Opened;

use super::errors::Refusal;
use super::names;

/// Bytes of all annotations of an object, keys and values; Kubernetes' figure.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;
/// An object of the kind that the path names, with a `metadata` object. Fills in a missing type.
pub(super) fn check_shape<'a>(
    meta: &KindMeta,
    object: &'a mut Value,
) -> Result<&'a mut Map<String, Value>, Refusal> {
    let version = meta.api_version();
    let fields =
        object.as_object_mut().ok_or_else(|| Refusal::bad_request("the body has to be one object"))?;
    for (field, expected, said) in
        [("apiVersion", version.as_str(), "API version"), ("kind", meta.kind, "kind")]
    {
        match text(fields, field)? {
            Some(found) if !found.is_empty() && found != expected => {
                return Err(Refusal::bad_request(format!(
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
    metadata.as_object_mut().ok_or_else(|| Refusal::bad_request("metadata has to be an object"))
}

/// The same object, and not an older view of it.
pub(super) fn check_identity<'a>(
    meta: &KindMeta,
    before: &Opened,
    new: &'a mut Value,
) -> Result<&'a mut Map<String, Value>, Refusal> {
    let metadata = check_shape(meta, new)?;
    let name = &*before.key.name;
    check_namespace(metadata, meta.namespaced.then_some(&*before.key.namespace))?;
    match text(metadata, "name")? {
        Some(found) if found != name => {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({found}) does not match the name on the URL ({name})"
            )));
        }
        _ => metadata.insert("name".into(), name.into()),
    };
    let old = &before.value["metadata"];
    if let Some(uid) = text(metadata, "uid")?.filter(|uid| !uid.is_empty())
        && old["uid"] != uid
    {
        let found = old["uid"].as_str().unwrap_or("");
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(Refusal::conflict(meta, name, &why));
    }
    match text(metadata, "resourceVersion")?.filter(|version| !version.is_empty()) {
        Some(version) if old["resourceVersion"] != version => Err(Refusal::stale(meta, name)),
        None if !updates_blindly(meta) => {
            let why = "Invalid value: 0: must be specified for an update";
            // Here, and only here, Kubernetes names the resource where it names the kind elsewhere.
            let meta = KindMeta { kind: meta.plural, ..*meta };
            Err(Refusal::invalid_field(&meta, name, "metadata.resourceVersion", why))
        }
        _ => Ok(metadata),
    }
}

/// Whether a PUT may leave out which version it replaces, as Kubernetes decides for its own kinds.
fn updates_blindly(meta: &KindMeta) -> bool {
    match meta.group {
        "" => meta.plural != "serviceaccounts",
        "discovery.k8s.io" | "rbac.authorization.k8s.io" => true,
        _ => false,
    }
}

pub(super) fn check_namespace(
    metadata: &mut Map<String, Value>,
    namespace: Option<&str>,
) -> Result<(), Refusal> {
    let found = text(metadata, "namespace")?.unwrap_or("");
    if !found.is_empty() && Some(found) != namespace {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match namespace {
        Some(namespace) => metadata.insert("namespace".into(), namespace.into()),
        None => metadata.remove("namespace"),
    };
    Ok(())
}

pub(super) fn check_name(meta: &KindMeta, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        let why = "Required value: name or generateName is required";
        return Err(Refusal::invalid_field(meta, name, "metadata.name", why));
    }
    // Kubernetes allows these whatever can be a part of a path: `system:discovery`, and `sink.Received.1` of an
    // event of the core group (not of the newer one).
    let is_event = meta.group.is_empty() && meta.kind == "Event";
    if is_event || meta.group == "rbac.authorization.k8s.io" {
        if !name.contains(['/', '%']) && name != "." && name != ".." {
            return Ok(());
        }
        let why = format!("Invalid value: {name:?}: may not contain '/' or '%'");
        return Err(Refusal::invalid_field(meta, name, "metadata.name", why));
    }
    let is_namespace = meta.group.is_empty() && meta.kind == "Namespace";
    let (good, what) = if is_namespace {
        (
            names::is_dns_label(name),
            "RFC 1123 label must consist of lower case alphanumeric characters or '-'",
        )
    } else {
        (
            names::is_subdomain(name),
            "RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'",
        )
    };
    if good {
        return Ok(());
    }
    let why = format!(
        "Invalid value: {name:?}: a lowercase {what}, and must start and end with an alphanumeric character"
    );
    Err(Refusal::invalid_field(meta, name, "metadata.name", why))
}

pub(super) fn check_labels(
    meta: &KindMeta,
    name: &str,
    metadata: &Map<String, Value>,
) -> Result<(), Refusal> {
    for (key, value) in metadata.get("labels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().unwrap_or("");
        let wrong = names::wrong_with_key(key).map(|why| (key.as_str(), why));
        let wrong = wrong.or_else(|| names::wrong_with_value(value).map(|why| (value, why)));
        if let Some((text, why)) = wrong {
            let why = format!("Invalid value: {text:?}: {why}");
            return Err(Refusal::invalid_field(meta, name, "metadata.labels", why));
        }
    }
    let mut bytes = 0;
    for (key, value) in metadata.get("annotations").and_then(Value::as_object).into_iter().flatten() {
        bytes += key.len() + value.as_str().unwrap_or("").len();
        // Kubernetes takes annotation keys in any case.
        if let Some(why) = names::wrong_with_key(&key.to_ascii_lowercase()) {
            let why = format!("Invalid value: {key:?}: {why}");
            return Err(Refusal::invalid_field(meta, name, "metadata.annotations", why));
        }
    }
    if bytes > ANNOTATION_BYTES_MAX {
        let why = format!("Too long: may not be more than {ANNOTATION_BYTES_MAX} bytes");
        return Err(Refusal::invalid_field(meta, name, "metadata.annotations", why));
    }
    Ok(())
}

/// The collector trusts these: a reference without a uid would look like an owner that is gone.
pub(super) fn check_owners(
    meta: &KindMeta,
    name: &str,
    metadata: &Map<String, Value>,
) -> Result<(), Refusal> {
    let references = metadata.get("ownerReferences").and_then(Value::as_array);
    let mut controllers = 0;
    for (index, reference) in references.into_iter().flatten().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if reference[field].as_str().unwrap_or("").is_empty() {
                let at = format!("metadata.ownerReferences[{index}].{field}");
                let why = format!("Invalid value: \"\": {field} must not be empty");
                return Err(Refusal::invalid_field(meta, name, &at, why));
            }
        }
        controllers += usize::from(reference["controller"] == true);
    }
    if controllers > 1 {
        let why = "Invalid value: Only one reference can have Controller set to true";
        return Err(Refusal::invalid_field(meta, name, "metadata.ownerReferences", why));
    }
    Ok(())
}

/// Who is being deleted gets no new reasons to stay.
pub(super) fn check_finalizers(meta: &KindMeta, before: &Opened, object: &Value) -> Result<(), Refusal> {
    if !before.head.deleting {
        return Ok(());
    }
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let old = list(&before.value);
    match list(object).iter().find(|finalizer| !old.contains(finalizer)) {
        Some(new) => {
            let why = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers [{new}]"
            );
            Err(Refusal::invalid_field(meta, &before.key.name, "metadata.finalizers", why))
        }
        None => Ok(()),
    }
}

/// A field that has to be text if it is there.
pub(super) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, Refusal> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Refusal::bad_request(format!("{name} has to be a string"))),
    }
}
