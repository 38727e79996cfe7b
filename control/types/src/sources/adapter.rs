//! AdapterSource: connects a foreign protocol. An adapter is started with the `source` section as its configuration.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AGE, CloudEventAttributes, CloudEventOverrides, READY, REASON, SINK, SOURCE, SourceKind, SourceStatus};
pub use crate::adapter_program::AdapterProgram;
use crate::adapter_schemas::{AdapterTypeSpec, validate_section};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, name, namespace};

pub const GROUP: &str = "adapters.sluicegate.dev";
/// The sink is resolved.
pub const SINK_RESOLVED: &str = "Sink";
/// The adapter runs and is ready to receive.
pub const DEPLOYED: &str = "Deployed";
/// The EventTypes exist; Ready does not depend on it.
pub const EVENT_TYPES: &str = "EventTypes";

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
    /// Retries and dead letter sink, as of a Broker.
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
    /// Conditions that hold as soon as the adapter is connected.
    const READY_CONDITIONS: &'static [&'static str] = &[];
    /// The condition of the source's identity.
    const IDENTITY_CONDITION: Option<&'static str> = None;
    /// What the name of the adapter's Service ends with.
    const SERVICE_SUFFIX: &'static str = "-adapter";
    /// The condition of the Secrets that it names.
    const SECRETS_CONDITION: Option<&'static str> = None;
    /// Its adapter takes requests of clients outside.
    const IS_PUBLIC: bool = false;
    /// Its status counts the instances that run.
    const HAS_CONSUMERS: bool = false;

    fn plan(&self) -> AdapterPlan;

    /// Reason and message of the deployed condition while the adapter, which is served at `url`, runs.
    fn deployed_note(&self, _url: &str) -> Option<(&'static str, String)> {
        None
    }

    /// Completes the receiver's configuration with what only the Secrets in it tell.
    fn read_secrets(_receiver: &mut Value, _secrets: &BTreeMap<String, SecretData>) -> Result<(), String> {
        Ok(())
    }
}

/// The keys of a Secret.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// What is to run.
#[derive(Debug, Clone)]
pub struct AdapterPlan {
    pub program: AdapterProgram,
    /// The configuration of the receiving transport.
    pub source: Value,
    pub qos: Option<u8>,
    /// The dead letter sink may be a reference.
    pub delivery: Value,
    pub ce_overrides: Option<CloudEventOverrides>,
    pub event_types: Vec<CloudEventAttributes>,
    pub service_account_name: Option<String>,
    pub instances: u32,
}

impl Default for AdapterPlan {
    fn default() -> Self {
        Self {
            program: AdapterProgram::default(),
            source: Value::Null,
            qos: None,
            delivery: Value::Null,
            ce_overrides: None,
            event_types: Vec::new(),
            service_account_name: None,
            instances: 1,
        }
    }
}

source! { AdapterSource { conditions: [SINK_RESOLVED, DEPLOYED] } }

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
            ..AdapterPlan::default()
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

    fn set_defaults(&mut self, _: Option<&Self>, requester: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
        let emitted =
            AdapterTypeSpec::find(&requester.adapter_types, &self.spec.adapter).map(|known| &known.event_types);
        if self.spec.event_types.is_empty() {
            let source = format!("/apis/v1/namespaces/{home}/adaptersources/{}", name(&self.metadata));
            let attributes = |kind: String| CloudEventAttributes { kind, source: source.clone() };
            self.spec.event_types = emitted.into_iter().flatten().map(|one| attributes(one.kind.clone())).collect();
        }
        if self.spec.source.is_null() {
            self.spec.source = Value::Object(serde_json::Map::new());
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        spec.adapter.validate("spec.adapter", problems);
        if !spec.source.is_object() {
            problems.add("spec.source", "invalid value: expected an object");
        }
        if spec.qos.is_some_and(|qos| qos > 2) {
            problems.add("spec.qos", "invalid value: expected 0, 1 or 2");
        }
        if !spec.delivery.is_null() && !spec.delivery.is_object() {
            problems.add("spec.delivery", "invalid value: expected an object");
        }
        let is_complete = |sink: &Value| sink["uri"].is_string() || sink["ref"].is_object();
        if spec.delivery.pointer("/deadLetterSink").is_some_and(|sink| !is_complete(sink)) {
            problems.add("spec.delivery.deadLetterSink.uri", MISSING);
        }
    }

    fn validate_request(&self, requester: &RequestContext, problems: &mut FieldErrors) {
        if self.spec.source.is_object() {
            validate_section(&requester.adapter_types, &self.spec.adapter, "source", &self.spec.source, problems);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}
