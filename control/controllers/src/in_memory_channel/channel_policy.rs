//! The senders that a channel accepts, and the token of its deliveries.

use contract::table::ReplyTarget;

use crate::context::ControllerContext;
use crate::flow_plan as plan;
use crate::oidc_identity::account_name;
use crate::publish;
use crate::sender_policy::SenderPolicy;
use types::eventing::event_policy::PolicyTarget;
use types::flows::parallel::Parallel;
use types::flows::sequence::Sequence;
use types::messaging::channel::Channel;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscribable::SubscriberSpec;
use types::messaging::subscription::Subscription;
use types::shared::{controller, is_controlled_by, name, namespace};

/// Policies apply to a channel by its own name, and by that of the object it is the ingress of: a Channel, or a flow
/// whose first channel it is. Policies for either apply.
pub(super) fn sender_policy(context: &ControllerContext, channel: &InMemoryChannel) -> SenderPolicy {
    let own = PolicyTarget::of::<InMemoryChannel>(&channel.metadata);
    let (ns, me) = (namespace(&channel.metadata), name(&channel.metadata));
    let Some(owner) = controller(&channel.metadata) else { return SenderPolicy::for_object(context, &[own]) };
    let is_listener = |plan: Result<plan::FlowPlan, String>| {
        plan.is_ok_and(|plan| plan.channels.first().is_some_and(|first| name(&first.metadata) == me))
    };
    match owner.kind.as_str() {
        "Channel" => match context.caches.channels.get(ns, &owner.name) {
            Some(whole) => SenderPolicy::for_object(context, &[own, PolicyTarget::of::<Channel>(&whole.metadata)]),
            None => SenderPolicy::for_object(context, &[own]),
        },
        "Sequence" => match context.caches.sequences.get(ns, &owner.name) {
            Some(flow) if is_listener(plan::sequence(&flow, &context.settings())) => {
                SenderPolicy::for_object(context, &[own, PolicyTarget::of::<Sequence>(&flow.metadata)])
            }
            _ => SenderPolicy::for_object(context, &[own]),
        },
        "Parallel" => match context.caches.parallels.get(ns, &owner.name) {
            Some(flow) if is_listener(plan::parallel(&flow, &context.settings())) => {
                SenderPolicy::for_object(context, &[own, PolicyTarget::of::<Parallel>(&flow.metadata)])
            }
            _ => SenderPolicy::for_object(context, &[own]),
        },
        _ => SenderPolicy::for_object(context, &[own]),
    }
}

/// The accounts of the flow that the channel is a part of: whatever policies say, its steps reach each other.
pub(super) fn own_accounts(context: &ControllerContext, channel: &InMemoryChannel) -> Vec<String> {
    let meta = &channel.metadata;
    let Some(owner) = controller(meta) else { return Vec::new() };
    let ns = namespace(meta);
    let plan = match owner.kind.as_str() {
        "Sequence" => context
            .caches
            .sequences
            .get(ns, &owner.name)
            .filter(|flow| is_controlled_by(meta, &flow.metadata))
            .map(|flow| plan::sequence(&flow, &context.settings())),
        "Parallel" => context
            .caches
            .parallels
            .get(ns, &owner.name)
            .filter(|flow| is_controlled_by(meta, &flow.metadata))
            .map(|flow| plan::parallel(&flow, &context.settings())),
        _ => None,
    };
    let subscriptions = plan.and_then(Result::ok).map(|plan| plan.subscriptions).unwrap_or_default();
    subscriptions.iter().map(|step| account_name::<Subscription>(name(&step.metadata))).collect()
}

/// Attaches the token of their Subscription's account to deliveries.
pub(super) fn attach_token(
    context: &ControllerContext,
    ns: &str,
    entry: &SubscriberSpec,
    spec: &mut publish::StreamSubscriberSpec,
) {
    let account = entry.auth.as_ref().and_then(|auth| auth.service_account_name.as_deref());
    let to = match entry.subscriber_uri {
        Some(_) => entry.subscriber_audience.as_deref(),
        None => entry.reply_audience.as_deref(),
    };
    context.access_tokens.attach(&mut spec.target, ns, account, to);
    if let ReplyTarget::Send(reply) = &mut spec.reply {
        context.access_tokens.attach(reply, ns, account, entry.reply_audience.as_deref());
    }
    let sink = entry.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    if let Some(target) = &mut spec.dead_letter {
        context.access_tokens.attach(target, ns, account, sink.and_then(|sink| sink.audience.as_deref()));
    }
}
