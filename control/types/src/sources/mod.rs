//! `sources.knative.dev`: kinds that bring events in. The appliance itself sends the events of PingSources and ApiServerSources,
//! a ContainerSource starts a program of the user, an adapter runs each of the others, and a SinkBinding tells programs where
//! to send.

/// Makes a kind of object with `spec.sink` a [`Source`].
macro_rules! source {
    ($kind:ty { conditions: $conditions:expr }) => {
        impl $crate::sources::SourceKind for $kind {
            const CONDITIONS: $crate::conditions::ConditionSet =
                $crate::conditions::ConditionSet { dependents: &$conditions };

            fn sink(&self) -> &$crate::shared::Destination {
                &self.spec.sink
            }

            fn status_mut(&mut self) -> &mut $crate::sources::SourceStatus {
                self.status.get_or_insert_default()
            }
        }
    };
}

pub mod adapter;
pub mod adapter_type;
pub mod api_server;
pub mod container;
pub mod cron;
pub mod github;
pub mod integration;
pub mod kafka;
pub mod ping;
pub mod rabbitmq;
pub mod redis_stream;
pub mod sink_binding;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conditions::ConditionSet;
use super::settings::Settings;
use super::shared::{AuthStatus, Destination, HasConditions, Status};
use crate::delivery;
use crate::duck_types::DuckType;
use crate::eventing::delivery_features;
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, UnknownFieldPolicy};
use crate::printer_column::{AGE, PrinterColumn, READY, REASON, column};

pub const GROUP: &str = "sources.knative.dev";
pub const VERSION: &str = "v1";

pub const SINK_PROVIDED: &str = "SinkProvided";

const SINK: PrinterColumn = column("Sink", ".status.sinkUri");

/// The common properties of source kinds.
const SOURCE: KindMeta = KindMeta {
    group: GROUP,
    version: VERSION,
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &["all", "knative", "sources"],
    namespaced: true,
    has_status: true,
    unknown_fields: UnknownFieldPolicy::Reject,
    user_creatable: true,
    columns: &[SINK, AGE, READY, REASON],
    duck_types: &[DuckType::Source],
    ..CORE
};

/// A kind that sends events to a sink.
pub trait SourceKind: HasConditions {
    const CONDITIONS: ConditionSet;

    fn sink(&self) -> &Destination;
    fn status_mut(&mut self) -> &mut SourceStatus;
}

/// Overrides for every event that is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CloudEventOverrides {
    /// Attributes that are added, or replaced.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extensions: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where events go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_uri: Option<String>,
    #[serde(rename = "sinkCACerts", skip_serializing_if = "Option::is_none")]
    pub sink_ca_certs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_audience: Option<String>,
    /// The events that come from here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ce_attributes: Vec<CloudEventAttributes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
    /// Namespaces that are watched (ApiServerSource).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Instances that consume (KafkaSource).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers: Option<i32>,
    /// Selects their Pods, for the subresource `scale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// Type and source of events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CloudEventAttributes {
    #[serde(rename = "type")]
    pub kind: String,
    pub source: String,
}

/// The rows of the source kinds.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<ping::PingSource>(),
        ping::v1beta2(),
        KindEntry::of::<api_server::ApiServerSource>(),
        KindEntry::of::<container::ContainerSource>(),
        KindEntry::of::<adapter::AdapterSource>(),
        kafka::v1(),
        kafka::v1beta1(),
        KindEntry::of::<rabbitmq::RabbitmqSource>(),
        KindEntry::of::<integration::IntegrationSource>(),
        KindEntry::of::<github::GitHubSource>(),
        KindEntry::of::<redis_stream::RedisStreamSource>(),
        KindEntry::of::<sink_binding::SinkBinding>().with_warnings(sink_binding::warnings),
    ]
}

/// The rules of what all sources say of where events go.
fn validate(sink: &Destination, overrides: Option<&CloudEventOverrides>, problems: &mut FieldErrors) {
    delivery::validate_destination(sink, "spec.sink", problems);
    for key in overrides.iter().flat_map(|overrides| overrides.extensions.keys()) {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            problems.add(
                "spec.ceOverrides.extensions",
                format!("invalid key name {key:?}: keys are made of letters and digits"),
            );
        }
    }
}

/// Validates the fields that the operator's features must enable.
fn validate_by(sink: &Destination, settings: &Settings, problems: &mut FieldErrors) {
    delivery_features::check_destination_features(sink, "spec.sink", &settings.event_features, problems);
}

/// A part of an object that is stored as it is.
fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_none_or(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::RequestContext;

    fn validated(kind: &str, spec: Value) -> Result<Value, Vec<String>> {
        let entry = entries().into_iter().find(|entry| entry.meta.kind == kind).unwrap();
        let object = json!({ "metadata": { "name": "s", "namespace": "ns" }, "spec": spec });
        entry.admit_object(object, None, &RequestContext::default()).map_err(|denied| match denied {
            AdmissionError::WrongTypes(problems) | AdmissionError::Invalid(problems) => {
                problems.into_iter().map(|one| one.field).collect()
            }
            AdmissionError::Malformed(why) => vec![why],
        })
    }

    /// SRC-06, SRC-07: all source kinds have the category and the labels that sources are found by.
    #[test]
    fn sources_are_found_by_category_and_label() {
        for entry in entries() {
            assert!(entry.meta.categories.contains(&"sources"), "{}", entry.meta.kind);
            assert!(entry.meta.labels().any(|label| label == "duck.knative.dev/source"), "{}", entry.meta.kind);
        }
    }

    #[test]
    fn event_types_of_sources_are_json() {
        let mut told = entries().into_iter().filter_map(|entry| entry.meta.event_types).peekable();
        assert!(told.peek().is_some());
        for text in told {
            let types: Vec<Value> = serde_json::from_str(text).unwrap();
            assert!(types.iter().all(|one| one["type"].is_string() && one["description"].is_string()), "{text}");
        }
    }

    fn lacks(kind: &str, spec: &Value, fields: &[&str]) {
        let found = validated(kind, spec.clone()).map(|_| Vec::new()).unwrap_or_else(|fields| fields);
        assert_eq!(found, fields, "{kind} {spec}");
    }

    /// SRC-15, SRC-19, X-SRC-02: a schedule, data and overrides that make an event, or a word on what does not.
    #[test]
    fn a_ping_source_says_what_it_lacks() {
        let sink = json!({ "ref": { "apiVersion": "v1", "kind": "Service", "name": "s" } });
        for (kind, spec, fields) in [
            ("PingSource", json!({ "sink": sink }), vec![]),
            ("PingSource", json!({}), vec!["spec.sink"]),
            ("PingSource", json!({ "sink": sink, "schedule": "61 * * * *" }), vec!["spec.schedule"]),
            ("PingSource", json!({ "sink": sink, "timezone": "Nowhere/Land" }), vec!["spec.timezone"]),
            ("PingSource", json!({ "sink": sink, "data": "a", "dataBase64": "YQ==" }), vec!["spec"]),
            ("PingSource", json!({ "sink": sink, "contentType": "application/json", "data": "{" }), vec!["spec.data"]),
            ("PingSource", json!({ "sink": sink, "dataBase64": "?" }), vec!["spec.dataBase64"]),
            ("PingSource", json!({ "sink": sink, "contentType": "text/plain; charset=\"utf-8\"" }), vec![]),
            (
                "PingSource",
                json!({ "sink": sink, "contentType": "text/plain\r\nx-forged: 1" }),
                vec!["spec.contentType"],
            ),
            (
                "PingSource",
                json!({ "sink": sink, "ceOverrides": { "extensions": { "a-b": "x", "": "x" } } }),
                vec!["spec.ceOverrides.extensions", "spec.ceOverrides.extensions"],
            ),
            (
                "PingSource",
                json!({ "sink": sink, "ceOverrides": { "extensions": { "1st": "x", "myKey": "" } } }),
                vec![],
            ),
        ] {
            lacks(kind, &spec, &fields);
        }
    }

    #[test]
    fn each_kind_says_what_it_lacks() {
        let sink = json!({ "ref": { "apiVersion": "v1", "kind": "Service", "name": "s" } });
        for (kind, spec, fields) in [
            (
                "ApiServerSource",
                json!({ "sink": sink, "resources": [{ "apiVersion": "v1", "kind": "Event" }] }),
                vec![],
            ),
            ("ApiServerSource", json!({ "sink": sink, "mode": "Other" }), vec!["spec.mode", "spec.resources"]),
            (
                "ContainerSource",
                json!({ "sink": sink, "template": { "spec": { "containers": [{ "image": "a" }] } } }),
                vec![],
            ),
            ("ContainerSource", json!({ "sink": sink, "template": {} }), vec!["spec.template.spec.containers"]),
            ("RedisStreamSource", json!({ "sink": sink, "address": "h:6379", "stream": "s" }), vec![]),
            (
                "RedisStreamSource",
                json!({ "sink": sink, "address": "redis://:secret@h", "stream": "s" }),
                vec!["spec.address"],
            ),
            (
                "SinkBinding",
                json!({ "sink": sink, "subject": { "apiVersion": "v1", "kind": "Pod", "name": "p" } }),
                vec![],
            ),
            (
                "SinkBinding",
                json!({ "sink": sink, "subject": { "apiVersion": "v1", "kind": "Pod", "namespace": "other" } }),
                vec!["spec.subject.namespace", "spec.subject"],
            ),
        ] {
            lacks(kind, &spec, &fields);
        }
        let ping = validated("PingSource", json!({ "sink": sink })).unwrap();
        assert_eq!(ping["spec"]["schedule"], "* * * * *");
        assert_eq!(ping["spec"]["sink"]["ref"]["namespace"], "ns");
        let server = validated(
            "ApiServerSource",
            json!({ "sink": sink, "resources": [{ "apiVersion": "v1", "kind": "Event" }] }),
        );
        assert_eq!(server.unwrap()["spec"]["mode"], "Reference");
    }
}
