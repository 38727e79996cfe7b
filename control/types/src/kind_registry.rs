//! The API server's description of a kind, so that a new kind is mostly data.
//!
//! A kind is a serde type that implements [`ResourceStrategy`]; [`KindEntry::of`] turns it into a row of the
//! [`KindRegistry`]. The API server works on JSON values and asks the row for everything kind-specific.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::custom_kinds::{self, CustomKind, ScaleSubresource, UpstreamDefinition};
use crate::duck_types::DuckType;
use crate::field_errors::{AdmissionError, FieldErrors};
use crate::object_reader::read;
use crate::printer_column::{AGE, PrinterColumn};
pub use crate::request_context::RequestContext;
use crate::role_rules::RoleRule;
use crate::settings::Settings;
use crate::{items, nulls, schema};

/// The suffixes of the groups of Knative's kinds. Kubernetes validates those by a schema, and its own kinds by Go's reader.
const KNATIVE: &str = "knative.dev";

/// Names and shape of a kind.
#[derive(Debug, Clone, Copy)]
pub struct KindMeta {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub has_status: bool,
    pub unknown_fields: UnknownFieldPolicy,
    /// `false`: POST from outside answers 403; only controllers create it (AMB-62).
    pub user_creatable: bool,
    pub columns: &'static [PrinterColumn],
    /// What its objects can be used as.
    pub duck_types: &'static [DuckType],
    /// The rights of the default roles on its objects, apart from those that its duck types and its group give.
    pub role_rules: &'static [RoleRule],
    /// The types of events that its objects send, as `registry.knative.dev/eventTypes` has them.
    pub event_types: Option<&'static str>,
}

/// The properties of a kind unless its row has others.
pub const CORE: KindMeta = KindMeta {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    has_status: false,
    unknown_fields: UnknownFieldPolicy::Prune,
    user_creatable: true,
    columns: &[AGE],
    duck_types: &[],
    role_rules: &[],
    event_types: None,
};

impl KindMeta {
    /// `GROUP/VERSION`, or `v1` in the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The labels by which clients find the kind's definition.
    pub fn labels(&self) -> impl Iterator<Item = &'static str> {
        self.duck_types.iter().flat_map(|duck| duck.labels()).copied()
    }

    /// Whether it is one of Knative's kinds, and not one of Kubernetes' own.
    #[must_use]
    pub fn is_of_knative(&self) -> bool {
        self.group.ends_with(KNATIVE)
    }
}

/// How fields are handled that a kind's schema does not have (AMB-01).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownFieldPolicy {
    /// Dropped; the request succeeds (serving, networking).
    Prune,
    /// 400 (eventing, messaging, flows, sources).
    Reject,
}

/// A kind's own rules. Values in, values out: no I/O, no clock.
pub trait ResourceStrategy: Serialize + DeserializeOwned + JsonSchema + 'static {
    const META: KindMeta;

    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Normalizes alternative spellings of a client before an object is parsed. Most kinds have none.
    fn normalize_input(object: &mut Value) {
        let _ = object;
    }

    /// Normalizes the serialized object. Most kinds need nothing.
    fn normalize_output(object: &mut Value) {
        let _ = object;
    }

    /// Fills what the client left out. `before` is the stored object on update.
    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext);

    /// Validates the object, including immutability on update.
    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors);

    /// Validates the object under the operator's settings. The default has no rules.
    fn validate_settings(&self, before: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        let _ = (before, settings, problems);
    }

    /// Says what is wrong by what the request brings along. Most kinds have nothing such.
    fn validate_request(&self, requester: &RequestContext, problems: &mut FieldErrors) {
        let _ = (requester, problems);
    }
}

type AdmitFn = fn(Value, Option<&Value>, &RequestContext) -> Result<Value, AdmissionError>;

/// A kind with its rules, as the API server stores it.
#[derive(Debug, Clone, Copy)]
pub struct KindEntry {
    pub meta: &'static KindMeta,
    /// Defaults and validates a whole object (`spec` writes; status writes skip it).
    pub admit: AdmitFn,
    /// The paths of fields that the kind's type does not name (`spec.containers[0].foo`).
    pub unknown: fn(&Value) -> Vec<String>,
    /// The kind's schema, in the dialect of Kubernetes. Built on each call.
    pub schema: fn() -> Value,
    pub access: AllowedVerbs,
    /// The kind is a client's own: it is judged by this, and the functions above do not specify it.
    pub custom: Option<&'static CustomKind>,
    /// The kind is another project's: its published definition judges objects, and the functions above do not.
    pub upstream: Option<&'static UpstreamDefinition>,
    /// Objects are stored in another version, in which they are validated and owned.
    pub translation: Option<&'static VersionConversion>,
    /// Items that all lists of an object may have together, if the kind is not a client's own.
    pub items_max: usize,
    /// Warnings about an accepted object.
    pub warnings: fn(&Value) -> Vec<String>,
    /// The warning for every request to this version, because it is deprecated.
    pub deprecated: Option<&'static str>,
    /// Where objects of a kind of ours say how many instances they have, if `NAME/scale` is served.
    pub scale: Option<fn() -> &'static ScaleSubresource>,
}

/// The conversion between a version of a kind and the stored one. Neither side loses fields of the other.
#[derive(Debug)]
pub struct VersionConversion {
    /// A schema of the stored form.
    pub stored: &'static KindMeta,
    /// Converts an object, or the part that an apply sends, to the stored version, except its `apiVersion`; unknown fields
    /// stay, to be rejected.
    pub to_stored: fn(&mut Value),
    /// The defaults of a whole object of this form for missing fields.
    pub complete: fn(&mut Value),
    /// Converts back.
    pub from_stored: fn(&mut Value),
}

/// The verbs of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedVerbs {
    Full,
    /// Get and list only: objects are computed for each request, and not stored.
    ReadOnly,
    /// Read and delete: our controllers write them.
    Derived,
    /// Create only: they are answered and not stored.
    CreateOnly,
}

impl KindEntry {
    #[must_use]
    pub fn of<R: ResourceStrategy>() -> Self {
        Self {
            meta: &R::META,
            admit: admit::<R>,
            unknown: unknown::<R>,
            schema: schema::of::<R>,
            access: AllowedVerbs::Full,
            custom: None,
            items_max: items::ITEMS_MAX,
            upstream: None,
            translation: None,
            warnings: |_| Vec::new(),
            deprecated: None,
            scale: None,
        }
    }

    /// The same kind in another version, whose objects have the type `Shape`.
    #[must_use]
    pub fn version<Shape: DeserializeOwned + JsonSchema>(
        self,
        meta: &'static KindMeta,
        translation: &'static VersionConversion,
    ) -> Self {
        Self { meta, unknown: unknown::<Shape>, schema: schema::of::<Shape>, translation: Some(translation), ..self }
    }

    /// The same kind in the stored version.
    #[must_use]
    pub fn as_stored(self) -> Self {
        Self { meta: self.stored_meta(), translation: None, ..self }
    }

    /// A custom kind.
    #[must_use]
    pub fn custom(meta: &'static KindMeta, custom: &'static CustomKind) -> Self {
        Self {
            meta,
            admit: |object, _, _| Ok(object),
            unknown: |_| Vec::new(),
            schema: || Value::Null,
            access: AllowedVerbs::Full,
            custom: Some(custom),
            items_max: items::ITEMS_MAX,
            upstream: None,
            translation: None,
            warnings: |_| Vec::new(),
            deprecated: None,
            scale: None,
        }
    }

    /// Columns of the stored form.
    #[must_use]
    pub fn stored_meta(&self) -> &'static KindMeta {
        self.translation.map_or(self.meta, |translation| translation.stored)
    }

    /// Converts a whole object of this version to the stored version.
    pub fn to_stored(&self, object: &mut Value) {
        self.complete(object);
        self.partial_to_stored(object);
    }

    /// The same for the part of an object that an apply sends.
    pub fn partial_to_stored(&self, object: &mut Value) {
        if let Some(translation) = self.translation {
            (translation.to_stored)(object);
            object["apiVersion"] = translation.stored.api_version().into();
        }
    }

    /// From here on it is a whole object: missing fields are meant to be missing.
    pub fn complete(&self, object: &mut Value) {
        if let Some(translation) = self.translation {
            (translation.complete)(object);
        }
    }

    /// A stored object in this version.
    #[must_use]
    pub fn from_stored(&self, mut object: Value) -> Value {
        if let Some(translation) = self.translation {
            (translation.from_stored)(&mut object);
            if let Some(custom) = self.custom {
                custom.convert(&mut object, std::ptr::eq(self.meta, translation.stored));
            }
            object["apiVersion"] = self.meta.api_version().into();
        }
        object
    }

    /// The items that all lists of an object may have together; `None`: its definition says.
    #[must_use]
    pub fn bounded_items(&self) -> Option<usize> {
        self.custom.is_none().then_some(self.items_max)
    }

    /// Defaults and validates a whole object.
    pub fn admit_object(
        &self,
        new: Value,
        before: Option<&Value>,
        requester: &RequestContext,
    ) -> Result<Value, AdmissionError> {
        if !requester.internal
            && let Some(problem) = self.bounded_items().and_then(|limit| items::too_many(&new, limit))
        {
            return Err(AdmissionError::Invalid(vec![problem]));
        }
        match self.definition() {
            Some(definition) => definition.admit(new, before),
            None => (self.admit)(new, before, requester),
        }
    }

    /// The paths of fields that the kind does not know.
    #[must_use]
    pub fn unknown_fields(&self, object: &Value) -> Vec<String> {
        match self.definition() {
            // It is refused, and is not read for this.
            _ if self.bounded_items().is_some_and(|limit| items::too_many(object, limit).is_some()) => Vec::new(),
            Some(definition) => definition.unknown(object),
            None => (self.unknown)(object),
        }
    }

    /// The kind's schema, in the dialect of Kubernetes.
    #[must_use]
    pub fn openapi_schema(&self) -> Value {
        match (self.custom, self.upstream) {
            (Some(custom), _) => custom.schema().clone(),
            (None, Some(upstream)) => upstream.schema(),
            (None, None) => (self.schema)(),
        }
    }

    /// The same without copying or reading a definition's text, and without descriptions.
    #[must_use]
    pub fn compiled_schema(&self) -> Cow<'static, Value> {
        match self.definition() {
            Some(definition) => Cow::Borrowed(definition.schema()),
            None => Cow::Owned((self.schema)()),
        }
    }

    /// Whether objects are judged by a definition, and not by the kind's type.
    #[must_use]
    pub fn has_definition(&self) -> bool {
        self.custom.is_some() || self.upstream.is_some()
    }

    /// The definition that judges objects, if it is not the kind's type.
    #[must_use]
    pub fn definition(&self) -> Option<&'static CustomKind> {
        self.custom.or_else(|| self.upstream.map(UpstreamDefinition::compiled))
    }

    /// Objects are judged by a published definition.
    #[must_use]
    pub fn defined_by(self, upstream: &'static UpstreamDefinition) -> Self {
        Self { upstream: Some(upstream), ..self }
    }

    /// Lists of an object may have so many items together.
    #[must_use]
    pub fn with_items_max(self, items_max: usize) -> Self {
        Self { items_max, ..self }
    }

    /// Clients get the warnings that `warnings` returns for their objects.
    #[must_use]
    pub fn with_warnings(self, warnings: fn(&Value) -> Vec<String>) -> Self {
        Self { warnings, ..self }
    }

    /// Serves `NAME/scale`.
    #[must_use]
    pub fn with_scale(self, scale: fn() -> &'static ScaleSubresource) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Where objects say how many instances they have, if the kind says so.
    #[must_use]
    pub fn scale_subresource(&self) -> Option<&'static ScaleSubresource> {
        self.custom.and_then(CustomKind::scale).or_else(|| self.scale.map(|scale| scale()))
    }

    #[must_use]
    pub fn deprecated(self, warning: &'static str) -> Self {
        Self { deprecated: Some(warning), ..self }
    }

    #[must_use]
    pub fn read_only(self) -> Self {
        Self { access: AllowedVerbs::ReadOnly, ..self }
    }

    #[must_use]
    pub fn derived(self) -> Self {
        Self { access: AllowedVerbs::Derived, ..self }
    }

    #[must_use]
    pub fn create_only(self) -> Self {
        Self { access: AllowedVerbs::CreateOnly, ..self }
    }
}

/// All kinds served.
#[derive(Debug, Clone, Default)]
pub struct KindRegistry {
    pub entries: Vec<KindEntry>,
}

impl KindRegistry {
    #[must_use]
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&KindEntry> {
        self.entries.iter().find(|e| e.meta.group == group && e.meta.version == version && e.meta.plural == plural)
    }
}

fn admit<R: ResourceStrategy>(
    mut new: Value,
    before: Option<&Value>,
    requester: &RequestContext,
) -> Result<Value, AdmissionError> {
    nulls::drop_nulls(&mut new);
    R::normalize_input(&mut new);
    let mut unknown = Vec::new();
    let mut object: R = read_with_null_items(&mut new, &mut unknown).map_err(|why| schema_error::<R>(&new, &why))?;
    if R::META.unknown_fields == UnknownFieldPolicy::Reject
        && let Some(field) = unknown.iter().find(|path| path.starts_with("spec"))
    {
        return Err(AdmissionError::Malformed(format!("unknown field \"{field}\"")));
    }

    // What is stored was admitted once, so it parses; if a newer version narrowed the type, the
    // update is judged as a creation.
    let before: Option<R> = before.and_then(|value| R::deserialize(value).ok());
    object.set_defaults(before.as_ref(), requester);
    let mut problems = FieldErrors::default();
    object.validate(before.as_ref(), &mut problems);
    object.validate_settings(before.as_ref(), &requester.settings, &mut problems);
    if !requester.internal {
        object.validate_request(requester, &mut problems);
    }
    if !problems.list.is_empty() {
        return Err(AdmissionError::Invalid(problems.into_list()));
    }
    let mut object = serde_json::to_value(&object).map_err(|why| AdmissionError::Malformed(why.to_string()))?;
    R::normalize_output(&mut object);
    Ok(object)
}

fn unknown<R: DeserializeOwned>(object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let without_nulls = nulls::has_nulls(object).then(|| {
        let mut object = object.clone();
        nulls::drop_nulls(&mut object);
        object
    });
    // An object of the wrong shape is refused by `admit`, with what is wrong.
    let _ = read::<R>(without_nulls.as_ref().unwrap_or(object), &mut unknown);
    unknown
}

/// Why an object does not match its kind's schema, with the field if the schema knows it.
fn schema_error<R: ResourceStrategy>(object: &Value, why: &serde_json::Error) -> AdmissionError {
    let wrong = custom_kinds::type_mismatches(object, &schema::of::<R>());
    match wrong.first() {
        None => AdmissionError::Malformed(why.to_string()),
        Some(_) if R::META.is_of_knative() => {
            AdmissionError::WrongTypes(wrong.into_iter().map(|wrong| wrong.problem).collect())
        }
        Some(wrong) => AdmissionError::Malformed(format!(
            "json: cannot unmarshal {} into Go struct field {}.{} of type {}",
            wrong.found,
            R::META.kind,
            wrong.problem.field,
            wrong.wanted
        )),
    }
}

/// The same with the result of Go's reader for `null` in lists; that is rare, and schemas are big.
fn read_with_null_items<R: ResourceStrategy>(object: &mut Value, unknown: &mut Vec<String>) -> serde_json::Result<R> {
    let found = read(object, unknown);
    if found.is_ok() || R::META.is_of_knative() {
        return found;
    }
    nulls::fill_null_items(object, &schema::of::<R>());
    unknown.clear();
    read(object, unknown)
}
