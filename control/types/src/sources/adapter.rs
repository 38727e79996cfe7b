//! AdapterSource: connects a foreign protocol. An adapter is started with the `source` section as its configuration.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AGE, CloudEventAttributes, CloudEventOverrides, READY, REASON, SINK, SOURCE, SourceKind, SourceStatus};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, namespace};

pub const GROUP: &str = "adapters.sluicegate.dev";
/// The sink is resolved.
pub const SINK_RESOLVED: &str = "Sink";
/// The adapter runs and is ready to receive.
pub const DEPLOYED: &str = "Deployed";
/// The EventTypes exist; Ready does not depend on it.
pub const EVENT_TYPES: &str = "EventTypes";
/// The transports of `sluicegate-adapters`.
const TRANSPORTS: [&str; 9] = ["amqp", "file", "http", "kafka", "mqtt", "nats", "postgresql", "redis", "timer"];

kind! {
    /// `adapters.sluicegate.dev/v1alpha1` AdapterSource.
    AdapterSource { spec: AdapterSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdapterSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// The adapter to run.
    pub adapter: AdapterProgram,
    /// The configuration of the receiving transport. It is passed on as it is; an object `{secret: {name, key}}` becomes the
    /// path of a file.
    pub source: Value,
    /// 0: unreliable, 1: at least once, 2: with ids that stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<u8>,
    /// Retries and dead letter sink, as of a Broker; the dead letter sink by its `uri`.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub delivery: Value,
    /// A description of the events, for the EventTypes of a Broker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_types: Vec<CloudEventAttributes>,
    /// The identity of the adapter's instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// A source that an adapter runs.
pub trait AdapterBacked: SourceKind {
    const SINK_CONDITION: &'static str;
    const DEPLOYED_CONDITION: &'static str;
    const EVENT_TYPES_CONDITION: Option<&'static str>;

    fn plan(&self) -> AdapterPlan;
}

/// The adapter to run.
#[derive(Debug, Clone, Default)]
pub struct AdapterPlan {
    pub program: AdapterProgram,
    /// The configuration of the receiving transport.
    pub source: Value,
    pub qos: Option<u8>,
    pub delivery: Value,
    pub ce_overrides: Option<CloudEventOverrides>,
    pub event_types: Vec<CloudEventAttributes>,
    pub service_account_name: Option<String>,
}

/// One of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdapterProgram {
    /// A built-in transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// An image, or what `--image` maps to a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl AdapterProgram {
    #[must_use]
    pub fn transport(name: &str) -> AdapterProgram {
        AdapterProgram { transport: Some(name.to_owned()), image: None }
    }
}

source! { AdapterSource { conditions: [SINK_RESOLVED, DEPLOYED], not_run: None } }

impl AdapterBacked for AdapterSource {
    const SINK_CONDITION: &'static str = SINK_RESOLVED;
    const DEPLOYED_CONDITION: &'static str = DEPLOYED;
    const EVENT_TYPES_CONDITION: Option<&'static str> = Some(EVENT_TYPES);

    fn plan(&self) -> AdapterPlan {
        let spec = self.spec.clone();
        AdapterPlan {
            program: spec.adapter,
            source: spec.source,
            qos: spec.qos,
            delivery: spec.delivery,
            ce_overrides: spec.ce_overrides,
            event_types: spec.event_types,
            service_account_name: spec.service_account_name,
        }
    }
}

impl ResourceStrategy for AdapterSource {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: "v1alpha1",
        kind: "AdapterSource",
        plural: "adaptersources",
        singular: "adaptersource",
        columns: &[SINK, AGE, READY, REASON],
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
        if self.spec.source.is_null() {
            self.spec.source = Value::Object(serde_json::Map::new());
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        match (&spec.adapter.transport, &spec.adapter.image) {
            (Some(transport), None) if TRANSPORTS.contains(&transport.as_str()) => {}
            (Some(transport), None) => {
                problems.add(
                    "spec.adapter.transport",
                    format!("invalid value: {transport}: use one of {}", TRANSPORTS.join(", ")),
                );
            }
            (None, Some(image)) if !image.is_empty() => {}
            (Some(_), Some(_)) => problems.add("spec.adapter", "expected exactly one, got both: image, transport"),
            _ => problems.add("spec.adapter", MISSING),
        }
        if !spec.source.is_object() {
            problems.add("spec.source", "invalid value: expected an object");
        }
        if spec.qos.is_some_and(|qos| qos > 2) {
            problems.add("spec.qos", "invalid value: expected 0, 1 or 2");
        }
        if !spec.delivery.is_null() && !spec.delivery.is_object() {
            problems.add("spec.delivery", "invalid value: expected an object");
        }
        if spec.delivery.pointer("/deadLetterSink").is_some_and(|sink| !sink["uri"].is_string()) {
            problems.add("spec.delivery.deadLetterSink.uri", MISSING);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}
