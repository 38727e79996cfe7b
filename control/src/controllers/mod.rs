//! The controllers: what the objects say is made true, and the objects are told how it went.
//!
//! Each kind has a folder: wiring in `mod.rs`, verdicts as values in `reconcile.rs`, children where it has
//! some. All share one [`World`] and one queue. Level-triggered: a look at an object starts from what is
//! there, so any look may be missed as long as a later one comes. The same code runs over the in-process
//! client and over a cluster's.

pub mod addresses;
pub mod broker;
pub mod cache;
pub mod certificate;
pub mod channel;
mod clock_steps;
pub mod configuration;
pub mod core_names;
pub mod domain_mapping;
mod drops;
pub mod duty;
pub mod event_policy;
pub mod event_type;
pub mod flows;
mod guests;
pub mod identity;
pub mod in_memory_channel;
pub mod ingress;
pub mod keys;
pub mod last_known;
pub mod managers;
pub mod messaging;
pub mod passes;
pub mod pods;
pub mod policies;
pub mod queue;
pub mod reference;
pub mod resolve;
mod rest;
pub mod revision;
pub mod route;
pub mod service;
pub mod settings;
pub mod sink;
pub mod sources;
pub mod subscription;
pub mod sugar;
pub mod trigger;
pub mod trusts;
pub mod world;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dataplane::events::relay::Ways;
use dataplane::target_policy::TargetPolicy;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

use crate::clock::WallClock;
use crate::expiry::Expiries;
use crate::fleet::Fleet;
use crate::kinds::serving::route::Route;
use crate::kinds::serving::traffic::TrafficTarget;
use crate::kinds::shared::{HasConditions as _, name, namespace};
use crate::kinds::sources::binding::Runs;
use crate::publish::{Publisher, QuotaRules};
use crate::store::Store;
pub use addresses::EventsTls;
use cache::{Cache, Change, follow};
use queue::{Item, Kind};
use world::{Error, Object, World};

/// Objects in work at once. They wait for durable writes most of the time, and writes that wait together
/// share a commit.
const WORKERS: usize = 32;
/// Until the instances of a ready Revision are shown: a request that wakes one has its answer by then, if the program starts
/// quickly; two processors have nothing else to do meanwhile, and what is written is that it is ready, instead of first that it starts.
const SHOWN_AFTER: Duration = Duration::from_millis(25);

/// Sleepers that a start has open at once, at 4 KiB each: enough for all processors to have their part.
const OPENED_AT_ONCE: usize = 1024;

/// Something that runs as long as the controllers.
type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What the controllers have to know of the program.
#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// `localhost`
    pub domain: String,
    /// The port that URLs name.
    pub http_port: u16,
    /// `http://127.0.0.1:8081`
    pub events_url_base: String,
    /// Where events are taken in by TLS, if anywhere.
    pub events_tls: Option<EventsTls>,
    /// Where requests are taken in, for statuses.
    pub listeners: ingress::Listeners,
    /// Image references and the commands that stand for them here.
    pub images: Vec<(String, Vec<String>)>,
    pub instances: revision::policy::InstanceRules,
    /// Instances see the host's `/dev`, and have none of their own.
    pub host_devices: bool,
    pub quotas: QuotaRules,
    /// Which addresses objects may name as targets.
    pub targets: Arc<TargetPolicy>,
    /// By which tokens end.
    pub clock: WallClock,
    /// Instances are shown as Pods: in an API of our own, not in a cluster's.
    pub shows_pods: bool,
    /// Who we are among the appliances that follow one API server; `None`: the API is our own.
    pub holder: Option<String>,
    /// Where the objects are, if the API is our own.
    pub store: Weak<Store>,
    /// What the events of PingSources come to.
    pub pings: Arc<sources::Tally>,
    /// Told when certificates of Secrets and trust bundles expire.
    pub expiries: Arc<Expiries>,
    /// By these the cores send them, once they run.
    pub ways: Arc<OnceLock<Ways>>,
}

/// Runs the controllers until `stop`. `synced` is told once a first table holds everything that was
/// stored (APP-16); ports may accept from then on.
pub async fn run(
    config: ControlConfig,
    client: Client,
    fleet: Fleet,
    publisher: Arc<Publisher>,
    synced: oneshot::Sender<()>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let world = World::new(config, client, fleet, publisher);
    if world.config.holder.is_some() {
        guests::fill_in(&world);
    }
    restore(&world).await?;
    if world.config.holder.is_none()
        && let Err(why) = duty::hold_for_good(&world).await
    {
        tracing::warn!(%why, "the Lease could not be written; who follows this API may write beside it");
    }
    if world.config.shows_pods
        && let Err(why) = ingress::gateway::show(&world).await
    {
        tracing::warn!(%why, "the listeners' Services in knative-serving could not be written");
    }
    let _ = synced.send(()); // nobody may care
    let mut tasks: FuturesUnordered<Task<'_>> = FuturesUnordered::new();
    let all = watches(&world)
        .into_iter()
        .chain(messaging::watches(&world))
        .chain(settings::watches(&world))
        .chain(ingress::watches(&world))
        .chain(domain_mapping::watches(&world))
        .chain(certificate::watches(&world))
        .chain(core_names::watches(&world))
        .chain(sources::watches(&world));
    for task in all {
        tasks.push(task);
    }
    if world.config.shows_pods {
        tasks.push(Box::pin(follow(world.all(), &world.pods, |change| pods::changed(&world, change))));
        tasks.push(Box::pin(follow(world.all(), &world.deployments, |change| {
            pods::deployment_changed(&world, change);
        })));
    }
    tasks.push(Box::pin(hear_fleet(&world)));
    tasks.push(Box::pin(configuration::sweep_in_time(&world)));
    tasks.push(Box::pin(drops::tell(&world)));
    tasks.push(Box::pin(broker::drain::tend(&world)));
    tasks.push(Box::pin(event_type::auto_create::tend(&world)));
    tasks.push(Box::pin(keys::tend(&world)));
    tasks.push(Box::pin(passes::tend(&world)));
    tasks.push(Box::pin(clock_steps::tend(&world)));
    tasks.push(Box::pin(sugar::tend(&world)));
    tasks.push(Box::pin(rest::tend(&world)));
    if let Some(me) = &world.config.holder {
        tasks.push(Box::pin(duty::keep(&world, me)));
    }
    for _ in 0..WORKERS {
        tasks.push(Box::pin(work(&world)));
    }
    tokio::select! {
        () = stop => {}
        _ = tasks.next() => {} // none of them ends by itself
    }
    drop(tasks);
    if world.config.holder.is_some() {
        duty::leave(&world).await;
    }
    Ok(())
}

/// Puts back what the last statuses say, so that traffic flows by them before anything is looked at.
async fn restore(world: &World) -> Result<(), Error> {
    settings::restore(world).await?;
    if world.settings().event_features.authenticates()
        && let Err(why) = keys::fetch(world).await
    {
        tracing::warn!(why, "the keys of senders' tokens are not known yet; asked again");
    }
    list(world, &world.services).await?;
    list(world, &world.configurations).await?;
    list(world, &world.revisions).await?;
    list(world, &world.routes).await?;
    list(world, &world.pod_autoscalers).await?;
    list(world, &world.metrics).await?;
    domain_mapping::list_all(world).await?;
    // A cluster may still have the rights of an earlier version of ours.
    if let Err(why) = list(world, &world.certificates).await {
        tracing::warn!(%why, "Certificates cannot be read; the rights of deploy/follow.yaml let us");
    }
    if world.config.shows_pods {
        list(world, &world.pods).await?;
        list(world, &world.deployments).await?;
    }
    list(world, world.core_names.services()).await?;
    list(world, &world.brokers).await?;
    list(world, &world.triggers).await?;
    messaging::list_all(world).await?;
    ingress::list_all(world).await?;
    for some in world.revisions.keys().chunks(OPENED_AT_ONCE) {
        for revision in world.revisions.opened(some) {
            let meta = &revision.metadata;
            let item = Item::new(Kind::Revision, namespace(meta), name(meta));
            // One that cannot be read must not keep the others down; it is looked at again.
            if let Err(why) = revision::run(world, &item, &revision).await {
                tracing::warn!(%item, %why, "a Revision cannot be brought back yet");
            }
        }
    }
    pods::restore(world);
    pods::announce(world).await;
    route::restore(world);
    domain_mapping::restore(world);
    broker::restore(world).await;
    trigger::restore(world);
    messaging::restore(world);
    ingress::restore(world).await;
    world.publisher.open();
    Ok(())
}

async fn list<K: Object>(world: &World, cache: &Cache<K>) -> Result<(), Error> {
    Ok(world.all().fill(cache).await?)
}

/// The server knows no such kind.
fn lacks_kind(why: &kube::Error) -> bool {
    let names_object =
        |status: &kube::core::Status| status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    matches!(why, kube::Error::Api(status) if status.code == 404 && !names_object(status))
}

/// The server knows no such object, or no such kind. Of a kind it speaks in plain text, which kube takes for no
/// `NotFound`.
fn is_absent(why: &kube::Error) -> bool {
    matches!(why, kube::Error::Api(status) if status.code == 404)
}

/// Who is looked at when what changes.
fn watches(world: &World) -> Vec<Task<'_>> {
    let look = |items: Vec<Item>| items.into_iter().for_each(|item| world.look_at(item));
    vec![
        Box::pin(follow(world.all(), &world.services, move |change| {
            let item = itself(Kind::Service, change);
            sources::binding::hear(world, Runs::Service, &item.namespace);
            look(vec![item]);
        })),
        Box::pin(follow(world.all(), &world.configurations, move |change| {
            let item = itself(Kind::Configuration, change);
            look(route::of_configuration(world, &item.namespace, &item.name));
            look(configuration::routed_anew(world, change));
            look(either(change).map(|c| service::owner_of(&c.metadata)).into_iter().collect());
            sources::binding::hear(world, Runs::Configuration, &item.namespace);
            look(vec![item]);
        })),
        Box::pin(follow(world.all(), &world.revisions, move |change| {
            if let Some(revision) = either(change) {
                look(configuration::owner_of(&revision.metadata).into_iter().collect());
                look(route::of_revision(world, revision));
            }
            if matches!(change, (None, _) | (_, None)) {
                ingress::look_again(world);
            }
            if let (Some(gone), None) = change {
                look(configuration::waiting_for(world, &gone.metadata));
            }
            look(vec![itself(Kind::Revision, change)]);
        })),
        Box::pin(follow(world.all(), &world.routes, move |change| {
            look(either(change).map(|r| service::owner_of(&r.metadata)).into_iter().collect());
            look(revisions_of(world, change));
            ingress::look_again(world);
            domain_mapping::hear_route(world, change);
            look(vec![itself(Kind::Route, change)]);
        })),
        Box::pin(follow(world.all(), &world.pod_autoscalers, move |change| {
            look(strayed(change, |before, after| before.spec == after.spec).into_iter().collect());
        })),
        Box::pin(follow(world.all(), &world.metrics, move |change| {
            look(strayed(change, |before, after| before.spec == after.spec).into_iter().collect());
        })),
        Box::pin(follow(world.all(), &world.brokers, move |change| {
            let item = itself(Kind::Broker, change);
            look(trigger::of_broker(world, &item.namespace, &item.name));
            if change.1.is_none() {
                sugar::look_at(world, &item.namespace);
            }
            look(vec![item]);
        })),
        Box::pin(follow(world.all(), &world.triggers, move |change| {
            if let (Some(before), after) = change
                && after.is_none_or(|after| after.metadata.uid != before.metadata.uid)
            {
                trigger::unsubscribe(world, before);
            }
            look(vec![itself(Kind::Trigger, change)]);
        })),
    ]
}

/// The Revision of the same name, if somebody changed or deleted what belongs to it.
fn strayed<K: kube::Resource>((before, after): Change<'_, K>, same: impl Fn(&K, &K) -> bool) -> Option<Item> {
    let meta = before?.meta();
    let kept = after.is_some_and(|after| {
        let (now, then) = (after.meta(), meta);
        before.is_some_and(|before| same(before, after))
            && now.labels == then.labels
            && now.annotations == then.annotations
    });
    (!kept).then(|| Item::new(Kind::Revision, namespace(meta), name(meta)))
}

fn either<'a, K>((before, after): Change<'a, K>) -> Option<&'a Arc<K>> {
    after.or(before)
}

fn itself<K: kube::Resource>(kind: Kind, change: Change<'_, K>) -> Item {
    let meta = either(change).map(|object| object.meta());
    Item::new(kind, meta.map(namespace).unwrap_or_default(), meta.map(name).unwrap_or_default())
}

/// The Revisions that a Route sends to, or did: whether requests reach them decides their scale.
fn revisions_of(world: &World, (before, after): Change<'_, Route>) -> Vec<Item> {
    let named = |route: &Arc<Route>| {
        let shown = route.status.iter().flat_map(|status| &status.traffic);
        let all = route.spec.traffic.iter().chain(shown);
        let ns = namespace(&route.metadata);
        let of_target = |target: &TrafficTarget| {
            let revision = target.revision().map(|name| Item::new(Kind::Revision, ns, name));
            let parent = target.configuration().map(|name| Item::new(Kind::Configuration, ns, name));
            revision.into_iter().chain(parent)
        };
        all.flat_map(of_target).collect::<BTreeSet<_>>()
    };
    let before = before.map(named).unwrap_or_default();
    let after = after.map(named).unwrap_or_default();
    let of_item = |item: &Item| {
        if item.kind == Kind::Revision {
            return vec![item.clone()];
        }
        // By a Configuration the Route sends to its newest that is ready, and waits for its newest.
        let parent = world.configurations.get(&item.namespace, &item.name);
        let newest = parent.iter().flat_map(|parent| configuration::newest(parent)).flatten();
        newest.map(|name| Item::new(Kind::Revision, &item.namespace, name)).collect()
    };
    before.symmetric_difference(&after).flat_map(of_item).collect()
}

/// Revisions whose instances changed.
async fn hear_fleet(world: &World) {
    let mut changes = world.fleet.changes();
    loop {
        match changes.recv().await {
            Ok(key) => {
                if let Some((ns, name)) = key.split_once('/') {
                    hear_of(world, ns, name);
                }
            }
            Err(RecvError::Lagged(_)) => {
                world.revisions.keys().iter().for_each(|(ns, name)| hear_of(world, ns, name));
            }
            // The fleet is over; so are we, soon.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// A Revision that is ready only shows how many instances it has, and nobody waits for that: it is written when the request that
/// started one is on its way.
fn hear_of(world: &World, namespace: &str, name: &str) {
    let is_ready = world.revisions.get(namespace, name).is_some_and(|revision| revision.is_ready());
    for kind in [Kind::Revision, Kind::Pods] {
        let item = Item::new(kind, namespace, name);
        if is_ready {
            world.queue.add_later(item, SHOWN_AFTER);
        } else {
            world.look_at(item);
        }
    }
}

async fn work(world: &World) {
    loop {
        let item = world.queue.take().await;
        let result = match item.kind {
            Kind::Service => service::reconcile(world, &item).await,
            Kind::Configuration => configuration::reconcile(world, &item).await,
            Kind::Revision => revision::reconcile(world, &item).await,
            Kind::Pods => pods::reconcile(world, &item).await,
            Kind::Scaling => revision::show_scaling(world, &item).await,
            Kind::Route => route::reconcile(world, &item).await,
            Kind::DomainMapping => domain_mapping::reconcile(world, &item).await,
            Kind::Broker => broker::reconcile(world, &item).await,
            Kind::Trigger => trigger::reconcile(world, &item).await,
            Kind::Channel => channel::reconcile(world, &item).await,
            Kind::InMemoryChannel => in_memory_channel::reconcile(world, &item).await,
            Kind::Subscription => subscription::reconcile(world, &item).await,
            Kind::EventType => event_type::reconcile(world, &item).await,
            Kind::EventPolicy => event_policy::reconcile(world, &item).await,
            Kind::Sequence => flows::reconcile_sequence(world, &item).await,
            Kind::Ingress => ingress::reconcile(world, &item).await,
            Kind::Certificate => certificate::reconcile(world, &item).await,
            Kind::Namespace => sugar::reconcile(world, &item).await,
            Kind::Parallel => flows::reconcile_parallel(world, &item).await,
            Kind::PingSource => sources::reconcile(world, &world.sources.pings, &item).await,
            Kind::ApiServerSource => sources::reconcile(world, &world.sources.api_servers, &item).await,
            Kind::ContainerSource => sources::reconcile(world, &world.sources.containers, &item).await,
            Kind::SinkBinding => sources::binding::reconcile(world, &item).await,
        };
        match result {
            Ok(()) => world.queue.done(&item),
            // What the writer makes of it comes with the watch; if it becomes ours, all is looked at.
            Err(Error::NotOurs(_)) => world.queue.done(&item),
            Err(why) => {
                let again_in = world.queue.failed(&item);
                if why.is_crossing() {
                    tracing::debug!(%item, %why, ?again_in, "somebody else wrote first");
                } else {
                    tracing::warn!(%item, %why, ?again_in, "reconcile failed");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::kinds::serving::service::Service;

    #[tokio::test]
    async fn a_kind_that_is_lacking_is_told_from_an_object() {
        let refusal = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "not found", "details": { "kind": "services", "name": "s" } });
        let named =
            Router::new().fallback(move || async move { (StatusCode::NOT_FOUND, refusal.to_string()) });
        let plain = Router::new().fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") });
        for (router, lacks) in [(named, false), (plain, true)] {
            let api: kube::Api<Service> = kube::Api::namespaced(Client::new(router, "default"), "ns");
            assert_eq!(lacks_kind(&api.get("s").await.unwrap_err()), lacks);
        }
    }
}
