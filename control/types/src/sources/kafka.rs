//! KafkaSource: upstream's kind, run by the built-in transport `kafka`.

use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::adapter::{AdapterBacked, AdapterPlan, AdapterProgram, DEPLOYED};
use super::ping::OIDC_IDENTITY_CREATED;
use super::{AGE, CloudEventAttributes, CloudEventOverrides, READY, REASON, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::custom_kinds::ScaleSubresource;
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kafka::KafkaNet;
use crate::kind;
use crate::kind_registry::{KindEntry, KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::printer_column::column;
use crate::settings::Settings;
use crate::shared::{DeliverySpec, Destination, SPEC_CHANGED, label, name, namespace};

const CONNECTION_ESTABLISHED: &str = "ConnectionEstablished";
const INITIAL_OFFSETS_COMMITTED: &str = "InitialOffsetsCommitted";
/// How record keys are read.
const KEY_TYPE: &str = "kafkasources.sources.knative.dev/key-type";
const KEY_TYPES: [&str; 4] = ["string", "int", "float", "byte-array"];
/// Instances of one source: a topic rarely has more partitions, and each instance is a process.
pub const CONSUMERS_MAX: i32 = 100;

/// The events that it sends.
const EVENT_TYPES: &str =
    r#"[{"type":"dev.knative.kafka.event","description":"A record of a topic that is no CloudEvent"}]"#;

kind! {
    /// `sources.knative.dev/v1` KafkaSource.
    KafkaSource { spec: KafkaSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KafkaSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// Instances that consume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers: Option<i32>,
    /// Addresses of the cluster: `HOST:PORT`.
    pub bootstrap_servers: Vec<String>,
    pub net: KafkaNet,
    pub topics: Vec<String>,
    /// It does not change.
    pub consumer_group: String,
    /// Where a new group begins: `earliest` or `latest`.
    pub initial_offset: String,
    /// Retries and dead letter sink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
    /// `ordered` by partition, or `unordered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering: Option<String>,
}

source! {
    KafkaSource {
        conditions: [SINK_PROVIDED, DEPLOYED, CONNECTION_ESTABLISHED, INITIAL_OFFSETS_COMMITTED, OIDC_IDENTITY_CREATED]
    }
}

impl AdapterBacked for KafkaSource {
    const SINK_CONDITION: &'static str = SINK_PROVIDED;
    const DEPLOYED_CONDITION: &'static str = DEPLOYED;
    const EVENT_TYPES_CONDITION: Option<&'static str> = None;
    const READY_CONDITIONS: &'static [&'static str] = &[CONNECTION_ESTABLISHED, INITIAL_OFFSETS_COMMITTED];
    const IDENTITY_CONDITION: Option<&'static str> = Some(OIDC_IDENTITY_CREATED);
    const SERVICE_SUFFIX: &'static str = "-kafkasource";
    const HAS_CONSUMERS: bool = true;

    fn plan(&self) -> AdapterPlan {
        let spec = &self.spec;
        let source = json!({
            "bootstrapServers": spec.bootstrap_servers,
            "topics": spec.topics,
            "consumerGroup": spec.consumer_group,
            "initialOffset": spec.initial_offset,
            "ordering": spec.ordering.as_deref().unwrap_or("ordered"),
            "net": spec.net.section(),
            "keyType": label(&self.metadata, KEY_TYPE).unwrap_or("string"),
        });
        let event_type = |topic: &String| CloudEventAttributes {
            kind: "dev.knative.kafka.event".to_owned(),
            source: format!(
                "/apis/v1/namespaces/{}/kafkasources/{}#{topic}",
                namespace(&self.metadata),
                name(&self.metadata)
            ),
        };
        AdapterPlan {
            program: AdapterProgram::transport("kafka"),
            source,
            delivery: spec.delivery.as_ref().map_or(Value::Null, |delivery| json!(delivery)),
            ce_overrides: spec.ce_overrides.clone(),
            event_types: spec.topics.iter().map(event_type).collect(),
            instances: spec.consumers.and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
            ..AdapterPlan::default()
        }
    }
}

/// `sources.knative.dev/v1`, with the subresource `scale`.
#[must_use]
pub fn v1() -> KindEntry {
    KindEntry::of::<KafkaSource>().with_scale(scale)
}

/// `sources.knative.dev/v1beta1`: the same fields.
#[must_use]
pub fn v1beta1() -> KindEntry {
    static META: KindMeta = KindMeta { version: "v1beta1", ..KafkaSource::META };
    static SAME: VersionConversion =
        VersionConversion { stored: &KafkaSource::META, to_stored: |_| {}, complete: |_| {}, from_stored: |_| {} };
    KindEntry::of::<KafkaSource>().version::<KafkaSource>(&META, &SAME).with_scale(scale)
}

fn scale() -> &'static ScaleSubresource {
    static SCALE: LazyLock<ScaleSubresource> = LazyLock::new(|| ScaleSubresource::at("consumers"));
    &SCALE
}

impl ResourceStrategy for KafkaSource {
    const META: KindMeta = KindMeta {
        kind: "KafkaSource",
        plural: "kafkasources",
        singular: "kafkasource",
        categories: &["all", "knative", "eventing", "sources"],
        columns: &[
            column("Topics", ".spec.topics"),
            column("BootstrapServers", ".spec.bootstrapServers"),
            READY,
            REASON,
            AGE,
        ],
        event_types: Some(EVENT_TYPES),
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        let spec = &mut self.spec;
        delivery::default_destination(&mut spec.sink, &home);
        if let Some(delivery) = &mut spec.delivery {
            delivery::default_delivery(delivery, &home);
        }
        if spec.consumer_group.is_empty() {
            spec.consumer_group = format!("knative-kafka-source-{home}-{}", name(&self.metadata));
        }
        if spec.initial_offset.is_empty() {
            "latest".clone_into(&mut spec.initial_offset);
        }
        spec.consumers.get_or_insert(1);
        spec.ordering.get_or_insert_with(|| "ordered".to_owned());
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        for (field, list) in [("topics", &spec.topics), ("bootstrapServers", &spec.bootstrap_servers)] {
            if list.is_empty() || list.iter().any(String::is_empty) {
                problems.add(format!("spec.{field}"), MISSING);
            }
        }
        let ordering = spec.ordering.as_deref().unwrap_or("ordered");
        let key_type = label(&self.metadata, KEY_TYPE).unwrap_or("string");
        let label_field = format!("metadata.labels[{KEY_TYPE}]");
        for (field, value, known) in [
            ("spec.initialOffset", spec.initial_offset.as_str(), &["earliest", "latest"][..]),
            ("spec.ordering", ordering, &["ordered", "unordered"]),
            (&label_field, key_type, &KEY_TYPES),
        ] {
            if !known.contains(&value) {
                problems.add(field, format!("invalid value: {value}: use one of {}", known.join(", ")));
            }
        }
        if let Some(count) = spec.consumers.filter(|count| !(0..=CONSUMERS_MAX).contains(count)) {
            problems.add("spec.consumers", format!("expected 0 <= {count} <= {CONSUMERS_MAX}"));
        }
        if let Some(delivery) = &spec.delivery {
            delivery::validate_delivery(delivery, "spec.delivery", problems);
        }
        spec.net.validate("spec.net", problems);
        if before.is_some_and(|before| before.spec.consumer_group != spec.consumer_group) {
            problems.add("spec.consumerGroup", SPEC_CHANGED);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TRN-12, SRC-28: upstream's fields become the transport's, and Secrets become references to their keys.
    #[test]
    fn fields_become_those_of_the_transport() {
        let key = |name: &str, key: &str| json!({ "secretKeyRef": { "name": name, "key": key } });
        let mut source: KafkaSource = serde_json::from_value(json!({
            "metadata": { "name": "orders", "namespace": "shop", "labels": { KEY_TYPE: "int" } },
            "spec": {
                "bootstrapServers": ["k:9092"], "topics": ["a", "b"], "consumers": 3, "initialOffset": "earliest",
                "net": {
                    "sasl": { "enable": true, "user": key("s", "user"), "password": key("s", "password") },
                    "tls": { "enable": true, "caCert": key("ca", "ca.crt") },
                },
                "sink": { "uri": "http://s" },
            },
        }))
        .unwrap();
        source.set_defaults(None, &RequestContext::default());
        let plan = source.plan();
        assert_eq!((plan.instances, plan.event_types.len()), (3, 2));
        assert_eq!(plan.event_types[1].source, "/apis/v1/namespaces/shop/kafkasources/orders#b");
        assert_eq!(plan.source["consumerGroup"], "knative-kafka-source-shop-orders");
        assert_eq!((&plan.source["keyType"], &plan.source["ordering"]), (&json!("int"), &json!("ordered")));
        assert_eq!(plan.source["net"]["sasl"]["user"], json!({ "secret": { "name": "s", "key": "user" } }));
        assert_eq!(plan.source["net"]["tls"]["caCert"], json!({ "secret": { "name": "ca", "key": "ca.crt" } }));
        let mut problems = FieldErrors::default();
        let mut changed = source.clone();
        changed.spec.consumer_group = "other".to_owned();
        changed.spec.consumers = Some(-1);
        changed.metadata.labels.get_or_insert_default().insert(KEY_TYPE.to_owned(), "text".to_owned());
        changed.validate(Some(&source), &mut problems);
        let fields: Vec<_> = problems.into_list().into_iter().map(|problem| problem.field).collect();
        let label = "metadata.labels[kafkasources.sources.knative.dev/key-type]";
        assert_eq!(fields, [label, "spec.consumers", "spec.consumerGroup"]);
    }
}
