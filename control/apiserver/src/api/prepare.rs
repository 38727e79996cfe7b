//! Prepares an object for a write: who may set which field, and whether anything changed.
//!
//! Values in, values out. Time and random numbers come in as a [`Birth`].

use std::sync::Arc;

use serde_json::Value;

use crate::store::lifecycle::{NAMESPACE_FINALIZER, finish_update, has_generation};
use crate::store::{DecodedObject, ObjectKey, WriteOperation};
use support::labels;
use types::custom_kinds::{self, CustomKind};
use types::field_errors::{AdmissionError, Problem};
use types::items;
use types::kind_registry::{KindEntry, KindMeta, RequestContext, UnknownFieldPolicy};

use super::crd_status::{self, check_definition_status, establish_definition};
use super::errors::StatusError;
use super::metadata_validation::{
    check_deletion_timestamp, check_finalizers, check_generate_name, check_identity, check_metadata, check_name,
    check_namespace, check_shape, check_system_fields, remove_empty, text,
};
use super::{derived_pods, field_ownership};

/// Characters kept of a `generateName`, so that the result with its suffix is a DNS label.
const GENERATE_NAME_CHARS_MAX: usize = 58;
const SUFFIX_CHARS: usize = 5;
/// How often another name is generated if one is taken; Kubernetes' figure.
const SUFFIXES_MAX: u64 = 8;
/// No vowels and no ambiguous characters: suffixes form no words.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Fields that clients cannot set.
const SYSTEM_FIELDS: [&str; 8] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];

/// The uid, the time and the random suffix of a new object.
#[derive(Debug, Clone)]
pub(super) struct CreationContext {
    pub(super) now: String,
    pub(super) uid: String,
    /// The characters in suffixes of generated names.
    random: u64,
}

impl CreationContext {
    pub(super) fn now() -> Self {
        let chance = uuid::Uuid::new_v4().as_u64_pair().1;
        Self { now: now(), uid: uuid::Uuid::new_v4().to_string(), random: chance }
    }

    /// The suffix to try after so many others.
    fn suffix(&self, tried: u64) -> String {
        // The steps of SplitMix64: successive numbers give independent values.
        let mut rest = self.random.wrapping_add(tried.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        rest = (rest ^ (rest >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        rest = (rest ^ (rest >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        rest ^= rest >> 31;
        let letter = |_| {
            let at = usize::try_from(rest % SUFFIX_ALPHABET.len() as u64).unwrap_or(0);
            rest /= SUFFIX_ALPHABET.len() as u64;
            char::from(SUFFIX_ALPHABET[at])
        };
        (0..SUFFIX_CHARS).map(letter).collect()
    }
}

/// The wall clock to the second, as in `creationTimestamp`.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Generates the name of a new object from `generateName`: one that is not taken, as far as one is found.
pub(super) fn generate_name(
    entry: &KindEntry,
    new: &mut Value,
    namespace: Option<&str>,
    birth: &CreationContext,
    is_taken: impl Fn(&ObjectKey) -> bool,
) -> Result<(), StatusError> {
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else { return Ok(()) };
    let base = text(metadata, "generateName")?.filter(|base| !base.is_empty());
    let Some(base) = base.filter(|_| matches!(text(metadata, "name"), Ok(None | Some("")))) else {
        return Ok(());
    };
    check_generate_name(entry.meta, base)?;
    let base: String = base.chars().take(GENERATE_NAME_CHARS_MAX).collect();
    let key = |name: &str| ObjectKey {
        resource: resource_of(entry.stored_meta()),
        namespace: namespace.unwrap_or("").into(),
        name: name.into(),
    };
    let names = (0..SUFFIXES_MAX).map(|tried| format!("{base}{}", birth.suffix(tried)));
    let mut name = String::new();
    for candidate in names {
        name = candidate;
        if !is_taken(&key(&name)) {
            break;
        }
    }
    metadata.insert("name".into(), name.into());
    Ok(())
}

/// A new object, ready to be stored.
pub(super) fn prepare_create(
    entry: &KindEntry,
    mut new: Value,
    namespace: Option<&str>,
    requester: &RequestContext,
    birth: &CreationContext,
) -> Result<(ObjectKey, Value), StatusError> {
    let meta = entry.meta;
    let metadata = check_shape(meta, &mut new)?;
    if text(metadata, "resourceVersion")?.is_some_and(|version| !version.is_empty()) {
        return Err(StatusError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    check_namespace(metadata, namespace)?;
    check_system_fields(meta, metadata)?;
    for field in SYSTEM_FIELDS {
        metadata.remove(field);
    }
    let name = text(metadata, "name")?.unwrap_or("").to_owned();
    check_name(meta, &name)?;
    metadata.insert("uid".into(), birth.uid.clone().into());
    metadata.insert("creationTimestamp".into(), birth.now.clone().into());
    let resource = resource_of(entry.stored_meta());
    let key = ObjectKey { resource, namespace: namespace.unwrap_or("").into(), name: name.as_str().into() };
    if has_generation(&key) {
        metadata.insert("generation".into(), 1.into());
    }
    if let Some(namespace) = namespace {
        metadata.insert("namespace".into(), namespace.into());
    }
    derived_pods::check_not_derived(meta, &name, &new, requester)?;
    let writes_status = derived_pods::writes_status(meta, requester);
    if meta.has_status && !writes_status {
        remove(&mut new, "status");
    }

    convert_to_stored(entry, &mut new, &name)?;
    let mut object = admit(entry, new, None, requester, &name)?;
    // A core kind has no controller to write its first status, so its defaults may.
    if meta.has_status && !meta.group.is_empty() && !writes_status {
        remove(&mut object, "status");
    }
    establish_definition(meta, &mut object)?;
    Ok((key, object))
}

/// A write of everything but `status`.
pub(super) fn prepare_update(
    entry: &KindEntry,
    before: &DecodedObject,
    mut new: Value,
    requester: &RequestContext,
) -> Result<WriteOperation, StatusError> {
    let meta = entry.meta;
    // Nor may one become such an object: then nothing would look after what it runs.
    for object in [&before.value, &new] {
        derived_pods::check_not_derived(meta, &before.key.name, object, requester)?;
    }
    let writes_status = derived_pods::writes_status(meta, requester);
    let metadata = check_identity(meta, before, &mut new)?;
    let old = &before.value["metadata"];
    check_deletion_timestamp(meta, before, metadata)?;
    let owners = field_ownership::effective_managed_fields(old.get("managedFields"), metadata.get("managedFields"));
    for field in SYSTEM_FIELDS {
        match old.get(field) {
            Some(value) => metadata.insert(field.into(), value.clone()),
            None => metadata.remove(field),
        };
    }
    match owners {
        Some(owners) => metadata.insert("managedFields".into(), owners),
        None => metadata.remove("managedFields"),
    };
    // Rules are about what clients wrote, whatever shape a status has.
    let mut ruled = before.value.clone();
    if meta.has_status && !writes_status {
        remove(&mut new, "status");
        // The rules of a custom kind may look at it.
        match before.value.get("status").filter(|_| entry.custom.is_some()) {
            Some(status) => new["status"] = status.clone(),
            None => remove(&mut ruled, "status"),
        }
    }
    convert_to_stored(entry, &mut new, &before.key.name)?;
    let mut object = admit(entry, new, Some(&ruled), requester, &before.key.name)?;
    if !writes_status {
        restore_status(meta, before, &mut object);
    }
    establish_definition(meta, &mut object)?;
    check_finalizers(meta, before, &object)?;
    // Defaults and renames by a changed definition do not count as a change of the object.
    let shown = entry.translation.and(entry.custom).map(|_| entry.from_stored(before.value.clone()));
    let was = shown.as_ref().unwrap_or(&before.value);
    // For a custom kind without the status subresource, `status` is an ordinary field.
    let ignored = ["apiVersion", "metadata", "status"];
    let ignored = if meta.has_status || entry.custom.is_none() { &ignored[..] } else { &ignored[..2] };
    if has_generation(&before.key) && !equal_except(was, &object, ignored) {
        let generation = old["generation"].as_i64().unwrap_or(0);
        object["metadata"]["generation"] = (generation + 1).into();
    }
    Ok(finish_update(before, object))
}

/// A write of a namespace's finalizers. Other fields follow the rules of an update.
pub(super) fn prepare_finalize(
    entry: &KindEntry,
    before: &DecodedObject,
    new: Value,
    requester: &RequestContext,
) -> Result<WriteOperation, StatusError> {
    let finalizers = match &new["spec"]["finalizers"] {
        Value::Null => Vec::new(),
        Value::Array(names) => names.clone(),
        _ => return Err(StatusError::bad_request("spec.finalizers has to be a list")),
    };
    for (index, name) in finalizers.iter().map(|name| name.as_str().unwrap_or("")).enumerate() {
        let known = name == NAMESPACE_FINALIZER || (name.contains('/') && labels::is_qualified_name(name));
        if !known {
            let why =
                format!("Invalid value: {name:?}: name is neither a standard finalizer name nor is it fully qualified");
            let field = format!("spec.finalizers[{index}]");
            return Err(StatusError::invalid_field(entry.meta, &before.key.name, &field, why));
        }
    }
    let mut value = before.value.clone();
    value["spec"]["finalizers"] = finalizers.into();
    let wanted = DecodedObject { value, stored: Arc::clone(&before.stored) };
    match prepare_update(entry, &wanted, new, requester)? {
        WriteOperation::NoOp(_) => Ok(finish_update(before, wanted.value)),
        change => Ok(change),
    }
}

/// A write of `status` alone.
pub(super) fn prepare_status(
    entry: &KindEntry,
    before: &DecodedObject,
    mut new: Value,
    requester: &RequestContext,
) -> Result<WriteOperation, StatusError> {
    let meta = entry.meta;
    derived_pods::check_not_derived(meta, &before.key.name, &before.value, requester)?;
    check_identity(meta, before, &mut new)?;
    let status = new.get_mut("status").map_or(Value::Null, Value::take);
    if !status.is_object() && !status.is_null() {
        return Err(StatusError::bad_request("status has to be an object"));
    }
    let mut object = before.value.clone();
    if status.is_null() {
        remove(&mut object, "status");
    } else {
        object["status"] = status;
    }
    // Our own controllers write typed statuses, and they write most: their statuses are not validated again.
    if requester.internal && entry.custom.is_none() {
        return Ok(finish_update(before, object));
    }
    if let Some(problem) = entry.bounded_items().and_then(|limit| items::too_many(&object, limit)) {
        return Err(StatusError::invalid(meta, &before.key.name, &[problem]));
    }
    if crd_status::is_definition(meta) {
        check_definition_status(meta, &object)?;
    }
    if meta.is_of_knative() && !requester.is_controller() && object.get("status").is_some() {
        let wrong = custom_kinds::status_errors(&object["status"], &before.value["status"], &entry.compiled_schema());
        if !wrong.is_empty() {
            return Err(StatusError::invalid(meta, &before.key.name, &wrong));
        }
    }
    // A status of the wrong shape would blind every typed client that lists this kind. Whether the
    // spec still satisfies today's rules is not checked here.
    match entry.admit_object(object.clone(), Some(&before.value), requester) {
        Err(denied @ (AdmissionError::Malformed(_) | AdmissionError::WrongTypes(_))) => {
            Err(StatusError::from_admission_error(meta, &before.key.name, denied))
        }
        // A kind with only a schema uses it for its status too.
        Err(AdmissionError::Invalid(problems)) if entry.has_definition() => {
            let of_status = |problem: &Problem| CustomKind::is_status_field(&problem.field);
            let alone = problems.iter().all(of_status);
            let of_it = |problem: &Problem| problem.field.starts_with("status") || alone;
            let wrong: Vec<Problem> = problems.into_iter().filter(of_it).collect();
            if wrong.is_empty() {
                Ok(finish_update(before, object))
            } else {
                Err(StatusError::invalid(meta, &before.key.name, &wrong))
            }
        }
        Ok(mut judged) if entry.has_definition() => {
            if object.get("status").is_some() {
                object["status"] = judged["status"].take();
            }
            Ok(finish_update(before, object))
        }
        Ok(_) | Err(AdmissionError::Invalid(_)) => Ok(finish_update(before, object)),
    }
}

/// Converts the object to the stored version. Unknown fields are rejected before, because the stored version might know them.
fn convert_to_stored(entry: &KindEntry, new: &mut Value, name: &str) -> Result<(), StatusError> {
    if entry.translation.is_some() && entry.meta.unknown_fields == UnknownFieldPolicy::Reject {
        let unknown = entry.unknown_fields(new).into_iter().find(|path| path.starts_with("spec"));
        if let Some(field) = unknown {
            let why = AdmissionError::Malformed(format!("unknown field \"{field}\""));
            return Err(StatusError::from_admission_error(entry.meta, name, why));
        }
    }
    entry.to_stored(new);
    Ok(())
}

fn admit(
    entry: &KindEntry,
    new: Value,
    before: Option<&Value>,
    requester: &RequestContext,
    name: &str,
) -> Result<Value, StatusError> {
    let meta = entry.meta;
    let mut object = entry
        .admit_object(new, before, requester)
        .map_err(|denied| StatusError::from_admission_error(meta, name, denied))?;
    let metadata = check_shape(entry.stored_meta(), &mut object)?;
    check_metadata(meta, name, metadata)?;
    remove_empty(metadata);
    Ok(object)
}

fn restore_status(meta: &KindMeta, before: &DecodedObject, object: &mut Value) {
    if !meta.has_status {
        return;
    }
    match before.value.get("status") {
        Some(status) => object["status"] = status.clone(),
        None => remove(object, "status"),
    }
}

fn equal_except(one: &Value, other: &Value, ignored: &[&str]) -> bool {
    fn kept<'a>(object: &'a Value, ignored: &[&str]) -> impl Iterator<Item = (&'a String, &'a Value)> {
        let fields = object.as_object().into_iter().flatten();
        fields.filter(|(name, _)| !ignored.contains(&name.as_str()))
    }
    kept(one, ignored).eq(kept(other, ignored))
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

/// The resource of objects of this kind in the store.
pub(super) fn resource_of(meta: &KindMeta) -> Arc<str> {
    format!("{}/{}", meta.group, meta.plural).into()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    /// APP-32: a generated name is never a taken one: of ten thousand some three were.
    #[test]
    fn a_generated_name_is_one_that_nobody_has() {
        let entry = KindEntry::of::<ConfigMap>();
        let birth = CreationContext { now: String::new(), uid: String::new(), random: 7 };
        let tried = RefCell::new(Vec::new());
        let name = |free_after: usize| {
            let mut new = json!({ "metadata": { "generateName": "a-" } });
            tried.borrow_mut().clear();
            let is_taken = |key: &ObjectKey| {
                tried.borrow_mut().push(key.name.to_string());
                tried.borrow().len() <= free_after
            };
            generate_name(&entry, &mut new, Some("default"), &birth, is_taken).unwrap();
            new["metadata"]["name"].as_str().unwrap().to_owned()
        };
        let first = name(0);
        assert!(first.starts_with("a-") && first.len() == 7, "{first}");
        let third = name(2);
        assert_eq!((tried.borrow().len(), &tried.borrow()[0], &tried.borrow()[2]), (3, &first, &third));
        name(usize::MAX);
        assert_eq!(tried.borrow().len(), 8, "a full kind is not searched for ever");
        tried.borrow_mut().sort_unstable();
        tried.borrow_mut().dedup();
        assert_eq!(tried.borrow().len(), 8);

        let mut named = json!({ "metadata": { "name": "b", "generateName": "a-" } });
        generate_name(&entry, &mut named, Some("default"), &birth, |_| true).unwrap();
        assert_eq!(named["metadata"]["name"], "b");
    }
}
