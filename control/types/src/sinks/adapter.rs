//! AdapterSink: a foreign protocol becomes a sink. An adapter is started with the `sink` section as its configuration.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ADDRESSABLE, AdapterSinkKind, AdapterSinkPlan, DEPLOYED, EVENT_POLICIES_READY, SINK, SinkStatus};
use crate::adapter_program::AdapterProgram;
use crate::adapter_schemas::validate_section;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};

/// Transports that only receive.
const RECEIVERS: [&str; 2] = ["http", "timer"];

kind! {
    /// `adapters.sluicegate.dev/v1alpha1` AdapterSink.
    AdapterSink { spec: AdapterSinkSpec, status: SinkStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdapterSinkSpec {
    /// What runs.
    pub adapter: AdapterProgram,
    /// The configuration of the sending transport. It is passed on as it is; an object `{secret: {name, key}}` becomes the
    /// path of a file.
    pub sink: Value,
    /// The identity of the adapter's instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

sink! { AdapterSink { conditions: [ADDRESSABLE, DEPLOYED, EVENT_POLICIES_READY] } }

impl AdapterSinkKind for AdapterSink {
    const DEPLOYED_CONDITION: &'static str = DEPLOYED;
    const SERVICE_SUFFIX: &'static str = "-adaptersink";

    fn plan(&self) -> AdapterSinkPlan {
        let spec = self.spec.clone();
        AdapterSinkPlan { program: spec.adapter, sink: spec.sink, service_account_name: spec.service_account_name }
    }
}

impl ResourceStrategy for AdapterSink {
    const META: KindMeta = KindMeta {
        group: crate::sources::adapter::GROUP,
        kind: "AdapterSink",
        plural: "adaptersinks",
        singular: "adaptersink",
        ..SINK
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        if self.spec.sink.is_null() {
            self.spec.sink = Value::Object(serde_json::Map::new());
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        self.spec.adapter.validate("spec.adapter", problems);
        if let Some(transport) = self.spec.adapter.transport.as_deref().filter(|name| RECEIVERS.contains(name)) {
            let why = format!("invalid value: {transport}: this transport only receives");
            problems.add("spec.adapter.transport", why);
        }
        if !self.spec.sink.is_object() {
            problems.add("spec.sink", "invalid value: expected an object");
        }
    }

    fn validate_request(&self, requester: &RequestContext, problems: &mut FieldErrors) {
        if self.spec.sink.is_object() {
            validate_section(&requester.adapter_types, &self.spec.adapter, "sink", &self.spec.sink, problems);
        }
    }
}
