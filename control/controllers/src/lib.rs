#![forbid(unsafe_code)]
//! The controllers: they bring the system to the state that the objects specify, and report in their statuses.
//!
//! Each kind has a module that implements [`controller::Controller`]: wiring in `mod.rs`, decisions as values in
//! `reconcile.rs`, children where it has some. A controller is one row of `controllers`, and its own module. No controller
//! depends on another: what two of them share is in a module below both, or in the [`ControllerContext`], and each watches
//! the kinds that it depends on. All share one queue. The same code runs over the in-process client and over a cluster's.

pub mod access_tokens;
mod adapter_service;
pub mod address_pool;
pub mod api;
mod autoscaler_changes;
mod backend_trust;
mod backing_channel;
pub mod broker;
mod broker_injection;
pub mod caches;
pub mod certificate;
pub mod channel;
mod channel_subscribers;
mod claim_folders;
mod clock_steps;
pub mod config;
mod config_maps;
pub mod configuration;
pub mod context;
pub mod context_change;
pub mod controller;
pub mod dead_letter_sink;
mod defaulting;
pub mod delivery_options;
pub mod destination_resolver;
pub mod domain_mapping;
mod dropped_events;
mod durable_requests;
pub mod event_filters;
pub mod event_policy;
pub mod event_recorder;
mod event_transform;
pub mod event_type;
mod event_type_names;
#[cfg(test)]
mod example_controller;
mod external_streams;
pub mod field_managers;
mod flow_plan;
pub mod flows;
mod gateway;
pub mod host_certificates;
pub mod host_tls;
mod idle_trim;
pub mod in_memory_channel;
mod indexes;
pub mod informer_cache;
pub mod ingress;
pub mod jwks_cache;
pub mod last_address;
mod latest_revision;
pub mod leader_election;
pub mod leadership;
pub mod listeners;
pub mod manifests;
mod names;
pub mod namespace;
pub mod node;
pub mod oidc_identity;
mod operator_settings;
mod owned_child;
pub mod pods;
pub mod port_ranges;
pub mod publish;
mod replica_reporter;
pub mod replica_reports;
pub mod revision;
mod revisions;
pub mod roles;
pub mod route;
pub mod route_hosts;
mod route_reachability;
mod route_rules;
pub mod sender_policy;
mod serverless_service;
pub mod service;
pub mod service_backends;
mod service_names;
mod sink_admission;
pub mod sinks;
pub mod sources;
pub mod stream_addresses;
pub mod subscription;
pub mod tls_secrets;
pub mod trigger;
mod trigger_subscription;
pub mod trust_store;
pub mod urls;
pub mod work_queue;
pub mod workloads;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::oneshot;

use crate::publish::Publisher;
use access_tokens::TokenRequester;
use api::Error;
use autoscaler::Autoscaler;
pub use config::{ContextConfig, EventStoreConfig};
use context::ControllerContext;
use context_change::ContextChange;
use controller::{Controller, ControllerTask, Watches};
use replica_reports::ReplicaBehind;
use revision::RevisionConfig;
use roles::Role;
use sources::ping::PingConfig;
pub use stream_addresses::EventsTlsListener;
use work_queue::ControllerKind;
use workloads::WorkloadConfig;

/// Objects in work at once. They wait for durable writes most of the time, and writes that wait together
/// share a commit.
const WORKERS: usize = 32;

/// The configuration of the controllers.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    pub context: ContextConfig,
    pub revisions: RevisionConfig,
    /// What runs Pods that clients write; `None`: the API is a cluster's.
    pub workloads: Option<WorkloadConfig>,
    pub pings: PingConfig,
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
    let ControllerConfig { context, revisions, workloads, pings } = config;
    let controllers = controllers(&context, revisions, workloads, pings);
    let context = ControllerContext::new(context, client, autoscaler, publisher);
    if context.config.leader_identity.is_some() {
        context.caches.install_defaults(&context.shared_settings());
    }
    let mut watches = Watches::new(&context);
    operator_settings::register(&context, &mut watches);
    service_names::register(&context, &mut watches);
    for controller in &controllers {
        controller.watches(&context, &mut watches);
    }
    restore(&context, &watches, &controllers).await?;
    if context.config.leader_identity.is_none()
        && let Err(why) = leader_election::hold_permanently(&context).await
    {
        tracing::warn!(%why, "the Lease could not be written; appliances that follow this API may write as well");
    }
    if context.config.publishes_pods
        && let Err(why) = ingress::gateway_services::publish_services(&context).await
    {
        tracing::warn!(%why, "the listeners' Services in knative-serving could not be written");
    }
    let _ = synced.send(()); // the receiver may be gone
    let by_kind: HashMap<ControllerKind, &dyn Controller> =
        controllers.iter().map(|controller| (controller.kind(), &**controller)).collect();
    assert_eq!(by_kind.len(), controllers.len(), "each controller has a kind of its own");
    let (handlers, own_tasks) = watches.into_tasks();
    let mut tasks: FuturesUnordered<ControllerTask<'_>> =
        handlers.follow(&context.sources(), &context.caches).into_iter().chain(own_tasks).collect();
    tasks.extend(shared_tasks(&context));
    for _ in 0..WORKERS {
        tasks.push(Box::pin(run_worker(&context, &by_kind)));
    }
    tokio::select! {
        () = stop => {}
        _ = tasks.next() => {} // none of them ends by itself
    }
    drop(tasks);
    if let Some(me) = &context.config.leader_identity {
        leader_election::release(&context).await;
        replica_reporter::remove(&context, me).await;
    }
    Ok(())
}

/// The controllers of the appliance's roles, in the order in which a start restores their state: Revisions before the Routes
/// that send to them, Routes before the DomainMappings that show them, Brokers before their Triggers.
fn controllers(
    config: &ContextConfig,
    revisions: RevisionConfig,
    workloads: Option<WorkloadConfig>,
    pings: PingConfig,
) -> Vec<Box<dyn Controller>> {
    let runs_jobs = workloads.as_ref().is_some_and(|workloads| workloads.enabled);
    let roles = |wanted: &[Role]| wanted.iter().any(|role| config.roles.has(*role));
    let mut list: Vec<Box<dyn Controller>> = Vec::new();
    let workload_revisions = revisions.clone();
    if roles(&[Role::Serving]) {
        list.extend(serving_controllers(revisions));
    }
    if roles(&[Role::Serving, Role::Ingress]) {
        list.push(Box::new(certificate::CertificateController));
    }
    if roles(&[Role::Broker]) {
        list.push(Box::new(broker::BrokerController));
        list.push(Box::new(trigger::TriggerController));
        list.push(Box::new(event_type::EventTypeController));
    }
    if roles(&[Role::Broker, Role::Channel]) {
        list.push(Box::new(event_policy::EventPolicyController));
    }
    if roles(&[Role::Channel]) {
        list.extend(channel_controllers());
    }
    if roles(&[Role::Ingress]) {
        list.push(Box::new(ingress::IngressController::default()));
    }
    if roles(&[Role::Serving]) {
        list.push(Box::new(namespace::NamespaceController::default()));
        if workloads.is_some() {
            list.push(Box::new(node::NodeController::default()));
        }
        list.extend(workload_controllers(&workload_revisions, workloads));
    }
    if roles(&[Role::GatewayApi]) {
        list.extend(gateway::controllers());
    }
    if roles(&[Role::Sources]) {
        list.extend(source_controllers(pings, runs_jobs));
    }
    list
}

fn serving_controllers(revisions: RevisionConfig) -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(service::ServiceController),
        Box::new(configuration::ConfigurationController),
        Box::new(revision::RevisionController::new(revisions)),
        Box::new(revision::ScalingController),
        Box::new(pods::PodsController),
        Box::new(route::RouteController),
        Box::new(domain_mapping::DomainMappingController),
    ]
}

fn channel_controllers() -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(channel::ChannelController),
        Box::new(in_memory_channel::InMemoryChannelController),
        Box::new(subscription::SubscriptionController),
        Box::new(flows::SequenceController),
        Box::new(flows::ParallelController),
    ]
}

fn source_controllers(pings: PingConfig, runs_jobs: bool) -> Vec<Box<dyn Controller>> {
    let mut list: Vec<Box<dyn Controller>> = vec![
        Box::new(sources::api_server::ApiServerController::new(Arc::clone(&pings.relay))),
        Box::new(sources::ping::PingController::new(pings)),
        Box::new(sources::container::ContainerController::default()),
    ];
    list.extend(adapter_controllers());
    list.push(Box::new(sinks::job_sink::JobSinkController::new(runs_jobs)));
    list.push(Box::new(sources::binding::BindingController::default()));
    list
}

/// The controllers of what clients write beside Services.
fn workload_controllers(revisions: &RevisionConfig, workloads: Option<WorkloadConfig>) -> Vec<Box<dyn Controller>> {
    let Some(config) = workloads else { return Vec::new() };
    let mut list: Vec<Box<dyn Controller>> = vec![
        Box::new(workloads::claim::ClaimController::default()),
        Box::new(workloads::pod::PodController::new(revisions.clone(), config.clone())),
    ];
    if config.enabled {
        list.push(Box::new(workloads::replica_set::ReplicaSetController));
        list.push(Box::new(workloads::deployment::DeploymentController));
        list.push(Box::new(workloads::job::JobController::default()));
        list.push(Box::new(workloads::cron_job::CronJobController::default()));
        list.push(Box::new(workloads::endpoints::EndpointsController::new(config)));
    }
    list
}

/// The controllers of sources and sinks that an adapter runs.
fn adapter_controllers() -> Vec<Box<dyn Controller>> {
    use sinks::AdapterSinkController;
    use sources::adapter::AdapterController;
    use types::{sinks as sink_kinds, sources as source_kinds};
    vec![
        Box::new(AdapterController::<source_kinds::adapter::AdapterSource>::default()),
        Box::new(AdapterController::<source_kinds::integration::IntegrationSource>::default()),
        Box::new(AdapterController::<source_kinds::github::GitHubSource>::default()),
        Box::new(AdapterController::<source_kinds::redis_stream::RedisStreamSource>::default()),
        Box::new(AdapterController::<source_kinds::kafka::KafkaSource>::default()),
        Box::new(AdapterController::<source_kinds::rabbitmq::RabbitmqSource>::default()),
        Box::new(event_transform::EventTransformController::default()),
        Box::new(AdapterSinkController::<sink_kinds::adapter::AdapterSink>::default()),
        Box::new(AdapterSinkController::<sink_kinds::kafka::KafkaSink>::default()),
        Box::new(AdapterSinkController::<sink_kinds::redis_stream::RedisStreamSink>::default()),
        Box::new(AdapterSinkController::<sink_kinds::integration::IntegrationSink>::default()),
    ]
}

/// Tasks that run concurrently with the controllers, forever.
fn shared_tasks(context: &ControllerContext) -> Vec<ControllerTask<'_>> {
    let requester = TokenRequester { client: &context.client, clock: &context.config.clock };
    let mut tasks: Vec<ControllerTask<'_>> = vec![
        Box::pin(dropped_events::run(context)),
        Box::pin(context.jwks.run(
            &context.client,
            || context.settings().event_features.authenticates(),
            || context.notify(ContextChange::SenderKeys),
        )),
        Box::pin(context.access_tokens.run(requester)),
        Box::pin(clock_steps::watch_clock(context)),
        Box::pin(idle_trim::run(context)),
        Box::pin(async {
            loop {
                context.publisher.certificates_changed().await;
                context.notify(ContextChange::OperatorCertificates);
            }
        }),
    ];
    if let Some(me) = &context.config.leader_identity {
        tasks.push(Box::pin(leader_election::run(context, me)));
        tasks.push(Box::pin(replica_reporter::run(context, me)));
    }
    tasks
}

/// Restores the state of the last statuses, so that traffic flows before the first reconcile.
async fn restore(
    context: &ControllerContext,
    watches: &Watches<'_>,
    controllers: &[Box<dyn Controller>],
) -> Result<(), Error> {
    operator_settings::restore(context).await?;
    if context.settings().event_features.authenticates()
        && let Err(why) = context.jwks.fetch(&context.client).await
    {
        tracing::warn!(why, "the keys of senders' tokens are not known yet; asked again");
    }
    watches.handlers.fill(&context.sources(), &context.caches).await?;
    for controller in controllers {
        controller.restore(context).await;
    }
    context.publisher.start();
    Ok(())
}

async fn run_worker(context: &ControllerContext, controllers: &HashMap<ControllerKind, &dyn Controller>) {
    loop {
        let item = context.queue.get().await;
        let Some(controller) = controllers.get(&item.kind) else {
            context.queue.done(&item);
            continue;
        };
        match controller.reconcile(context, &item).await {
            Ok(()) => context.queue.done(&item),
            // The leader's result comes with the watch; an appliance that becomes the leader reconciles everything.
            Err(Error::NotLeader(_)) => context.queue.done(&item),
            Err(Error::ReplicaBehind(why)) => {
                tracing::debug!(%item, %why, "Ready waits");
                context.queue.add_after(item.clone(), ReplicaBehind::RETRY_AFTER);
                context.queue.done(&item);
            }
            Err(why) => {
                let again_in = context.queue.add_rate_limited(&item);
                if why.is_conflict() {
                    tracing::debug!(%item, %why, ?again_in, "another client wrote first");
                } else {
                    tracing::warn!(%item, %why, ?again_in, "reconcile failed");
                }
            }
        }
    }
}
