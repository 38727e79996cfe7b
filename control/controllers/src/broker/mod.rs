//! Broker: an address that accepts events, which its Triggers read.

pub mod drain;
mod finalizer;
mod jetstream;
pub mod reconcile;

use std::sync::Arc;

use contract::event_store::ExternalStream;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches};
use crate::destination_resolver::ResolveError;
use crate::event_type_names::AUTO_CREATE;
use crate::names::broker_path as path;
use crate::publish::StreamSpec;
use crate::sender_policy::{self, SenderPolicy};
use crate::trigger_subscription;
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{BrokerDependencies, StoreStatus, status};
use types::eventing::broker::Broker;
use types::eventing::event_policy::PolicyTarget;
use types::eventing::stream_options::{BrokerConfigMap, check_config, stream_options};
use types::shared::{DeliveryStatus, name, namespace};

const KIND: ControllerKind = ControllerKind::new("Broker");

#[derive(Debug)]
pub struct BrokerController;

impl Controller for BrokerController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<Broker>(KIND);
        sender_policy::watch::<Broker>(context, watches, KIND);
        watches.task(drain::run(context));
        watches.task(jetstream::check_streams(context, KIND));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(restore(context))
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let path = path(&item.namespace, &item.name);
    context.resolver.forget(item);
    let Some(broker) = context.caches.brokers.get(&item.namespace, &item.name).filter(|broker| broker.is_ours()) else {
        context.external_streams.remove(&path);
        context.publisher.remove_stream(&path);
        context.publisher.flush().await;
        return Ok(());
    };
    let sink = broker.spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    let sink = match sink {
        Some(destination) => Some(context.resolve_deliverable(item, destination).await?),
        None => None,
    };
    let config = load_config(context, item, &broker).await?;
    let said = config.clone().unwrap_or_default();
    let (config, external) = match external_stream(context, item, &broker, config).await? {
        Ok(external) => (Ok(()), external),
        Err(why) => (Err(why), None),
    };
    let broker = if broker.uses_jetstream() {
        if broker.metadata.deletion_timestamp.is_some() {
            context.publisher.remove_stream(&path);
            context.publisher.flush().await;
            return jetstream::delete(context, item, &broker, external).await;
        }
        jetstream::hold(context, &broker).await?
    } else {
        let drains = stream_options(&broker.metadata, &said).drain_on_delete;
        drain::reconcile_finalizer(context, &broker, drains).await?
    };
    let rules = broker_sender_policy(context, &broker);
    let store = publish_stream(context, &broker, &said, &rules, external);
    let mut after = broker.clone();
    let reach = context.stream_addresses(&path);
    let found =
        BrokerDependencies { sink, config, store, is_draining: drain::is_draining(&broker), sender_policy: rules };
    after.status = Some(status(&broker, reach, found, now()));
    if delivery_for_triggers(&after) != delivery_for_triggers(&broker) {
        trigger_subscription::resubscribe_inheriting(context, &after).await; // before anybody sees that it is so
    }
    context.publisher.flush().await;
    context.set_status(&broker, &after).await
}

/// The Broker's options for its Triggers: the spec that they come from, and the dead letter sink.
fn delivery_for_triggers(broker: &Broker) -> Option<(Option<i64>, &DeliveryStatus)> {
    broker.status.as_ref().map(|status| (status.base.observed_generation, &status.delivery))
}

/// The ConfigMap in `spec.config`; or the reason why it is invalid.
async fn load_config(
    context: &ControllerContext,
    item: &WorkItem,
    broker: &Broker,
) -> Result<Result<BrokerConfigMap, String>, Error> {
    let Some(reference) = &broker.spec.config else { return Ok(Ok(BrokerConfigMap::new())) };
    if (reference.api_version.as_str(), reference.kind.as_str()) != ("v1", "ConfigMap") {
        let (version, kind) = (&reference.api_version, &reference.kind);
        let why = format!("spec.config: only a v1 ConfigMap is read here, and not a {version} {kind}");
        return Ok(Err(why));
    }
    let object = match context.resolver.read(item, reference).await? {
        Ok(object) => object,
        Err(ResolveError(why)) => return Ok(Err(why)),
    };
    let data = object["data"].as_object().into_iter().flatten();
    let config: BrokerConfigMap =
        data.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let named = |why| format!("ConfigMap \"{}\": {why}", reference.name);
    Ok(check_config(&config).map(|()| config).map_err(named))
}

/// The stream of a Broker whose class has an external store; `None`: its events are in our log. Or the reason why its config
/// is invalid.
async fn external_stream(
    context: &ControllerContext,
    item: &WorkItem,
    broker: &Broker,
    config: Result<BrokerConfigMap, String>,
) -> Result<Result<Option<Arc<ExternalStream>>, String>, Error> {
    match config {
        Ok(config) if broker.uses_jetstream() => {
            let described = jetstream::describe(context, item, broker, &config).await?;
            let named = |why| match &broker.spec.config {
                Some(reference) => format!("ConfigMap \"{}\": {why}", reference.name),
                None => why,
            };
            Ok(described.map(Some).map_err(named))
        }
        config => Ok(config.map(|_| None)),
    }
}

/// Serves all of them by what the last statuses say: how things were before a restart. One whose config cannot be read
/// now keeps everything that it is not configured to drop, until it is reconciled.
async fn restore(context: &ControllerContext) {
    for broker in context.caches.brokers.all().iter().filter(|broker| broker.is_ours()) {
        let ns = namespace(&broker.metadata);
        let item = WorkItem::new(KIND, ns, name(&broker.metadata));
        let read = load_config(context, &item, broker).await;
        let read = read.inspect_err(|why| tracing::warn!(%item, %why, "its config cannot be read"));
        let config = read.unwrap_or_else(|why| Err(why.to_string()));
        let said = config.clone().unwrap_or_default();
        let external = external_stream(context, &item, broker, config).await;
        let external = external.ok().and_then(Result::ok).flatten();
        publish_stream(context, broker, &said, &broker_sender_policy(context, broker), external);
    }
}

fn broker_sender_policy(context: &ControllerContext, broker: &Broker) -> SenderPolicy {
    SenderPolicy::for_object(context, &[PolicyTarget::of::<Broker>(&broker.metadata)])
}

/// Publishes the Broker's stream to the cores, and returns the state of its store. One that should be in an external store
/// and whose config is invalid stays as it was: it must not fall back to our log.
fn publish_stream(
    context: &ControllerContext,
    broker: &Broker,
    config: &BrokerConfigMap,
    rules: &SenderPolicy,
    external: Option<Arc<ExternalStream>>,
) -> Option<StoreStatus> {
    let (ns, name) = (namespace(&broker.metadata), name(&broker.metadata));
    let uid = broker.metadata.uid.as_deref().unwrap_or_default();
    let path = path(ns, name);
    let quota = context.quotas.of(ns);
    let external = external.map(|stream| context.external_streams.set(&path, (ns, name), stream, Arc::clone(&quota)));
    if broker.uses_jetstream() && external.is_none() {
        return None;
    }
    // The uid makes a recreated Broker start empty.
    let name_in_log = format!("broker/{ns}/{name}/{uid}");
    let options = stream_options(&broker.metadata, config);
    let spec = StreamSpec {
        name: name_in_log,
        event_bytes_max: options.event_bytes_max,
        retention: options.retention,
        quota,
        is_closed: drain::is_draining(broker),
        admission: rules.admission(context, ns, &[]),
        reports_event_types: context.settings().event_features.is_enabled(AUTO_CREATE),
        external: external.clone(),
    };
    context.publisher.set_stream(&path, spec);
    let (stream, state) = external.and_then(|_| context.external_streams.get(&path))?;
    Some(StoreStatus { state, replicas: stream.options.replicas.into() })
}
