//! RedisStreamSink: upstream's kind, run by the built-in transport `redis`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ADDRESSABLE, AdapterSinkKind, AdapterSinkPlan, DEPLOYED, EVENT_POLICIES_READY, SINK, SinkStatus};
use crate::adapter_program::AdapterProgram;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};

kind! {
    /// `sinks.knative.dev/v1alpha1` RedisStreamSink.
    RedisStreamSink { spec: RedisStreamSinkSpec, status: SinkStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RedisStreamSinkSpec {
    /// The server: `redis://HOST:PORT`, `rediss://HOST:PORT` or `HOST:PORT`.
    pub address: String,
    /// Upstream's options of the connection; kept and not used.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub options: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub dial_options: Value,
    pub stream: String,
}

sink! { RedisStreamSink { conditions: [ADDRESSABLE, DEPLOYED, EVENT_POLICIES_READY] } }

impl AdapterSinkKind for RedisStreamSink {
    const DEPLOYED_CONDITION: &'static str = DEPLOYED;
    const SERVICE_SUFFIX: &'static str = "-redisstreamsink";

    fn plan(&self) -> AdapterSinkPlan {
        AdapterSinkPlan {
            program: AdapterProgram::transport("redis"),
            sink: json!({ "address": self.spec.address, "stream": self.spec.stream }),
            ..AdapterSinkPlan::default()
        }
    }
}

impl ResourceStrategy for RedisStreamSink {
    const META: KindMeta = KindMeta {
        kind: "RedisStreamSink",
        plural: "redisstreamsinks",
        singular: "redisstreamsink",
        categories: &["all", "knative", "eventing", "sources"],
        ..SINK
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        for (field, value) in [("spec.address", &self.spec.address), ("spec.stream", &self.spec.stream)] {
            if value.is_empty() {
                problems.add(field, MISSING);
            }
        }
        // The address is shown in the environment of the adapter.
        if self.spec.address.contains('@') {
            problems.add("spec.address", "invalid value: must not hold credentials; use an AdapterSink with a Secret");
        }
    }
}
