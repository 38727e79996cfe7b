//! EventTransform: upstream's kind. Each event that is sent to it becomes another by a JSONata expression: the result is sent to
//! a sink, or returned as the reply.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::GROUP;
use super::broker::{ADDRESSABLE, EVENT_POLICIES_READY};
use crate::conditions::ConditionSet;
use crate::delivery;
use crate::duck_types::DuckType;
use crate::eventing::delivery_features;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON, column};
use crate::settings::Settings;
use crate::shared::{Addressable, AppliedPolicy, AuthStatus, Destination, Status, namespace};

pub const TRANSFORMATION_READY: &str = "TransformationReady";
/// The adapter runs. `TransformationReady` depends on it.
pub const JSONATA_DEPLOYMENT_READY: &str = "JsonataDeploymentReady";
/// The sink is resolved. `TransformationReady` depends on it.
pub const JSONATA_SINK_BINDING_READY: &str = "JsonataSinkBindingReady";
pub const CONDITIONS: ConditionSet =
    ConditionSet { dependents: &[TRANSFORMATION_READY, ADDRESSABLE, EVENT_POLICIES_READY] };

/// Bytes of an expression: it is parsed recursively.
const EXPRESSION_BYTES_MAX: usize = 16 << 10;

kind! {
    /// `eventing.knative.dev/v1alpha1` EventTransform.
    EventTransform { spec: EventTransformSpec, status: EventTransformStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventTransformSpec {
    /// Where results go. Without it, they are replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<Destination>,
    /// What happens to the responses of the sink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<EventTransformReply>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jsonata: Option<JsonataTransformation>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventTransformReply {
    /// For the event in a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jsonata: Option<JsonataTransformation>,
    /// The sender gets no event. Default: it gets the response as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JsonataTransformation {
    /// The JSONata expression. Its input is the event in the JSON format, and so is its result.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventTransformStatus {
    #[serde(flatten)]
    pub base: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_uri: Option<String>,
    #[serde(rename = "sinkCACerts", skip_serializing_if = "Option::is_none")]
    pub sink_ca_certs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_audience: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
    /// Where events go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// All addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Addressable>,
    /// The EventPolicies that apply to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<AppliedPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jsonata: Option<JsonataStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JsonataStatus {
    pub deployment: JsonataDeploymentStatus,
}

/// The instances, in upstream's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JsonataDeploymentStatus {
    pub replicas: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
}

impl EventTransformSpec {
    /// The configuration of the adapter.
    #[must_use]
    pub fn section(&self) -> Value {
        let mut section = json!({ "expression": self.jsonata.clone().unwrap_or_default().expression });
        if let Some(reply) = &self.reply {
            section["discardReply"] = reply.discard.unwrap_or_default().into();
            if let Some(jsonata) = &reply.jsonata {
                section["replyExpression"] = jsonata.expression.as_str().into();
            }
        }
        section
    }
}

impl JsonataTransformation {
    fn validate(&self, at: &str, problems: &mut FieldErrors) {
        match self.expression.len() {
            0 => problems.add(format!("{at}.expression"), MISSING),
            bytes if bytes > EXPRESSION_BYTES_MAX => {
                problems.add(format!("{at}.expression"), format!("{bytes} bytes, limit {EXPRESSION_BYTES_MAX}"));
            }
            _ => {}
        }
    }
}

impl ResourceStrategy for EventTransform {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: "v1alpha1",
        kind: "EventTransform",
        plural: "eventtransforms",
        singular: "eventtransform",
        categories: &["all", "knative", "eventing"],
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        columns: &[column("URL", ".status.address.url"), column("Sink", ".status.sinkUri"), READY, REASON],
        duck_types: &[DuckType::Addressable],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        if let Some(sink) = &mut self.spec.sink {
            delivery::default_destination(sink, &home);
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        match &spec.jsonata {
            None => problems.add("spec", "expected exactly one, got neither: jsonata"),
            Some(jsonata) => jsonata.validate("spec.jsonata", problems),
        }
        if let Some(sink) = &spec.sink {
            delivery::validate_destination(sink, "spec.sink", problems);
        }
        let Some(reply) = &spec.reply else { return };
        if spec.sink.is_none() {
            problems.add("spec.reply", "reply is set without spec.sink");
        }
        if let Some(jsonata) = &reply.jsonata {
            jsonata.validate("spec.reply.jsonata", problems);
            if reply.discard == Some(true) {
                problems.add("spec.reply", "expected exactly one, got both: discard, jsonata");
            }
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        if let Some(sink) = &self.spec.sink {
            delivery_features::check_destination_features(sink, "spec.sink", &settings.event_features, problems);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(spec: Value) -> Vec<String> {
        let transform: EventTransform = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let mut problems = FieldErrors::default();
        transform.validate(None, &mut problems);
        problems.into_list().into_iter().map(|one| one.field).collect()
    }

    #[test]
    fn transform_needs_an_expression_and_a_sink_for_replies() {
        let (jsonata, sink) = (json!({ "expression": "$" }), json!({ "uri": "http://s" }));
        let none: [&str; 0] = [];
        assert_eq!(problems(json!({ "jsonata": jsonata })), none);
        assert_eq!(problems(json!({ "jsonata": jsonata, "sink": sink, "reply": { "jsonata": jsonata } })), none);
        assert_eq!(problems(json!({ "jsonata": jsonata, "sink": sink, "reply": { "discard": true } })), none);
        assert_eq!(problems(json!({})), ["spec"]);
        assert_eq!(problems(json!({ "jsonata": {} })), ["spec.jsonata.expression"]);
        assert_eq!(problems(json!({ "jsonata": jsonata, "reply": { "discard": true } })), ["spec.reply"]);
        let both = json!({ "jsonata": jsonata, "discard": true });
        assert_eq!(problems(json!({ "jsonata": jsonata, "sink": sink, "reply": both })), ["spec.reply"]);
    }

    #[test]
    fn fields_become_those_of_the_adapter() {
        let spec: EventTransformSpec = serde_json::from_value(json!({
            "jsonata": { "expression": "a" }, "reply": { "jsonata": { "expression": "b" } },
        }))
        .unwrap();
        assert_eq!(spec.section(), json!({ "expression": "a", "replyExpression": "b", "discardReply": false }));
    }
}
