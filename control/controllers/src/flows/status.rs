//! Computes a flow's status: values in, values out.

use jiff::Timestamp;

use crate::flow_plan::uses;
use crate::sender_policy::SenderPolicy;
use types::conditions::ConditionManager;
use types::flows::parallel::{Parallel, ParallelBranchStatus, ParallelStatus};
use types::flows::sequence::{Sequence, SequenceStatus};
use types::flows::{
    ADDRESSABLE, CHANNELS_READY, CONDITIONS, EVENT_POLICIES_READY, FlowChannelStatus, FlowSubscriptionStatus,
    SUBSCRIPTIONS_READY,
};
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscription::Subscription;
use types::shared::{Addressable, AuthStatus, Condition, ConditionStatus, HasConditions, KReference, Status, name};

/// A flow's children in the order of its plan.
#[derive(Debug, Clone, Default)]
pub struct FlowChildren {
    pub channels: Vec<FlowChild<InMemoryChannel>>,
    pub subscriptions: Vec<FlowChild<Subscription>>,
    /// Why there can be none at all.
    pub error: Option<String>,
}

pub type FlowChild<K> = Result<K, MissingChild>;

/// A child that is not there, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingChild {
    name: String,
    reason: &'static str,
    message: String,
}

impl MissingChild {
    /// An object of that name exists and has another owner.
    #[must_use]
    pub fn not_owned<K: kube::Resource<DynamicType = ()>>(name: &str) -> Self {
        let kind = K::kind(&());
        let message =
            format!("There is an existing {kind} \"{name}\" that the flow does not own: rename or delete it.");
        Self { name: name.to_owned(), reason: "NotOwned", message }
    }

    /// The API takes none of that name, or none like it.
    #[must_use]
    pub fn rejected(name: &str, why: &str) -> Self {
        Self { name: name.to_owned(), reason: "ChildRejected", message: why.to_owned() }
    }
}

impl FlowChildren {
    /// A Subscription whose channels all belong to the flow: a channel of another owner would bring foreign events
    /// in, or leak the flow's events.
    pub fn checked(&self, wanted: Subscription) -> FlowChild<Subscription> {
        let missing = self.channels.iter().filter_map(|child| child.as_ref().err());
        let Some(MissingChild { name: channel, reason, .. }) =
            missing.into_iter().find(|channel| uses(&wanted, &channel.name))
        else {
            return Ok(wanted);
        };
        let name = name(&wanted.metadata).to_owned();
        let message = format!(
            "The Subscription \"{name}\" is not made, because the InMemoryChannel \"{channel}\" is not the flow's."
        );
        Err(MissingChild { name, reason, message })
    }
}

#[must_use]
pub fn sequence(sequence: &Sequence, made: &FlowChildren, rules: &SenderPolicy, now: Timestamp) -> SequenceStatus {
    let mut status = sequence.status.clone().unwrap_or_default();
    let generation = sequence.metadata.generation;
    status.base = common_status(std::mem::take(&mut status.base), generation, made, rules, now);
    (status.address, status.addresses) = addresses(made);
    status.auth = auth_status(made);
    status.policies = rules.applied_policies();
    status.channel_statuses = made.channels.iter().flatten().map(channel_status).collect();
    status.subscription_statuses = made.subscriptions.iter().flatten().map(subscription_status).collect();
    status
}

#[must_use]
pub fn parallel(parallel: &Parallel, made: &FlowChildren, rules: &SenderPolicy, now: Timestamp) -> ParallelStatus {
    let mut status = parallel.status.clone().unwrap_or_default();
    let generation = parallel.metadata.generation;
    status.base = common_status(std::mem::take(&mut status.base), generation, made, rules, now);
    (status.address, status.addresses) = addresses(made);
    status.auth = auth_status(made);
    status.policies = rules.applied_policies();
    status.ingress_channel_status = first(made).map(channel_status);
    let reported = |child: Option<&FlowChild<Subscription>>| {
        child.and_then(|child| child.as_ref().ok()).map(subscription_status).unwrap_or_default()
    };
    let branches = made.channels.iter().skip(1).zip(made.subscriptions.chunks(2));
    let branch = |(channel, pair): (&FlowChild<InMemoryChannel>, &[FlowChild<Subscription>])| ParallelBranchStatus {
        filter_subscription_status: reported(pair.first()),
        filter_channel_status: channel.as_ref().map(channel_status).unwrap_or_default(),
        subscriber_subscription_status: reported(pair.get(1)),
    };
    status.branch_statuses = branches.map(branch).collect();
    status
}

fn common_status(
    base: Status,
    generation: Option<i64>,
    made: &FlowChildren,
    rules: &SenderPolicy,
    now: Timestamp,
) -> Status {
    let mut conditions = CONDITIONS.manage(&base.conditions, now);
    if let Some(why) = &made.error {
        for part in [CHANNELS_READY, SUBSCRIPTIONS_READY, ADDRESSABLE] {
            conditions.mark_false(part, "ChannelTemplateNotServed", why);
        }
    } else {
        mark_children(&mut conditions, CHANNELS_READY, "ChannelsNotReady", &made.channels);
        mark_children(&mut conditions, SUBSCRIPTIONS_READY, "SubscriptionsNotReady", &made.subscriptions);
        if address(made).is_some() {
            conditions.mark_true(ADDRESSABLE);
        } else {
            conditions.mark_unknown(ADDRESSABLE, "EmptyAddress", "The first channel has no address yet.");
        }
    }
    rules.mark(&mut conditions, EVENT_POLICIES_READY);
    let conditions = conditions.finish();
    Status { observed_generation: generation, conditions, annotations: base.annotations }
}

/// Ready when all children are; the first of the worst decides.
fn mark_children<K: HasConditions>(
    conditions: &mut ConditionManager<'_>,
    kind: &str,
    reason: &str,
    children: &[FlowChild<K>],
) {
    let children = match children.iter().map(Result::as_ref).collect::<Result<Vec<_>, _>>() {
        Ok(children) => children,
        Err(missing) => return conditions.mark_false(kind, missing.reason, &missing.message),
    };
    let verdict = |child: &&&K| child.ready().map(|ready| ready.status).unwrap_or_default();
    let reported = |child: &K| {
        let message = child.ready().map(|ready| ready.message.clone()).unwrap_or_default();
        format!("\"{}\" is not ready: {message}", name(child.meta()))
    };
    if let Some(failed) = children.iter().find(|child| verdict(child) == ConditionStatus::False) {
        conditions.mark_false(kind, reason, &reported(failed));
    } else if let Some(waiting) = children.iter().find(|child| verdict(child) == ConditionStatus::Unknown) {
        conditions.mark_unknown(kind, reason, &reported(waiting));
    } else {
        conditions.mark_true(kind);
    }
}

/// Events enter at the first channel.
fn address(made: &FlowChildren) -> Option<Addressable> {
    first(made)?.status.as_ref()?.address.clone()
}

fn first(made: &FlowChildren) -> Option<&InMemoryChannel> {
    made.channels.first()?.as_ref().ok()
}

/// ... whose audience is reported too, as upstream does; the flow's own is accepted as well.
fn addresses(made: &FlowChildren) -> (Option<Addressable>, Vec<Addressable>) {
    let status = first(made).and_then(|channel| channel.status.as_ref());
    (address(made), status.map(|status| status.addresses.clone()).unwrap_or_default())
}

/// A flow sends as its Subscriptions do; policies that let it in by reference look here.
fn auth_status(made: &FlowChildren) -> Option<AuthStatus> {
    let sent = made.subscriptions.iter().flatten().filter_map(|child| child.status.as_ref()?.auth.as_ref());
    let names: Vec<_> = sent.filter_map(|auth| auth.service_account_name.clone()).collect();
    (!names.is_empty()).then_some(AuthStatus { service_account_name: None, service_account_names: names })
}

fn channel_status(channel: &InMemoryChannel) -> FlowChannelStatus {
    FlowChannelStatus { channel: reference(channel), ready: ready(channel) }
}

fn subscription_status(subscription: &Subscription) -> FlowSubscriptionStatus {
    FlowSubscriptionStatus { subscription: reference(subscription), ready: ready(subscription) }
}

fn ready<K: HasConditions>(child: &K) -> Option<Condition> {
    child.ready().cloned()
}

fn reference<K: kube::Resource<DynamicType = ()>>(child: &K) -> KReference {
    KReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: name(child.meta()).to_owned(),
        namespace: child.meta().namespace.clone(),
        ..KReference::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use types::flows::parallel::ParallelSpec;
    use types::flows::sequence::SequenceSpec;

    fn channel(ready: &str) -> FlowChild<InMemoryChannel> {
        let condition = json!({"type": "Ready", "status": ready, "message": "why"});
        let channel = json!({
            "metadata": {"name": "c", "namespace": "ns"},
            "status": {"conditions": [condition], "address": {"url": "http://h/channels/ns/c"}},
        });
        Ok(serde_json::from_value(channel).unwrap())
    }

    fn subscription(ready: &str) -> FlowChild<Subscription> {
        let condition = json!({"type": "Ready", "status": ready, "message": "why"});
        let subscription = json!({"metadata": {"name": "s"}, "status": {"conditions": [condition]}});
        Ok(serde_json::from_value(subscription).unwrap())
    }

    fn of(made: FlowChildren) -> SequenceStatus {
        let flow = Sequence::new("ns", "f", SequenceSpec::default());
        sequence(&flow, &made, &SenderPolicy::default(), Timestamp::from_second(1).unwrap())
    }

    /// X-FEA-07: receivers of a flow's events find the accounts that may send them.
    #[test]
    fn a_flow_tells_the_accounts_of_its_subscriptions() {
        let sends = |account: &str| {
            let mut child = subscription("True").unwrap();
            child.status.as_mut().unwrap().auth = Some(AuthStatus::of(account.to_owned()));
            Ok(child)
        };
        let foreign = Err(MissingChild::not_owned::<Subscription>("s"));
        let subscriptions = vec![sends("a"), subscription("True"), foreign, sends("b")];
        let made = FlowChildren { subscriptions, ..FlowChildren::default() };
        let reported = AuthStatus { service_account_name: None, service_account_names: vec!["a".into(), "b".into()] };
        assert_eq!(of(made.clone()).auth, Some(reported.clone()));
        let branches = Parallel::new("ns", "f", ParallelSpec::default());
        let now = Timestamp::from_second(1).unwrap();
        assert_eq!(parallel(&branches, &made, &SenderPolicy::default(), now).auth, Some(reported));
        assert_eq!(of(FlowChildren::default()).auth, None, "no account is asked for");
    }

    #[test]
    fn a_flow_is_as_ready_as_its_worst_child() {
        let foreign = MissingChild::not_owned::<Subscription>("s");
        for (channels, subscriptions, verdict, reason) in [
            (vec![channel("True"), channel("True")], vec![subscription("True")], ConditionStatus::True, ""),
            (
                vec![channel("True"), channel("False")],
                vec![subscription("True")],
                ConditionStatus::False,
                "ChannelsNotReady",
            ),
            (vec![channel("True")], vec![subscription("Unknown")], ConditionStatus::Unknown, "SubscriptionsNotReady"),
            (vec![channel("True")], vec![subscription("Unknown"), Err(foreign)], ConditionStatus::False, "NotOwned"),
        ] {
            let status = of(FlowChildren { channels, subscriptions, error: None });
            let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str()), (verdict, reason));
            assert_eq!(status.address.unwrap().url.unwrap(), "http://h/channels/ns/c");
        }
        let status = of(FlowChildren { error: Some("no".into()), ..FlowChildren::default() });
        let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "ChannelTemplateNotServed"));
    }

    /// COND-06: a person finds what is in the way.
    #[test]
    fn what_stands_in_the_way_is_named() {
        let channels = vec![channel("True"), Err(MissingChild::not_owned::<InMemoryChannel>("f-kn-sequence-1"))];
        let joined = |made: &FlowChildren, reads: &str, reply: &str| {
            let spec = json!({"channel": {"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel",
                                          "name": reads},
                              "reply": {"ref": {"apiVersion": "messaging.knative.dev/v1",
                                                "kind": "InMemoryChannel", "name": reply}}});
            let wanted = json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": spec});
            made.checked(serde_json::from_value(wanted).unwrap())
        };
        let mut made = FlowChildren { channels, ..FlowChildren::default() };
        for (reads, reply, is_made) in [
            ("f-kn-sequence-0", "f-kn-sequence-1", false),
            ("f-kn-sequence-1", "f-kn-sequence-2", false),
            ("f-kn-sequence-2", "elsewhere", true),
        ] {
            let child = joined(&made, reads, reply);
            assert_eq!(child.is_ok(), is_made, "{reads} {reply}");
            made.subscriptions.push(child);
        }
        let conditions = of(made).base.conditions;
        for kind in [CHANNELS_READY, SUBSCRIPTIONS_READY] {
            let reported = conditions.iter().find(|c| c.kind == kind).unwrap();
            assert_eq!((reported.status, reported.reason.as_str()), (ConditionStatus::False, "NotOwned"), "{kind}");
            assert!(reported.message.contains("InMemoryChannel \"f-kn-sequence-1\""), "{}", reported.message);
        }
    }
}
