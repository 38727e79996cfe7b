//! InMemoryChannel: the backing channel of Channels. The name is upstream's; here its events are in the log.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::subscribable::{SubscriberSpec, SubscriberStatus, validate_subscribers};
use super::{GROUP, SUBSCRIBABLE, SUBSCRIBABLE_VERSION, VERSION};
use crate::conditions::ConditionSet;
use crate::delivery;
use crate::duck_types::DuckType;
use crate::eventing::stream_options;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{AGE, READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::shared::{Addressable, AppliedPolicy, DeliverySpec, DeliveryStatus, Status, annotation, namespace};

pub const SERVICE_READY: &str = "ServiceReady";
pub const ENDPOINTS_READY: &str = "EndpointsReady";
pub const ADDRESSABLE: &str = "Addressable";
pub const CHANNEL_SERVICE_READY: &str = "ChannelServiceReady";
pub const DEAD_LETTER_SINK_RESOLVED: &str = "DeadLetterSinkResolved";
pub const EVENT_POLICIES_READY: &str = "EventPoliciesReady";
/// For information: it does not count for Ready.
pub const DISPATCHER_READY: &str = "DispatcherReady";
pub const CONDITIONS: ConditionSet = ConditionSet {
    dependents: &[
        SERVICE_READY,
        ENDPOINTS_READY,
        ADDRESSABLE,
        CHANNEL_SERVICE_READY,
        DEAD_LETTER_SINK_RESOLVED,
        EVENT_POLICIES_READY,
    ],
};

const SCOPE: &str = "eventing.knative.dev/scope";
const ASYNC_HANDLER: &str = "messaging.knative.dev/async-handler";

kind! {
    /// `messaging.knative.dev/v1` InMemoryChannel.
    InMemoryChannel { spec: InMemoryChannelSpec, status: InMemoryChannelStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InMemoryChannelSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribers: Vec<SubscriberSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
    /// The user of a write from outside our controllers, while it is validated.
    #[serde(skip)]
    pub external_writer: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InMemoryChannelStatus {
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
}

impl ResourceStrategy for InMemoryChannel {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "InMemoryChannel",
        plural: "inmemorychannels",
        singular: "inmemorychannel",
        short_names: &["imc"],
        categories: &["all", "knative", "messaging", "channel"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[column("URL", ".status.address.url"), AGE, READY, REASON],
        duck_types: &[
            DuckType::Addressable,
            DuckType::Channelable { role: "imc-channelable-manipulator" },
            DuckType::CrossNamespaceSubscribable { role: "imc-subscriber" },
        ],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, requester: &RequestContext) {
        let annotations = self.metadata.annotations.get_or_insert_default();
        annotations.insert(SUBSCRIBABLE.to_owned(), SUBSCRIBABLE_VERSION.to_owned());
        self.spec.external_writer = (!requester.is_controller()).then(|| requester.user.clone());
        let home = namespace(&self.metadata).to_owned();
        if let Some(delivery) = &mut self.spec.delivery {
            delivery::default_delivery(delivery, &home);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        stream_options::validate_channel(&self.metadata, problems);
        validate_subscribers(&self.spec.subscribers, "spec.subscribers", problems);
        let known = before.map(|before| before.spec.subscribers.as_slice()).unwrap_or_default();
        if let Some(user) = &self.spec.external_writer
            && self.spec.subscribers != known
        {
            problems.add(
                "spec.subscribers",
                format!("Channel.Spec.Subscribers changed by user {user} which was not the controller"),
            );
        }
        if let Some(delivery) = &self.spec.delivery {
            delivery::validate_delivery(delivery, "spec.delivery", problems);
        }
        for (key, allowed) in [(SCOPE, ["cluster", "namespace"]), (ASYNC_HANDLER, ["true", "false"])] {
            if let Some(value) = annotation(&self.metadata, key)
                && !allowed.contains(&value)
            {
                problems.add(format!("metadata.annotations[{key}]"), format!("invalid value: {value}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    fn admit(new: Value, before: Option<&Value>, internal: bool) -> Result<Value, AdmissionError> {
        (KindEntry::of::<InMemoryChannel>().admit)(
            new,
            before,
            &RequestContext { user: "alice".into(), internal, ..RequestContext::default() },
        )
    }

    fn channel(spec: Value) -> Value {
        json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": spec})
    }

    #[test]
    fn only_controllers_change_the_subscribers() {
        let subscribed = channel(json!({"subscribers": [{"uid": "1", "replyUri": "http://a/"}]}));
        assert!(matches!(admit(subscribed.clone(), None, false), Err(AdmissionError::Invalid(_))));
        let stored = admit(subscribed, None, true).unwrap();
        assert_eq!(stored["spec"].as_object().unwrap().len(), 1, "{}", stored["spec"]);

        // A write that does not touch them is accepted from every user.
        let mut more = stored.clone();
        more["spec"]["delivery"] = json!({"retry": 1});
        assert!(admit(more, Some(&stored), false).is_ok());
        let Err(AdmissionError::Invalid(problems)) = admit(channel(json!({})), Some(&stored), false) else {
            panic!("subscribers taken away by alice")
        };
        assert!(problems[0].message.contains("alice"), "{problems:?}");
    }

    #[test]
    fn a_subscriber_leads_somewhere_and_annotations_are_what_they_may_be() {
        let nowhere = channel(json!({"subscribers": [{"uid": "1"}]}));
        let Err(AdmissionError::Invalid(problems)) = admit(nowhere, None, true) else { panic!("nowhere") };
        assert_eq!(problems[0].field, "spec.subscribers[0]");

        for (key, value, good) in
            [(SCOPE, "cluster", true), (SCOPE, "x", false), (ASYNC_HANDLER, "true", true), (ASYNC_HANDLER, "", false)]
        {
            let mut new = channel(json!({}));
            new["metadata"]["annotations"] = json!({key: value});
            assert_eq!(admit(new, None, false).is_ok(), good, "{key}={value}");
        }
    }
}
