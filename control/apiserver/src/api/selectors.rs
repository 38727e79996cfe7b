//! `labelSelector` and `fieldSelector`: the objects that a request selects.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use crate::store::StoredObject;
use support::labels;
use types::kind_registry::KindEntry;

use super::errors::StatusError;

/// Both selectors of a request. All parts must hold.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestSelector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    test: LabelOperator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelOperator {
    Exists,
    DoesNotExist,
    In(BTreeSet<String>),
    /// Also holds where the label is missing.
    NotIn(BTreeSet<String>),
    /// The label is a number, and a greater one.
    GreaterThan(i64),
    LessThan(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    /// JSON pointer.
    field: &'static str,
    equals: bool,
    value: String,
}

/// Fields that objects of some kinds can be selected by, besides name and namespace: the kind, the field, and where it
/// is. Those of events are how `kubectl describe` finds what happened to an object. Where an object has no such field
/// it counts as empty.
const FIELDS: [(&str, &str, &str); 29] = [
    ("events", "involvedObject.kind", "/involvedObject/kind"),
    ("events", "involvedObject.namespace", "/involvedObject/namespace"),
    ("events", "involvedObject.name", "/involvedObject/name"),
    ("events", "involvedObject.uid", "/involvedObject/uid"),
    ("events", "involvedObject.apiVersion", "/involvedObject/apiVersion"),
    ("events", "involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
    ("events", "involvedObject.fieldPath", "/involvedObject/fieldPath"),
    ("events", "regarding.kind", "/regarding/kind"),
    ("events", "regarding.namespace", "/regarding/namespace"),
    ("events", "regarding.name", "/regarding/name"),
    ("events", "regarding.uid", "/regarding/uid"),
    ("events", "regarding.apiVersion", "/regarding/apiVersion"),
    ("events", "regarding.resourceVersion", "/regarding/resourceVersion"),
    ("events", "reportingController", "/reportingController"),
    ("events", "reason", "/reason"),
    ("events", "reportingComponent", "/reportingComponent"),
    ("events", "source", "/source/component"),
    ("events", "type", "/type"),
    ("namespaces", "status.phase", "/status/phase"),
    ("pods", "spec.nodeName", "/spec/nodeName"),
    ("pods", "spec.restartPolicy", "/spec/restartPolicy"),
    ("pods", "spec.schedulerName", "/spec/schedulerName"),
    ("pods", "spec.serviceAccountName", "/spec/serviceAccountName"),
    ("pods", "status.nominatedNodeName", "/status/nominatedNodeName"),
    ("pods", "status.phase", "/status/phase"),
    ("pods", "status.podIP", "/status/podIP"),
    ("secrets", "type", "/type"),
    ("services", "spec.clusterIP", "/spec/clusterIP"),
    ("services", "spec.type", "/spec/type"),
];
/// Parts of one label selector, and of one field selector: each is held against every object of the kind, and of a watch
/// against every change.
const REQUIREMENTS_MAX: usize = 256;
/// Requirements that are looked up in an object's labels one by one.
const LOOKS_MAX: usize = 4;
const NAME: &str = "/metadata/name";
const NAMESPACE: &str = "/metadata/namespace";

impl RequestSelector {
    /// Whether nothing was asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Parses the selectors of a request for objects of the kind `entry`.
    pub(super) fn parse(entry: &KindEntry, labels: &str, fields: &str) -> Result<Self, StatusError> {
        Ok(Self {
            labels: parse_labels(labels)
                .map_err(|why| StatusError::bad_request(format!("unable to parse requirement: {why} in {labels:?}")))?,
            fields: parse_fields(entry, fields)?,
        })
    }

    /// Also asks for this name.
    pub(super) fn require_name(&mut self, name: &str) {
        self.fields.push(FieldRequirement { field: NAME, equals: true, value: name.into() });
    }

    /// Each look at one label goes through all of the object's, which may be thousands; so do a thousand requirements.
    fn fits_labels(&self, object: &StoredObject) -> bool {
        if self.labels.len() <= LOOKS_MAX {
            return self.labels.iter().all(|part| part.matches(object.head.label(&part.key)));
        }
        let labels: HashMap<&str, &str> = object.head.labels().collect();
        self.labels.iter().all(|part| part.matches(labels.get(&*part.key).copied()))
    }

    pub(super) fn matches(&self, object: &StoredObject) -> bool {
        // Most use only labels and names, which need no parsing.
        let mut opened = None;
        self.fits_labels(object)
            && self.fields.iter().all(|part| {
                let found = match part.field {
                    NAME => &*object.key.name,
                    NAMESPACE => &*object.key.namespace,
                    field => {
                        let value: &Value = opened.get_or_insert_with(|| object.value());
                        match value.pointer(field) {
                            Some(Value::String(text)) => text,
                            // A number or a truth of a custom kind.
                            Some(plain @ (Value::Number(_) | Value::Bool(_))) => {
                                let plain = plain.to_string();
                                return (plain == part.value) == part.equals;
                            }
                            _ => "",
                        }
                    }
                };
                (found == part.value) == part.equals
            })
    }
}

impl LabelRequirement {
    fn matches(&self, label: Option<&str>) -> bool {
        match &self.test {
            LabelOperator::Exists => label.is_some(),
            LabelOperator::DoesNotExist => label.is_none(),
            LabelOperator::In(values) => label.is_some_and(|label| values.contains(label)),
            LabelOperator::NotIn(values) => label.is_none_or(|label| !values.contains(label)),
            LabelOperator::GreaterThan(bound) => number(label).is_some_and(|label| label > *bound),
            LabelOperator::LessThan(bound) => number(label).is_some_and(|label| label < *bound),
        }
    }
}

fn number(label: Option<&str>) -> Option<i64> {
    label?.parse().ok()
}

/// The one object that a field selector asks for: a role that names it grants to list and watch that, which is how
/// informers of one object live with few rights.
pub(super) fn single_name(fields: &str) -> Option<&str> {
    fields.split(',').find_map(|part| {
        let value = part.trim().strip_prefix("metadata.name")?.trim_start().strip_prefix('=')?;
        let name = value.strip_prefix('=').unwrap_or(value).trim();
        (!name.is_empty() && !name.contains(['/', '%', '\\'])).then_some(name)
    })
}

fn parse_fields(entry: &KindEntry, text: &str) -> Result<Vec<FieldRequirement>, StatusError> {
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.len() > REQUIREMENTS_MAX {
        let why =
            format!("invalid field selector: found {} requirements, expected at most {REQUIREMENTS_MAX}", parts.len());
        return Err(StatusError::bad_request(why));
    }
    parts
        .into_iter()
        .map(|part| {
            let (name, equal, value) = if let Some((name, value)) = part.split_once("!=") {
                (name, false, value)
            } else if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (name, true, value)
            } else {
                return Err(StatusError::bad_request(format!("invalid field selector: {part:?}")));
            };
            let name = name.trim();
            let field = pointer(entry, name)?;
            Ok(FieldRequirement { field, equals: equal, value: value.trim().into() })
        })
        .collect()
}

/// Where a field of a kind is that its objects can be selected by.
fn pointer(entry: &KindEntry, name: &str) -> Result<&'static str, StatusError> {
    let own = || FIELDS.iter().filter(|(kind, ..)| *kind == entry.meta.plural && entry.custom.is_none());
    match name {
        "metadata.name" => return Ok(NAME),
        "metadata.namespace" => return Ok(NAMESPACE),
        _ => {}
    }
    let known = own().find(|(_, field, _)| *field == name).map(|(.., pointer)| *pointer);
    known.or_else(|| entry.custom.and_then(|custom| custom.selectable(name))).ok_or_else(|| {
        StatusError::bad_request(if own().next().is_some() || entry.custom.is_some() {
            format!("field label not supported: {name}")
        } else {
            format!("{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        })
    })
}

/// `a=b,c in (d,e),!f,g!=h,i notin (j),k,l>1,m<2`
fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, String> {
    let parts = split_outside_brackets(text)?;
    if parts.len() > REQUIREMENTS_MAX {
        return Err(format!("found {} requirements, expected at most {REQUIREMENTS_MAX}", parts.len()));
    }
    parts.into_iter().map(parse_requirement).collect()
}

fn split_outside_brackets(text: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' if !inside => inside = true,
            b')' if inside => inside = false,
            b'(' | b')' => return Err("found an unexpected bracket".into()),
            b',' if !inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("found a bracket that is never closed".into());
    }
    parts.push(&text[start..]);
    if parts.len() == 1 && parts[0].trim().is_empty() {
        parts.clear();
    }
    Ok(parts)
}

fn parse_requirement(part: &str) -> Result<LabelRequirement, String> {
    let part = part.trim();
    if let Some(key) = part.strip_prefix('!') {
        return Ok(LabelRequirement { key: label_key(key)?, test: LabelOperator::DoesNotExist });
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')').ok_or("found text behind a bracket")?;
        let values = values.split(',').map(label_value).collect::<Result<BTreeSet<_>, _>>()?;
        let (key, operator) = head.trim_end().rsplit_once(char::is_whitespace).ok_or("found no operator")?;
        let key = label_key(key)?;
        return match operator {
            "in" => Ok(LabelRequirement { key, test: LabelOperator::In(values) }),
            "notin" => Ok(LabelRequirement { key, test: LabelOperator::NotIn(values) }),
            other => Err(format!("found {other:?}, expected in or notin")),
        };
    }
    if let Some((key, bound)) = part.split_once(['<', '>']) {
        let bound = bound.trim();
        let bound = bound.parse().map_err(|_| format!("found {bound:?}, expected an integer"))?;
        let test = if part.contains('>') { LabelOperator::GreaterThan(bound) } else { LabelOperator::LessThan(bound) };
        return Ok(LabelRequirement { key: label_key(key)?, test });
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(LabelRequirement { key: label_key(key)?, test: LabelOperator::NotIn([label_value(value)?].into()) });
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(LabelRequirement { key: label_key(key)?, test: LabelOperator::In([label_value(value)?].into()) });
    }
    Ok(LabelRequirement { key: label_key(part)?, test: LabelOperator::Exists })
}

fn label_key(text: &str) -> Result<String, String> {
    let key = text.trim();
    if labels::is_qualified_name(key) { Ok(key.into()) } else { Err(format!("found {key:?}, expected a label key")) }
}

fn label_value(text: &str) -> Result<String, String> {
    let value = text.trim();
    if labels::is_label_value(value) {
        Ok(value.into())
    } else {
        Err(format!("found {value:?}, expected a label value"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::store::ObjectKey;

    fn of_event(labels: &str, fields: &str) -> Result<RequestSelector, StatusError> {
        RequestSelector::parse(&types::events_v1::entry(), labels, fields)
    }

    fn stored(object: &Value) -> StoredObject {
        let key = ObjectKey { resource: "/things".into(), namespace: "s".into(), name: "n".into() };
        StoredObject::new(key, 1, object)
    }

    fn matches(selector: &str, labels: &Value) -> bool {
        let object = stored(&json!({ "metadata": { "labels": labels } }));
        of_event(selector, "").unwrap().matches(&object)
    }

    /// APP-25: equality and set form, joined by commas.
    #[test]
    fn every_part_of_a_label_selector_must_hold() {
        let labels = json!({ "a": "b", "c": "d" });
        for holds in ["a=b", "a==b", "a=b,c in (d,e),!f", "a!=x", "f!=x", "c notin (x, y)", "f notin (x)", "a", ""] {
            assert!(matches(holds, &labels), "{holds}");
        }
        for fails in ["a=x", "a=b,c in (x,e)", "!a", "f", "a!=b", "c notin (d)", "f in (x)"] {
            assert!(!matches(fails, &labels), "{fails}");
        }
    }

    /// APP-25: as Kubernetes' own clients may ask.
    #[test]
    fn labels_that_are_numbers_are_compared() {
        let labels = json!({ "n": "7", "word": "x", "none": "" });
        for holds in ["n>6", "n < 8,n> -1", "n>6,n<8"] {
            assert!(matches(holds, &labels), "{holds}");
        }
        for fails in ["n>7", "n<7", "word>0", "word<9", "none<1", "missing>0", "missing<1"] {
            assert!(!matches(fails, &labels), "{fails}");
        }
        for broken in ["n>", "n>x", "n>1.5", ">1", "n>=1", "n><1", "n!=1>2", "n>9223372036854775808"] {
            assert_eq!(of_event(broken, "").unwrap_err().code, 400, "{broken}");
        }
    }

    proptest! {
        /// A selector that is put together from parts means what its parts mean; any other text is refused or
        /// means something, and never more than that.
        #[test]
        fn a_selector_means_what_its_parts_mean(
            parts in proptest::collection::vec(("[a-c]", 0..7, "[x-z]?", "[x-z]?"), 0..5),
            labels in proptest::collection::btree_map("[a-c]", "[x-z]?", 0..3),
            noise in "[a-c0-9<>=!,() innot-]{0,24}",
        ) {
            let (mut text, mut expected) = (Vec::new(), true);
            for (key, form, one, other) in parts {
                let label = labels.get(&key);
                let is = |value: &str| label.is_some_and(|label| label == value);
                let (part, holds) = match form {
                    0 => (key.clone(), label.is_some()),
                    1 => (format!("!{key}"), label.is_none()),
                    2 => (format!("{key} = {one}"), is(&one)),
                    3 => (format!("{key}=={one}"), is(&one)),
                    4 => (format!("{key} != {one}"), !is(&one)),
                    5 => (format!("{key} in ({one}, {other})"), is(&one) || is(&other)),
                    _ => (format!("{key} notin ({one},{other})"), !is(&one) && !is(&other)),
                };
                text.push(part);
                expected &= holds;
            }
            let text = text.join(",");
            prop_assert_eq!(matches(&text, &json!(labels)), expected, "{}", text);
            let _ = of_event(&noise, &noise).map(|selector| selector.matches(&stored(&json!({}))));
        }
    }

    #[test]
    fn an_object_without_labels_matches_only_what_asks_for_none() {
        assert!(matches("!a", &Value::Null));
        assert!(!matches("a", &Value::Null));
    }

    #[test]
    fn a_broken_selector_is_refused() {
        for broken in ["a in (b", "a in b)", "a b", ",", "a,", "=b", "a=b=c", "a in ()(", "a is (b)", "-a", "a=ü", "!"]
        {
            let refusal = of_event(broken, "").expect_err(broken);
            assert_eq!(refusal.code, 400, "{broken}");
        }
    }

    /// Only what asks for exactly one name is about one object.
    #[test]
    fn a_selector_by_name_is_about_one_object() {
        for (fields, name) in [
            ("metadata.name=a", Some("a")),
            ("metadata.namespace=s, metadata.name == a", Some("a")),
            ("metadata.name!=a", None),
            ("metadata.names=a", None),
            ("metadata.name=", None),
            ("metadata.name=a/b", None),
            ("metadata.name", None),
            ("", None),
        ] {
            assert_eq!(single_name(fields), name, "{fields}");
        }
    }

    /// APP-26
    #[test]
    fn a_field_selector_knows_name_and_namespace() {
        let object = stored(&json!({ "metadata": { "name": "n", "namespace": "s" }, "type": "Normal" }));
        let matches = |fields: &str| of_event("", fields).unwrap().matches(&object);
        assert!(matches("metadata.name=n,metadata.namespace==s"));
        assert!(!matches("metadata.name!=n"));
        assert!(!matches("metadata.namespace=x"));
        assert!(matches("type=Normal,reason!=x,metadata.name=n") && !matches("type=Warning"));
        assert_eq!(of_event("", "spec.x=1").unwrap_err().message, "field label not supported: spec.x");
        let map = KindEntry::of::<k8s_openapi::api::core::v1::ConfigMap>();
        let refusal = RequestSelector::parse(&map, "", "type=a").unwrap_err();
        assert!(refusal.message.starts_with("\"type\" is not a known field selector"), "{}", refusal.message);
    }
}
