//! Custom kinds: a CustomResourceDefinition as rows of the registry, one for each version.

mod combinators;
mod crd_names;
mod embedded;
mod formats;
mod patterns;
mod pruning;
mod rule_costs;
mod schema_validation;
mod structural_schema;
mod upstream;
mod validation_rules;
mod work;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::field_errors::{AdmissionError, FieldErrors, Problem};
use crate::object_reader;

pub use structural_schema::{below, stays_null, type_mismatches};
pub use upstream::UpstreamDefinition;
use validation_rules::ValidationRules;

use patterns::Patterns;
use pruning::Dropped;
use structural_schema::SchemaContext;
use work::{At, ROOT_PATH, ValidationWork};

/// Types and formats of a column, as Kubernetes lists them.
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// Columns of one version: each takes part of every row of a table, whatever its path finds.
pub(super) const COLUMNS_MAX: usize = 100;

/// A client's definition of its kind.
#[derive(Debug)]
pub struct CustomKind {
    schema: Value,
    rules: ValidationRules,
    patterns: Patterns,
    scale: Option<ScaleSubresource>,
    /// Fields that objects are selected by, as clients write them and as JSON pointers.
    selectable: Vec<(String, String)>,
    /// The warning for users of the version, if it is deprecated.
    deprecated: Option<String>,
}

/// Where a kind's objects say how many they are to be, and are; the names of fields on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleSubresource {
    pub spec_replicas_path: Vec<String>,
    pub status_replicas_path: Vec<String>,
    /// The text of a selector of what is counted.
    pub selector_path: Option<Vec<String>>,
}

impl ScaleSubresource {
    /// The number at `.spec.REPLICAS`, `.status.REPLICAS` and the selector at `.status.selector`.
    #[must_use]
    pub fn at(replicas: &str) -> Self {
        let below = |part: &str, field: &str| vec![part.to_owned(), field.to_owned()];
        Self {
            spec_replicas_path: below("spec", replicas),
            status_replicas_path: below("status", replicas),
            selector_path: Some(below("status", "selector")),
        }
    }

    /// Of Deployments and ReplicaSets.
    #[must_use]
    pub fn of_workloads() -> Self {
        let selector = ["spec", "selector"].map(str::to_owned).to_vec();
        Self { selector_path: Some(selector), ..Self::at("replicas") }
    }

    fn of(version: &Value) -> Option<Self> {
        let said = &version["subresources"]["scale"];
        let path = |name: &str| {
            let path = said[name].as_str()?.strip_prefix('.')?;
            Some(path.split('.').map(str::to_owned).collect::<Vec<_>>())
        };
        let (wanted, found) = (path("specReplicasPath")?, path("statusReplicasPath")?);
        Some(Self { spec_replicas_path: wanted, status_replicas_path: found, selector_path: path("labelSelectorPath") })
    }
}

impl CustomKind {
    pub(crate) fn of(version: &Value, deprecated: Option<String>) -> Self {
        let schema = version_schema(version);
        let fields = version["selectableFields"].as_array().into_iter().flatten();
        let selectable = fields.filter_map(|field| {
            let path = field["jsonPath"].as_str()?.strip_prefix('.')?;
            Some((path.to_owned(), format!("/{}", path.replace('.', "/"))))
        });
        let selectable = selectable.collect();
        Self {
            rules: ValidationRules::of(&schema),
            patterns: Patterns::of(&schema),
            scale: ScaleSubresource::of(version),
            selectable,
            schema,
            deprecated,
        }
    }

    /// Drops, fills in and judges a whole object; `before` is what it was.
    pub fn admit(&self, mut object: Value, before: Option<&Value>) -> Result<Value, AdmissionError> {
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].take())
            .map_err(|why| AdmissionError::Malformed(format!("metadata: {why}")))?;
        object["metadata"] =
            serde_json::to_value(metadata).map_err(|why| AdmissionError::Malformed(why.to_string()))?;
        pruning::prune(&mut object, &self.schema, At::Root(""), &mut Dropped::default());
        let (work, mut problems) = (ValidationWork::default(), FieldErrors::default());
        structural_schema::apply_defaults(&mut object, &self.schema, &work);
        if work.exceeded().is_none() {
            let held = SchemaContext { schema: &self.schema, patterns: &self.patterns, work: &work, old_value: before };
            structural_schema::validate(&object, held, At::Root(""), &mut problems);
        }
        if let Some(why) = work.exceeded() {
            problems.add(why.field, why.message);
        } else if problems.list.is_empty() {
            self.rules.evaluate(&object, before, &self.schema, &mut problems);
        } else if !self.rules.is_empty() {
            let why = "Invalid value: null: some validation rules were not checked because the object was invalid; \
                correct the existing errors to complete validation";
            problems.add(ROOT_PATH, why);
        }
        if problems.list.is_empty() { Ok(object) } else { Err(AdmissionError::Invalid(problems.into_list())) }
    }

    /// Makes a stored object one of this version, which `is_stored` or not.
    pub fn convert(&self, object: &mut Value, is_stored: bool) {
        pruning::prune(object, &self.schema, At::Root(""), &mut Dropped::default());
        if is_stored {
            // A definition may have got more defaults than its objects can hold: then the last ones are left out.
            structural_schema::apply_defaults(object, &self.schema, &ValidationWork::default());
        }
    }

    /// Whether a validation error of a whole object may come from its status.
    pub fn is_status_field(field: &str) -> bool {
        field.starts_with("status") || field == ROOT_PATH
    }

    #[must_use]
    pub fn scale(&self) -> Option<&ScaleSubresource> {
        self.scale.as_ref()
    }

    pub fn deprecated(&self) -> Option<&str> {
        self.deprecated.as_deref()
    }

    /// The JSON pointer of a field that objects may be selected by.
    pub fn selectable(&self, field: &str) -> Option<&str> {
        self.selectable.iter().find(|(name, _)| name == field).map(|(_, pointer)| pointer.as_str())
    }

    /// The fields that the schema does not name.
    pub fn unknown(&self, object: &Value) -> Vec<String> {
        let mut dropped = Dropped::default();
        pruning::prune(&mut object.clone(), &self.schema, At::Root(""), &mut dropped);
        let mut dropped = dropped.paths;
        let mut unknown = Vec::new();
        // Metadata of the wrong shape is refused elsewhere.
        let _ = object_reader::read::<ObjectMeta>(&object["metadata"], &mut unknown);
        dropped.extend(unknown.into_iter().map(|path| format!("metadata.{path}")));
        dropped
    }

    pub fn schema(&self) -> &Value {
        &self.schema
    }
}

/// Says what `schema` does not allow in a value at `at`, fields that it does not name included.
pub(crate) fn validate_value(value: &Value, schema: &Value, at: &str, problems: &mut FieldErrors) {
    let (patterns, work) = (Patterns::of(schema), ValidationWork::default());
    let held = SchemaContext { schema, patterns: &patterns, work: &work, old_value: None };
    structural_schema::validate(value, held, At::Root(at), problems);
    let mut dropped = Dropped::default();
    pruning::prune(&mut value.clone(), schema, At::Root(at), &mut dropped);
    for field in dropped.paths {
        problems.add(field, "unknown field");
    }
    if let Some(why) = work.exceeded() {
        problems.add(why.field, why.message);
    }
}

/// Says what is wrong with a schema at `at`.
pub(crate) fn validate_schema(schema: &Value, at: &str, problems: &mut FieldErrors) {
    schema_validation::validate(schema, at, problems);
}

/// The version's schema, with what every object has.
fn version_schema(version: &Value) -> Value {
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    if !schema.is_object() {
        schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    }
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = json!({ "type": "string" });
    }
    schema["properties"]["metadata"] = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    schema
}

/// Validates a status against a kind's schema; unchanged values are accepted.
pub fn status_errors(status: &Value, before: &Value, schema: &Value) -> Vec<Problem> {
    let schema = &schema["properties"]["status"];
    let mut problems = FieldErrors::default();
    let work = ValidationWork::default();
    let held = SchemaContext { schema, patterns: &Patterns::of(schema), work: &work, old_value: Some(before) };
    structural_schema::validate(status, held, At::Root("status"), &mut problems);
    problems.into_list()
}

/// Validates a column.
fn validate_column(column: &Value, at: &str, problems: &mut FieldErrors) {
    let text = |name: &str| column[name].as_str().unwrap_or("");
    if text("name").is_empty() {
        problems.add(format!("{at}.name"), "Required value");
    }
    let one_of = |list: &[&str]| format!("must be one of {}", list.join(","));
    match text("type") {
        "" => problems.add(format!("{at}.type"), format!("Required value: {}", one_of(&COLUMN_TYPES))),
        known if COLUMN_TYPES.contains(&known) => {}
        other => {
            problems.add(format!("{at}.type"), format!("Invalid value: {other:?}: {}", one_of(&COLUMN_TYPES)));
        }
    }
    let format = text("format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        problems.add(format!("{at}.format"), format!("Invalid value: {format:?}: {}", one_of(&COLUMN_FORMATS)));
    }
    let path = text("jsonPath");
    if path.is_empty() {
        problems.add(format!("{at}.JSONPath"), "Required value");
    } else if !path.starts_with('.') {
        let why = format!("Invalid value: {path:?}: must be a simple json path starting with .");
        problems.add(format!("{at}.JSONPath"), why);
    }
}

/// Validates a version's columns, and its scale and selectable fields.
fn validate_version(version: &Value, at: &str, problems: &mut FieldErrors) {
    for (index, field) in version["selectableFields"].as_array().into_iter().flatten().enumerate() {
        let path = field["jsonPath"].as_str().unwrap_or("");
        let whole = &version["schema"]["openAPIV3Schema"];
        let mut steps = path.strip_prefix('.').unwrap_or("").split('.');
        if !steps.try_fold(whole, |schema, step| schema["properties"].get(step)).is_some_and(Value::is_object) {
            let why = format!("Invalid value: {path:?}: is an invalid path: does not refer to a valid field");
            problems.add(format!("{at}.selectableFields[{index}].jsonPath"), why);
        }
    }
    let columns = version["additionalPrinterColumns"].as_array().map_or(&[][..], Vec::as_slice);
    if columns.len() > COLUMNS_MAX {
        let why = format!("Too many: {}: must have at most {COLUMNS_MAX} items", columns.len());
        problems.add(format!("{at}.additionalPrinterColumns"), why);
    }
    for (index, column) in columns.iter().take(COLUMNS_MAX).enumerate() {
        validate_column(column, &format!("{at}.additionalPrinterColumns[{index}]"), problems);
    }
    let scale = &version["subresources"]["scale"];
    for (field, below, needed) in [
        ("specReplicasPath", ".spec.", true),
        ("statusReplicasPath", ".status.", true),
        ("labelSelectorPath", "", false),
    ] {
        let path = scale[field].as_str().unwrap_or("");
        let at = format!("{at}.subresources.scale.{field}");
        if path.is_empty() && needed && scale.is_object() {
            problems.add(at, "Required value");
        } else if !path.is_empty() && (!path.starts_with(below) || path.contains(['[', ']']) || !path.starts_with('.'))
        {
            let below = if below.is_empty() { ".spec. or .status." } else { below };
            let why = format!("Invalid value: {path:?}: should be a json path under {}", below.trim_end_matches('.'));
            problems.add(at, why);
        }
    }
}

/// Rejects changes of a definition's immutable fields: its objects are stored under them.
pub(super) fn validate_update(spec: &Value, before: &Value, problems: &mut FieldErrors) {
    for (field, at) in [("group", "/group"), ("scope", "/scope"), ("names.kind", "/names/kind")] {
        let (now, before) = (spec.pointer(at).unwrap_or(&Value::Null), before.pointer(at).unwrap_or(&Value::Null));
        if now != before {
            problems.add(format!("spec.{field}"), format!("Invalid value: {now}: field is immutable"));
        }
    }
}

/// Leaves in peace what was taken before there was a rule against it.
pub(super) fn ratchet(name: &str, before: &Value, problems: &mut FieldErrors) {
    if !problems.list.is_empty() {
        let mut known = FieldErrors::default();
        validate(name, before, &mut known);
        problems.list.retain(|problem| !known.list.contains(problem));
    }
}

/// Validates a definition.
pub(super) fn validate(name: &str, spec: &Value, problems: &mut FieldErrors) {
    crd_names::validate(name, spec, problems);
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        problems.add("spec.versions", "Invalid value: must have exactly one version marked as storage version");
    }
    if spec["preserveUnknownFields"] == true {
        let why = "Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
            spec.versions[*].schema instead";
        problems.add("spec.preserveUnknownFields", why);
    }
    for (index, version) in versions.iter().enumerate() {
        validate_version(version, &format!("spec.versions[{index}]"), problems);
        let schema = &version["schema"]["openAPIV3Schema"];
        let at = format!("spec.versions[{index}].schema.openAPIV3Schema");
        if !schema.is_object() {
            problems.add(at, "Required value: schemas are required");
        } else {
            schema_validation::validate(schema, &at, problems);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Value {
        json!({
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "crons", "kind": "Cron", "shortNames": ["ct"] },
            "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "additionalPrinterColumns": [{ "name": "Spec", "type": "string", "jsonPath": ".spec.cron" }],
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": { "cron": { "type": "string", "default": "now" } } },
                } } } }],
        })
    }

    #[test]
    fn a_definition_becomes_a_row_with_its_names_columns_and_rules() {
        let found = crate::crd::versions::entries(&json!({ "spec": spec() }));
        let [entry] = &found[..] else { panic!("{found:?}") };
        let meta = entry.meta;
        assert_eq!((meta.kind, meta.singular, meta.short_names, meta.has_status), ("Cron", "cron", &["ct"][..], true));
        assert_eq!(meta.columns[0].path, ".spec.cron");
        let who = crate::kind_registry::RequestContext::default();
        let object = json!({ "metadata": { "name": "a", "nme": 1 }, "spec": { "typo": 1 }, "extra": 1 });
        let admitted = entry.admit_object(object, None, &who).unwrap();
        assert_eq!(admitted, json!({ "metadata": { "name": "a" }, "spec": { "cron": "now" } }));
        let wrong = json!({ "metadata": {}, "spec": { "cron": 1 } });
        assert!(matches!(entry.admit_object(wrong, None, &who), Err(AdmissionError::Invalid(_))));
        assert!(matches!(entry.admit_object(json!({ "metadata": 7 }), None, &who), Err(AdmissionError::Malformed(_))));
    }

    #[test]
    fn group_scope_and_kind_stay() {
        let mut problems = FieldErrors::default();
        let after = json!({ "group": "b", "scope": "Cluster", "names": { "kind": "B" } });
        let before = json!({ "group": "a", "scope": "Cluster", "names": { "kind": "A" } });
        validate_update(&after, &before, &mut problems);
        let fields: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["spec.group", "spec.names.kind"]);
        assert_eq!(problems.list[0].message, r#"Invalid value: "b": field is immutable"#);
    }

    /// APP-20: a rule that could cost too much is refused with its definition; what was stored before that may change
    /// otherwise.
    #[test]
    fn a_rule_that_could_cost_too_much_is_refused_unless_it_was_there() {
        let with = |rule: &str, items: Value| {
            let mut spec = spec();
            let list = json!({ "type": "array", "items": { "type": "string" }, "maxItems": items,
                "x-kubernetes-validations": [{ "rule": rule }] });
            spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["list"] = list;
            spec
        };
        let found = |spec: &Value| {
            let mut problems = FieldErrors::default();
            validate("crons.example.com", spec, &mut problems);
            problems
        };
        let twice = "self.all(x, self.all(y, x == y))";
        let mut too_costly = found(&with(twice, Value::Null));
        let at = "spec.versions[0].schema.openAPIV3Schema";
        let fields: Vec<&str> = too_costly.list.iter().map(|problem| problem.field.as_str()).collect();
        let rule = format!("{at}.properties[list].x-kubernetes-validations[0].rule");
        assert_eq!(fields, [&rule, &rule, at]);
        assert_eq!(
            too_costly.list[0].message,
            "Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or \
             adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
        );
        assert_eq!(found(&with(twice, 2.into())).list, []);
        ratchet("crons.example.com", &with(twice, Value::Null), &mut too_costly);
        assert_eq!(too_costly.list, []);
        let loose = with("self.all(x, oldSelf.exists(y, x == y))", 2.into());
        assert_eq!(found(&loose).list, [], "a list has one place");
        let mut inside = with("true", 2.into());
        let list = &mut inside["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["list"];
        list["items"]["x-kubernetes-validations"] = json!([{ "rule": "self == oldSelf" }]);
        let why = &found(&inside).list[0].message;
        assert!(why.contains("uncorrelatable portion of the schema within spec.versions[0]"), "{why}");
    }

    #[test]
    fn a_definition_that_says_too_little_is_refused_with_the_field() {
        let mut problems = FieldErrors::default();
        validate("crons.example.com", &spec(), &mut problems);
        assert_eq!(problems.list, []);
        for (pointer, value, field) in [
            ("/group", json!("other.com"), "metadata.name"),
            ("/scope", json!("Everywhere"), "spec.scope"),
            ("/names/kind", json!(""), "spec.names.kind"),
            ("/versions/0/storage", json!(false), "spec.versions"),
            ("/versions/0/schema", json!({}), "spec.versions[0].schema.openAPIV3Schema"),
            (
                "/versions/0/schema/openAPIV3Schema/type",
                json!("string"),
                "spec.versions[0].schema.openAPIV3Schema.type",
            ),
        ] {
            let mut spec = spec();
            *spec.pointer_mut(pointer).unwrap() = value;
            let mut problems = FieldErrors::default();
            validate("crons.example.com", &spec, &mut problems);
            assert!(problems.list.iter().any(|problem| problem.field == field), "{pointer}: {:?}", problems.list);
        }
    }
}
