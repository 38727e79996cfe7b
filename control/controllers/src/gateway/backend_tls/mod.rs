//! BackendTLSPolicy: backends that are reached by TLS. The configuration takes effect with the routes that refer to such a
//! Service; the policy's own reconcile writes its status.

mod authorities;
mod targets;
mod trust;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};

pub(super) use trust::{client_config, policy_for};

use super::conditions::ConditionRefusal;
use super::policy_status::{self, AncestorOutcomes, PolicyAncestor};
use super::route_store::RouteStore;
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches};
use crate::field_managers;
use crate::informer_cache::ObjectChange;
use crate::work_queue::{ControllerKind, WorkItem};
use types::gateway_api::backend_tls_policy::BackendTlsPolicy;
use types::gateway_api::policy::LocalPolicyTargetReference;
use types::shared::{name, namespace};

const KIND: ControllerKind = ControllerKind::new("BackendTLSPolicy");

#[derive(Debug)]
pub(super) struct BackendTlsPolicyController {
    routes: Arc<RouteStore>,
}

impl BackendTlsPolicyController {
    pub(super) fn new(routes: Arc<RouteStore>) -> Self {
        Self { routes }
    }
}

impl Controller for BackendTlsPolicyController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<BackendTlsPolicy>(KIND);
        // Another policy may have, or have had, the same Service.
        watches.enqueue::<BackendTlsPolicy, _>(move |change| {
            let services = services_of(change);
            services.iter().flat_map(|(ns, service)| policies_of(context, ns, service)).collect::<Vec<_>>()
        });
        watches.enqueue_by_name::<Service>(move |ns, service| policies_of(context, ns, service));
        watches.enqueue_by_name::<ConfigMap>(move |ns, map| {
            policies_where(context, ns, |one| trusts(one, "ConfigMap", map))
        });
        watches.enqueue_by_name::<Secret>(move |ns, secret| {
            policies_where(context, ns, |one| trusts(one, "Secret", secret))
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(&self.routes, context, item))
    }
}

async fn reconcile(routes: &RouteStore, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(policy) = context.caches.backend_tls_policies.get(&item.namespace, &item.name) else { return Ok(()) };
    let authorities = authorities::read(context, &item.namespace, &policy.spec.validation);
    let mut outcomes = AncestorOutcomes::new();
    for target in policy.spec.services() {
        let refusal = refusal(context, &policy, target).or_else(|| authorities.usable.as_ref().err().cloned());
        for gateway in routes.gateways_of(&item.namespace, &target.name) {
            let outcome = outcomes.entry(PolicyAncestor::gateway(gateway)).or_default();
            *outcome = outcome.take().or_else(|| refusal.clone());
        }
    }
    let before = policy.status.as_ref();
    let generation = policy.metadata.generation;
    let status = policy_status::status(before, &outcomes, authorities.unresolved.as_ref(), generation, now());
    let is_same = before.map_or(status.ancestors.is_empty(), |before| *before == status);
    if !is_same && context.leadership.is_leader() {
        let after = BackendTlsPolicy { status: Some(status), ..(*policy).clone() };
        let parameters = field_managers::status_params::<BackendTlsPolicy>();
        context.api(&item.namespace).replace_status(&item.name, &parameters, &after).await?;
    }
    Ok(())
}

/// Why the policy does not hold for a target.
fn refusal(
    context: &ControllerContext,
    policy: &BackendTlsPolicy,
    target: &LocalPolicyTargetReference,
) -> Option<ConditionRefusal> {
    let ns = namespace(&policy.metadata);
    if let Some(other) = targets::conflict(&context.caches.backend_tls_policies.list(ns), policy, target) {
        let why = format!("BackendTLSPolicy {} is older and has the same target.", name(&other.metadata));
        return Some(ConditionRefusal::new("Conflicted", why));
    }
    let service = context.caches.core_services.get(ns, &target.name);
    let Some(service) = service else {
        return Some(ConditionRefusal::new("TargetNotFound", format!("Service \"{ns}/{}\" not found.", target.name)));
    };
    let section = target.section()?;
    let mut ports = service.spec.iter().filter_map(|spec| spec.ports.as_ref()).flatten();
    let why = || format!("Service \"{ns}/{}\" has no port of the name {section:?}.", target.name);
    let is_missing = !ports.any(|port| port.name.as_deref() == Some(section));
    is_missing.then(|| ConditionRefusal::new("TargetNotFound", why()))
}

/// The Services of a policy before and after a change.
pub(super) fn services_of(change: ObjectChange<'_, BackendTlsPolicy>) -> Vec<(String, String)> {
    let both = [change.0, change.1].into_iter().flatten();
    let mut services: Vec<_> = both
        .flat_map(|policy| {
            let ns = namespace(&policy.metadata);
            policy.spec.services().map(|target| (ns.to_owned(), target.name.clone()))
        })
        .collect();
    services.sort_unstable();
    services.dedup();
    services
}

/// The Services whose policies trust the certificates in a ConfigMap or Secret.
pub(super) fn services_that_trust(context: &ControllerContext, ns: &str, kind: &str, object: &str) -> Vec<String> {
    let policies = context.caches.backend_tls_policies.list(ns);
    let concerned = policies.iter().filter(|policy| trusts(policy, kind, object));
    concerned.flat_map(|policy| policy.spec.services().map(|target| target.name.clone()).collect::<Vec<_>>()).collect()
}

/// The policies of a Service.
pub(super) fn policies_of(context: &ControllerContext, ns: &str, service: &str) -> Vec<WorkItem> {
    policies_where(context, ns, |policy| policy.spec.services().any(|target| target.name == service))
}

fn trusts(policy: &BackendTlsPolicy, kind: &str, object: &str) -> bool {
    let mut references = policy.spec.validation.ca_certificate_refs.iter();
    references.any(|reference| reference.group.is_empty() && reference.kind == kind && reference.name == object)
}

fn policies_where(context: &ControllerContext, ns: &str, wanted: impl Fn(&BackendTlsPolicy) -> bool) -> Vec<WorkItem> {
    let policies = context.caches.backend_tls_policies.list(ns);
    let concerned = policies.iter().filter(|policy| wanted(policy));
    concerned.map(|policy| WorkItem::new(KIND, ns, name(&policy.metadata))).collect()
}
