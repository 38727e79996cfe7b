//! Sources that an adapter runs: the adapter is an instance of a Service that belongs to the source.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{consumer_scaling, event_types};
use crate::adapter_service::{
    AdapterRequest, AdapterSections, Deployment, TOKEN_FILE, deploy, owner_item, remove_state, remove_unused_state,
    service_name, watch_revisions, watch_types,
};
use crate::api::{Error, NamespacedObject, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, newest};
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::informer_cache::InformerCache;
use crate::oidc_identity::{self, OidcIdentity};
use crate::work_queue::{ControllerKind, WorkItem};
use types::kind_registry::ResourceStrategy;
use types::serving::annotations::SERVICE;
use types::serving::service::Service;
use types::shared::{Destination, is_controlled_by, name, namespace};
use types::sources::CloudEventAttributes;
use types::sources::adapter::{AdapterBacked, AdapterPlan, SecretData};

/// The delivery options that adapters know.
const DELIVERY_OPTIONS: [&str; 5] = ["retry", "backoffPolicy", "backoffDelay", "timeout", "deadLetterSink"];

/// Sources of one kind that an adapter runs.
#[derive(Debug, Default)]
pub struct AdapterController<A: kube::Resource + serde::de::DeserializeOwned> {
    cache: InformerCache<A>,
}

impl<A: NamespacedObject + ResourceStrategy + AdapterBacked> Controller for AdapterController<A> {
    fn kind(&self) -> ControllerKind {
        ControllerKind::new(A::META.kind)
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(self.kind(), &self.cache);
        watch_types(watches, self.kind(), &self.cache);
        watch_revisions(watches, context, A::META.kind);
        if A::HAS_CONSUMERS {
            watches.task(consumer_scaling::run(context, &self.cache));
        }
        watches.enqueue::<Service, _>(|change| owner_item(newest(change)?, A::META.kind));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async { remove_unused_state(context) })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, &self.cache, item))
    }
}

async fn reconcile<A: NamespacedObject + ResourceStrategy + AdapterBacked>(
    context: &ControllerContext,
    cache: &InformerCache<A>,
    item: &WorkItem,
) -> Result<(), Error> {
    context.resolver.forget(item);
    let service = service_name(&item.name, A::SERVICE_SUFFIX);
    let Some(source) = cache.get(&item.namespace, &item.name) else {
        remove_state(context, item, &service);
        return Ok(());
    };
    if source.meta().deletion_timestamp.is_some() {
        return Ok(()); // garbage collection deletes the Service
    }
    let mut plan = source.plan();
    let sink = context.resolver.resolve(item, source.sink()).await?;
    let mut after = (*source).clone();
    let had = after.status_mut().auth.clone();
    let identity = match &plan.service_account_name {
        Some(own) if context.settings().event_features.authenticates() => OidcIdentity::Created(own.clone()),
        _ => oidc_identity::reconcile_account(context, item, &*source, had.as_ref()).await?,
    };
    let deployed = match &sink {
        Ok(sink) => start(context, item, &*source, &mut plan, (sink, &identity)).await?,
        Err(_) => Deployment::Waiting("SinkNotResolved", "the adapter is started once its sink is known".to_owned()),
    };
    let running = context.caches.services.get(&item.namespace, &service);
    let url = running.as_ref().and_then(|service| service.status.as_ref()?.url.as_deref());
    set_status(&mut after, &plan, sink, &identity, (&deployed, url));
    let attributes = after.status_mut().ce_attributes.clone();
    context.set_status(&*source, &after).await?;
    event_types::reconcile(context, &*source, &attributes).await
}

/// Starts the adapter of a source, or changes it.
async fn start<A: NamespacedObject + AdapterBacked>(
    context: &ControllerContext,
    item: &WorkItem,
    source: &A,
    plan: &mut AdapterPlan,
    (sink, identity): (&DestinationAddress, &OidcIdentity),
) -> Result<Deployment, Error> {
    let service = service_name(&item.name, A::SERVICE_SUFFIX);
    if plan.instances == 0 {
        delete_service(context, source, &service).await?;
        return Ok(Deployment::Ready);
    }
    if let Err(ResolveError(why)) = resolve_dead_letter_sink(context, item, &mut plan.delivery).await? {
        return Ok(Deployment::failed("DeadLetterSinkNotFound", why));
    }
    let account = match identity.account_for(sink) {
        Ok(account) => plan.service_account_name.as_deref().or(account),
        Err(why) => return Ok(Deployment::failed("ServiceAccountNotOwned", why)),
    };
    let request = AdapterRequest {
        owner: source,
        service: &service,
        program: &plan.program,
        sections: sections(source, plan, sink),
        variables: variables(source, plan, sink),
        service_account_name: account,
        token_audience: sink.audience.as_deref(),
        memory_max: None,
        is_public: A::IS_PUBLIC,
        instances: plan.instances,
    };
    let finish = |sections: &mut AdapterSections, found: &BTreeMap<String, SecretData>| match &mut sections.receiver {
        Some(receiver) => A::read_secrets(receiver, found),
        None => Ok(()),
    };
    deploy(context, item, request, finish).await
}

/// Replaces a reference in the delivery options by its URL, and drops options that adapters do not know.
async fn resolve_dead_letter_sink(
    context: &ControllerContext,
    item: &WorkItem,
    delivery: &mut Value,
) -> Result<Result<(), ResolveError>, Error> {
    let Some(options) = delivery.as_object_mut() else { return Ok(Ok(())) };
    options.retain(|option, _| DELIVERY_OPTIONS.contains(&option.as_str()));
    let Some(dead_letters) = options.get("deadLetterSink") else { return Ok(Ok(())) };
    let destination = match serde_json::from_value::<Destination>(dead_letters.clone()) {
        Ok(destination) => destination,
        Err(why) => return Ok(Err(ResolveError(format!("delivery.deadLetterSink: {why}")))),
    };
    let resolved = context.resolver.resolve(item, &destination).await?;
    Ok(resolved.map(|found| drop(options.insert("deadLetterSink".to_owned(), json!({ "uri": found.url })))))
}

/// Ends the instances of a source that is scaled to zero.
async fn delete_service<A: NamespacedObject>(context: &ControllerContext, source: &A, name: &str) -> Result<(), Error> {
    let home = namespace(source.meta());
    let existing = context.caches.services.get(home, name);
    if existing.is_some_and(|service| is_controlled_by(&service.metadata, source.meta())) {
        context.api::<Service>(home).delete(name, &kube::api::DeleteParams::default()).await?;
    }
    Ok(())
}

fn set_status<A: NamespacedObject + AdapterBacked>(
    source: &mut A,
    plan: &AdapterPlan,
    sink: Result<DestinationAddress, ResolveError>,
    identity: &OidcIdentity,
    (deployed, url): (&Deployment, Option<&str>),
) {
    let events = broker_events(source, plan);
    let note = url.and_then(|url| source.deployed_note(url));
    let (generation, own_name) = (source.meta().generation, name(source.meta()).to_owned());
    let status = source.status_mut();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = A::CONDITIONS.manage(&before, now());
    status.ce_attributes.clear();
    (status.sink_uri, status.sink_ca_certs, status.sink_audience) = (None, None, None);
    status.auth = identity.status();
    match sink {
        Ok(found) => {
            conditions.mark_true(A::SINK_CONDITION);
            (status.sink_uri, status.sink_ca_certs, status.sink_audience) =
                (Some(found.url), found.ca_certs, found.audience);
            status.ce_attributes = events;
        }
        Err(ResolveError(why)) => conditions.mark_false(A::SINK_CONDITION, "NotFound", &why),
    }
    deployed.mark(&mut conditions, A::DEPLOYED_CONDITION);
    if let Some((reason, why)) = note.filter(|_| *deployed == Deployment::Ready) {
        conditions.mark_true_with_reason(A::DEPLOYED_CONDITION, reason, &why);
    }
    match (A::SECRETS_CONDITION, deployed) {
        (Some(kind), Deployment::Failed(reason, why))
            if ["SecretNotFound", "SecretInvalid"].contains(&reason.as_str()) =>
        {
            conditions.mark_false(kind, reason, why);
        }
        (Some(kind), _) => conditions.mark_true(kind),
        (None, _) => {}
    }
    for kind in A::READY_CONDITIONS {
        match deployed {
            Deployment::Ready => conditions.mark_true(kind),
            _ => conditions.mark_unknown(kind, "AdapterNotReady", "the adapter is not connected yet"),
        }
    }
    if let Some(kind) = A::IDENTITY_CONDITION {
        identity.mark(&mut conditions, kind);
    }
    if let Some(condition) = A::EVENT_TYPES_CONDITION {
        let reason = if status.ce_attributes.is_empty() { "NoneDeclared" } else { "" };
        conditions.mark_true_with_reason(condition, reason, "");
    }
    if A::HAS_CONSUMERS {
        let running = if *deployed == Deployment::Ready { plan.instances } else { 0 };
        status.consumers = i32::try_from(running).ok();
        status.selector = Some(format!("{SERVICE}={}", service_name(&own_name, A::SERVICE_SUFFIX)));
    }
    conditions.finish_into(&mut status.base, generation);
}

/// The events with an EventType: only a Broker has EventTypes.
fn broker_events<A: AdapterBacked>(source: &A, plan: &AdapterPlan) -> Vec<CloudEventAttributes> {
    let is_broker = source.sink().reference.as_ref().is_some_and(|sink| sink.kind == "Broker");
    if is_broker { plan.event_types.clone() } else { Vec::new() }
}

fn sections<A: AdapterBacked>(source: &A, plan: &AdapterPlan, sink: &DestinationAddress) -> AdapterSections {
    let mut receiver = plan.source.clone();
    if let Some(qos) = plan.qos {
        receiver["qos"] = qos.into();
    }
    // Brokers and Channels of Sluicegate accept a batch as a whole.
    let accepts_batches = source
        .sink()
        .reference
        .as_ref()
        .is_some_and(|sink| ["Broker", "Channel", "InMemoryChannel"].contains(&sink.kind.as_str()));
    let mut sender = json!({ "sinkUri": sink.url, "batch": accepts_batches });
    if sink.audience.is_some() {
        sender["token"] = TOKEN_FILE.into();
    }
    if !plan.delivery.is_null() {
        sender["delivery"] = plan.delivery.clone();
    }
    AdapterSections { receiver: Some(receiver), sender }
}

fn variables<A: NamespacedObject + AdapterBacked>(
    source: &A,
    plan: &AdapterPlan,
    sink: &DestinationAddress,
) -> Vec<(&'static str, String)> {
    let overrides = plan.ce_overrides.as_ref().map(|overrides| json!(overrides).to_string());
    vec![
        ("K_SINK", sink.url.clone()),
        ("K_CE_OVERRIDES", overrides.unwrap_or_default()),
        ("K_CA_CERTS", sink.ca_certs.clone().unwrap_or_default()),
        ("NAMESPACE", namespace(source.meta()).to_owned()),
        ("NAME", name(source.meta()).to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::sources::adapter::AdapterSource;

    /// TRN-10, TRN-13, TRN-55: the sink is its URL, a Broker gets batches, and the quality of service is the receiver's.
    #[test]
    fn sections_name_the_sink_and_the_quality_of_service() {
        let made = |sink: Value| {
            let metadata = json!({ "name": "orders", "namespace": "shop" });
            let spec = json!({ "adapter": { "image": "i" }, "sink": sink, "source": { "a": 1 }, "qos": 2 });
            let source: AdapterSource = serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
            sections(&source, &source.plan(), &DestinationAddress::from("http://b/"))
        };
        let broker = made(json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "b" } }));
        assert_eq!(broker.receiver, Some(json!({ "a": 1, "qos": 2 })));
        assert_eq!(broker.sender, json!({ "sinkUri": "http://b/", "batch": true }));
        assert_eq!(made(json!({ "uri": "http://b/" })).sender["batch"], false);
    }
}
