//! Subscription: sends a channel's events to a subscriber, and its replies to a reply target.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION};
use crate::conditions::ConditionSet;
use crate::delivery;
use crate::eventing::delivery_features;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{AGE, READY, REASON};
use crate::role_rules::RECONCILED;
use crate::settings::Settings;
use crate::shared::{
    AuthStatus, DeliverySpec, DeliveryStatus, Destination, KReference, SPEC_CHANGED, Status, namespace,
};

pub const REFERENCES_RESOLVED: &str = "ReferencesResolved";
pub const ADDED_TO_CHANNEL: &str = "AddedToChannel";
pub const CHANNEL_READY: &str = "ChannelReady";
pub const OIDC_IDENTITY_CREATED: &str = "OIDCIdentityCreated";
pub const CONDITIONS: ConditionSet =
    ConditionSet { dependents: &[REFERENCES_RESOLVED, ADDED_TO_CHANNEL, CHANNEL_READY, OIDC_IDENTITY_CREATED] };

kind! {
    /// `messaging.knative.dev/v1` Subscription.
    Subscription { spec: SubscriptionSpec, status: SubscriptionStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SubscriptionSpec {
    pub channel: KReference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber: Option<Destination>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Destination>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionStatus {
    #[serde(flatten)]
    pub base: Status,
    pub physical_subscription: PhysicalSubscription,
    /// Under which service account events are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
}

/// Where events really go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PhysicalSubscription {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber_uri: Option<String>,
    #[serde(rename = "subscriberCACerts", skip_serializing_if = "Option::is_none")]
    pub subscriber_ca_certs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriber_audience: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_uri: Option<String>,
    #[serde(rename = "replyCACerts", skip_serializing_if = "Option::is_none")]
    pub reply_ca_certs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_audience: Option<String>,
    #[serde(flatten)]
    pub delivery: DeliveryStatus,
}

impl ResourceStrategy for Subscription {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Subscription",
        plural: "subscriptions",
        singular: "subscription",
        short_names: &["sub"],
        categories: &["all", "knative", "messaging"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[AGE, READY, REASON],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        for destination in [&mut self.spec.subscriber, &mut self.spec.reply] {
            // `subscriber: {}` says as little as no subscriber.
            destination.take_if(|found| *found == Destination::default());
            if let Some(destination) = destination {
                delivery::default_destination(destination, &home);
            }
        }
        if let Some(delivery) = &mut self.spec.delivery {
            delivery::default_delivery(delivery, &home);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        if spec.channel == KReference::default() {
            problems.add("spec.channel", format!("{MISSING}: the Subscription must reference a channel"));
        } else {
            delivery::validate_group_reference(&spec.channel, "spec.channel", problems);
        }
        if spec.subscriber.is_none() && spec.reply.is_none() {
            let why = "the Subscription must reference a subscriber or a reply";
            problems.add("spec.subscriber", format!("{MISSING}: {why}"));
        }
        for (destination, at) in [(&spec.subscriber, "spec.subscriber"), (&spec.reply, "spec.reply")] {
            if let Some(destination) = destination {
                delivery::validate_destination(destination, at, problems);
            }
        }
        if let Some(delivery) = &spec.delivery {
            delivery::validate_delivery(delivery, "spec.delivery", problems);
        }
        let home = namespace(&self.metadata);
        let channel = spec.channel.with_namespace(home);
        if before.is_some_and(|before| before.spec.channel.with_namespace(home) != channel) {
            problems.add("spec.channel", SPEC_CHANGED);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        let (spec, features) = (&self.spec, &settings.event_features);
        delivery_features::check_delivery_features(spec.delivery.as_ref(), "spec.delivery", features, problems);
        delivery_features::check_destination_features(&spec.subscriber, "spec.subscriber", features, problems);
        delivery_features::check_destination_features(&spec.reply, "spec.reply", features, problems);
        delivery_features::check_reference_features(&spec.channel, "spec.channel", features, problems);
        // AMB-40: a channel is read in its own namespace, unless the operator allows more.
        delivery_features::check_cross_namespace_link(&spec.channel, "spec.channel", features, problems);
    }
}

impl Subscription {
    /// Namespace and name of its channel.
    #[must_use]
    pub fn channel(&self) -> (&str, &str) {
        let channel = &self.spec.channel;
        (channel.explicit_namespace().unwrap_or(namespace(&self.metadata)), &channel.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    fn admit(new: Value, before: Option<&Value>) -> Result<Value, AdmissionError> {
        (KindEntry::of::<Subscription>().admit)(
            new,
            before,
            &RequestContext { user: "alice".into(), ..RequestContext::default() },
        )
    }

    fn subscription(spec: Value) -> Value {
        let mut whole = json!({"channel": {"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c"}});
        for (key, value) in spec.as_object().unwrap() {
            whole[key] = value.clone();
        }
        json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": whole})
    }

    fn refused(new: Value, before: Option<&Value>) -> Vec<String> {
        match admit(new, before) {
            Err(AdmissionError::Invalid(problems)) => problems.into_iter().map(|problem| problem.field).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// EV-SUB-12, EV-OBJ-27, EV-OBJ-28, AMB-21, AMB-22: one of the two is enough, and none is too little.
    #[test]
    fn a_subscription_leads_to_a_subscriber_or_to_a_reply() {
        let to = json!({"uri": "http://a/"});
        for spec in [json!({"subscriber": to}), json!({"reply": to}), json!({"subscriber": {}, "reply": to})] {
            let stored = admit(subscription(spec), None).unwrap();
            assert_eq!(stored["spec"].as_object().unwrap().len(), 2, "{}", stored["spec"]);
        }
        for spec in [json!({}), json!({"subscriber": {}}), json!({"subscriber": {}, "reply": {}})] {
            assert_eq!(refused(subscription(spec), None), ["spec.subscriber"]);
        }
        assert_eq!(refused(subscription(json!({"reply": {"uri": "/x"}})), None)[0], "spec.reply.uri");
    }

    /// EV-SUB-04, EV-OBJ-26, EV-ADR-12, AMB-40: the channel is named in full and is at home here; other
    /// references get the namespace that they mean.
    #[test]
    fn the_channel_is_one_of_the_same_namespace() {
        let to = json!({"uri": "http://a/"});
        for namespace in ["other", "ns"] {
            let channel = json!({"apiVersion": "v1", "kind": "K", "name": "c", "namespace": namespace});
            let new = subscription(json!({"subscriber": to, "channel": channel}));
            assert_eq!(refused(new, None), ["spec.channel.namespace"]);
        }
        assert_eq!(refused(subscription(json!({"subscriber": to, "channel": {}})), None), ["spec.channel"]);
        let half = subscription(json!({"subscriber": to, "channel": {"name": "c"}}));
        assert_eq!(refused(half, None), ["spec.channel.kind", "spec.channel.apiVersion"]);

        let reference = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "s"}});
        let stored = admit(subscription(json!({"subscriber": reference})), None).unwrap();
        assert_eq!(stored["spec"]["subscriber"]["ref"]["namespace"], "ns");
        assert_eq!(stored["spec"]["channel"].get("namespace"), None);
    }

    /// EV-SUB-16, EV-SUB-17.
    #[test]
    fn only_the_channel_of_a_subscription_is_fixed() {
        let stored = admit(subscription(json!({"subscriber": {"uri": "http://a/"}})), None).unwrap();
        let mut moved = stored.clone();
        moved["spec"]["channel"]["name"] = json!("other");
        assert_eq!(refused(moved, Some(&stored)), ["spec.channel"]);

        let changes =
            json!({"subscriber": {"uri": "http://b/"}, "reply": {"uri": "http://c/"}, "delivery": {"retry": 1}});
        assert!(admit(subscription(changes), Some(&stored)).is_ok());
    }

    /// EV-SUB-04, EV-SUB-16: what a client leaves out of the channel may have been written as nothing, or as what it means.
    #[test]
    fn an_empty_field_of_the_channel_is_one_that_is_not_there() {
        let channel = |more: Value| {
            let mut whole = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c"});
            whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            subscription(json!({"subscriber": {"uri": "http://a/"}, "channel": whole}))
        };
        let bare = channel(json!({}));
        for more in [json!({"namespace": ""}), json!({"namespace": "ns"}), json!({"group": ""}), json!({"address": ""})]
        {
            let said = channel(more.clone());
            let mut problems = FieldErrors::default();
            let [one, other] = [&bare, &said].map(|object| serde_json::from_value(object.clone()).unwrap());
            Subscription::validate(&one, Some(&other), &mut problems);
            Subscription::validate(&other, Some(&one), &mut problems);
            assert_eq!(problems.list, [], "{more}");
        }
        let elsewhere = channel(json!({"namespace": "other"}));
        let [one, other]: [Subscription; 2] = [bare, elsewhere].map(|object| serde_json::from_value(object).unwrap());
        let mut problems = FieldErrors::default();
        one.validate(Some(&other), &mut problems);
        assert_eq!(problems.list[0].field, "spec.channel");
    }
}
