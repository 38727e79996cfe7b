//! The kinds that Gateways and routes depend on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::backend_tls;
use super::infrastructure;
use super::route_kind::{GATEWAY_QUEUE, GatewayRoute};
use super::route_store::{Dependency, RouteStore};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Watches, item_of, items_in, newest};
use crate::names::SERVICE_NAME;
use crate::work_queue::WorkItem;
use types::gateway_api::backend_tls_policy::BackendTlsPolicy;
use types::gateway_api::gateway::Gateway;
use types::gateway_api::gateway_class::GatewayClass;
use types::gateway_api::reference_grant::ReferenceGrant;
use types::serving::route::Route;
use types::shared::{label, name, namespace};

pub(super) fn register_gateways<'a>(context: &'a ControllerContext, watches: &mut Watches<'a>) {
    watches.primary::<Gateway>(GATEWAY_QUEUE);
    watches.enqueue::<GatewayClass, _>(move |change| {
        let class = newest(change).map(|class| name(&class.metadata).to_owned()).unwrap_or_default();
        gateways_where(context, |gateway| gateway.spec.gateway_class_name == class)
    });
    watches.enqueue_by_name::<Secret>(move |ns, secret| {
        gateways_where(context, |gateway| names(gateway, ns, Some(secret)))
    });
    watches.call::<Secret>(move |(before, after)| {
        if let (Some(gone), None) = (before, after) {
            let meta = &gone.metadata;
            context.tls_identities.forget(namespace(meta), name(meta), &context.config.expiries);
        }
    });
    watches.enqueue_by_name::<ReferenceGrant>(move |ns, _| gateways_where(context, |gateway| names(gateway, ns, None)));
    // The generated Service comes back if a client deletes or changes it.
    watches.enqueue::<Service, _>(move |change| {
        newest(change).and_then(|service| infrastructure::gateway_of(&service.metadata))
    });
}

/// Whether a listener names a Secret of the namespace: this one, or any.
fn names(gateway: &Gateway, ns: &str, secret: Option<&str>) -> bool {
    let home = namespace(&gateway.metadata);
    let tls = gateway.spec.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let mut references = tls.flat_map(|tls| &tls.certificate_refs);
    references.any(|reference| {
        reference.namespace.as_deref().unwrap_or(home) == ns && secret.is_none_or(|secret| secret == reference.name)
    })
}

pub(super) fn gateways_where(context: &ControllerContext, wanted: impl Fn(&Gateway) -> bool) -> Vec<WorkItem> {
    let all = context.caches.gateways.all();
    let concerned = all.iter().filter(|gateway| wanted(gateway));
    concerned
        .map(|gateway| WorkItem::new(GATEWAY_QUEUE, namespace(&gateway.metadata), name(&gateway.metadata)))
        .collect()
}

/// Both kinds of routes share the store, and each enqueues its own.
pub(super) fn register_routes<'a, R: GatewayRoute>(
    store: &'a RouteStore,
    context: &'a ControllerContext,
    watches: &mut Watches<'a>,
) {
    watches.primary::<R>(R::QUEUE);
    let own = move |dependency: Dependency| {
        let mut items = store.dependents(&dependency);
        items.retain(|item| item.kind == R::QUEUE);
        items
    };
    watches.enqueue::<Gateway, _>(move |(before, after)| {
        // A status counts the routes: each route that attaches would enqueue all others.
        if before.zip(after).is_some_and(|(before, after)| before.spec == after.spec) {
            return Vec::new();
        }
        let item = item_of(GATEWAY_QUEUE, (before, after));
        own(Dependency::Gateway(item.namespace, item.name))
    });
    // A Gateway is ours or not by its class, so any route may be concerned.
    watches.enqueue::<GatewayClass, _>(move |(before, after)| {
        let is_ours = |class: Option<&Arc<GatewayClass>>| class.is_some_and(|class| class.is_ours());
        if is_ours(before) == is_ours(after) {
            return Vec::new();
        }
        items_in(R::QUEUE, R::cache(&context.caches), None)
    });
    watches.enqueue::<Namespace, _>(move |(before, after)| {
        let labels = |one: Option<&Arc<Namespace>>| one.map(|one| one.metadata.labels.clone());
        let changed = newest((before, after)).filter(|_| labels(before) != labels(after));
        changed.map(|changed| own(Dependency::Namespace(name(&changed.metadata).to_owned()))).unwrap_or_default()
    });
    watches.enqueue_by_name::<ReferenceGrant>(move |ns, _| own(Dependency::Grants(ns.to_owned())));
    watches.enqueue_by_name::<Service>(move |ns, service| own(service_of(ns, service)));
    watches.enqueue_by_name::<Endpoints>(move |ns, service| own(service_of(ns, service)));
    watches.enqueue::<EndpointSlice, _>(move |(before, after)| {
        // A slice that changes its label leaves one Service and comes to another.
        let both = [before, after].into_iter().flatten().filter_map(|slice| {
            Some(own(service_of(namespace(&slice.metadata), label(&slice.metadata, SERVICE_NAME)?)))
        });
        both.flatten().collect::<Vec<_>>()
    });
    let services = move |ns: &str, services: Vec<String>| -> Vec<WorkItem> {
        services.iter().flat_map(|service| own(service_of(ns, service))).collect()
    };
    watches.enqueue::<BackendTlsPolicy, _>(move |change| {
        let concerned = backend_tls::services_of(change);
        concerned.iter().flat_map(|(ns, service)| own(service_of(ns, service))).collect::<Vec<_>>()
    });
    watches.enqueue_by_name::<ConfigMap>(move |ns, map| {
        services(ns, backend_tls::services_that_trust(context, ns, "ConfigMap", map))
    });
    watches.enqueue_by_name::<Secret>(move |ns, secret| {
        services(ns, backend_tls::services_that_trust(context, ns, "Secret", secret))
    });
    watches.enqueue_by_name::<Route>(move |ns, route| own(Dependency::KnativeRoute(ns.to_owned(), route.to_owned())));
    watches.enqueue_on(ContextChange::HostsReleased, move || {
        let mut items = store.conflicting();
        items.retain(|item| item.kind == R::QUEUE);
        items
    });
}

fn service_of(ns: &str, service: &str) -> Dependency {
    Dependency::Service(ns.to_owned(), service.to_owned())
}
