//! The kinds that Ingresses depend on besides themselves.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::{IngressController, KIND, ingresses_with_conflicts, item, splits, system_internal_tls};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Watches, item_of, newest};
use crate::names::SERVICE_NAME;
use crate::work_queue::WorkItem;
use types::networking::ingress::Ingress;
use types::serving::revision::Revision;
use types::serving::route::Route;
use types::shared::{label, name, namespace};

/// Between two looks at what leads to names outside: their addresses change without telling anybody.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

pub(super) fn register<'a>(
    controller: &'a IngressController,
    context: &'a ControllerContext,
    watches: &mut Watches<'a>,
) {
    watches.enqueue::<Ingress, _>(|change| match change {
        (before, Some(after)) if after.is_ours() || before.is_some_and(|before| before.is_ours()) => Some(item(after)),
        (_, None) => Some(item_of(KIND, change)),
        _ => None,
    });
    watches.resync(KIND, &context.caches.ingresses);
    watch_services(context, watches);
    watches.call::<Secret>(move |change| {
        let Some(meta) = newest(change).map(|secret| &secret.metadata) else { return };
        if change.1.is_none() {
            context.tls_identities.forget(namespace(meta), name(meta), &context.config.expiries);
        }
    });
    watches.enqueue_by_name::<Secret>(move |ns, secret| {
        if system_internal_tls::is_authority_secret(ns, secret) {
            our_ingresses(context)
        } else {
            ingresses_of_secret(context, ns, secret)
        }
    });
    watches.enqueue_on(ContextChange::BackendAuthorities, move || our_ingresses(context));
    watches.enqueue_on(ContextChange::HostsReleased, move || ingresses_with_conflicts(context));
    watches.enqueue::<Revision, _>(move |(before, after)| {
        let is_other = before.is_none() || after.is_none();
        if is_other { controller.polled_items() } else { Vec::new() }
    });
    watches.enqueue::<Route, _>(move |_| controller.polled_items());
    watches.task(async move {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            controller.polled_items().into_iter().for_each(|item| context.enqueue(item));
        }
    });
}

/// The Services that Ingresses send to, and their endpoints.
fn watch_services<'a>(context: &'a ControllerContext, watches: &mut Watches<'a>) {
    watches.enqueue_by_name::<Service>(move |ns, service| ingresses_of_service(context, ns, service));
    watches.enqueue_by_name::<Endpoints>(move |ns, service| ingresses_of_service(context, ns, service));
    watches.enqueue::<EndpointSlice, _>(move |(before, after)| {
        // A slice that changes its label leaves one Service and comes to another.
        let both = [before, after].into_iter().flatten().filter_map(|slice| {
            Some(ingresses_of_service(context, namespace(&slice.metadata), label(&slice.metadata, SERVICE_NAME)?))
        });
        both.flatten().collect::<Vec<_>>()
    });
}

/// All Ingresses of our class: the authorities that verify their backends have changed.
fn our_ingresses(context: &ControllerContext) -> Vec<WorkItem> {
    let all = context.caches.ingresses.all();
    all.iter().filter(|ingress| ingress.is_ours()).map(|ingress| item(ingress)).collect()
}

/// The Ingresses that send to a Service: of its namespace, for they may send nowhere else.
fn ingresses_of_service(context: &ControllerContext, ns: &str, service: &str) -> Vec<WorkItem> {
    let sends =
        |ingress: &Ingress| splits(ingress).any(|split| split.service_namespace == ns && split.service_name == service);
    let ingresses = context.caches.ingresses.list(ns);
    ingresses.iter().filter(|ingress| ingress.is_ours() && sends(ingress)).map(|i| item(i)).collect()
}

fn ingresses_of_secret(context: &ControllerContext, ns: &str, secret: &str) -> Vec<WorkItem> {
    let shows = |ingress: &Ingress| {
        let mut tls = ingress.spec.tls.iter();
        tls.any(|tls| tls.secret_namespace == ns && tls.secret_name == secret)
    };
    let ingresses = context.caches.ingresses.all();
    ingresses.iter().filter(|ingress| ingress.is_ours() && shows(ingress)).map(|i| item(i)).collect()
}
