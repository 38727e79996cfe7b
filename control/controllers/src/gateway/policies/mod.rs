//! SecurityPolicy and TrafficPolicy. They take effect with the routes that they are for; a policy's own reconcile writes its
//! status.

mod cache;
mod dependents;
mod dns_names;
mod ext_auth;
mod jwks_documents;
mod jwks_fetch;
mod policy_kind;
mod refusals;
mod rules;
mod security;
mod targets;
mod traffic;
mod watches;

use std::marker::PhantomData;
use std::sync::Arc;

pub(super) use cache::PolicyCache;
pub(super) use rules::RoutePolicies;
pub(super) use watches::{policies_of_route, register_routes};

use super::policy_status::{self, AncestorOutcomes};
use super::route_store::RouteStore;
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches};
use crate::field_managers;
use crate::work_queue::{ControllerKind, WorkItem};
use policy_kind::GatewayPolicy;

#[derive(Debug)]
pub(super) struct PolicyController<P> {
    routes: Arc<RouteStore>,
    cache: Arc<PolicyCache>,
    kind: PhantomData<P>,
}

impl<P: GatewayPolicy> PolicyController<P> {
    pub(super) fn new(routes: &Arc<RouteStore>, cache: &Arc<PolicyCache>) -> Self {
        Self { routes: Arc::clone(routes), cache: Arc::clone(cache), kind: PhantomData }
    }
}

impl<P: GatewayPolicy> Controller for PolicyController<P> {
    fn kind(&self) -> ControllerKind {
        P::QUEUE
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches::register_policies::<P>(context, watches);
        P::register_tasks(&self.routes, &self.cache, context, watches);
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile::<P>(self, context, item))
    }
}

async fn reconcile<P: GatewayPolicy>(
    PolicyController { routes, cache, .. }: &PolicyController<P>,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    let Some(policy) = P::cache(&context.caches).get(&item.namespace, &item.name) else {
        cache.forget(P::KIND, &item.namespace, &item.name);
        return Ok(());
    };
    let compiled = policy.compiled(context, cache);
    let mut outcomes = AncestorOutcomes::new();
    for target in policy.target_refs() {
        let refusal = targets::refusal(context, &*policy, target).or_else(|| compiled.not_accepted.clone());
        for ancestor in targets::ancestors(context, routes, &item.namespace, target) {
            let outcome = outcomes.entry(ancestor).or_default();
            *outcome = outcome.take().or_else(|| refusal.clone());
        }
    }
    let before = policy.policy_status();
    let generation = policy.meta().generation;
    let status = policy_status::status(before, &outcomes, compiled.unresolved.as_ref(), generation, now());
    let is_same = before.map_or(status.ancestors.is_empty(), |before| *before == status);
    if !is_same && context.leadership.is_leader() {
        let after = policy.with_policy_status(status);
        let parameters = field_managers::status_params::<P>();
        context.api(&item.namespace).replace_status(&item.name, &parameters, &after).await?;
    }
    Ok(())
}
