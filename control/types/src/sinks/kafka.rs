//! KafkaSink: upstream's kind, run by the built-in transport `kafka`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ADDRESSABLE, AdapterSinkKind, AdapterSinkPlan, EVENT_POLICIES_READY, SINK, SinkStatus};
use crate::adapter_program::AdapterProgram;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kafka::net_of_secret;
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::secret_reference::AuthSecret;
use crate::shared::SPEC_CHANGED;

const TOPIC_READY: &str = "TopicReady";
const CONFIG_PARSED: &str = "ConfigParsed";
const CONFIG_MAP_UPDATED: &str = "ConfigMapUpdated";
const DATA_PLANE_AVAILABLE: &str = "DataPlaneAvailable";
const PROBE_SUCCEEDED: &str = "ProbeSucceeded";

kind! {
    /// `eventing.knative.dev/v1alpha1` KafkaSink.
    KafkaSink { spec: KafkaSinkSpec, status: SinkStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KafkaSinkSpec {
    pub topic: String,
    /// Upstream's size of a topic that it creates. The topic has to exist here, or the cluster creates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_partitions: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication_factor: Option<i32>,
    /// Addresses of the cluster: `HOST:PORT`.
    pub bootstrap_servers: Vec<String>,
    /// `binary` or `structured`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_mode: Option<String>,
    /// Credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<SinkAuth>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SinkAuth {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<AuthSecret>,
}

impl SinkAuth {
    /// The name of the Secret.
    #[must_use]
    pub fn secret_name(&self) -> Option<&str> {
        self.secret.as_ref()?.name()
    }
}

sink! {
    KafkaSink {
        conditions: [
            ADDRESSABLE,
            CONFIG_MAP_UPDATED,
            CONFIG_PARSED,
            DATA_PLANE_AVAILABLE,
            EVENT_POLICIES_READY,
            PROBE_SUCCEEDED,
            TOPIC_READY
        ]
    }
}

impl AdapterSinkKind for KafkaSink {
    const DEPLOYED_CONDITION: &'static str = DATA_PLANE_AVAILABLE;
    const READY_CONDITIONS: &'static [&'static str] =
        &[CONFIG_MAP_UPDATED, CONFIG_PARSED, PROBE_SUCCEEDED, TOPIC_READY];
    const SERVICE_SUFFIX: &'static str = "-kafkasink";

    fn plan(&self) -> AdapterSinkPlan {
        let spec = &self.spec;
        let mut sink = json!({
            "bootstrapServers": spec.bootstrap_servers,
            "topic": spec.topic,
            "contentMode": spec.content_mode.as_deref().unwrap_or("binary"),
        });
        if let Some(secret) = spec.auth.as_ref().and_then(SinkAuth::secret_name) {
            sink["net"] = json!({ "secret": { "name": secret } });
        }
        AdapterSinkPlan { program: AdapterProgram::transport("kafka"), sink, ..AdapterSinkPlan::default() }
    }

    fn read_secrets(sender: &mut Value, secrets: &BTreeMap<String, BTreeMap<String, Vec<u8>>>) -> Result<(), String> {
        let Some(name) = sender["net"]["secret"]["name"].as_str().map(str::to_owned) else { return Ok(()) };
        let keys = secrets.get(&name).ok_or_else(|| format!("Secret {name} was not read"))?;
        sender["net"] = net_of_secret(&name, keys)?;
        Ok(())
    }
}

impl ResourceStrategy for KafkaSink {
    const META: KindMeta = KindMeta {
        group: "eventing.knative.dev",
        kind: "KafkaSink",
        plural: "kafkasinks",
        singular: "kafkasink",
        categories: &["all", "knative", "eventing"],
        ..SINK
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        self.spec.content_mode.get_or_insert_with(|| "binary".to_owned());
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        if spec.topic.is_empty() {
            problems.add("spec.topic", MISSING);
        }
        if spec.bootstrap_servers.is_empty() || spec.bootstrap_servers.iter().any(String::is_empty) {
            problems.add("spec.bootstrapServers", MISSING);
        }
        if let Some(mode) = spec.content_mode.as_deref().filter(|mode| !["binary", "structured"].contains(mode)) {
            problems.add("spec.contentMode", format!("invalid value: {mode}: use binary or structured"));
        }
        if let Some(auth) = &spec.auth
            && auth.secret_name().is_none_or(str::is_empty)
        {
            problems.add("spec.auth.secret.ref.name", MISSING);
        }
        let size = |spec: &KafkaSinkSpec| (spec.topic.clone(), spec.num_partitions, spec.replication_factor);
        if before.is_some_and(|before| size(&before.spec) != size(spec)) {
            problems.add("spec", SPEC_CHANGED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_becomes_the_section_net() {
        let sink: KafkaSink = serde_json::from_value(json!({
            "metadata": { "name": "s", "namespace": "ns" },
            "spec": { "topic": "t", "bootstrapServers": ["k:9092"], "auth": { "secret": { "ref": { "name": "k" } } } },
        }))
        .unwrap();
        let mut section = sink.plan().sink;
        let keys = [("protocol".to_owned(), b"SASL_PLAINTEXT".to_vec()), ("user".to_owned(), b"u".to_vec())];
        KafkaSink::read_secrets(&mut section, &BTreeMap::from([("k".to_owned(), BTreeMap::from(keys))])).unwrap();
        assert_eq!(section["net"]["sasl"]["user"], json!({ "secret": { "name": "k", "key": "user" } }));
        assert_eq!((&section["net"]["tls"]["enable"], &section["contentMode"]), (&json!(false), &json!("binary")));
    }
}
