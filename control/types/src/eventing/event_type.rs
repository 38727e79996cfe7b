//! EventType: documents which events are available from which object. Data for users and tools; nothing is routed by
//! it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION};
use crate::conditions::ConditionSet;
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::shared::{KReference, SPEC_CHANGED, Status, namespace};
use support::names::is_attribute;

pub const REFERENCE_EXISTS: &str = "ReferenceExists";
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[REFERENCE_EXISTS] };

kind! {
    /// `eventing.knative.dev/v1beta2` EventType.
    EventType { spec: EventTypeSpec, status: EventTypeStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventTypeSpec {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_data: Option<String>,
    /// The deprecated field that names a Broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker: Option<String>,
    /// The object that the events are available from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<KReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The attributes of the event in `v1beta3`. `type`, `source` and `schema` are taken from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Vec<EventAttribute>>,
}

/// An attribute that an event has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventAttribute {
    pub name: String,
    pub required: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventTypeStatus {
    #[serde(flatten)]
    pub base: Status,
}

impl ResourceStrategy for EventType {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: "v1beta2",
        kind: "EventType",
        plural: "eventtypes",
        singular: "eventtype",
        short_names: &[],
        categories: &["all", "knative", "eventing"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[
            column("Type", ".spec.type"),
            column("Source", ".spec.source"),
            column("Schema", ".spec.schema"),
            column("Reference Name", ".spec.reference.name"),
            column("Reference Kind", ".spec.reference.kind"),
            column("Description", ".spec.description"),
            READY,
            REASON,
        ],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, _: &RequestContext) {
        if let Some(before) = before {
            self.spec.merge_other_versions(&before.spec);
        }
        let broker = self.spec.broker.as_deref().filter(|broker| !broker.is_empty());
        if let (None, Some(broker)) = (&self.spec.reference, broker) {
            self.spec.reference = Some(KReference {
                api_version: format!("{GROUP}/{VERSION}"),
                kind: "Broker".to_owned(),
                name: broker.to_owned(),
                ..KReference::default()
            });
        }
        let home = namespace(&self.metadata).to_owned();
        if let Some(reference) = &mut self.spec.reference {
            delivery::default_reference(reference, &home);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        match &self.spec.attributes {
            Some(attributes) => validate_attributes(attributes, problems),
            None if self.spec.kind.is_empty() => problems.add("spec.type", MISSING),
            None => {}
        }
        if let Some(reference) = &self.spec.reference {
            delivery::validate_reference(reference, "spec.reference", problems);
        }
        for (url, at) in [(&self.spec.source, "spec.source"), (&self.spec.schema, "spec.schema")] {
            if let Some(url) = url
                && url.contains(|c: char| c.is_whitespace() || c.is_control())
            {
                problems.add(at, format!("invalid value: {url}"));
            }
        }
        let home = namespace(&self.metadata);
        if before.is_some_and(|before| before.spec.normalized(home) != self.spec.normalized(home)) {
            problems.add("spec", SPEC_CHANGED);
        }
    }
}

impl EventTypeSpec {
    /// A client knows the fields of one version and writes back no others.
    fn merge_other_versions(&mut self, before: &Self) {
        match &self.attributes {
            None => self.attributes.clone_from(&before.attributes),
            Some(attributes) => {
                if before.attributes.is_none() && *attributes == before.as_attributes() {
                    self.attributes = None;
                }
                self.schema_data = self.schema_data.take().or_else(|| before.schema_data.clone());
                self.broker = self.broker.take().or_else(|| before.broker.clone());
            }
        }
    }

    /// The spec as it reads in the namespace `home`: an empty field counts as absent.
    fn normalized(&self, home: &str) -> Self {
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Self {
            source: said(&self.source),
            schema: said(&self.schema),
            schema_data: said(&self.schema_data),
            broker: said(&self.broker),
            description: said(&self.description),
            reference: self.reference.as_ref().map(|reference| reference.with_namespace(home)),
            ..self.clone()
        }
    }

    /// The fields as attributes; upstream's names.
    #[must_use]
    pub fn as_attributes(&self) -> Vec<EventAttribute> {
        let kind = Some(self.kind.as_str()).filter(|kind| !kind.is_empty());
        let reported = [
            ("type", true, kind),
            ("source", true, self.source.as_deref()),
            ("schemadata", false, self.schema.as_deref()),
        ];
        let attribute = |(name, required, value): (&str, bool, Option<&str>)| {
            Some(EventAttribute { name: name.to_owned(), required, value: value?.to_owned() })
        };
        reported.into_iter().filter_map(attribute).collect()
    }
}

fn validate_attributes(attributes: &[EventAttribute], problems: &mut FieldErrors) {
    for needed in ["type", "source", "specversion", "id"] {
        if !attributes.iter().any(|attribute| attribute.name == needed) {
            problems.add(format!("spec.attributes.{needed}"), MISSING);
        }
    }
    for (index, attribute) in attributes.iter().enumerate().filter(|(_, one)| !is_attribute(&one.name)) {
        let why = format!("invalid value: {:?}: must match ^[a-z][a-z0-9]*$", attribute.name);
        problems.add(format!("spec.attributes[{index}].name"), why);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    fn admit(spec: Value, before: Option<&Value>) -> Result<Value, AdmissionError> {
        let object = json!({"metadata": {"name": "e", "namespace": "ns"}, "spec": spec});
        (KindEntry::of::<EventType>().admit)(
            object,
            before,
            &RequestContext { user: "alice".into(), ..RequestContext::default() },
        )
    }

    #[test]
    fn a_broker_named_the_old_way_becomes_a_reference() {
        let stored = admit(json!({"type": "t", "broker": "b"}), None).unwrap();
        let reference =
            json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "b", "namespace": "ns"});
        assert_eq!(stored["spec"]["reference"], reference);
        assert_eq!(admit(json!({"type": "t"}), None).unwrap()["spec"], json!({"type": "t"}));
    }

    #[test]
    fn an_event_type_has_a_type_and_stays_as_it_is() {
        for spec in [json!({}), json!({"type": "t", "reference": {"name": "x"}}), json!({"type": "t", "source": "a b"})]
        {
            assert!(matches!(admit(spec.clone(), None), Err(AdmissionError::Invalid(_))), "{spec}");
        }
        let stored = admit(json!({"type": "t", "source": "/s"}), None).unwrap();
        assert!(admit(json!({"type": "t", "source": "/s"}), Some(&stored)).is_ok());
        assert!(matches!(admit(json!({"type": "u", "source": "/s"}), Some(&stored)), Err(AdmissionError::Invalid(_))));
    }

    /// An empty field is one that is not there, for clients that leave such out.
    #[test]
    fn an_empty_field_of_an_event_type_is_one_that_is_not_there() {
        let reference = json!({"apiVersion": "v1", "kind": "Service", "name": "s", "namespace": "ns"});
        let bare = json!({"type": "t", "reference": reference});
        for field in ["source", "schema", "schemaData", "description", "broker"] {
            let mut said = bare.clone();
            said[field] = "".into();
            let stored = admit(said, None).unwrap();
            assert!(admit(bare.clone(), Some(&stored)).is_ok(), "{field}");
        }
        for field in ["address", "group"] {
            let mut said = bare.clone();
            said["reference"][field] = "".into();
            let stored = admit(said, None).unwrap();
            assert!(admit(bare.clone(), Some(&stored)).is_ok(), "{field}");
        }
        let stored = admit(bare.clone(), None).unwrap();
        let mut other = bare;
        other["source"] = "/x".into();
        assert!(admit(other, Some(&stored)).is_err());
    }
}
