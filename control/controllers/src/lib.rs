#![forbid(unsafe_code)]
//! The controllers: they bring the system to the state that the objects specify, and report in their statuses.
//!
//! Each kind has a folder: wiring in `mod.rs`, decisions as values in `reconcile.rs`, children where it has some. All
//! share one [`ControllerContext`] and one queue. Level-triggered: a reconcile starts from the current state, so any
//! event may be missed as long as a later one comes. The same code runs over the in-process client and over a
//! cluster's.

pub mod access_tokens;
pub mod broker;
pub mod broker_injection;
pub mod certificate;
pub mod channel;
mod clock_steps;
pub mod config_maps;
pub mod configuration;
pub mod context;
pub mod dead_letter_sink;
mod defaulting;
pub mod destination_resolver;
pub mod domain_mapping;
mod dropped_events;
pub mod event_policy;
pub mod event_recorder;
pub mod event_type;
pub mod field_managers;
pub mod flows;
mod idle_trim;
pub mod in_memory_channel;
pub mod informer_cache;
pub mod ingress;
pub mod jwks_cache;
pub mod last_address;
pub mod leader_election;
pub mod manifests;
pub mod messaging;
pub mod oidc_identity;
pub mod pods;
pub mod publish;
pub mod revision;
pub mod route;
pub mod sender_policy;
pub mod service;
pub mod service_names;
pub mod sources;
pub mod stream_addresses;
pub mod subscription;
pub mod trigger;
pub mod trust_store;
pub mod urls;
pub mod work_queue;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dataplane::events::core_relay::CoreSenders;
use dataplane::target_policy::TargetPolicy;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

use crate::publish::{Publisher, QuotaConfig};
use apiserver::expiry::Expiries;
use apiserver::store::ObjectStore;
use autoscaler::Autoscaler;
use context::{ControllerContext, Error, NamespacedObject};
use informer_cache::{InformerCache, ObjectChange, follow};
pub use stream_addresses::EventsTlsListener;
use support::clock::WallClock;
use types::serving::route::Route;
use types::serving::traffic::TrafficTarget;
use types::shared::{HasConditions as _, name, namespace};
use types::sources::sink_binding::BindableKind;
use work_queue::{ControllerKind, WorkItem};

/// Objects in work at once. They wait for durable writes most of the time, and writes that wait together
/// share a commit.
const WORKERS: usize = 32;
/// Delay before the instances of a ready Revision are written to its status: a request that starts one has its
/// response by then, if the program starts quickly; two processors are not kept busy, and the status is written once
/// instead of twice.
const POD_UPDATE_DELAY: Duration = Duration::from_millis(25);

/// Sleepers that a start has open at once, at 4 KiB each: enough for all processors to have their part.
const RESTORE_BATCH: usize = 1024;

/// Something that runs as long as the controllers.
type ControllerTask<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What the controllers have to know of the program.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// `localhost`
    pub domain: String,
    /// The port that URLs name.
    pub http_port: u16,
    /// `http://127.0.0.1:8081`
    pub events_url_base: String,
    /// Where events are taken in by TLS, if anywhere.
    pub events_tls: Option<EventsTlsListener>,
    /// Where requests are taken in, for statuses.
    pub listeners: ingress::ListenerAddresses,
    /// Image references and the commands that they run here.
    pub images: Vec<(String, Vec<String>)>,
    /// Where the images of containers come from; `None`: only mapped images and processes run.
    pub containers: Option<Arc<dyn revision::images::ImageProvider>>,
    pub instances: revision::policy::InstanceRules,
    /// Instances see the host's `/dev`, and have none of their own.
    pub host_devices: bool,
    pub quotas: QuotaConfig,
    /// Which addresses objects may name as targets.
    pub targets: Arc<TargetPolicy>,
    /// By which tokens end.
    pub clock: WallClock,
    /// Instances are shown as Pods: in an API of our own, not in a cluster's.
    pub publishes_pods: bool,
    /// Our identity among the appliances that follow one API server; `None`: the API is our own.
    pub leader_identity: Option<String>,
    /// Where the objects are, if the API is our own.
    pub store: Weak<ObjectStore>,
    /// What the events of PingSources come to.
    pub ping_outcomes: Arc<sources::PingOutcomes>,
    /// Records when certificates of Secrets and trust bundles expire.
    pub expiries: Arc<Expiries>,
    /// By these the cores send them, once they run.
    pub relay: Arc<OnceLock<CoreSenders>>,
}

/// Runs the controllers until `stop`. `synced` is sent once a first table holds everything that was stored (APP-16);
/// listeners may accept from then on.
pub async fn run(
    config: ControllerConfig,
    client: Client,
    autoscaler: Autoscaler,
    publisher: Arc<Publisher>,
    synced: oneshot::Sender<()>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let context = ControllerContext::new(config, client, autoscaler, publisher);
    if context.config.leader_identity.is_some() {
        defaulting::install(&context);
    }
    restore(&context).await?;
    if context.config.leader_identity.is_none()
        && let Err(why) = leader_election::hold_permanently(&context).await
    {
        tracing::warn!(%why, "the Lease could not be written; who follows this API may write beside it");
    }
    if context.config.publishes_pods
        && let Err(why) = ingress::gateway_services::publish_services(&context).await
    {
        tracing::warn!(%why, "the listeners' Services in knative-serving could not be written");
    }
    let _ = synced.send(()); // the receiver may be gone
    let mut tasks: FuturesUnordered<ControllerTask<'_>> = FuturesUnordered::new();
    let all = watches(&context)
        .into_iter()
        .chain(messaging::watches(&context))
        .chain(config_maps::watches(&context))
        .chain(ingress::watches(&context))
        .chain(domain_mapping::watches(&context))
        .chain(certificate::watches(&context))
        .chain(service_names::watches(&context))
        .chain(sources::watches(&context));
    for task in all {
        tasks.push(task);
    }
    if context.config.publishes_pods {
        tasks.push(Box::pin(follow(context.source(), &context.pods, |change| pods::on_pod_change(&context, change))));
        tasks.push(Box::pin(follow(context.source(), &context.deployments, |change| {
            pods::on_deployment_change(&context, change);
        })));
    }
    tasks.push(Box::pin(watch_autoscaler(&context)));
    tasks.push(Box::pin(configuration::run_gc(&context)));
    tasks.push(Box::pin(dropped_events::run(&context)));
    tasks.push(Box::pin(broker::drain::run(&context)));
    tasks.push(Box::pin(event_type::auto_create::run(&context)));
    tasks.push(Box::pin(jwks_cache::run(&context)));
    tasks.push(Box::pin(access_tokens::run(&context)));
    tasks.push(Box::pin(clock_steps::tend(&context)));
    tasks.push(Box::pin(broker_injection::run(&context)));
    tasks.push(Box::pin(idle_trim::run(&context)));
    if let Some(me) = &context.config.leader_identity {
        tasks.push(Box::pin(leader_election::run(&context, me)));
    }
    for _ in 0..WORKERS {
        tasks.push(Box::pin(run_worker(&context)));
    }
    tokio::select! {
        () = stop => {}
        _ = tasks.next() => {} // none of them ends by itself
    }
    drop(tasks);
    if context.config.leader_identity.is_some() {
        leader_election::release(&context).await;
    }
    Ok(())
}

/// Restores the state of the last statuses, so that traffic flows before the first reconcile.
async fn restore(context: &ControllerContext) -> Result<(), Error> {
    config_maps::restore(context).await?;
    if context.settings().event_features.authenticates()
        && let Err(why) = jwks_cache::fetch(context).await
    {
        tracing::warn!(why, "the keys of senders' tokens are not known yet; asked again");
    }
    fill_cache(context, &context.services).await?;
    fill_cache(context, &context.configurations).await?;
    fill_cache(context, &context.revisions).await?;
    fill_cache(context, &context.routes).await?;
    fill_cache(context, &context.pod_autoscalers).await?;
    fill_cache(context, &context.metrics).await?;
    domain_mapping::list_all(context).await?;
    // A cluster may still have the roles of an earlier version of ours.
    if let Err(why) = fill_cache(context, &context.certificates).await {
        tracing::warn!(%why, "Certificates cannot be read; the rights of deploy/follow.yaml let us");
    }
    if context.config.publishes_pods {
        fill_cache(context, &context.pods).await?;
        fill_cache(context, &context.deployments).await?;
    }
    fill_cache(context, context.service_names.services()).await?;
    fill_cache(context, &context.brokers).await?;
    fill_cache(context, &context.triggers).await?;
    messaging::list_all(context).await?;
    ingress::list_all(context).await?;
    for some in context.revisions.keys().chunks(RESTORE_BATCH) {
        for revision in context.revisions.get_many(some) {
            let meta = &revision.metadata;
            let item = WorkItem::new(ControllerKind::Revision, namespace(meta), name(meta));
            // An object that cannot be restored must not keep the others down; it is reconciled again.
            if let Err(why) = revision::restore(context, &item, &revision).await {
                tracing::warn!(%item, %why, "a Revision cannot be brought back yet");
            }
        }
    }
    pods::restore(context);
    pods::publish_activator_slice(context).await;
    route::restore(context);
    domain_mapping::restore(context);
    broker::restore(context).await;
    trigger::restore(context);
    messaging::restore(context);
    ingress::restore(context).await;
    context.publisher.start();
    Ok(())
}

async fn fill_cache<K: NamespacedObject>(context: &ControllerContext, cache: &InformerCache<K>) -> Result<(), Error> {
    Ok(context.source().fill(cache).await?)
}

/// The server knows no such kind.
fn is_kind_not_found(why: &kube::Error) -> bool {
    let names_object =
        |status: &kube::core::Status| status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    matches!(why, kube::Error::Api(status) if status.code == 404 && !names_object(status))
}

/// The server has no such object, or no such kind. For a kind the error is plain text, which kube does not parse as
/// `NotFound`.
fn is_not_found(why: &kube::Error) -> bool {
    matches!(why, kube::Error::Api(status) if status.code == 404)
}

/// For each watched kind, the objects to reconcile when it changes.
fn watches(context: &ControllerContext) -> Vec<ControllerTask<'_>> {
    let look = |items: Vec<WorkItem>| items.into_iter().for_each(|item| context.enqueue(item));
    vec![
        Box::pin(follow(context.source(), &context.services, move |change| {
            let item = item_of(ControllerKind::Service, change);
            sources::binding::on_subject_change(context, BindableKind::Service, &item.namespace);
            look(
                newest(change).and_then(|service| sources::adapter::owner_of(&service.metadata)).into_iter().collect(),
            );
            look(vec![item]);
        })),
        Box::pin(follow(context.source(), &context.configurations, move |change| {
            let item = item_of(ControllerKind::Configuration, change);
            look(route::routes_of_configuration(context, &item.namespace, &item.name));
            look(configuration::routed_anew(context, change));
            look(newest(change).map(|c| service::owner_of(&c.metadata)).into_iter().collect());
            sources::binding::on_subject_change(context, BindableKind::Configuration, &item.namespace);
            look(vec![item]);
        })),
        Box::pin(follow(context.source(), &context.revisions, move |change| {
            if let Some(revision) = newest(change) {
                look(configuration::owner_of(&revision.metadata).into_iter().collect());
                look(route::routes_of_revision(context, revision));
            }
            if matches!(change, (None, _) | (_, None)) {
                ingress::requeue_polled(context);
            }
            if let (Some(gone), None) = change {
                look(configuration::waiting_for_name(context, &gone.metadata));
            }
            look(vec![item_of(ControllerKind::Revision, change)]);
        })),
        Box::pin(follow(context.source(), &context.routes, move |change| {
            look(newest(change).map(|r| service::owner_of(&r.metadata)).into_iter().collect());
            look(revisions_of(context, change));
            ingress::requeue_polled(context);
            domain_mapping::on_route_change(context, change);
            look(vec![item_of(ControllerKind::Route, change)]);
        })),
        Box::pin(follow(context.source(), &context.pod_autoscalers, move |change| {
            look(revision_of_modified_child(change, |before, after| before.spec == after.spec).into_iter().collect());
        })),
        Box::pin(follow(context.source(), &context.metrics, move |change| {
            look(revision_of_modified_child(change, |before, after| before.spec == after.spec).into_iter().collect());
        })),
        Box::pin(follow(context.source(), &context.brokers, move |change| {
            let item = item_of(ControllerKind::Broker, change);
            look(trigger::triggers_of_broker(context, &item.namespace, &item.name));
            if change.1.is_none() {
                broker_injection::enqueue_namespace(context, &item.namespace);
            }
            look(vec![item]);
        })),
        Box::pin(follow(context.source(), &context.triggers, move |change| {
            if let (Some(before), after) = change
                && after.is_none_or(|after| after.metadata.uid != before.metadata.uid)
            {
                trigger::unsubscribe(context, before);
            }
            look(vec![item_of(ControllerKind::Trigger, change)]);
        })),
    ]
}

/// The Revision of the same name, if a child of it was changed or deleted.
fn revision_of_modified_child<K: kube::Resource>(
    (before, after): ObjectChange<'_, K>,
    same: impl Fn(&K, &K) -> bool,
) -> Option<WorkItem> {
    let meta = before?.meta();
    let kept = after.is_some_and(|after| {
        let (now, then) = (after.meta(), meta);
        before.is_some_and(|before| same(before, after))
            && now.labels == then.labels
            && now.annotations == then.annotations
    });
    (!kept).then(|| WorkItem::new(ControllerKind::Revision, namespace(meta), name(meta)))
}

fn newest<'a, K>((before, after): ObjectChange<'a, K>) -> Option<&'a Arc<K>> {
    after.or(before)
}

fn item_of<K: kube::Resource>(kind: ControllerKind, change: ObjectChange<'_, K>) -> WorkItem {
    let meta = newest(change).map(|object| object.meta());
    WorkItem::new(kind, meta.map(namespace).unwrap_or_default(), meta.map(name).unwrap_or_default())
}

/// The Revisions that a Route sends to, or did: whether requests reach them decides their scale.
fn revisions_of(context: &ControllerContext, (before, after): ObjectChange<'_, Route>) -> Vec<WorkItem> {
    let named = |route: &Arc<Route>| {
        let shown = route.status.iter().flat_map(|status| &status.traffic);
        let all = route.spec.traffic.iter().chain(shown);
        let ns = namespace(&route.metadata);
        let of_target = |target: &TrafficTarget| {
            let revision = target.revision().map(|name| WorkItem::new(ControllerKind::Revision, ns, name));
            let parent = target.configuration().map(|name| WorkItem::new(ControllerKind::Configuration, ns, name));
            revision.into_iter().chain(parent)
        };
        all.flat_map(of_target).collect::<BTreeSet<_>>()
    };
    let before = before.map(named).unwrap_or_default();
    let after = after.map(named).unwrap_or_default();
    let of_item = |item: &WorkItem| {
        if item.kind == ControllerKind::Revision {
            return vec![item.clone()];
        }
        // By a Configuration the Route sends to its newest that is ready, and waits for its newest.
        let parent = context.configurations.get(&item.namespace, &item.name);
        let newest = parent.iter().flat_map(|parent| configuration::newest(parent)).flatten();
        newest.map(|name| WorkItem::new(ControllerKind::Revision, &item.namespace, name)).collect()
    };
    before.symmetric_difference(&after).flat_map(of_item).collect()
}

/// Revisions whose instances changed.
async fn watch_autoscaler(context: &ControllerContext) {
    let mut changes = context.autoscaler.changes();
    loop {
        match changes.recv().await {
            Ok(key) => {
                if let Some((ns, name)) = key.split_once('/') {
                    enqueue_revision(context, ns, name);
                }
            }
            Err(RecvError::Lagged(_)) => {
                context.revisions.keys().iter().for_each(|(ns, name)| enqueue_revision(context, ns, name));
            }
            // The autoscaler has ended; the controllers end soon.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Only the instance count of a ready Revision changes, which is not urgent: it is written when the request that
/// started an instance is on its way.
fn enqueue_revision(context: &ControllerContext, namespace: &str, name: &str) {
    let is_ready = context.revisions.get(namespace, name).is_some_and(|revision| revision.is_ready());
    for kind in [ControllerKind::Revision, ControllerKind::Pods] {
        let item = WorkItem::new(kind, namespace, name);
        if is_ready {
            context.queue.add_after(item, POD_UPDATE_DELAY);
        } else {
            context.enqueue(item);
        }
    }
}

async fn run_worker(context: &ControllerContext) {
    loop {
        let item = context.queue.get().await;
        let result = match item.kind {
            ControllerKind::Service => service::reconcile(context, &item).await,
            ControllerKind::Configuration => configuration::reconcile(context, &item).await,
            ControllerKind::Revision => revision::reconcile(context, &item).await,
            ControllerKind::Pods => pods::reconcile(context, &item).await,
            ControllerKind::Scaling => revision::reconcile_scaling(context, &item).await,
            ControllerKind::Route => route::reconcile(context, &item).await,
            ControllerKind::DomainMapping => domain_mapping::reconcile(context, &item).await,
            ControllerKind::Broker => broker::reconcile(context, &item).await,
            ControllerKind::Trigger => trigger::reconcile(context, &item).await,
            ControllerKind::Channel => channel::reconcile(context, &item).await,
            ControllerKind::InMemoryChannel => in_memory_channel::reconcile(context, &item).await,
            ControllerKind::Subscription => subscription::reconcile(context, &item).await,
            ControllerKind::EventType => event_type::reconcile(context, &item).await,
            ControllerKind::EventPolicy => event_policy::reconcile(context, &item).await,
            ControllerKind::Sequence => flows::reconcile_sequence(context, &item).await,
            ControllerKind::Ingress => ingress::reconcile(context, &item).await,
            ControllerKind::Certificate => certificate::reconcile(context, &item).await,
            ControllerKind::Namespace => broker_injection::reconcile(context, &item).await,
            ControllerKind::Parallel => flows::reconcile_parallel(context, &item).await,
            ControllerKind::PingSource => sources::reconcile(context, &context.sources.pings, &item).await,
            ControllerKind::ApiServerSource => sources::reconcile(context, &context.sources.api_servers, &item).await,
            ControllerKind::ContainerSource => sources::reconcile(context, &context.sources.containers, &item).await,
            ControllerKind::AdapterSource => {
                sources::adapter::reconcile(context, &context.sources.adapters, &item).await
            }
            ControllerKind::IntegrationSource => {
                sources::adapter::reconcile(context, &context.sources.integrations, &item).await
            }
            ControllerKind::RedisStreamSource => {
                sources::adapter::reconcile(context, &context.sources.redis_streams, &item).await
            }
            ControllerKind::SinkBinding => sources::binding::reconcile(context, &item).await,
        };
        match result {
            Ok(()) => context.queue.done(&item),
            // The leader's result comes with the watch; an appliance that becomes the leader reconciles everything.
            Err(Error::NotLeader(_)) => context.queue.done(&item),
            Err(why) => {
                let again_in = context.queue.add_rate_limited(&item);
                if why.is_conflict() {
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
    use types::serving::service::Service;

    #[tokio::test]
    async fn a_kind_that_is_lacking_is_told_from_an_object() {
        let refusal = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "not found", "details": { "kind": "services", "name": "s" } });
        let named = Router::new().fallback(move || async move { (StatusCode::NOT_FOUND, refusal.to_string()) });
        let plain = Router::new().fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") });
        for (router, lacks) in [(named, false), (plain, true)] {
            let api: kube::Api<Service> = kube::Api::namespaced(Client::new(router, "default"), "ns");
            assert_eq!(is_kind_not_found(&api.get("s").await.unwrap_err()), lacks);
        }
    }
}
