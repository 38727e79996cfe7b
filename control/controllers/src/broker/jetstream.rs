//! Brokers of class `SluicegateJetStream`: the stream that a Broker's config describes, the checks of its store, and its
//! deletion with the Broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use contract::event_store::{ExternalStream, StoreConnection, StoreCredentials};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::finalizer;
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::destination_resolver::ResolveError;
use crate::event_recorder::{EventMessage, EventSeverity};
use crate::external_streams::StreamCheck;
use crate::names::broker_path as path;
use crate::work_queue::{ControllerKind, WorkItem};
use types::eventing::broker::Broker;
use types::eventing::jetstream::{JetStreamConfig, credentials, unsupported_option};
use types::eventing::stream_options::{BrokerConfigMap, stream_options};
use types::shared::{KReference, name, namespace};

/// Holds a Broker until its stream is deleted.
const FINALIZER: &str = "sluicegate.dev/jetstream";
/// Between two looks for streams that are to be checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// A deleted Broker whose servers do not answer is tried again after this.
const DELETE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The stream of the Broker, or why its config describes none.
pub(super) async fn describe(
    context: &ControllerContext,
    item: &WorkItem,
    broker: &Broker,
    config: &BrokerConfigMap,
) -> Result<Result<Arc<ExternalStream>, String>, Error> {
    if let Some(option) = unsupported_option(&broker.metadata, config) {
        return Ok(Err(format!("this class does not support {option}")));
    }
    let store = &context.config.event_store;
    let read = match JetStreamConfig::read(config, &store.servers) {
        Ok(read) => read,
        Err(why) => return Ok(Err(why)),
    };
    let credentials = match &read.auth_secret {
        Some(secret) => match read_credentials(context, item, broker, secret).await? {
            Ok(credentials) => credentials,
            Err(why) => return Ok(Err(why)),
        },
        None => StoreCredentials::None,
    };
    let options = read.store_options(&stream_options(&broker.metadata, config));
    let connection =
        StoreConnection { servers: read.servers, credentials, certificate_authorities: read.certificate_authorities };
    let meta = &broker.metadata;
    Ok(Ok(Arc::new(ExternalStream {
        name: stream_name(broker).into(),
        description: format!("Broker {}/{}", namespace(meta), name(meta)).into(),
        connection: Arc::new(connection),
        options,
        client: store.client.clone(),
    })))
}

/// The uid makes a recreated Broker start empty; names of objects have characters and lengths that JetStream does not
/// accept.
pub(super) fn stream_name(broker: &Broker) -> String {
    format!("sluicegate-{}", broker.metadata.uid.as_deref().unwrap_or_default())
}

async fn read_credentials(
    context: &ControllerContext,
    item: &WorkItem,
    broker: &Broker,
    secret: &str,
) -> Result<Result<StoreCredentials, String>, Error> {
    let of_config = broker.spec.config.as_ref().and_then(|config| config.namespace.clone());
    let reference = KReference {
        api_version: "v1".to_owned(),
        kind: "Secret".to_owned(),
        name: secret.to_owned(),
        namespace: of_config,
        ..KReference::default()
    };
    let object = match context.resolver.read(item, &reference).await? {
        Ok(object) => object,
        Err(ResolveError(why)) => return Ok(Err(format!("auth-secret: {why}"))),
    };
    let data = object["data"].as_object().into_iter().flatten();
    let decoded = data.filter_map(|(key, value)| {
        let bytes = BASE64.decode(value.as_str()?).ok()?;
        Some((key.clone(), String::from_utf8(bytes).ok()?))
    });
    let values: BTreeMap<String, String> = decoded.collect();
    Ok(credentials(&values).map_err(|why| format!("auth-secret: Secret {secret}: {why}")))
}

/// Holds a new Broker, so that its stream is deleted with it.
pub(super) async fn hold(context: &ControllerContext, broker: &Broker) -> Result<Broker, Error> {
    let is_new = broker.metadata.deletion_timestamp.is_none();
    if is_new && !finalizer::has(broker, FINALIZER) && context.leadership.is_leader() {
        return finalizer::write(context, broker, FINALIZER, true).await;
    }
    Ok(broker.clone())
}

/// Deletes the stream of a deleted Broker, and lets the Broker go. Its servers may be known from before only, because its
/// ConfigMap may be deleted with it.
pub(super) async fn delete(
    context: &ControllerContext,
    item: &WorkItem,
    broker: &Broker,
    described: Option<Arc<ExternalStream>>,
) -> Result<(), Error> {
    if !finalizer::has(broker, FINALIZER) || !context.leadership.is_leader() {
        return Ok(());
    }
    let path = path(&item.namespace, &item.name);
    match described.or_else(|| context.external_streams.get(&path).map(|(stream, _)| stream)) {
        Some(stream) => {
            if let Err(why) = stream.delete().await {
                let message = format!("The stream {} is not deleted: {why}. It is tried again.", stream.name);
                warn(context, broker, "StreamNotDeleted", message).await;
                context.queue.add_after(item.clone(), DELETE_RETRY_INTERVAL);
                return Ok(());
            }
        }
        None => {
            let message = format!("Its config is gone: delete the stream {} by hand.", stream_name(broker));
            warn(context, broker, "StreamLeft", message).await;
        }
    }
    context.external_streams.remove(&path);
    finalizer::write(context, broker, FINALIZER, false).await.map(drop)
}

async fn warn(context: &ControllerContext, broker: &Broker, reason: &str, message: String) {
    let event = EventMessage { level: EventSeverity::Warning, reason: reason.to_owned(), message };
    context.recorder.record(broker, &event, now()).await;
}

/// Checks the stores of all streams, forever. Each is asked by itself: one that does not answer delays no other.
pub(super) async fn check_streams(context: &ControllerContext, kind: ControllerKind) {
    let mut checks = FuturesUnordered::new();
    loop {
        checks.extend(context.external_streams.take_due().into_iter().map(|due| check(context, kind, due)));
        tokio::select! {
            Some(()) = checks.next(), if !checks.is_empty() => {}
            () = context.external_streams.changed() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

async fn check(context: &ControllerContext, kind: ControllerKind, due: StreamCheck) {
    // Only one appliance deletes consumers, because the others may know a Trigger later or sooner.
    let consumers = context.leadership.is_leader().then(|| trigger_uids(context, &due.namespace, &due.name));
    let found = due.stream.ensure(consumers).await;
    if context.external_streams.record(&due, found) {
        context.enqueue(WorkItem::new(kind, &due.namespace, &due.name));
    }
}

/// The names of the Broker's subscribers.
fn trigger_uids(context: &ControllerContext, ns: &str, broker: &str) -> Vec<Box<str>> {
    let keys = context.caches.triggers.keys_by_index(&format!("{ns}/{broker}"));
    let triggers = context.caches.triggers.get_many(&keys);
    triggers.iter().filter_map(|trigger| trigger.metadata.uid.as_deref().map(Into::into)).collect()
}
