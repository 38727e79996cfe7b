//! Kinds that clients define: a CustomResourceDefinition as a row of the registry.
//!
//! Served is the version that is stored; of several, the others are kept in the definition and not served,
//! because there is nobody here to convert between them.

mod costs;
mod definition_rules;
mod rules;
mod structural;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::kind::{ClientColumn, Column, Denied, Entry, KindMeta, Problems, UNKNOWN_TOLD_MAX, UnknownFields};

use rules::Rules;
pub(crate) use structural::mistyped;

use structural::Patterns;

/// Types and formats of a column, as Kubernetes lists them.
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// What a client said about its kind.
#[derive(Debug)]
pub struct Custom {
    schema: Value,
    rules: Rules,
    patterns: Patterns,
    scale: Option<Scale>,
    /// Fields that objects are selected by, as clients write them and as JSON pointers.
    selectable: Vec<(String, String)>,
}

/// Where a kind's objects say how many they are to be, and are; the names of fields on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    pub wanted: Vec<String>,
    pub found: Vec<String>,
    /// The text of a selector of what is counted.
    pub selector: Option<Vec<String>>,
}

impl Scale {
    fn of(version: &Value) -> Option<Self> {
        let said = &version["subresources"]["scale"];
        let path = |name: &str| {
            let path = said[name].as_str()?.strip_prefix('.')?;
            Some(path.split('.').map(str::to_owned).collect::<Vec<_>>())
        };
        let (wanted, found) = (path("specReplicasPath")?, path("statusReplicasPath")?);
        Some(Self { wanted, found, selector: path("labelSelectorPath") })
    }
}

impl Custom {
    fn of(version: &Value) -> Self {
        let schema = schema(version);
        let fields = version["selectableFields"].as_array().into_iter().flatten();
        let selectable = fields.filter_map(|field| {
            let path = field["jsonPath"].as_str()?.strip_prefix('.')?;
            Some((path.to_owned(), format!("/{}", path.replace('.', "/"))))
        });
        let selectable = selectable.collect();
        Self {
            rules: Rules::of(&schema),
            patterns: Patterns::of(&schema),
            scale: Scale::of(version),
            selectable,
            schema,
        }
    }

    /// Drops, fills in and judges a whole object; `before` is what it was.
    pub(crate) fn admit(&self, mut object: Value, before: Option<&Value>) -> Result<Value, Denied> {
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].take())
            .map_err(|why| Denied::Malformed(format!("metadata: {why}")))?;
        object["metadata"] =
            serde_json::to_value(metadata).map_err(|why| Denied::Malformed(why.to_string()))?;
        structural::prune(&mut object, &self.schema, "", &mut Vec::new());
        structural::fill(&mut object, &self.schema);
        let mut problems = Problems::default();
        structural::validate(&object, &self.schema, &self.patterns, "", &mut problems);
        // A status that stays as it is was judged when it was written.
        if before.is_some_and(|before| before.get("status") == object.get("status")) {
            problems.list.retain(|problem| !problem.field.starts_with("status"));
        }
        if problems.list.is_empty() {
            self.rules.judge(&object, before, &self.schema, &mut problems);
        } else if !self.rules.is_empty() {
            let why = "Invalid value: null: some validation rules were not checked because the object was invalid; \
                correct the existing errors to complete validation";
            problems.add(rules::WHOLE, why);
        }
        if problems.list.is_empty() { Ok(object) } else { Err(Denied::Invalid(problems.list)) }
    }

    /// Whether a problem of a whole object concerns those who write its status.
    pub(crate) fn is_of_status(field: &str) -> bool {
        field.starts_with("status") || field == rules::WHOLE
    }

    #[must_use]
    pub fn scale(&self) -> Option<&Scale> {
        self.scale.as_ref()
    }

    /// The JSON pointer of a field that objects may be selected by.
    pub(crate) fn selectable(&self, field: &str) -> Option<&str> {
        self.selectable.iter().find(|(name, _)| name == field).map(|(_, pointer)| pointer.as_str())
    }

    /// The fields that the schema does not name.
    pub(crate) fn unknown(&self, object: &Value) -> Vec<String> {
        let mut dropped = Vec::new();
        structural::prune(&mut object.clone(), &self.schema, "", &mut dropped);
        let mut unknown = Vec::new();
        let named = |path: serde_ignored::Path<'_>| unknown.push(format!("metadata.{path}"));
        // Metadata of the wrong shape is refused elsewhere.
        let _: Result<ObjectMeta, _> = serde_ignored::deserialize(object["metadata"].clone(), named);
        unknown.truncate(UNKNOWN_TOLD_MAX);
        dropped.extend(unknown);
        dropped
    }

    pub(crate) fn schema(&self) -> &Value {
        &self.schema
    }
}

/// The row of the kind that the definition's `spec` describes; `None` if it says too little.
///
/// A row lives as long as the process, as those of our own kinds do: requests under way refer to it. Who
/// calls this bounds how many are made.
#[must_use]
pub fn entry(spec: &Value) -> Option<Entry> {
    let version = stored(spec)?;
    let names = &spec["names"];
    let text =
        |value: &Value| value.as_str().map(|text| -> &'static str { Box::leak(Box::<str>::from(text)) });
    let words = |value: &Value| -> &'static [&'static str] {
        value.as_array().into_iter().flatten().filter_map(text).collect::<Vec<_>>().leak()
    };
    let columns: Vec<Column> = match version["additionalPrinterColumns"].as_array() {
        Some(columns) if !columns.is_empty() => columns.iter().filter_map(column).collect(),
        _ => vec![super::core::AGE],
    };
    let kind = text(&names["kind"])?;
    let meta = KindMeta {
        group: text(&spec["group"])?,
        version: text(&version["name"])?,
        kind,
        plural: text(&names["plural"])?,
        singular: text(&names["singular"])
            .unwrap_or_else(|| -> &'static str { Box::leak(kind.to_lowercase().into_boxed_str()) }),
        short_names: words(&names["shortNames"]),
        categories: words(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        has_status: version["subresources"]["status"].is_object(),
        unknown_fields: UnknownFields::Prune,
        developers_create: true,
        columns: columns.leak(),
    };
    Some(Entry::custom(Box::leak(Box::new(meta)), Box::leak(Box::new(Custom::of(version)))))
}

/// The version whose objects are stored.
fn stored(spec: &Value) -> Option<&Value> {
    spec["versions"]
        .as_array()?
        .iter()
        .find(|version| version["storage"] == true && version["served"] == true)
}

/// The version's schema, with what every object has.
fn schema(version: &Value) -> Value {
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    if !schema.is_object() {
        schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    }
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = json!({ "type": "string" });
    }
    schema["properties"]["metadata"] =
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    schema
}

fn column(said: &Value) -> Option<Column> {
    let text =
        |name: &str| said[name].as_str().map(|text| -> &'static str { Box::leak(Box::<str>::from(text)) });
    let path = text("jsonPath")?;
    let plain = || -> &'static str {
        Box::leak(format!("Custom resource definition column (in JSONPath format): {path}").into_boxed_str())
    };
    let description = text("description").filter(|text| !text.is_empty()).unwrap_or_else(plain);
    Some(Column {
        name: text("name")?,
        path,
        format: text("type")?,
        priority: said["priority"].as_i64().and_then(|priority| i32::try_from(priority).ok()).unwrap_or(0),
        client: Some(ClientColumn { description, format: text("format").unwrap_or("") }),
    })
}

/// What is wrong with a column.
fn validate_column(column: &Value, at: &str, problems: &mut Problems) {
    let text = |name: &str| column[name].as_str().unwrap_or("");
    if text("name").is_empty() {
        problems.add(format!("{at}.name"), "Required value");
    }
    let one_of = |list: &[&str]| format!("must be one of {}", list.join(","));
    match text("type") {
        "" => problems.add(format!("{at}.type"), format!("Required value: {}", one_of(&COLUMN_TYPES))),
        known if COLUMN_TYPES.contains(&known) => {}
        other => {
            problems
                .add(format!("{at}.type"), format!("Invalid value: {other:?}: {}", one_of(&COLUMN_TYPES)));
        }
    }
    let format = text("format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        problems
            .add(format!("{at}.format"), format!("Invalid value: {format:?}: {}", one_of(&COLUMN_FORMATS)));
    }
    let path = text("jsonPath");
    if path.is_empty() {
        problems.add(format!("{at}.JSONPath"), "Required value");
    } else if !path.starts_with('.') {
        let why = format!("Invalid value: {path:?}: must be a simple json path starting with .");
        problems.add(format!("{at}.JSONPath"), why);
    }
}

/// What is wrong with a version's columns and with what it says of scale.
fn validate_version(version: &Value, at: &str, problems: &mut Problems) {
    for (index, column) in version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate() {
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
        } else if !path.is_empty()
            && (!path.starts_with(below) || path.contains(['[', ']']) || !path.starts_with('.'))
        {
            let below = if below.is_empty() { ".spec. or .status." } else { below };
            let why = format!(
                "Invalid value: {path:?}: should be a json path under {}",
                below.trim_end_matches('.')
            );
            problems.add(at, why);
        }
    }
}

/// What a definition keeps for as long as it lives: its objects are stored under it.
pub(super) fn validate_change(spec: &Value, before: &Value, problems: &mut Problems) {
    for field in ["group", "scope"] {
        if spec[field] != before[field] {
            let why = format!("Invalid value: {}: field is immutable", spec[field]);
            problems.add(format!("spec.{field}"), why);
        }
    }
}

/// Leaves in peace what was taken before there was a rule against it.
pub(super) fn forgive_what_was(name: &str, before: &Value, problems: &mut Problems) {
    if !problems.list.is_empty() {
        let mut known = Problems::default();
        validate(name, before, &mut known);
        problems.list.retain(|problem| !known.list.contains(problem));
    }
}

/// What is wrong with a definition.
pub(super) fn validate(name: &str, spec: &Value, problems: &mut Problems) {
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let (group, plural) = (text(&spec["group"]), text(&names["plural"]));
    for (field, value) in
        [("group", &group), ("names.plural", &plural), ("names.kind", &text(&names["kind"]))]
    {
        if value.is_empty() {
            problems.add(format!("spec.{field}"), "Required value");
        }
    }
    if name != format!("{plural}.{group}") {
        let why = format!("Invalid value: {name:?}: must be spec.names.plural+\".\"+spec.group");
        problems.add("metadata.name", why);
    }
    if !super::names::is_dns_subdomain(&group) || !super::names::is_dns1035_label(&plural) {
        problems.add("spec.group", "Invalid value: group and plural have to be DNS names");
    }
    if ["Namespaced", "Cluster"].iter().all(|scope| spec["scope"] != *scope) {
        problems.add("spec.scope", "Unsupported value: supported values: \"Cluster\", \"Namespaced\"");
    }
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        problems
            .add("spec.versions", "Invalid value: must have exactly one version marked as storage version");
    }
    if spec["preserveUnknownFields"] == true {
        let why = "Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
            spec.versions[*].schema instead";
        problems.add("spec.preserveUnknownFields", why);
    }
    if spec["conversion"]["strategy"] == "Webhook" && !spec["conversion"]["webhook"].is_object() {
        problems.add(
            "spec.conversion.webhookClientConfig",
            "Required value: required when strategy is set to Webhook",
        );
    }
    for (index, version) in versions.iter().enumerate() {
        validate_version(version, &format!("spec.versions[{index}]"), problems);
        let schema = &version["schema"]["openAPIV3Schema"];
        let at = format!("spec.versions[{index}].schema.openAPIV3Schema");
        if !schema.is_object() {
            problems.add(at, "Required value: schemas are required");
        } else {
            definition_rules::validate(schema, &at, problems);
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
        let entry = entry(&spec()).unwrap();
        let meta = entry.meta;
        assert_eq!(
            (meta.kind, meta.singular, meta.short_names, meta.has_status),
            ("Cron", "cron", &["ct"][..], true)
        );
        assert_eq!(meta.columns[0].path, ".spec.cron");
        let who = crate::kind::Requester::default();
        let object = json!({ "metadata": { "name": "a", "nme": 1 }, "spec": { "typo": 1 }, "extra": 1 });
        let admitted = entry.judge(object, None, &who).unwrap();
        assert_eq!(admitted, json!({ "metadata": { "name": "a" }, "spec": { "cron": "now" } }));
        let wrong = json!({ "metadata": {}, "spec": { "cron": 1 } });
        assert!(matches!(entry.judge(wrong, None, &who), Err(Denied::Invalid(_))));
        assert!(matches!(entry.judge(json!({ "metadata": 7 }), None, &who), Err(Denied::Malformed(_))));
    }

    #[test]
    fn group_and_scope_stay() {
        let mut problems = Problems::default();
        let after = json!({ "group": "b", "scope": "Cluster" });
        validate_change(&after, &json!({ "group": "a", "scope": "Cluster" }), &mut problems);
        assert_eq!(problems.list.len(), 1);
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
            let mut problems = Problems::default();
            validate("crons.example.com", spec, &mut problems);
            problems
        };
        let twice = "self.all(x, self.all(y, x == y))";
        let mut dear = found(&with(twice, Value::Null));
        let at = "spec.versions[0].schema.openAPIV3Schema";
        let fields: Vec<&str> = dear.list.iter().map(|problem| problem.field.as_str()).collect();
        let rule = format!("{at}.properties[list].x-kubernetes-validations[0].rule");
        assert_eq!(fields, [&rule, &rule, at]);
        assert_eq!(
            dear.list[0].message,
            "Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or \
             adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
        );
        assert_eq!(found(&with(twice, 2.into())).list, []);
        forgive_what_was("crons.example.com", &with(twice, Value::Null), &mut dear);
        assert_eq!(dear.list, []);
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
        let mut problems = Problems::default();
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
            let mut problems = Problems::default();
            validate("crons.example.com", &spec, &mut problems);
            assert!(
                problems.list.iter().any(|problem| problem.field == field),
                "{pointer}: {:?}",
                problems.list
            );
        }
    }
}
