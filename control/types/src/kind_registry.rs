//! What the API server must know of a kind, so that a new kind is mostly data.
//!
//! A kind is a serde type that implements [`ResourceStrategy`]; [`KindEntry::of`] turns it into a row of the
//! [`KindRegistry`]. The API server works on JSON values and asks the row for everything kind-specific.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::adapter_schemas::AdapterTypeSpec;
use crate::custom_kinds::{self, CustomKind, ScaleSubresource};
use crate::field_errors::{AdmissionError, FieldErrors};
use crate::object_reader::read;
use crate::printer_column::{AGE, PrinterColumn};
use crate::settings::Settings;
use crate::sink_injection::SinkInjection;
use crate::user_info::{CONTROLLER_USER, UserInfo};
use crate::{items, nulls, schema};

/// How the groups of Knative's kinds end. There Kubernetes judges by a schema; of its own kinds, Go's reader does.
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
}

/// What all core kinds have in common.
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
};

impl KindMeta {
    /// `GROUP/VERSION`, or `v1` in the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether it is one of Knative's kinds, and not one of Kubernetes' own.
    #[must_use]
    pub fn is_of_knative(&self) -> bool {
        self.group.ends_with(KNATIVE)
    }
}

/// What happens to fields that a kind's schema does not name (AMB-01).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownFieldPolicy {
    /// Dropped; the request succeeds (serving, networking).
    Prune,
    /// 400 (eventing, messaging, flows, sources).
    Reject,
}

/// Who asks, and under which settings of the operator's.
#[derive(Debug, Clone, Default)]
pub struct RequestContext {
    pub user: String,
    pub groups: Vec<String>,
    /// Empty: he has none.
    pub uid: String,
    /// What else there is to him, by its name.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Who really asks, if he comes as somebody else.
    pub impersonator: Option<Arc<UserInfo>>,
    /// A controller of ours, over the in-process client.
    pub internal: bool,
    /// As they are at this moment.
    pub settings: Arc<Settings>,
    /// The AdapterTypes, where one may have something to say.
    pub adapter_types: Vec<AdapterTypeSpec>,
    /// Of the SinkBindings in the namespace that is written to, where they may have something to say.
    pub injections: Vec<SinkInjection>,
}

impl RequestContext {
    /// One of our controllers: in this process, or in another appliance that follows this API.
    #[must_use]
    pub fn is_controller(&self) -> bool {
        self.internal || self.user == CONTROLLER_USER
    }
}

/// A kind's own rules. Values in, values out: no I/O, no clock.
pub trait ResourceStrategy: Serialize + DeserializeOwned + JsonSchema + 'static {
    const META: KindMeta;

    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Puts straight what clients may write in several ways, before an object is read. Most kinds have nothing such.
    fn normalize_input(object: &mut Value) {
        let _ = object;
    }

    /// Puts straight what writing the type out made of an object. Most kinds have nothing such.
    fn normalize_output(object: &mut Value) {
        let _ = object;
    }

    /// Fills what the client left out. `before` is the stored object on update.
    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext);

    /// Says what is wrong, immutability on update included.
    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors);

    /// Says what is wrong under the operator's settings. Kinds that none of them concerns say nothing.
    fn validate_settings(&self, before: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        let _ = (before, settings, problems);
    }

    /// Says what is wrong by what the request brings along. Most kinds have nothing such.
    fn validate_request(&self, requester: &RequestContext, problems: &mut FieldErrors) {
        let _ = (requester, problems);
    }
}

type AdmitFn = fn(Value, Option<&Value>, &RequestContext) -> Result<Value, AdmissionError>;

/// A kind with its rules, as the API server holds it.
#[derive(Debug, Clone, Copy)]
pub struct KindEntry {
    pub meta: &'static KindMeta,
    /// Defaults and validates a whole object (`spec` writes; status writes skip it).
    pub admit: AdmitFn,
    /// The paths of fields that the kind's type does not name (`spec.containers[0].foo`).
    pub unknown: fn(&Value) -> Vec<String>,
    /// The kind's schema, in the dialect of Kubernetes. Made on each call.
    pub schema: fn() -> Value,
    pub access: AllowedVerbs,
    /// The kind is a client's own: it is judged by this, and the functions above say nothing of it.
    pub custom: Option<&'static CustomKind>,
    /// Objects are stored in another form, and there they are judged and owned.
    pub translation: Option<&'static VersionConversion>,
    /// What an author should be told of an object that is taken as it is.
    pub warnings: fn(&Value) -> Vec<String>,
    /// What everybody is told who asks for the version, because it goes.
    pub deprecated: Option<&'static str>,
    /// Where objects of a kind of ours say how many instances they have, if `NAME/scale` is served.
    pub scale: Option<fn() -> &'static ScaleSubresource>,
}

/// The way between a form of a kind and the one that is stored. Neither side loses what the other has.
#[derive(Debug)]
pub struct VersionConversion {
    /// Of the form that is stored.
    pub stored: &'static KindMeta,
    /// An object from this form to the stored one, but for its `apiVersion`, or as much of one as an apply sends; what it
    /// does not know it leaves, to be refused.
    pub to_stored: fn(&mut Value),
    /// What a whole object of this form says by leaving a field out.
    pub complete: fn(&mut Value),
    /// And back.
    pub from_stored: fn(&mut Value),
}

/// What clients may do with a kind's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedVerbs {
    Full,
    /// Look and not touch: they are derived from what the program is.
    ReadOnly,
    /// Look and delete: our controllers write them.
    Derived,
    /// Ask and be answered: nothing is stored.
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
            translation: None,
            warnings: |_| Vec::new(),
            deprecated: None,
            scale: None,
        }
    }

    /// The same kind in another version, whose objects have the shape `Shape`.
    #[must_use]
    pub fn version<Shape: DeserializeOwned + JsonSchema>(
        self,
        meta: &'static KindMeta,
        translation: &'static VersionConversion,
    ) -> Self {
        Self { meta, unknown: unknown::<Shape>, schema: schema::of::<Shape>, translation: Some(translation), ..self }
    }

    /// The same kind in the form that is stored.
    #[must_use]
    pub fn as_stored(self) -> Self {
        Self { meta: self.stored_meta(), translation: None, ..self }
    }

    /// A kind that a client defined.
    #[must_use]
    pub fn custom(meta: &'static KindMeta, custom: &'static CustomKind) -> Self {
        Self {
            meta,
            admit: |object, _, _| Ok(object),
            unknown: |_| Vec::new(),
            schema: || Value::Null,
            access: AllowedVerbs::Full,
            custom: Some(custom),
            translation: None,
            warnings: |_| Vec::new(),
            deprecated: None,
            scale: None,
        }
    }

    /// Of the form that is stored.
    #[must_use]
    pub fn stored_meta(&self) -> &'static KindMeta {
        self.translation.map_or(self.meta, |translation| translation.stored)
    }

    /// A whole object in this form becomes one in the stored form.
    pub fn to_stored(&self, object: &mut Value) {
        self.complete(object);
        self.partial_to_stored(object);
    }

    /// The same for the part of an object that a client has an opinion on.
    pub fn partial_to_stored(&self, object: &mut Value) {
        if let Some(translation) = self.translation {
            (translation.to_stored)(object);
            object["apiVersion"] = translation.stored.api_version().into();
        }
    }

    /// From here on it is a whole object: what is left out is meant so.
    pub fn complete(&self, object: &mut Value) {
        if let Some(translation) = self.translation {
            (translation.complete)(object);
        }
    }

    /// A stored object in this form.
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

    /// Defaults and validates a whole object.
    pub fn admit_object(
        &self,
        new: Value,
        before: Option<&Value>,
        requester: &RequestContext,
    ) -> Result<Value, AdmissionError> {
        match self.custom {
            Some(custom) => custom.admit(new, before),
            None if requester.internal => (self.admit)(new, before, requester),
            None => match items::too_many(&new) {
                Some(problem) => Err(AdmissionError::Invalid(vec![problem])),
                None => (self.admit)(new, before, requester),
            },
        }
    }

    /// The paths of fields that the kind does not know.
    #[must_use]
    pub fn unknown_fields(&self, object: &Value) -> Vec<String> {
        match self.custom {
            Some(custom) => custom.unknown(object),
            // It is refused, and is not read as the kind's type for this.
            None if items::too_many(object).is_some() => Vec::new(),
            None => (self.unknown)(object),
        }
    }

    /// The kind's schema, in the dialect of Kubernetes.
    #[must_use]
    pub fn openapi_schema(&self) -> Value {
        self.custom.map_or_else(|| (self.schema)(), |custom| custom.schema().clone())
    }

    /// Authors are told what `warnings` finds in their objects.
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
    pub fn deprecated(self, told: &'static str) -> Self {
        Self { deprecated: Some(told), ..self }
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
        return Err(AdmissionError::Invalid(problems.told()));
    }
    let mut object = serde_json::to_value(&object).map_err(|why| AdmissionError::Malformed(why.to_string()))?;
    R::normalize_output(&mut object);
    Ok(object)
}

fn unknown<R: DeserializeOwned>(object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut object = object.clone();
    nulls::drop_nulls(&mut object);
    // An object of the wrong shape is refused by `admit`, with what is wrong.
    let _ = read::<R>(&object, &mut unknown);
    unknown
}

/// Why an object does not have its kind's shape, with the field if the schema tells which.
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

/// The same with what Go's reader makes of `null` in lists; that is rare, and schemas are big.
fn read_with_null_items<R: ResourceStrategy>(object: &mut Value, unknown: &mut Vec<String>) -> serde_json::Result<R> {
    let found = read(object, unknown);
    if found.is_ok() || R::META.is_of_knative() {
        return found;
    }
    nulls::fill_null_items(object, &schema::of::<R>());
    unknown.clear();
    read(object, unknown)
}
