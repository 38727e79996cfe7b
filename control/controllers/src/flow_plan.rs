//! The channels and Subscriptions of a flow: values in, values out.
//!
//! ```text
//! Sequence   channel 0 ► step 0 ► channel 1 ► step 1 ► … ► reply
//! Parallel   ingress ┬► filter 0 ► channel 0 ► subscriber 0 ► its reply or the flow's
//!                    └► filter 1 ► channel 1 ► …
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::backing_channel::{flow_channel_spec, subscribable};
use crate::owned_child::owner_references;
use types::flows::parallel::Parallel;
use types::flows::sequence::Sequence;
use types::messaging::API_VERSION;
use types::messaging::channel::{ChannelTemplate, DEFAULT_KIND};
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscription::{Subscription, SubscriptionSpec};
use types::settings::Settings;
use types::shared::{Destination, KReference, name, namespace};

/// The suffixes of the names of a flow's children.
pub(crate) const SEQUENCE: &str = "-kn-sequence";
pub(crate) const PARALLEL: &str = "-kn-parallel";

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FlowPlan {
    pub channels: Vec<InMemoryChannel>,
    pub subscriptions: Vec<Subscription>,
}

/// One channel and one Subscription for each step.
pub(crate) fn sequence(sequence: &Sequence, settings: &Settings) -> Result<FlowPlan, String> {
    let (ns, flow) = (namespace(&sequence.metadata), name(&sequence.metadata));
    let maker = FlowBuilder {
        ns,
        owner: owner_references(sequence),
        template: sequence.spec.channel_template.as_ref(),
        settings,
    };
    let child = |n: usize| format!("{flow}{SEQUENCE}-{n}");
    let mut plan = FlowPlan::default();
    for (n, step) in sequence.spec.steps.iter().enumerate() {
        plan.channels.push(maker.channel(&child(n))?);
        let is_last = n + 1 == sequence.spec.steps.len();
        plan.subscriptions.push(maker.subscription(
            &child(n),
            SubscriptionSpec {
                channel: channel_reference(&child(n)),
                subscriber: Some(step.destination()),
                reply: if is_last {
                    sequence.spec.reply.clone()
                } else {
                    Some(maker.channel_destination(&child(n + 1)))
                },
                delivery: step.delivery.clone(),
            },
        ));
    }
    Ok(plan)
}

/// The ingress channel, and for each branch a channel with a Subscription before it and one behind it.
pub(crate) fn parallel(parallel: &Parallel, settings: &Settings) -> Result<FlowPlan, String> {
    let (ns, flow) = (namespace(&parallel.metadata), name(&parallel.metadata));
    let maker = FlowBuilder {
        ns,
        owner: owner_references(parallel),
        template: parallel.spec.channel_template.as_ref(),
        settings,
    };
    let ingress = format!("{flow}{PARALLEL}");
    let mut plan = FlowPlan { channels: vec![maker.channel(&ingress)?], ..FlowPlan::default() };
    for (n, branch) in parallel.spec.branches.iter().enumerate() {
        let child = format!("{flow}{PARALLEL}-{n}");
        plan.channels.push(maker.channel(&child)?);
        let (subscriber, reply) = match &branch.filter {
            Some(filter) => (filter.clone(), Some(maker.channel_destination(&child))),
            // Without a filter every event goes straight on.
            None => (maker.channel_destination(&child), None),
        };
        plan.subscriptions.push(maker.subscription(
            &format!("{flow}{PARALLEL}-filter-{n}"),
            SubscriptionSpec {
                channel: channel_reference(&ingress),
                subscriber: Some(subscriber),
                reply,
                delivery: None,
            },
        ));
        plan.subscriptions.push(maker.subscription(
            &child,
            SubscriptionSpec {
                channel: channel_reference(&child),
                subscriber: Some(branch.subscriber.clone()),
                reply: branch.reply.clone().or_else(|| parallel.spec.reply.clone()),
                delivery: branch.delivery.clone(),
            },
        ));
    }
    Ok(plan)
}

/// Whether a Subscription of a flow reads this channel, or sends to it.
#[must_use]
pub(crate) fn uses(subscription: &Subscription, channel: &str) -> bool {
    let read = &subscription.spec.channel;
    (read.kind == DEFAULT_KIND && read.name == channel) || target_channels(subscription).any(|to| to == channel)
}

/// The channels that a Subscription sends to: of a flow, by their names alone.
pub(crate) fn target_channels(subscription: &Subscription) -> impl Iterator<Item = &str> {
    let SubscriptionSpec { subscriber, reply, .. } = &subscription.spec;
    let sent = [subscriber, reply].into_iter().flatten().filter_map(|to| to.reference.as_ref());
    sent.filter(|to| to.kind == DEFAULT_KIND).map(|to| &*to.name)
}

struct FlowBuilder<'a> {
    ns: &'a str,
    owner: Option<Vec<OwnerReference>>,
    template: Option<&'a ChannelTemplate>,
    settings: &'a Settings,
}

impl FlowBuilder<'_> {
    fn channel(&self, name: &str) -> Result<InMemoryChannel, String> {
        let given = || ChannelTemplate::default_for(self.settings, self.ns);
        let mut channel = InMemoryChannel::new(self.ns, name, flow_channel_spec(self.template, given)?);
        channel.metadata.owner_references = self.owner.clone();
        channel.metadata.annotations = Some(subscribable());
        Ok(channel)
    }

    fn subscription(&self, name: &str, spec: SubscriptionSpec) -> Subscription {
        let mut subscription = Subscription::new(self.ns, name, spec);
        subscription.metadata.owner_references = self.owner.clone();
        subscription
    }

    /// A channel of the flow as a destination.
    fn channel_destination(&self, channel: &str) -> Destination {
        let reference = KReference { namespace: Some(self.ns.to_owned()), ..channel_reference(channel) };
        Destination { reference: Some(reference), ..Destination::default() }
    }
}

/// A channel of the flow as what a Subscription reads.
fn channel_reference(channel: &str) -> KReference {
    KReference {
        api_version: API_VERSION.to_owned(),
        kind: DEFAULT_KIND.to_owned(),
        name: channel.to_owned(),
        ..KReference::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(spec: Value) -> K {
        serde_json::from_value(json!({"metadata": {"name": "f", "namespace": "ns", "uid": "1"}, "spec": spec})).unwrap()
    }

    /// Name, channel read, subscriber and reply of each Subscription; objects by their names.
    fn rows(plan: &FlowPlan) -> Vec<[String; 4]> {
        let place = |destination: &Option<Destination>| match destination {
            Some(Destination { reference: Some(reference), .. }) => reference.name.clone(),
            Some(destination) => destination.uri.clone().unwrap_or_default(),
            None => String::new(),
        };
        let row = |s: &Subscription| {
            let name = s.metadata.name.clone().unwrap();
            [name, s.spec.channel.name.clone(), place(&s.spec.subscriber), place(&s.spec.reply)]
        };
        plan.subscriptions.iter().map(row).collect()
    }

    fn channels(plan: &FlowPlan) -> Vec<&str> {
        plan.channels.iter().map(|channel| name(&channel.metadata)).collect()
    }

    const TEMPLATE: &str = r#"{"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel"}"#;

    #[test]
    fn each_step_answers_into_the_next_and_the_last_into_the_reply() {
        let template: Value = serde_json::from_str(TEMPLATE).unwrap();
        let steps = json!([{"uri": "a"}, {"uri": "b", "delivery": {"retry": 7}}]);
        let plan = sequence(
            &object(json!({"channelTemplate": template, "steps": steps, "reply": {"uri": "r"}})),
            &Settings::default(),
        )
        .unwrap();
        assert_eq!(channels(&plan), ["f-kn-sequence-0", "f-kn-sequence-1"]);
        assert_eq!(
            rows(&plan),
            [
                ["f-kn-sequence-0", "f-kn-sequence-0", "a", "f-kn-sequence-1"],
                ["f-kn-sequence-1", "f-kn-sequence-1", "b", "r"],
            ]
        );
        assert_eq!(plan.subscriptions[1].spec.delivery.as_ref().unwrap().retry, Some(7));
    }

    #[test]
    fn a_branch_has_its_filter_in_front_and_its_own_reply_first() {
        let template: Value = serde_json::from_str(TEMPLATE).unwrap();
        let branches = json!([
            {"filter": {"uri": "only"}, "subscriber": {"uri": "a"}},
            {"subscriber": {"uri": "b"}, "reply": {"uri": "own"}},
        ]);
        let plan = parallel(
            &object(json!({"channelTemplate": template, "branches": branches, "reply": {"uri": "r"}})),
            &Settings::default(),
        )
        .unwrap();
        assert_eq!(channels(&plan), ["f-kn-parallel", "f-kn-parallel-0", "f-kn-parallel-1"]);
        assert_eq!(
            rows(&plan),
            [
                ["f-kn-parallel-filter-0", "f-kn-parallel", "only", "f-kn-parallel-0"],
                ["f-kn-parallel-0", "f-kn-parallel-0", "a", "r"],
                ["f-kn-parallel-filter-1", "f-kn-parallel", "f-kn-parallel-1", ""],
                ["f-kn-parallel-1", "f-kn-parallel-1", "b", "own"],
            ]
        );
    }

    #[test]
    fn a_template_that_is_not_served_makes_no_plan() {
        let template = json!({"apiVersion": "x/v1", "kind": "Y"});
        let flow = object(json!({"channelTemplate": template, "steps": [{"uri": "a"}]}));
        assert!(sequence(&flow, &Settings::default()).unwrap_err().contains("x/v1 Y"));
    }

    /// X-FLW-01: a template of Channels makes what they are backed by, with a delivery from wherever it is given.
    #[test]
    fn a_template_of_channels_makes_what_backs_them() {
        let made = |spec: Value| {
            let template = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "spec": spec});
            let flow = object(json!({"channelTemplate": template, "steps": [{"uri": "a"}]}));
            let plan = sequence(&flow, &Settings::default())?;
            Ok::<_, String>(plan.channels[0].spec.delivery.as_ref().and_then(|delivery| delivery.retry))
        };
        let within =
            |spec: Value| json!({"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "spec": spec});
        let inner = within(json!({"delivery": {"retry": 2}}));
        assert_eq!(made(json!(null)), Ok(None));
        assert_eq!(made(json!({"delivery": {"retry": 1}})), Ok(Some(1)));
        assert_eq!(made(json!({"channelTemplate": inner})), Ok(Some(2)));
        assert_eq!(made(json!({"channelTemplate": inner, "delivery": {"retry": 1}})), Ok(Some(1)));
        assert!(made(json!({"bogus": 1})).unwrap_err().contains("bogus"));
        assert!(made(json!({"channelTemplate": {"apiVersion": "x/v1", "kind": "Y"}})).unwrap_err().contains("x/v1 Y"));
    }
}
