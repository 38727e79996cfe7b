//! Trigger: which of a Broker's events go to which subscriber.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::filters::{self, SubscriptionsApiFilter};
use super::{BROKER_LABEL, DEPENDENCY, GROUP, INJECTION, VERSION, delivery_features};
use crate::conditions::ConditionSet;
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{AGE, READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::settings::Settings;
use crate::shared::{AuthStatus, DeliverySpec, DeliveryStatus, Destination, KReference, Status, annotation, namespace};
use crate::strict_deserializer::StrictDeserializer;

pub const BROKER_READY: &str = "BrokerReady";
pub const SUBSCRIPTION_READY: &str = "SubscriptionReady";
pub const DEPENDENCY_READY: &str = "DependencyReady";
pub const SUBSCRIBER_RESOLVED: &str = "SubscriberResolved";
pub const DEAD_LETTER_SINK_RESOLVED: &str = "DeadLetterSinkResolved";
pub const OIDC_IDENTITY_CREATED: &str = "OIDCIdentityCreated";
/// Only present if something is wrong with the filters that does not make them invalid.
pub const FILTERS_EVALUABLE: &str = "FiltersEvaluable";
pub const CONDITIONS: ConditionSet = ConditionSet {
    dependents: &[
        BROKER_READY,
        SUBSCRIPTION_READY,
        DEPENDENCY_READY,
        SUBSCRIBER_RESOLVED,
        DEAD_LETTER_SINK_RESOLVED,
        OIDC_IDENTITY_CREATED,
    ],
};

/// Like [`SPEC_CHANGED`](crate::shared::SPEC_CHANGED): upstream's message for a Trigger whose Broker is changed.
const BROKER_CHANGED: &str = "Immutable fields changed (-old +new): broker, spec";
/// Upstream's annotation for the order of delivery (its Kafka Broker), and ours.
const ORDER_KAFKA: &str = "kafka.eventing.knative.dev/delivery.order";
pub const ORDER: &str = "sluicegate.dev/delivery.order";
/// Which of the Broker's older events a new Trigger gets: `earliest`, or a time.
pub const START_POSITION: &str = "sluicegate.dev/from";
/// Events with the same `partitionkey` in order; those without a key are one sequence.
pub const ORDERED: &str = "ordered";
pub const UNORDERED: &str = "unordered";
/// One event at a time.
pub const STRICT: &str = "strict";

kind! {
    /// `eventing.knative.dev/v1` Trigger.
    Trigger { spec: TriggerSpec, status: TriggerStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TriggerSpec {
    /// The Broker that the events come from, in the Trigger's namespace. Cannot be changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub broker: String,
    /// The Broker instead, which may be in another namespace if the operator allows that (X-FEA-10). Cannot be changed.
    #[serde(rename = "brokerRef", skip_serializing_if = "Option::is_none")]
    pub broker_ref: Option<KReference>,
    /// Which events are meant; none means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<TriggerFilter>,
    /// If there are any, `filter` does not count (X-FLT-01).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<SubscriptionsApiFilter>,
    /// Where the events go.
    pub subscriber: Destination,
    /// The delivery options; they override the Broker's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TriggerFilter {
    /// Attributes and their exact values; an empty value means that the attribute has to be there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TriggerStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where the events go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber_uri: Option<String>,
    /// The authorities that it needs trusted besides the system's (PEM).
    #[serde(rename = "subscriberCACerts", skip_serializing_if = "Option::is_none")]
    pub subscriber_ca_certs: Option<String>,
    /// The audience of tokens for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber_audience: Option<String>,
    #[serde(flatten)]
    pub delivery: DeliveryStatus,
    /// Under which service account events are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
}

impl ResourceStrategy for Trigger {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Trigger",
        plural: "triggers",
        singular: "trigger",
        short_names: &[],
        categories: &["all", "knative", "eventing"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[
            column("Broker", ".spec.broker"),
            column("Subscriber_URI", ".status.subscriberUri"),
            AGE,
            READY,
            REASON,
        ],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let (_, broker) = self.broker();
        if !broker.is_empty() {
            let broker = broker.to_owned();
            self.metadata.labels.get_or_insert_default().insert(BROKER_LABEL.to_owned(), broker);
        }
        self.spec.filter.get_or_insert_default();
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.subscriber, &home);
        if let Some(delivery) = &mut self.spec.delivery {
            delivery::default_delivery(delivery, &home);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        match &self.spec.broker_ref {
            None if self.spec.broker.is_empty() => problems.add("spec.broker", MISSING),
            None => {}
            Some(_) if !self.spec.broker.is_empty() => {
                problems.add("spec.broker", "expected exactly one, got both: broker, brokerRef");
            }
            Some(reference) => {
                delivery::validate_reference(reference, "spec.brokerRef", problems);
                let (group, _) = reference.api_version.split_once('/').unwrap_or_default();
                // A right to subscribe to another group's Brokers does not extend to ours.
                if reference.kind != "Broker" || group != GROUP {
                    let why = format!(
                        "invalid value: {} {}: expected a Broker of {GROUP}/{VERSION}",
                        reference.api_version, reference.kind
                    );
                    problems.add("spec.brokerRef", why);
                }
            }
        }
        if let Some(filter) = &self.spec.filter {
            filters::names(&filter.attributes, "spec.filter.attributes", problems);
        }
        filters::validate(&self.spec.filters, "spec.filters", problems);
        let filters = before.map(|before| before.spec.filters.as_slice());
        filters::refuse_empty(&self.spec.filters, filters, "spec.filters", problems);
        delivery::validate_destination(&self.spec.subscriber, "spec.subscriber", problems);
        if let Some(delivery) = &self.spec.delivery {
            delivery::validate_delivery(delivery, "spec.delivery", problems);
        }
        self.validate_annotations(problems);
        if before.is_some_and(|before| before.broker() != self.broker()) {
            problems.add("spec.broker", BROKER_CHANGED);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        let (delivery, features) = (self.spec.delivery.as_ref(), &settings.event_features);
        delivery_features::check_delivery_features(delivery, "spec.delivery", features, problems);
        delivery_features::check_destination_features(&self.spec.subscriber, "spec.subscriber", features, problems);
        if let Some(broker) = &self.spec.broker_ref {
            delivery_features::check_cross_namespace_link(broker, "spec.brokerRef", features, problems);
        }
    }
}

/// The start position of a new Trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPosition {
    Earliest,
    Time(jiff::Timestamp),
}

impl Trigger {
    /// Namespace and name of its Broker.
    #[must_use]
    pub fn broker(&self) -> (&str, &str) {
        let home = namespace(&self.metadata);
        match &self.spec.broker_ref {
            Some(broker) => (broker.explicit_namespace().unwrap_or(home), &broker.name),
            None => (home, &self.spec.broker),
        }
    }

    /// The start position that the author chose, if not the next event.
    #[must_use]
    pub fn start_position(&self) -> Option<Result<StartPosition, String>> {
        let text = annotation(&self.metadata, START_POSITION)?;
        if text == "earliest" {
            return Some(Ok(StartPosition::Earliest));
        }
        let why = || format!("invalid value: {text}: expected earliest, or a time such as 2026-01-02T03:04:05Z");
        Some(text.parse().map(StartPosition::Time).map_err(|_| why()))
    }

    /// The object that has to be ready first, if the author named one.
    #[must_use]
    pub fn dependency(&self) -> Option<Result<KReference, String>> {
        let text = annotation(&self.metadata, DEPENDENCY)?;
        // An ObjectReference, of which the rest, such as a `uid`, does not matter here.
        let object = serde_json::from_str::<Value>(text).map(|mut object| {
            let counts = |field: &str| ["apiVersion", "kind", "name", "namespace"].contains(&field);
            object.as_object_mut().into_iter().for_each(|fields| fields.retain(|field, _| counts(field)));
            object
        });
        let reference = object.and_then(|object| KReference::deserialize(StrictDeserializer(&object)));
        Some(reference.map_err(|why| why.to_string()))
    }

    /// The order that the annotations select; ours wins over upstream's.
    #[must_use]
    pub fn delivery_order(&self) -> Option<&str> {
        annotation(&self.metadata, ORDER).or_else(|| annotation(&self.metadata, ORDER_KAFKA))
    }

    fn validate_annotations(&self, problems: &mut FieldErrors) {
        let at = |key: &str| format!("metadata.annotations[{key}]");
        if let Some(Err(why)) = self.start_position() {
            problems.add(at(START_POSITION), why);
        }
        for (key, allowed) in [(ORDER_KAFKA, &[ORDERED, UNORDERED][..]), (ORDER, &[ORDERED, UNORDERED, STRICT])] {
            if let Some(order) = annotation(&self.metadata, key)
                && !allowed.contains(&order)
            {
                problems.add(at(key), format!("invalid value: {order}: expected one of {}", allowed.join(", ")));
            }
        }
        match self.dependency() {
            Some(Err(why)) => {
                problems.add(at(DEPENDENCY), format!("The provided annotation was not a corev1.ObjectReference: {why}"))
            }
            Some(Ok(reference)) => {
                delivery::validate_reference(&reference, &at(DEPENDENCY), problems);
                let other = reference.explicit_namespace();
                if other.is_some_and(|ns| ns != namespace(&self.metadata)) {
                    problems.add(
                        format!("{}.namespace", at(DEPENDENCY)),
                        format!(
                            "Namespace must be empty or equal to the trigger namespace \"{}\"",
                            namespace(&self.metadata)
                        ),
                    );
                }
            }
            None => {}
        }
        if let Some(injection) = annotation(&self.metadata, INJECTION) {
            if !["enabled", "disabled"].contains(&injection) {
                problems.add(
                    at(INJECTION),
                    format!("The provided injection annotation value can only be \"enabled\" or \"disabled\", not \"{injection}\""),
                );
            }
            if self.spec.broker != "default" {
                problems.add(
                    at(INJECTION),
                    format!("The provided injection annotation is only used for default broker, but non-default broker specified here: \"{}\"", self.spec.broker),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    fn admit(new: Value, before: Option<&Value>) -> Result<Value, AdmissionError> {
        (KindEntry::of::<Trigger>().admit)(
            new,
            before,
            &RequestContext { user: "alice".into(), ..RequestContext::default() },
        )
    }

    fn trigger() -> Value {
        json!({
            "metadata": {"name": "t", "namespace": "ns"},
            "spec": {"broker": "b", "subscriber": {"ref": {"kind": "Service", "name": "s", "apiVersion": "v1"}}}
        })
    }

    /// AMB-44, EV-ADR-12: filter, label and the reference's namespace are filled.
    #[test]
    fn a_trigger_is_filled_with_filter_label_and_namespace() {
        let stored = admit(trigger(), None).unwrap();
        assert_eq!(stored["spec"]["filter"], json!({}));
        assert_eq!(stored["metadata"]["labels"][BROKER_LABEL], "b");
        assert_eq!(stored["spec"]["subscriber"]["ref"]["namespace"], "ns");
    }

    /// X-FEA-10: a reference to one of our Brokers in place of its name.
    #[test]
    fn a_broker_is_named_once_and_may_be_a_reference() {
        let by_reference = |kind: &str, api_version: &str| {
            let mut new = trigger();
            new["spec"].as_object_mut().unwrap().remove("broker");
            new["spec"]["brokerRef"] = json!({"kind": kind, "apiVersion": api_version, "name": "b"});
            new
        };
        let stored = admit(by_reference("Broker", "eventing.knative.dev/v1"), None).unwrap();
        assert_eq!(stored["spec"].get("broker"), None);
        assert_eq!(stored["metadata"]["labels"][BROKER_LABEL], "b");
        let mut both = stored.clone();
        both["spec"]["broker"] = json!("b");
        let strange = [by_reference("Channel", "eventing.knative.dev/v1"), by_reference("Broker", "mine.example/v1")];
        for (new, field) in [(both, "spec.broker")].into_iter().chain(strange.map(|new| (new, "spec.brokerRef"))) {
            let Err(AdmissionError::Invalid(problems)) = admit(new, None) else { panic!("{field} admitted") };
            assert_eq!(problems[0].field, field);
        }
        let mut moved = stored.clone();
        moved["spec"]["brokerRef"]["name"] = json!("other");
        assert!(matches!(admit(moved, Some(&stored)), Err(AdmissionError::Invalid(_))));
    }

    /// EV-OBJ-09, EV-OBJ-11, EV-OBJ-58: each refusal names its field.
    #[test]
    fn what_a_trigger_needs_is_asked_for_by_name() {
        for (pointer, value, field) in [
            ("/spec/broker", json!(""), "spec.broker"),
            ("/spec/subscriber", json!({}), "spec.subscriber"),
            ("/spec/filter", json!({"attributes": {"Type": "x"}}), "spec.filter.attributes"),
            ("/spec/filter", json!({"attributes": {"1type": "x"}}), "spec.filter.attributes"),
            ("/spec/filters", json!([{"exact": {"Type": "x"}}]), "spec.filters[0].exact"),
            ("/spec/filters", json!([{"not": {"cesql": "type = "}}]), "spec.filters[0].not.cesql"),
        ] {
            let mut new = trigger();
            new["spec"]["filter"] = json!({});
            new["spec"]["filters"] = json!([]);
            *new.pointer_mut(pointer).unwrap() = value;
            let Err(AdmissionError::Invalid(problems)) = admit(new, None) else { panic!("{pointer} admitted") };
            assert_eq!(problems[0].field, field);
        }
    }

    #[test]
    fn a_misspelt_dialect_is_refused() {
        let mut new = trigger();
        new["spec"]["filters"] = json!([{"all": [{"exacts": {"type": "x"}}]}]);
        let Err(AdmissionError::Malformed(why)) = admit(new, None) else { panic!("admitted") };
        assert!(why.contains("exacts"), "{why}");
    }

    /// EV-TRG-10, EV-TRG-11: the broker stays; subscriber, filter and delivery may change.
    #[test]
    fn only_the_broker_of_a_trigger_is_fixed() {
        let stored = admit(trigger(), None).unwrap();
        let mut moved = stored.clone();
        moved["spec"]["broker"] = json!("other");
        let Err(AdmissionError::Invalid(problems)) = admit(moved, Some(&stored)) else { panic!("the broker moved") };
        // The words that upstream's conformance suite checks for.
        let reported = (problems[0].field.as_str(), problems[0].message.as_str());
        assert_eq!(reported, ("spec.broker", "Immutable fields changed (-old +new): broker, spec"));

        let mut changed = stored.clone();
        changed["spec"]["subscriber"] = json!({"uri": "http://a.example/"});
        changed["spec"]["filter"] = json!({"attributes": {"type": "x"}});
        changed["spec"]["delivery"] = json!({"retry": 3});
        assert!(admit(changed, Some(&stored)).is_ok());
    }

    #[test]
    fn annotations_are_checked() {
        for (key, value) in [
            (DEPENDENCY, "no json"),
            (DEPENDENCY, r#"["Broker",null,"b","eventing.knative.dev/v1"]"#),
            (INJECTION, "maybe"),
            (INJECTION, "enabled"),
            (ORDER, "sorted"),
            (ORDER_KAFKA, "strict"),
            (START_POSITION, "yesterday"),
        ] {
            let mut new = trigger();
            new["metadata"]["annotations"] = json!({key: value});
            assert!(matches!(admit(new, None), Err(AdmissionError::Invalid(_))), "{key}={value}");
        }
    }
}
