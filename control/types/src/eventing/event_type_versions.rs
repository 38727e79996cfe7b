//! The versions of EventType. The stored object has the fields of `v1beta2` together with the attributes of `v1beta3`, so
//! that each version shows what the other wrote; each exposes and accepts only its own (AMB-01).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::event_type::{EventAttribute, EventType, EventTypeSpec, EventTypeStatus};
use crate::kind_registry::{KindEntry, KindMeta, ResourceStrategy as _, VersionConversion};
use crate::printer_column::{READY, REASON, column};
use crate::shared::KReference;

/// Fields of the stored version and the attributes that say the same; upstream's names.
const FIELDS: [(&str, &str); 3] = [("type", "type"), ("source", "source"), ("schema", "schemadata")];

const V1BETA3: KindMeta = KindMeta {
    version: "v1beta3",
    columns: &[
        column("Type", ".spec.attributes[?(@.name==\"type\")].value"),
        column("Source", ".spec.attributes[?(@.name==\"source\")].value"),
        column("Reference Name", ".spec.reference.name"),
        column("Reference Kind", ".spec.reference.kind"),
        column("Description", ".spec.description"),
        READY,
        REASON,
    ],
    ..EventType::META
};
const V1BETA1: KindMeta = KindMeta { version: "v1beta1", ..EventType::META };

/// `eventing.knative.dev/v1beta3` EventType.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct EventTypeV1Beta3 {
    api_version: String,
    kind: String,
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    /// The desired state.
    spec: EventTypeSpecV1Beta3,
    /// The observed state. Written by the controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<EventTypeStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct EventTypeSpecV1Beta3 {
    /// The object that the events are available from.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<KReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Which attributes such an event has; `type`, `source`, `specversion` and `id` at least.
    attributes: Vec<EventAttribute>,
}

/// The version that describes events by their attributes.
#[must_use]
pub fn v1beta3() -> KindEntry {
    static TRANSLATION: VersionConversion = VersionConversion {
        stored: &EventType::META,
        to_stored: |object| object.get_mut("spec").map_or((), from_attributes),
        // A client that omits them gets an error; it may not mean the fields of another version.
        complete: |object| {
            if object["spec"].is_null() {
                object["spec"] = json!({});
            }
            if let Some(fields) = object["spec"].as_object_mut() {
                let attributes = fields.entry("attributes").or_insert_with(|| json!([]));
                if attributes.is_null() {
                    *attributes = json!([]);
                }
            }
        },
        from_stored: |object| to_attributes(&mut object["spec"]),
    };
    KindEntry::of::<EventType>().version::<EventTypeV1Beta3>(&V1BETA3, &TRANSLATION)
}

/// `eventing.knative.dev/v1beta2` EventType, and `v1beta1`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct EventTypeV1Beta2 {
    api_version: String,
    kind: String,
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    /// The desired state.
    spec: EventTypeSpecV1Beta2,
    /// The observed state. Written by the controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<EventTypeStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct EventTypeSpecV1Beta2 {
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_data: Option<String>,
    /// The deprecated field that names a Broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<String>,
    /// The object that the events are available from.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<KReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// Of the two that know no attributes. One that leaves them out does not specify them.
static WITHOUT_ATTRIBUTES: VersionConversion = VersionConversion {
    stored: &EventType::META,
    to_stored: |_| {},
    complete: |_| {},
    from_stored: |object| {
        if let Some(fields) = object["spec"].as_object_mut() {
            fields.remove("attributes");
        }
    },
};

/// The version that objects are stored as.
#[must_use]
pub fn v1beta2() -> KindEntry {
    KindEntry::of::<EventType>().version::<EventTypeV1Beta2>(&EventType::META, &WITHOUT_ATTRIBUTES)
}

/// The first version, which has the fields of `v1beta2`.
#[must_use]
pub fn v1beta1() -> KindEntry {
    KindEntry::of::<EventType>()
        .version::<EventTypeV1Beta2>(&V1BETA1, &WITHOUT_ATTRIBUTES)
        .deprecated("eventing.knative.dev/v1beta1 EventType is deprecated; use eventing.knative.dev/v1beta2 EventType")
}

/// The attributes stay, and the fields say the same for other versions.
fn from_attributes(spec: &mut Value) {
    let attributes = spec["attributes"].as_array().cloned().unwrap_or_default();
    let Some(fields) = spec.as_object_mut() else { return };
    for (field, name) in FIELDS {
        let found = attributes.iter().find(|attribute| attribute["name"] == name);
        if let Some(value) = found.and_then(|found| found["value"].as_str()).filter(|text| !text.is_empty()) {
            fields.insert(field.to_owned(), value.into());
        }
    }
}

fn to_attributes(spec: &mut Value) {
    let Some(fields) = spec.as_object_mut() else { return };
    // What is stored was admitted once, so it parses.
    let known: EventTypeSpec = serde_json::from_value(fields.clone().into()).unwrap_or_default();
    fields.entry("attributes").or_insert_with(|| json!(known.as_attributes()));
    for gone in ["type", "source", "schema", "schemaData", "broker"] {
        fields.remove(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::RequestContext;

    fn object(version: &str, spec: Value) -> Value {
        json!({ "apiVersion": format!("eventing.knative.dev/{version}"), "kind": "EventType",
                "metadata": { "name": "e", "namespace": "ns" }, "spec": spec })
    }

    fn attribute(name: &str, value: &str) -> Value {
        json!({ "name": name, "required": true, "value": value })
    }

    fn admit(entry: &KindEntry, mut object: Value, before: Option<&Value>) -> Result<Value, AdmissionError> {
        entry.to_stored(&mut object);
        entry.admit_object(object, before, &RequestContext { user: "alice".into(), ..RequestContext::default() })
    }

    #[test]
    fn what_one_version_writes_the_others_show() {
        let all = json!([
            attribute("type", "t"),
            attribute("source", "/s"),
            attribute("specversion", "1.0"),
            json!({ "name": "id", "required": true }),
            attribute("mine", "x"),
        ]);
        let new = v1beta3();
        let stored = admit(&new, object("v1beta3", json!({ "attributes": all })), None).unwrap();
        assert_eq!(stored["apiVersion"], "eventing.knative.dev/v1beta2");
        assert_eq!((&stored["spec"]["type"], &stored["spec"]["source"]), (&json!("t"), &json!("/s")));
        assert_eq!(new.from_stored(stored.clone())["spec"], json!({ "attributes": all }));
        assert_eq!(v1beta1().from_stored(stored.clone())["spec"]["type"], "t");

        // A client of an old version that writes back what it knows changes nothing.
        let old = object("v1beta1", json!({ "type": "t", "source": "/s" }));
        assert_eq!(admit(&v1beta1(), old, Some(&stored)).unwrap()["spec"], stored["spec"]);

        let old = object("v1beta1", json!({ "type": "t", "schema": "http://s", "schemaData": "{}" }));
        let stored = admit(&v1beta1(), old, None).unwrap();
        let reported = json!([
            attribute("type", "t"),
            { "name": "schemadata", "required": false, "value": "http://s" },
        ]);
        let shown = new.from_stored(stored.clone());
        assert_eq!(shown["spec"], json!({ "attributes": reported }));
        assert_eq!(shown["apiVersion"], "eventing.knative.dev/v1beta3");
        assert_eq!(stored["spec"]["schemaData"], "{}");
        assert_eq!(admit(&new, shown, Some(&stored)).unwrap()["spec"], stored["spec"]);
    }

    /// APP-29: an apply of a label that omits the spec does not change the spec.
    #[test]
    fn a_part_of_an_object_stays_a_part() {
        let mut label = json!({ "metadata": { "labels": { "a": "b" } } });
        v1beta3().partial_to_stored(&mut label);
        assert_eq!(label["spec"], Value::Null);
        assert!(!label.as_object().unwrap().contains_key("spec"), "{label}");
        let mut reported = object("v1beta3", json!({ "description": "d" }));
        v1beta3().partial_to_stored(&mut reported);
        assert_eq!(reported["spec"], json!({ "description": "d" }));
        v1beta3().complete(&mut reported);
        assert_eq!(reported["spec"], json!({ "description": "d", "attributes": [] }));
    }

    #[test]
    fn the_new_version_wants_four_attributes_and_knows_no_others_fields() {
        let new = v1beta3();
        for (spec, reported) in [
            (json!({}), "spec.attributes"),
            (json!({ "attributes": [attribute("type", "t")] }), "spec.attributes"),
            (json!({ "attributes": [attribute("Type", "t")] }), "spec.attributes"),
        ] {
            let Err(AdmissionError::Invalid(problems)) = admit(&new, object("v1beta3", spec.clone()), None) else {
                panic!("admitted {spec}");
            };
            assert!(problems.iter().any(|one| one.field.starts_with(reported)), "{spec}: {problems:?}");
        }
        let strange = object("v1beta3", json!({ "attributes": [], "type": "t" }));
        assert_eq!(new.unknown_fields(&strange), ["spec.type"]);
        assert_eq!(new.openapi_schema()["properties"]["spec"]["properties"]["attributes"]["type"], "array");
    }
}
