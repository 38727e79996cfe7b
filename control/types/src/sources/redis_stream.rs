//! RedisStreamSource: upstream's kind, run by the built-in transport `redis`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::adapter::{AdapterBacked, AdapterPlan, AdapterProgram, DEPLOYED};
use super::{CloudEventAttributes, CloudEventOverrides, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, name, namespace};

/// The events that it sends.
const EVENT_TYPES: &str =
    r#"[{"type":"dev.knative.sources.redisstream","description":"An entry of a stream that is no CloudEvent"}]"#;

kind! {
    /// `sources.knative.dev/v1alpha1` RedisStreamSource.
    RedisStreamSource { spec: RedisStreamSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RedisStreamSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// The server: `redis://HOST:PORT` or `HOST:PORT`.
    pub address: String,
    /// Upstream's options of the connection; kept and not used.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub options: Value,
    pub stream: String,
    /// The consumer group. Default: one of the source's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Upstream's number of consumers; one keeps the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers: Option<i32>,
}

source! { RedisStreamSource { conditions: [SINK_PROVIDED, DEPLOYED] } }

impl AdapterBacked for RedisStreamSource {
    const SINK_CONDITION: &'static str = SINK_PROVIDED;
    const DEPLOYED_CONDITION: &'static str = DEPLOYED;
    const EVENT_TYPES_CONDITION: Option<&'static str> = None;

    fn plan(&self) -> AdapterPlan {
        let spec = &self.spec;
        let group =
            spec.group.clone().unwrap_or_else(|| format!("{}-{}", namespace(&self.metadata), name(&self.metadata)));
        AdapterPlan {
            program: AdapterProgram::transport("redis"),
            source: json!({ "address": spec.address, "stream": spec.stream, "group": group }),
            ce_overrides: spec.ce_overrides.clone(),
            event_types: vec![CloudEventAttributes {
                kind: "dev.knative.sources.redisstream".to_owned(),
                source: format!("redis://{}/{}", authority(&spec.address), spec.stream),
            }],
            ..AdapterPlan::default()
        }
    }
}

/// Host and port, as the transport has them in `source`.
fn authority(address: &str) -> String {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.rsplit(']').next().is_some_and(|end| end.contains(':')) {
        authority.to_owned()
    } else {
        format!("{authority}:6379")
    }
}

impl ResourceStrategy for RedisStreamSource {
    const META: KindMeta = KindMeta {
        version: "v1alpha1",
        kind: "RedisStreamSource",
        plural: "redisstreamsources",
        singular: "redisstreamsource",
        event_types: Some(EVENT_TYPES),
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        super::validate(&self.spec.sink, self.spec.ce_overrides.as_ref(), problems);
        for (field, value) in [("spec.address", &self.spec.address), ("spec.stream", &self.spec.stream)] {
            if value.is_empty() {
                problems.add(field, MISSING);
            }
        }
        // The address is shown in the status and in the environment of the adapter.
        if self.spec.address.contains('@') {
            problems
                .add("spec.address", "invalid value: must not hold credentials; use an AdapterSource with a Secret");
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_source_is_host_and_port_of_the_address() {
        for (address, wanted) in [
            ("h:6379", "h:6379"),
            ("h", "h:6379"),
            ("redis://h:7000/2", "h:7000"),
            ("rediss://h/0", "h:6379"),
            ("redis://[::1]", "[::1]:6379"),
            ("redis://[::1]:7000", "[::1]:7000"),
        ] {
            assert_eq!(authority(address), wanted, "{address}");
        }
    }
}
