//! Sources that an adapter runs: each has its own Service that runs the adapter, with exactly one instance. The Service provides user,
//! limits, logs, restarts and volumes; this controller opens no connection of a foreign protocol.

mod plan;

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;

use super::event_types;
use crate::api::{Error, NamespacedObject, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::destination_resolver::ResolveError;
use crate::informer_cache::InformerCache;
use crate::owned_child::apply;
use crate::owned_child::decide;
use crate::work_queue::{ControllerKind, WorkItem};
use plan::{AdapterTarget, Secrets, service_name};
use types::conditions::ConditionManager;
use types::kind_registry::ResourceStrategy;
use types::serving::service::Service;
use types::shared::{ConditionStatus, HasConditions, controller, namespace};
use types::sources::CloudEventAttributes;
use types::sources::adapter::AdapterBacked;

/// How often the controller looks for a missing Secret or program.
const MISSING_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Sources of one kind that an adapter runs.
#[derive(Debug, Default)]
pub struct AdapterController<A: kube::Resource + serde::de::DeserializeOwned> {
    cache: InformerCache<A>,
}

impl<A: NamespacedObject + ResourceStrategy + AdapterBacked> Controller for AdapterController<A> {
    fn kind(&self) -> ControllerKind {
        ControllerKind::new(A::META.kind)
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(self.kind(), &self.cache);
        let kind = self.kind();
        watches.enqueue::<Service, _>(move |change| {
            let meta = &newest(change)?.metadata;
            let owner = controller(meta).filter(|owner| owner.kind == A::META.kind)?;
            Some(WorkItem::new(kind, namespace(meta), &owner.name))
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, &self.cache, item))
    }
}

async fn reconcile<A: NamespacedObject + AdapterBacked>(
    context: &ControllerContext,
    cache: &InformerCache<A>,
    item: &WorkItem,
) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(source) = cache.get(&item.namespace, &item.name) else { return Ok(()) };
    if source.meta().deletion_timestamp.is_some() {
        return Ok(()); // garbage collection deletes the Service
    }
    let sink = context.resolver.resolve(item, source.sink()).await?;
    let deployed = match &sink {
        Ok(sink) => deploy(context, item, &*source, &sink.url, sink.ca_certs.as_deref()).await?,
        Err(_) => Deployment::Waiting("SinkNotResolved", "the adapter is started once its sink is known".to_owned()),
    };
    let mut after = (*source).clone();
    let generation = after.meta().generation;
    let status = after.status_mut();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = A::CONDITIONS.manage(&before, now());
    status.ce_attributes.clear();
    (status.sink_uri, status.sink_ca_certs) = (None, None);
    match sink {
        Ok(found) => {
            conditions.mark_true(A::SINK_CONDITION);
            (status.sink_uri, status.sink_ca_certs) = (Some(found.url), found.ca_certs);
            status.ce_attributes = broker_events(&*source);
        }
        Err(ResolveError(why)) => conditions.mark_false(A::SINK_CONDITION, "NotFound", &why),
    }
    deployed.mark(&mut conditions, A::DEPLOYED_CONDITION);
    if let Some(condition) = A::EVENT_TYPES_CONDITION {
        let reason = if status.ce_attributes.is_empty() { "NoneDeclared" } else { "" };
        conditions.mark_true_with_reason(condition, reason, "");
    }
    conditions.finish_into(&mut status.base, generation);
    let attributes = after.status_mut().ce_attributes.clone();
    context.set_status(&*source, &after).await?;
    event_types::reconcile(context, &*source, &attributes).await
}

/// The events with an EventType: only a Broker has EventTypes.
fn broker_events<A: AdapterBacked>(source: &A) -> Vec<CloudEventAttributes> {
    let is_broker = source.sink().reference.as_ref().is_some_and(|sink| sink.kind == "Broker");
    if is_broker { source.plan().event_types } else { Vec::new() }
}

enum Deployment {
    Ready,
    Waiting(&'static str, String),
    Failed(String, String),
}

impl Deployment {
    fn mark(&self, conditions: &mut ConditionManager<'_>, kind: &str) {
        match self {
            Deployment::Ready => conditions.mark_true(kind),
            Deployment::Waiting(reason, message) => conditions.mark_unknown(kind, reason, message),
            Deployment::Failed(reason, message) => conditions.mark_false(kind, reason, message),
        }
    }
}

/// Applies the Service of the source and returns the state of its instance.
async fn deploy<A: NamespacedObject + AdapterBacked>(
    context: &ControllerContext,
    item: &WorkItem,
    source: &A,
    sink: &str,
    ca_certs: Option<&str>,
) -> Result<Deployment, Error> {
    let adapter = source.plan();
    let mut secrets = Secrets::default();
    for name in plan::secret_names(&adapter.source) {
        match context.api::<Secret>(&item.namespace).get_opt(&name).await? {
            Some(secret) => secrets.add(name, secret.data.unwrap_or_default().into_keys().collect()),
            None => {
                context.queue.add_after(item.clone(), MISSING_POLL_INTERVAL);
                let why = format!("Secret {name} does not exist in namespace {}; create it", item.namespace);
                return Ok(Deployment::Failed("SecretNotFound".to_owned(), why));
            }
        }
    }
    let program = match plan::program(&adapter.program) {
        Ok(program) => program,
        Err(why) => {
            context.queue.add_after(item.clone(), MISSING_POLL_INTERVAL);
            return Ok(Deployment::Failed("AdapterProgramNotFound".to_owned(), why));
        }
    };
    let wanted = plan::service(source, &adapter, &program, &AdapterTarget { sink, ca_certs, secrets: &secrets });
    let own = service_name(&item.name);
    let existing = context.caches.services.get(&item.namespace, &own);
    // The API fills in defaults, so the template is replaced only if its hash differs.
    let take = |to: &mut Service, from: Service| {
        if plan::hash_of(to) != plan::hash_of(&from) {
            to.spec.template = from.spec.template;
        }
    };
    let Some(service) = apply(context, decide(source.meta(), existing.as_deref(), wanted, take)).await? else {
        let why = format!("Service {own} exists and does not belong to this source; rename one of them");
        return Ok(Deployment::Failed("ServiceNotOwned".to_owned(), why));
    };
    Ok(match service.condition("Ready") {
        Some(ready) if ready.status == ConditionStatus::True => Deployment::Ready,
        Some(ready) if ready.status == ConditionStatus::False => {
            let reason = if ready.reason.is_empty() { "NotReady" } else { &ready.reason };
            Deployment::Failed(reason.to_owned(), ready.message.clone())
        }
        _ => Deployment::Waiting("Deploying", format!("Service {own} starts the adapter")),
    })
}
