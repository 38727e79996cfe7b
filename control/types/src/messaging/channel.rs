//! Channel: an address whose events every Subscription gets. Its backing channel is created from a template.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::subscribable::{SubscriberSpec, SubscriberStatus};
use super::{API_VERSION, GROUP, SUBSCRIBABLE, SUBSCRIBABLE_VERSION, VERSION};
use crate::conditions::ConditionSet;
use crate::delivery;
use crate::duck_types::DuckType;
use crate::eventing::{delivery_features, stream_options};
use crate::field_errors::{FieldErrors, MISSING, MUST_NOT_SET};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{AGE, READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::settings::{ChannelDefaultTemplate, Settings};
use crate::shared::{
    Addressable, AppliedPolicy, DeliverySpec, DeliveryStatus, KReference, SPEC_CHANGED, Status, group_of, namespace,
};

pub const BACKING_CHANNEL_READY: &str = "BackingChannelReady";
pub const ADDRESSABLE: &str = "Addressable";
pub const DEAD_LETTER_SINK_RESOLVED: &str = "DeadLetterSinkResolved";
pub const EVENT_POLICIES_READY: &str = "EventPoliciesReady";
pub const CONDITIONS: ConditionSet =
    ConditionSet { dependents: &[BACKING_CHANNEL_READY, ADDRESSABLE, DEAD_LETTER_SINK_RESOLVED, EVENT_POLICIES_READY] };

/// The default kind of backing channels (AMB-43).
pub const DEFAULT_KIND: &str = "InMemoryChannel";

kind! {
    /// `messaging.knative.dev/v1` Channel.
    Channel { spec: ChannelSpec, status: ChannelStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChannelSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_template: Option<ChannelTemplate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
    /// Written on the backing channel only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribers: Vec<SubscriberSpec>,
}

/// The template of the backing channel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChannelTemplate {
    pub api_version: String,
    pub kind: String,
    /// Options of the backing kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChannelStatus {
    #[serde(flatten)]
    pub base: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// All of them, if there are several ways or all are by TLS; the preferred one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Addressable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribers: Vec<SubscriberStatus>,
    #[serde(flatten)]
    pub delivery: DeliveryStatus,
    /// The EventPolicies that hold for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<AppliedPolicy>,
    /// The backing channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<KReference>,
}

impl ChannelTemplate {
    /// The default template.
    #[must_use]
    pub fn in_memory() -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: DEFAULT_KIND.to_owned(), spec: None }
    }

    /// The default template in a namespace, which the operator may have configured.
    #[must_use]
    pub fn default_for(settings: &Settings, namespace: &str) -> Self {
        match settings.channels.of(namespace) {
            Some(ChannelDefaultTemplate { api_version, kind, spec }) => {
                Self { api_version: api_version.clone(), kind: kind.clone(), spec: spec.clone() }
            }
            None => Self::in_memory(),
        }
    }

    /// Whether this program can make the backing channel, in whatever version it is named (AMB-60).
    #[must_use]
    pub fn is_ours(&self) -> bool {
        group_of(&self.api_version) == GROUP && self.kind == DEFAULT_KIND
    }

    /// Whether the template creates Channels, with their own backing channels.
    #[must_use]
    pub fn creates_channels(&self) -> bool {
        group_of(&self.api_version) == GROUP && self.kind == Channel::META.kind
    }

    pub fn validate(&self, at: &str, problems: &mut FieldErrors) {
        for (field, value) in [("apiVersion", &self.api_version), ("kind", &self.kind)] {
            if value.is_empty() {
                problems.add(format!("{at}.{field}"), MISSING);
            }
        }
    }
}

impl ResourceStrategy for Channel {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Channel",
        plural: "channels",
        singular: "channel",
        short_names: &["ch"],
        categories: &["all", "knative", "messaging", "channel"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[column("URL", ".status.address.url"), AGE, READY, REASON],
        duck_types: &[
            DuckType::Addressable,
            DuckType::Channelable { role: "meta-channelable-manipulator" },
            DuckType::CrossNamespaceSubscribable { role: "channel-subscriber" },
        ],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        let annotations = self.metadata.annotations.get_or_insert_default();
        annotations.insert(SUBSCRIBABLE.to_owned(), SUBSCRIBABLE_VERSION.to_owned());
        // An update that leaves the template out keeps it: it is immutable anyway.
        if self.spec.channel_template.is_none() {
            let kept = before.and_then(|before| before.spec.channel_template.clone());
            let given = || ChannelTemplate::default_for(&requester.settings, namespace(&self.metadata));
            self.spec.channel_template = Some(kept.unwrap_or_else(given));
        }
        let home = namespace(&self.metadata).to_owned();
        if let Some(delivery) = &mut self.spec.delivery {
            delivery::default_delivery(delivery, &home);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        match &self.spec.channel_template {
            Some(template) => template.validate("spec.channelTemplate", problems),
            None => problems.add("spec.channelTemplate", MISSING),
        }
        stream_options::validate_channel(&self.metadata, problems);
        if !self.spec.subscribers.is_empty() {
            problems.add("spec.subscribers", MUST_NOT_SET);
        }
        if let Some(delivery) = &self.spec.delivery {
            delivery::validate_delivery(delivery, "spec.delivery", problems);
        }
        if before.is_some_and(|before| before.spec.channel_template != self.spec.channel_template) {
            problems.add("spec.channelTemplate", SPEC_CHANGED);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        let delivery = self.spec.delivery.as_ref();
        delivery_features::check_delivery_features(delivery, "spec.delivery", &settings.event_features, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    fn admit(new: Value, before: Option<&Value>) -> Result<Value, AdmissionError> {
        (KindEntry::of::<Channel>().admit)(
            new,
            before,
            &RequestContext { user: "alice".into(), ..RequestContext::default() },
        )
    }

    fn bare() -> Value {
        json!({"metadata": {"name": "c", "namespace": "ns"}})
    }

    fn refused(new: Value, before: Option<&Value>) -> String {
        match admit(new, before) {
            Err(AdmissionError::Invalid(problems)) => problems[0].field.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// EV-CH-06, EV-CH-07, AMB-43: the template is filled and seen, and delivery is not (AMB-29).
    #[test]
    fn a_bare_channel_is_backed_in_memory() {
        let stored = admit(bare(), None).unwrap();
        let template = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel"});
        assert_eq!(stored["spec"], json!({"channelTemplate": template}));
        assert_eq!(stored["metadata"]["annotations"][SUBSCRIBABLE], "v1");
    }

    /// EV-CH-08, EV-OBJ-17, AMB-42: the template stays as it was given, delivery may change.
    #[test]
    fn the_template_is_immutable_and_delivery_is_not() {
        let mut new = bare();
        let template = json!({"apiVersion": "x.dev/v1", "kind": "Y", "spec": {"partitions": [1, {"a": "b"}]}});
        new["spec"]["channelTemplate"] = template.clone();
        let stored = admit(new, None).unwrap();
        assert_eq!(stored["spec"]["channelTemplate"], template);

        let mut delivery = stored.clone();
        delivery["spec"]["delivery"] = json!({"retry": 3});
        assert!(admit(delivery, Some(&stored)).is_ok());
        let kept = admit(bare(), Some(&stored)).unwrap();
        assert_eq!(kept["spec"]["channelTemplate"], template);

        let mut other = stored.clone();
        other["spec"]["channelTemplate"]["spec"] = json!({});
        assert_eq!(refused(other, Some(&stored)), "spec.channelTemplate");
    }

    /// EV-OBJ-18: subscribers are the controllers' to write, and on the backing channel.
    #[test]
    fn subscribers_and_half_a_template_are_refused() {
        let mut new = bare();
        new["spec"] = json!({"subscribers": [{"uid": "1", "subscriberUri": "http://a/"}]});
        assert_eq!(refused(new, None), "spec.subscribers");
        let mut new = bare();
        new["spec"] = json!({"channelTemplate": {"kind": "InMemoryChannel"}});
        assert_eq!(refused(new, None), "spec.channelTemplate.apiVersion");
        let mut new = bare();
        new["spec"] = json!({"delivery": {"retry": -1}});
        assert_eq!(refused(new, None), "spec.delivery.retry");
    }
}
