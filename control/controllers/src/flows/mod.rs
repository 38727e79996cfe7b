//! Sequence and Parallel: maintain their own channels and Subscriptions as the spec requires.

pub mod status;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions};

use crate::api::is_kind_not_found;
use crate::api::{Error, NamespacedObject, now};
use crate::backing_channel::KIND_NOT_SERVED;
use crate::caches::CachedKind;
use crate::channel_subscribers::subscribers_of_channel;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::flow_plan::{self as plan, FlowPlan};
use crate::informer_cache::InformerCache;
use crate::names::channel_path;
use crate::owned_child::apply;
use crate::owned_child::{decide, keep_foreign_metadata};
use crate::sender_policy::{self, SenderPolicy};
use crate::work_queue::{ControllerKind, WorkItem};

use status::{FlowChild, FlowChildren, MissingChild};
use types::eventing::event_policy::PolicyTarget;
use types::flows::parallel::Parallel;
use types::flows::sequence::Sequence;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscription::Subscription;
use types::shared::{HasConditions, controller, is_controlled_by, name, namespace};

/// How often a flow is checked that has a channel on its way out.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

const SEQUENCE: ControllerKind = ControllerKind::new("Sequence");
const PARALLEL: ControllerKind = ControllerKind::new("Parallel");

#[derive(Debug)]
pub struct SequenceController;

impl Controller for SequenceController {
    fn kind(&self) -> ControllerKind {
        SEQUENCE
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watch::<Sequence>(context, watches, SEQUENCE);
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile_sequence(context, item))
    }
}

#[derive(Debug)]
pub struct ParallelController;

impl Controller for ParallelController {
    fn kind(&self) -> ControllerKind {
        PARALLEL
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watch::<Parallel>(context, watches, PARALLEL);
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile_parallel(context, item))
    }
}

/// The flows of one kind depend on their channels, their Subscriptions and the policies of their namespace.
fn watch<'a, K: CachedKind>(context: &'a ControllerContext, watches: &mut Watches<'a>, kind: ControllerKind) {
    watches.primary::<K>(kind);
    let owner = move |meta: &ObjectMeta| owner_of(meta).filter(|item| item.kind == kind);
    watches.enqueue::<InMemoryChannel, _>(move |change| newest(change).and_then(|channel| owner(&channel.metadata)));
    watches.enqueue::<Subscription, _>(move |change| newest(change).and_then(|reader| owner(&reader.metadata)));
    sender_policy::watch::<K>(context, watches, kind);
}

/// The flow that a channel or Subscription belongs to, or that may wait for its name.
fn owner_of(meta: &ObjectMeta) -> Option<WorkItem> {
    let ns = namespace(meta);
    let of_kind = |kind: ControllerKind, flow: &str| Some(WorkItem::new(kind, ns, flow));
    match controller(meta) {
        Some(owner) if owner.kind == "Sequence" => of_kind(SEQUENCE, &owner.name),
        Some(owner) if owner.kind == "Parallel" => of_kind(PARALLEL, &owner.name),
        _ => {
            let by = |infix: &str| name(meta).rsplit_once(infix).map(|(flow, _)| flow);
            by(plan::SEQUENCE)
                .and_then(|flow| of_kind(SEQUENCE, flow))
                .or_else(|| by(plan::PARALLEL).and_then(|flow| of_kind(PARALLEL, flow)))
        }
    }
}

async fn reconcile_sequence(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(sequence) = context.caches.sequences.get(&item.namespace, &item.name) else { return Ok(()) };
    if sequence.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let plan = plan::sequence(&sequence, &context.settings());
    let (made, missing) = reconcile_children(context, item, &sequence.metadata, plan).await?;
    let rules = SenderPolicy::for_object(context, &[PolicyTarget::of::<Sequence>(&sequence.metadata)]);
    let mut after = (*sequence).clone();
    after.status = Some(status::sequence(&sequence, &made, &rules, now()));
    context.set_status(&*sequence, &after).await?;
    missing.map_or(Ok(()), |why| Err(why.into()))
}

async fn reconcile_parallel(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(parallel) = context.caches.parallels.get(&item.namespace, &item.name) else { return Ok(()) };
    if parallel.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let plan = plan::parallel(&parallel, &context.settings());
    let (made, missing) = reconcile_children(context, item, &parallel.metadata, plan).await?;
    let rules = SenderPolicy::for_object(context, &[PolicyTarget::of::<Parallel>(&parallel.metadata)]);
    let mut after = (*parallel).clone();
    after.status = Some(status::parallel(&parallel, &made, &rules, now()));
    context.set_status(&*parallel, &after).await?;
    missing.map_or(Ok(()), |why| Err(why.into()))
}

/// Makes the children what the plan says. What the plan does not name any more is deleted, a channel when its events have come to
/// their end. Where the cluster lacks their kind, that is what is made, and the failure comes along: it is to be tried again.
async fn reconcile_children(
    context: &ControllerContext,
    item: &WorkItem,
    owner: &ObjectMeta,
    plan: Result<FlowPlan, String>,
) -> Result<(FlowChildren, Option<kube::Error>), Error> {
    let impossible = |why: String| FlowChildren { error: Some(why), ..FlowChildren::default() };
    let plan = match plan {
        Ok(plan) => plan,
        Err(why) => return Ok((impossible(why), None)),
    };
    let ns = namespace(owner);
    let leaving = unwanted_children(owner, &context.caches.in_memory_channels, &plan.channels);
    for left in unwanted_children(owner, &context.caches.subscriptions, &plan.subscriptions) {
        if !leaving.iter().any(|channel| is_subscribed_to(&left, channel)) {
            delete(context, &*left).await?;
        }
    }
    let mut made = FlowChildren::default();
    for mut wanted in plan.channels {
        let own = name(&wanted.metadata).to_owned();
        let existing = context.caches.in_memory_channels.get(ns, &own);
        keep_foreign_metadata(&mut wanted.metadata, existing.as_ref().map(|existing| &existing.metadata), &[]);
        // The subscribers in the spec belong to the channel's own controller.
        let take = |to: &mut InMemoryChannel, from: InMemoryChannel| to.spec.delivery = from.spec.delivery;
        match apply(context, decide(owner, existing.as_deref(), wanted, take)).await {
            Err(Error::Api(why)) if is_kind_not_found(&why) => {
                return Ok((impossible(KIND_NOT_SERVED.into()), Some(why)));
            }
            settled => made.channels.push(to_flow_child(&own, settled)?),
        }
    }
    let wanted: Vec<FlowChild<_>> = plan.subscriptions.into_iter().map(|wanted| made.checked(wanted)).collect();
    if wanted.iter().any(Result::is_err) {
        let joined: Vec<_> = wanted.iter().flatten().cloned().collect();
        for missing in unwanted_children(owner, &context.caches.subscriptions, &joined) {
            if !leaving.iter().any(|channel| is_subscribed_to(&missing, channel)) {
                delete(context, &*missing).await?;
            }
        }
    }
    made.subscriptions = connect_subscriptions(context, owner, &made, wanted).await?;
    let is_led_on = made.subscriptions.iter().all(|one| one.as_ref().is_ok_and(HasConditions::is_ready));
    for channel in leaving {
        if !is_led_on || !drain_channel(context, &channel).await? {
            context.queue.add_after_unless_sooner(item, DRAIN_POLL_INTERVAL);
        }
    }
    Ok((made, None))
}

fn is_subscribed_to(subscription: &Subscription, channel: &InMemoryChannel) -> bool {
    subscription.spec.channel.name == name(&channel.metadata)
}

/// Deletes a channel without senders, and its Subscriptions, if all its events have ended.
async fn drain_channel(context: &ControllerContext, channel: &InMemoryChannel) -> Result<bool, Error> {
    let (ns, own) = (namespace(&channel.metadata), name(&channel.metadata));
    if !context.publisher.cores_running() || context.publisher.pending_events(&channel_path(ns, own)) > 0 {
        return Ok(false);
    }
    let flow = controller(&channel.metadata);
    for reader in subscribers_of_channel(context, ns, own) {
        if controller(&reader.metadata).map(|flow| &flow.uid) == flow.map(|flow| &flow.uid) {
            delete(context, &*reader).await?;
        }
    }
    delete(context, channel).await?;
    Ok(true)
}

/// From the end to the beginning: a sender is switched to a channel of the flow only when all behind it is
/// ready. Events that came there sooner would have no subscriber.
async fn connect_subscriptions(
    context: &ControllerContext,
    owner: &ObjectMeta,
    made: &FlowChildren,
    wanted: Vec<FlowChild<Subscription>>,
) -> Result<Vec<FlowChild<Subscription>>, Error> {
    let channels: HashSet<&str> = made.channels.iter().flatten().map(|c| name(&c.metadata)).collect();
    let mut served = HashSet::new();
    let mut joined = Vec::with_capacity(wanted.len());
    for wanted in wanted.into_iter().rev() {
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(missing) => {
                joined.push(Err(missing));
                continue;
            }
        };
        let awaited: Vec<_> = plan::target_channels(&wanted)
            .filter(|to| channels.contains(to) && !served.contains(*to))
            .map(str::to_owned)
            .collect();
        let leads_elsewhere =
            |before: &Subscription| awaited.iter().any(|to| plan::target_channels(before).all(|known| known != to));
        let existing = context.caches.subscriptions.get(namespace(owner), name(&wanted.metadata));
        let channel = wanted.spec.channel.name.clone();
        let child = match existing {
            Some(before) if is_controlled_by(&before.metadata, owner) && leads_elsewhere(&before) => {
                Ok((*before).clone())
            }
            _ => apply_subscription(context, owner, wanted).await?,
        };
        if awaited.is_empty() && child.as_ref().is_ok_and(HasConditions::is_ready) {
            served.insert(channel);
        }
        joined.push(child);
    }
    joined.reverse();
    Ok(joined)
}

async fn apply_subscription(
    context: &ControllerContext,
    owner: &ObjectMeta,
    mut wanted: Subscription,
) -> Result<FlowChild<Subscription>, Error> {
    let own = name(&wanted.metadata).to_owned();
    let existing = context.caches.subscriptions.get(namespace(owner), &own);
    keep_foreign_metadata(&mut wanted.metadata, existing.as_ref().map(|existing| &existing.metadata), &[]);
    let take = |to: &mut Subscription, from: Subscription| to.spec = from.spec;
    to_flow_child(&own, apply(context, decide(owner, existing.as_deref(), wanted, take)).await)
}

/// A child as its flow shows it. What the API refuses in one, say a name that is too long, stays so for as long as the flow
/// stays as it is: that is reported, and not retried as a failure.
fn to_flow_child<K: NamespacedObject>(own: &str, settled: Result<Option<K>, Error>) -> Result<FlowChild<K>, Error> {
    match settled {
        Ok(Some(child)) => Ok(Ok(child)),
        Ok(None) => Ok(Err(MissingChild::not_owned::<K>(own))),
        Err(Error::Api(kube::Error::Api(refused))) if refused.is_invalid() => {
            Ok(Err(MissingChild::rejected(own, &refused.message)))
        }
        Err(why) => Err(why),
    }
}

/// The children that are not `wanted`.
fn unwanted_children<K: NamespacedObject>(owner: &ObjectMeta, cache: &InformerCache<K>, wanted: &[K]) -> Vec<Arc<K>> {
    let mut all = cache.list(namespace(owner));
    all.retain(|child| {
        let meta = child.meta();
        is_controlled_by(meta, owner) && !wanted.iter().any(|wanted| wanted.meta().name == meta.name)
    });
    all
}

async fn delete<K: NamespacedObject>(context: &ControllerContext, child: &K) -> Result<(), Error> {
    let meta = child.meta();
    context.leadership.check()?;
    let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match context.api::<K>(namespace(meta)).delete(name(meta), &parameters).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}
