//! RabbitmqSource: upstream's kind, run by the built-in transport `amqp`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::adapter::{AdapterBacked, AdapterPlan, AdapterProgram, DEPLOYED, SecretData};
use super::{CloudEventAttributes, CloudEventOverrides, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING, MUST_NOT_SET};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::secret_reference::file;
use crate::settings::Settings;
use crate::shared::{DeliverySpec, Destination, SPEC_CHANGED, name, namespace};

/// Upstream's bound of messages in work.
const PARALLELISM_MAX: i32 = 1000;
/// What the RabbitMQ operator calls the Secret of a cluster's default user, after the cluster's name.
const DEFAULT_USER: &str = "-default-user";

/// The events that it sends.
const EVENT_TYPES: &str =
    r#"[{"type":"dev.knative.rabbitmq.event","description":"A message of a queue that is no CloudEvent"}]"#;

kind! {
    /// `sources.knative.dev/v1alpha1` RabbitmqSource.
    RabbitmqSource { spec: RabbitmqSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RabbitmqSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// The server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rabbitmq_cluster_reference: Option<RabbitmqClusterReference>,
    /// Retries: `retry`, `backoffPolicy`, `backoffDelay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
    /// Queue and exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rabbitmq_resources_config: Option<RabbitmqResources>,
    /// The identity of the adapter's instance.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
}

/// One of the two names a Secret with the keys `username`, `password`, and `host` or `uri`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RabbitmqClusterReference {
    /// The cluster; its Secret is `NAME-default-user`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_secret: Option<SecretName>,
}

/// A Secret of the source's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SecretName {
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RabbitmqResources {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vhost: String,
    pub queue_name: String,
    /// `quorum` or `classic`.
    pub queue_type: String,
    /// The exchange that upstream binds the queue to. Needed unless the queue is predeclared.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exchange_name: String,
    /// Messages in work at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<i32>,
    /// Queue and exchange exist.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub predeclared: bool,
}

source! { RabbitmqSource { conditions: [SINK_PROVIDED, DEPLOYED] } }

impl RabbitmqClusterReference {
    fn secret(&self) -> String {
        match &self.connection_secret {
            Some(secret) => secret.name.clone(),
            None => format!("{}{DEFAULT_USER}", self.name),
        }
    }
}

impl AdapterBacked for RabbitmqSource {
    const SINK_CONDITION: &'static str = SINK_PROVIDED;
    const DEPLOYED_CONDITION: &'static str = DEPLOYED;
    const EVENT_TYPES_CONDITION: Option<&'static str> = None;
    const SERVICE_SUFFIX: &'static str = "-rabbitmqsource";

    fn plan(&self) -> AdapterPlan {
        let resources = self.spec.rabbitmq_resources_config.clone().unwrap_or_default();
        let secret = self.spec.rabbitmq_cluster_reference.as_ref().map(RabbitmqClusterReference::secret);
        let mut source = json!({
            "queue": resources.queue_name,
            "predeclared": resources.predeclared,
            "prefetch": resources.parallelism.unwrap_or(1),
            "password": file(&secret.unwrap_or_default(), "password"),
        });
        for (field, value) in [("vhost", &resources.vhost), ("exchange", &resources.exchange_name)] {
            if !value.is_empty() && (field == "vhost" || !resources.predeclared) {
                source[field] = value.as_str().into();
            }
        }
        if !resources.predeclared {
            source["queueType"] = resources.queue_type.as_str().into();
        }
        let meta = &self.metadata;
        let at = format!("/apis/v1/namespaces/{}/rabbitmqsources/{}", namespace(meta), name(meta));
        AdapterPlan {
            program: AdapterProgram::transport("amqp"),
            event_types: vec![CloudEventAttributes {
                kind: "dev.knative.rabbitmq.event".to_owned(),
                source: format!("{at}#{}", resources.queue_name),
            }],
            source,
            delivery: self.spec.delivery.as_ref().map_or(Value::Null, |delivery| json!(delivery)),
            ce_overrides: self.spec.ce_overrides.clone(),
            service_account_name: Some(self.spec.service_account_name.clone()).filter(|name| !name.is_empty()),
            ..AdapterPlan::default()
        }
    }

    /// Host, port and user are values; the password stays a file.
    fn read_secrets(receiver: &mut Value, secrets: &BTreeMap<String, SecretData>) -> Result<(), String> {
        let secret = receiver["password"]["secret"]["name"].as_str().unwrap_or_default().to_owned();
        let keys = secrets.get(&secret).ok_or_else(|| format!("Secret {secret} was not read"))?;
        let text = |key: &str| keys.get(key).map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        let address = text("host").or_else(|| text("uri"));
        let address = address.ok_or_else(|| format!("Secret {secret}: one of the keys host and uri is needed"))?;
        if !keys.contains_key("password") {
            return Err(format!("Secret {secret}: the key password is needed"));
        }
        let rest = address.split_once("://").map_or(address.as_str(), |(_, rest)| rest);
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        // The port in `uri` is that of the management API, as upstream reads it.
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        receiver["host"] = host.into();
        if let Some(user) = text("username") {
            receiver["user"] = user.into();
        }
        if let Some(port) = text("port") {
            let port = port.parse::<u16>().map_err(|_| format!("Secret {secret}: port: {port:?} is not a port"))?;
            receiver["port"] = port.into();
        }
        Ok(())
    }
}

impl ResourceStrategy for RabbitmqSource {
    const META: KindMeta = KindMeta {
        version: "v1alpha1",
        kind: "RabbitmqSource",
        plural: "rabbitmqsources",
        singular: "rabbitmqsource",
        short_names: &["rmqsource"],
        categories: &["all", "knative", "eventing", "sources", "importers"],
        event_types: Some(EVENT_TYPES),
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
        if let Some(resources) = &mut self.spec.rabbitmq_resources_config {
            resources.parallelism.get_or_insert(1);
            if resources.queue_type.is_empty() {
                "quorum".clone_into(&mut resources.queue_type);
            }
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        validate_cluster(spec.rabbitmq_cluster_reference.as_ref(), namespace(&self.metadata), problems);
        let at = "spec.rabbitmqResourcesConfig";
        let Some(resources) = &spec.rabbitmq_resources_config else { return problems.add(at, MISSING) };
        if resources.queue_name.is_empty() {
            problems.add(format!("{at}.queueName"), MISSING);
        }
        if !resources.predeclared && resources.exchange_name.is_empty() {
            let why = "missing field(s): the exchange is needed unless predeclared is true";
            problems.add(format!("{at}.exchangeName"), why);
        }
        if !["quorum", "classic"].contains(&resources.queue_type.as_str()) {
            problems.add(format!("{at}.queueType"), format!("invalid value: {}", resources.queue_type));
        }
        if let Some(count) = resources.parallelism.filter(|count| !(1..=PARALLELISM_MAX).contains(count)) {
            problems.add(format!("{at}.parallelism"), format!("expected 1 <= {count} <= {PARALLELISM_MAX}"));
        }
        if let Some(delivery) = &spec.delivery {
            delivery::validate_delivery(delivery, "spec.delivery", problems);
        }
        if before.is_some_and(|before| before.spec != *spec) {
            problems.add("spec", SPEC_CHANGED);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}

fn validate_cluster(cluster: Option<&RabbitmqClusterReference>, home: &str, problems: &mut FieldErrors) {
    let at = "spec.rabbitmqClusterReference";
    let Some(cluster) = cluster else { return problems.add(at, MISSING) };
    match (&cluster.connection_secret, cluster.name.is_empty()) {
        (None, true) => problems.add(format!("{at}.name"), MISSING),
        (Some(_), false) => problems.add(format!("{at}.connectionSecret"), MUST_NOT_SET),
        (Some(secret), true) if secret.name.is_empty() => problems.add(format!("{at}.connectionSecret.name"), MISSING),
        _ => {}
    }
    if let Some(other) = cluster.namespace.as_deref().filter(|other| !other.is_empty() && *other != home) {
        let why = format!("invalid value: {other}: the Secret is read in the namespace of the source, {home}");
        problems.add(format!("{at}.namespace"), why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SRC-28: the Secret has the server, and its password stays a file.
    #[test]
    fn secret_names_host_port_and_user() {
        let source: RabbitmqSource = serde_json::from_value(json!({
            "metadata": { "name": "r", "namespace": "ns" },
            "spec": {
                "rabbitmqClusterReference": { "name": "rabbitmq" },
                "rabbitmqResourcesConfig": { "queueName": "q", "exchangeName": "e", "predeclared": true },
            },
        }))
        .unwrap();
        let mut section = source.plan().source;
        assert_eq!(section["password"], file("rabbitmq-default-user", "password"));
        let keys = |pairs: &[(&str, &str)]| {
            let keys = pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()));
            BTreeMap::from([("rabbitmq-default-user".to_owned(), keys.collect::<SecretData>())])
        };
        let secret = keys(&[("uri", "http://h:15672"), ("port", "5673"), ("username", "u"), ("password", "p")]);
        RabbitmqSource::read_secrets(&mut section, &secret).unwrap();
        assert_eq!((&section["host"], &section["port"], &section["user"]), (&json!("h"), &json!(5673), &json!("u")));
        assert!(!section.to_string().contains("\"p\""), "{section}");
        for (missing, why) in [(keys(&[("password", "p")]), "host"), (keys(&[("host", "h")]), "password")] {
            assert!(RabbitmqSource::read_secrets(&mut section, &missing).unwrap_err().contains(why));
        }
    }
}
