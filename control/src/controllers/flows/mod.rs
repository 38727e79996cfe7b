//! Sequence and Parallel: channels and Subscriptions of their own, kept as the spec wants them.

pub mod plan;
pub mod status;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions};

use super::cache::{Cache, Change};
use super::channel::NO_BACKING;
use super::policies::Rules;
use super::queue::{Item, Kind};
use super::service::reconcile::{decide, leave_others};
use super::service::settle;
use super::world::{Error, Object, World, now};
use super::{in_memory_channel, lacks_kind, subscription};
use crate::kinds::eventing::event_policy::Protected;
use crate::kinds::flows::parallel::Parallel;
use crate::kinds::flows::sequence::Sequence;
use crate::kinds::messaging::in_memory_channel::InMemoryChannel;
use crate::kinds::messaging::subscription::Subscription;
use crate::kinds::shared::{HasConditions, controller, is_controlled_by, name, namespace};
use plan::Plan;
use status::{Child, Made, Missing};

/// How often a flow is looked at that has a channel on its way out.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The flow that a channel or Subscription belongs to, or that may wait for its name.
pub fn owner_of(meta: &ObjectMeta) -> Option<Item> {
    let ns = namespace(meta);
    let of_kind = |kind: Kind, flow: &str| Some(Item::new(kind, ns, flow));
    match controller(meta) {
        Some(owner) if owner.kind == "Sequence" => of_kind(Kind::Sequence, &owner.name),
        Some(owner) if owner.kind == "Parallel" => of_kind(Kind::Parallel, &owner.name),
        _ => {
            let by = |infix: &str| name(meta).rsplit_once(infix).map(|(flow, _)| flow);
            by(plan::SEQUENCE)
                .and_then(|flow| of_kind(Kind::Sequence, flow))
                .or_else(|| by(plan::PARALLEL).and_then(|flow| of_kind(Kind::Parallel, flow)))
        }
    }
}

/// The channels of a flow that has changed: who may send to them follows from it.
pub fn channels<K: kube::Resource>(world: &World, (before, after): Change<'_, K>) -> Vec<Item> {
    let Some(flow) = after.or(before).map(|flow| flow.meta()) else { return Vec::new() };
    let all = world.in_memory_channels.list(namespace(flow));
    let of_it = all.iter().filter(|channel| is_controlled_by(&channel.metadata, flow));
    of_it.map(|c| Item::new(Kind::InMemoryChannel, namespace(flow), name(&c.metadata))).collect()
}

pub async fn reconcile_sequence(world: &World, item: &Item) -> Result<(), Error> {
    let Some(sequence) = world.sequences.get(&item.namespace, &item.name) else { return Ok(()) };
    if sequence.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let plan = plan::sequence(&sequence, &world.settings());
    let (made, missing) = keep(world, item, &sequence.metadata, plan).await?;
    let rules = Rules::of(world, &[Protected::of::<Sequence>(&sequence.metadata)]);
    let mut after = (*sequence).clone();
    after.status = Some(status::sequence(&sequence, &made, &rules, now()));
    world.set_status(&*sequence, &after).await?;
    missing.map_or(Ok(()), |why| Err(why.into()))
}

pub async fn reconcile_parallel(world: &World, item: &Item) -> Result<(), Error> {
    let Some(parallel) = world.parallels.get(&item.namespace, &item.name) else { return Ok(()) };
    if parallel.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let plan = plan::parallel(&parallel, &world.settings());
    let (made, missing) = keep(world, item, &parallel.metadata, plan).await?;
    let rules = Rules::of(world, &[Protected::of::<Parallel>(&parallel.metadata)]);
    let mut after = (*parallel).clone();
    after.status = Some(status::parallel(&parallel, &made, &rules, now()));
    world.set_status(&*parallel, &after).await?;
    missing.map_or(Ok(()), |why| Err(why.into()))
}

/// Makes the children what the plan says. What the plan does not name any more is deleted, a channel when its events have come to
/// their end. Where the cluster lacks their kind, that is what is made, and the failure comes along: it is to be tried again.
async fn keep(
    world: &World,
    item: &Item,
    owner: &ObjectMeta,
    plan: Result<Plan, String>,
) -> Result<(Made, Option<kube::Error>), Error> {
    let impossible = |why: String| Made { impossible: Some(why), ..Made::default() };
    let plan = match plan {
        Ok(plan) => plan,
        Err(why) => return Ok((impossible(why), None)),
    };
    let ns = namespace(owner);
    let leaving = children(owner, &world.in_memory_channels, &plan.channels);
    for left in children(owner, &world.subscriptions, &plan.subscriptions) {
        if !leaving.iter().any(|channel| reads(&left, channel)) {
            delete(world, &*left).await?;
        }
    }
    let mut made = Made::default();
    for mut wanted in plan.channels {
        let own = name(&wanted.metadata).to_owned();
        let existing = world.in_memory_channels.get(ns, &own);
        leave_others(&mut wanted.metadata, existing.as_ref().map(|existing| &existing.metadata), &[]);
        // The subscribers in the spec belong to the channel's own controller.
        let take = |to: &mut InMemoryChannel, from: InMemoryChannel| to.spec.delivery = from.spec.delivery;
        match settle(world, decide(owner, existing.as_deref(), wanted, take)).await {
            Err(Error::Api(why)) if lacks_kind(&why) => {
                return Ok((impossible(NO_BACKING.into()), Some(why)));
            }
            settled => made.channels.push(child(&own, settled)?),
        }
    }
    let wanted: Vec<Child<_>> = plan.subscriptions.into_iter().map(|wanted| made.joined(wanted)).collect();
    if wanted.iter().any(Result::is_err) {
        let joined: Vec<_> = wanted.iter().flatten().cloned().collect();
        for missing in children(owner, &world.subscriptions, &joined) {
            if !leaving.iter().any(|channel| reads(&missing, channel)) {
                delete(world, &*missing).await?;
            }
        }
    }
    made.subscriptions = join(world, owner, &made, wanted).await?;
    let is_led_on = made.subscriptions.iter().all(|one| one.as_ref().is_ok_and(HasConditions::is_ready));
    for channel in leaving {
        if !is_led_on || !take_leave(world, &channel).await? {
            world.queue.add_within(item, LOOK_EVERY);
        }
    }
    Ok((made, None))
}

fn reads(subscription: &Subscription, channel: &InMemoryChannel) -> bool {
    subscription.spec.channel.name == name(&channel.metadata)
}

/// Deletes a channel to which nothing is sent any more, and who reads it, if all its events have come to their end.
async fn take_leave(world: &World, channel: &InMemoryChannel) -> Result<bool, Error> {
    let (ns, own) = (namespace(&channel.metadata), name(&channel.metadata));
    if !world.publisher.has_cores() || world.publisher.pending(&in_memory_channel::path(ns, own)) > 0 {
        return Ok(false);
    }
    let flow = controller(&channel.metadata);
    for reader in subscription::reading(world, ns, own) {
        if controller(&reader.metadata).map(|flow| &flow.uid) == flow.map(|flow| &flow.uid) {
            delete(world, &*reader).await?;
        }
    }
    delete(world, channel).await?;
    Ok(true)
}

/// From the end to the beginning: who sends elsewhere so far is led into a channel of the flow only when all behind it is
/// ready. What came there sooner would be nobody's.
async fn join(
    world: &World,
    owner: &ObjectMeta,
    made: &Made,
    wanted: Vec<Child<Subscription>>,
) -> Result<Vec<Child<Subscription>>, Error> {
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
        let awaited: Vec<_> = plan::sent_to(&wanted)
            .filter(|to| channels.contains(to) && !served.contains(*to))
            .map(str::to_owned)
            .collect();
        let leads_elsewhere =
            |before: &Subscription| awaited.iter().any(|to| plan::sent_to(before).all(|known| known != to));
        let existing = world.subscriptions.get(namespace(owner), name(&wanted.metadata));
        let channel = wanted.spec.channel.name.clone();
        let child = match existing {
            Some(before) if is_controlled_by(&before.metadata, owner) && leads_elsewhere(&before) => {
                Ok((*before).clone())
            }
            _ => subscribe(world, owner, wanted).await?,
        };
        if awaited.is_empty() && child.as_ref().is_ok_and(HasConditions::is_ready) {
            served.insert(channel);
        }
        joined.push(child);
    }
    joined.reverse();
    Ok(joined)
}

async fn subscribe(
    world: &World,
    owner: &ObjectMeta,
    mut wanted: Subscription,
) -> Result<Child<Subscription>, Error> {
    let own = name(&wanted.metadata).to_owned();
    let existing = world.subscriptions.get(namespace(owner), &own);
    leave_others(&mut wanted.metadata, existing.as_ref().map(|existing| &existing.metadata), &[]);
    let take = |to: &mut Subscription, from: Subscription| to.spec = from.spec;
    child(&own, settle(world, decide(owner, existing.as_deref(), wanted, take)).await)
}

/// A child as its flow shows it. What the API refuses in one, say a name that is too long, stays so for as long as the flow
/// stays as it is: that is told, and no failure to try again.
fn child<K: Object>(own: &str, settled: Result<Option<K>, Error>) -> Result<Child<K>, Error> {
    match settled {
        Ok(Some(child)) => Ok(Ok(child)),
        Ok(None) => Ok(Err(Missing::foreign::<K>(own))),
        Err(Error::Api(kube::Error::Api(refused))) if refused.is_invalid() => {
            Ok(Err(Missing::refused(own, &refused.message)))
        }
        Err(why) => Err(why),
    }
}

/// The children that are not `wanted`.
fn children<K: Object>(owner: &ObjectMeta, cache: &Cache<K>, wanted: &[K]) -> Vec<Arc<K>> {
    let mut all = cache.list(namespace(owner));
    all.retain(|child| {
        let meta = child.meta();
        is_controlled_by(meta, owner) && !wanted.iter().any(|wanted| wanted.meta().name == meta.name)
    });
    all
}

async fn delete<K: Object>(world: &World, child: &K) -> Result<(), Error> {
    let meta = child.meta();
    world.duty.check()?;
    let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match world.api::<K>(namespace(meta)).delete(name(meta), &parameters).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}
