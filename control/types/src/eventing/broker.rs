//! Broker: an address that accepts events, and the source of its Triggers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BROKER_CLASS, GROUP, JETSTREAM_CLASS, OUR_CLASS, VERSION, delivery_features, stream_options};
use crate::conditions::ConditionSet;
use crate::delivery;
use crate::duck_types::DuckType;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{AGE, PrinterColumn, READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::settings::Settings;
use crate::shared::{
    Addressable, AppliedPolicy, DeliverySpec, DeliveryStatus, KReference, SPEC_CHANGED, Status, annotation, namespace,
};

pub const INGRESS_READY: &str = "IngressReady";
pub const TRIGGER_CHANNEL_READY: &str = "TriggerChannelReady";
pub const FILTER_READY: &str = "FilterReady";
pub const ADDRESSABLE: &str = "Addressable";
pub const DEAD_LETTER_SINK_RESOLVED: &str = "DeadLetterSinkResolved";
pub const EVENT_POLICIES_READY: &str = "EventPoliciesReady";
/// For information: what a stream in JetStream survives, as far as its servers tell.
pub const STREAM_DURABLE: &str = "StreamDurable";
pub const CONDITIONS: ConditionSet = ConditionSet {
    dependents: &[
        INGRESS_READY,
        TRIGGER_CHANNEL_READY,
        FILTER_READY,
        ADDRESSABLE,
        DEAD_LETTER_SINK_RESOLVED,
        EVENT_POLICIES_READY,
    ],
};

/// Upstream's delivery defaults for Brokers (AMB-29).
const RETRY_DEFAULT: i32 = 10;
const BACKOFF_POLICY_DEFAULT: &str = "exponential";
const BACKOFF_DELAY_DEFAULT: &str = "PT0.2S";

kind! {
    /// `eventing.knative.dev/v1` Broker.
    Broker { spec: BrokerSpec, status: BrokerStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BrokerSpec {
    /// The object with options of the Broker's class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<KReference>,
    /// The delivery options, unless the Trigger has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BrokerStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where events go in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// All addresses, if there are several or all are by TLS; the preferred one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Addressable>,
    #[serde(flatten)]
    pub delivery: DeliveryStatus,
    /// The EventPolicies that apply to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<AppliedPolicy>,
}

/// The default retries: Brokers are filled with them, channels use them without showing them (AMB-29).
#[must_use]
pub fn default_delivery() -> DeliverySpec {
    DeliverySpec {
        retry: Some(RETRY_DEFAULT),
        backoff_policy: Some(BACKOFF_POLICY_DEFAULT.to_owned()),
        backoff_delay: Some(BACKOFF_DELAY_DEFAULT.to_owned()),
        ..DeliverySpec::default()
    }
}

impl Broker {
    /// Whether this program serves it; a foreign class is left alone (EV-BRK-07).
    #[must_use]
    pub fn is_ours(&self) -> bool {
        annotation(&self.metadata, BROKER_CLASS) == Some(OUR_CLASS) || self.uses_jetstream()
    }

    /// Whether its events are in JetStream.
    #[must_use]
    pub fn uses_jetstream(&self) -> bool {
        annotation(&self.metadata, BROKER_CLASS) == Some(JETSTREAM_CLASS)
    }
}

impl ResourceStrategy for Broker {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Broker",
        plural: "brokers",
        singular: "broker",
        short_names: &[],
        categories: &["all", "knative", "eventing"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[
            column("URL", ".status.address.url"),
            AGE,
            READY,
            REASON,
            PrinterColumn {
                name: "Class",
                path: r".metadata.annotations['eventing\.knative\.dev/broker\.class']",
                format: "string",
                priority: 1,
                custom: None,
            },
        ],
        duck_types: &[DuckType::Addressable, DuckType::CrossNamespaceSubscribable { role: "broker-subscriber" }],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        let defaults = &requester.settings.brokers;
        // An update that leaves class or config out keeps them: they are immutable anyway.
        let kept = before.and_then(|before| annotation(&before.metadata, BROKER_CLASS));
        let class = kept.or_else(|| defaults.class(&home)).unwrap_or(OUR_CLASS).to_owned();
        let annotations = self.metadata.annotations.get_or_insert_default();
        let class = annotations.entry(BROKER_CLASS.to_owned()).or_insert(class);
        let default = defaults.config(&home, class).cloned().unwrap_or_default();
        if self.spec.config.is_none() {
            self.spec.config = match before {
                Some(before) => before.spec.config.clone(),
                None => default.reference(),
            };
        }
        if let Some(config) = &mut self.spec.config {
            delivery::default_reference(config, &home);
        }
        let given = || default.delivery.unwrap_or_else(default_delivery);
        let delivery = self.spec.delivery.get_or_insert_with(given);
        delivery::default_delivery(delivery, &home);
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let class = annotation(&self.metadata, BROKER_CLASS).unwrap_or_default();
        if class.is_empty() {
            problems.add(format!("metadata.annotations[{BROKER_CLASS}]"), MISSING);
        }
        stream_options::validate(&self.metadata, problems);
        if let Some(config) = &self.spec.config {
            delivery::validate_reference(config, "spec.config", problems);
        }
        if let Some(delivery) = &self.spec.delivery {
            delivery::validate_delivery(delivery, "spec.delivery", problems);
        }
        let Some(before) = before else { return };
        let home = namespace(&self.metadata);
        let config = |broker: &Self| broker.spec.config.as_ref().map(|config| config.with_namespace(home));
        if config(before) != config(self) {
            problems.add("spec.config", SPEC_CHANGED);
        }
        if annotation(&before.metadata, BROKER_CLASS) != Some(class) {
            problems.add(
                format!("metadata.annotations[{BROKER_CLASS}]"),
                "Immutable annotations changed (-old +new): annotations",
            );
        }
    }

    fn validate_settings(&self, before: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        let home = namespace(&self.metadata);
        let elsewhere = self.spec.config.as_ref().and_then(|config| config.namespace.as_deref());
        if let Some(elsewhere) = elsewhere.filter(|of| before.is_none() && !of.is_empty() && *of != home)
            && !settings.brokers.allows_config_in_other_namespace(home)
        {
            let why = format!("parent namespace: {home:?} does not match ref: {elsewhere:?}");
            problems.add("spec.config.namespace", format!("mismatched namespaces: {why}"));
        }
        let delivery = self.spec.delivery.as_ref();
        delivery_features::check_delivery_features(delivery, "spec.delivery", &settings.event_features, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;
    use crate::settings::{BrokerDefaults, ConfigMapSetting as _};

    fn admit(new: Value, before: Option<&Value>) -> Result<Value, AdmissionError> {
        (KindEntry::of::<Broker>().admit)(
            new,
            before,
            &RequestContext { user: "alice".into(), ..RequestContext::default() },
        )
    }

    fn bare() -> Value {
        json!({"metadata": {"name": "default", "namespace": "ns"}})
    }

    /// EV-BRK-08, EV-BRK-09, AMB-29: class and delivery are filled and seen.
    #[test]
    fn a_bare_broker_gets_our_class_and_the_default_delivery() {
        let stored = admit(bare(), None).unwrap();
        assert_eq!(stored["metadata"]["annotations"][BROKER_CLASS], OUR_CLASS);
        assert_eq!(
            stored["spec"]["delivery"],
            json!({"retry": 10, "backoffPolicy": "exponential", "backoffDelay": "PT0.2S"})
        );
    }

    /// EV-BRK-08, EV-BRK-09, AMB-16: `config-br-defaults`, for all namespaces and for one.
    #[test]
    fn a_bare_broker_gets_what_the_operator_says() {
        let yaml = "clusterDefault: {delivery: {retry: 3}}\n\
            namespaceDefaults: {ns: {brokerClass: Other, apiVersion: v1, kind: ConfigMap, name: c}}";
        let data = [("default-br-config".to_owned(), yaml.to_owned())].into();
        let settings =
            Settings { brokers: BrokerDefaults::parse(&data, &mut FieldErrors::default()), ..Settings::default() };
        let requester = RequestContext { settings: std::sync::Arc::new(settings), ..RequestContext::default() };
        let admit =
            |new: Value, before: Option<&Value>| (KindEntry::of::<Broker>().admit)(new, before, &requester).unwrap();
        let elsewhere = admit(json!({"metadata": {"name": "default", "namespace": "other"}}), None);
        assert_eq!(elsewhere["metadata"]["annotations"][BROKER_CLASS], OUR_CLASS);
        assert_eq!(elsewhere["spec"], json!({"delivery": {"retry": 3}}));
        let stored = admit(bare(), None);
        assert_eq!(stored["metadata"]["annotations"][BROKER_CLASS], "Other");
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "namespace": "ns"});
        assert_eq!(stored["spec"]["config"], config);
        assert_eq!(admit(bare(), Some(&stored))["spec"]["config"], config, "an update may leave it out");
    }

    /// EV-OBJ-02: where the operator says so, a Broker's configuration is of its own namespace; those that are there already
    /// may be changed anyway.
    #[test]
    fn the_config_of_another_namespace_may_be_forbidden() {
        let yaml = "namespaceDefaults: {ns: {disallowDifferentNamespaceConfig: true}}";
        let data = [("default-br-config".to_owned(), yaml.to_owned())].into();
        let brokers = BrokerDefaults::parse(&data, &mut FieldErrors::default());
        let settings = Settings { brokers, ..Settings::default() };
        let requester = RequestContext { settings: std::sync::Arc::new(settings), ..RequestContext::default() };
        let admit = |home: &str, of: &str, before: Option<&Value>| {
            let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "namespace": of});
            let broker = json!({"metadata": {"name": "b", "namespace": home}, "spec": {"config": config}});
            (KindEntry::of::<Broker>().admit)(broker, before, &requester)
        };
        let Err(AdmissionError::Invalid(problems)) = admit("ns", "other", None) else { panic!("admitted") };
        assert_eq!(problems[0].field, "spec.config.namespace");
        assert!(problems[0].message.starts_with("mismatched namespaces"));
        assert!(admit("ns", "ns", None).is_ok());
        let elsewhere = admit("free", "other", None).unwrap();
        assert!(admit("ns", "other", Some(&elsewhere)).is_ok());
    }

    /// EV-BRK-10, EV-BRK-11, AMB-17: class and config stay, delivery may change.
    #[test]
    fn class_and_config_are_immutable_and_delivery_is_not() {
        let mut new = bare();
        new["spec"] = json!({"config": {"kind": "ConfigMap", "name": "c", "apiVersion": "v1"}});
        let stored = admit(new, None).unwrap();

        let mut delivery = stored.clone();
        delivery["spec"]["delivery"] = json!({"retry": 1});
        assert!(admit(delivery, Some(&stored)).is_ok());

        let mut class = stored.clone();
        class["metadata"]["annotations"][BROKER_CLASS] = json!("Other");
        let Err(AdmissionError::Invalid(problems)) = admit(class, Some(&stored)) else { panic!("class changed") };
        assert!(problems[0].message.contains("Immutable annotations changed"));

        let mut config = stored.clone();
        config["spec"]["config"]["name"] = json!("d");
        assert!(matches!(admit(config, Some(&stored)), Err(AdmissionError::Invalid(_))));
    }

    /// EV-API-10 (AMB-01): eventing kinds refuse spec fields that they do not know; AMB-15: `class` is one.
    #[test]
    fn an_unknown_spec_field_is_malformed() {
        let mut new = bare();
        new["spec"] = json!({"class": "Sluicegate"});
        let Err(AdmissionError::Malformed(why)) = admit(new, None) else { panic!("admitted") };
        assert!(why.contains("spec.class"), "{why}");
    }

    /// EV-BRK-11: an empty field of the config is one that is not there, for clients that leave such out.
    #[test]
    fn an_empty_field_of_the_config_is_one_that_is_not_there() {
        let config = |more: Value| {
            let mut whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "namespace": "ns"});
            whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut broker = bare();
            broker["spec"] = json!({"config": whole});
            broker
        };
        for more in [json!({"address": ""}), json!({"namespace": ""}), json!({"group": ""})] {
            let stored = admit(config(more.clone()), None).unwrap();
            assert!(admit(config(json!({})), Some(&stored)).is_ok(), "{more}");
        }
    }
}
