//! Route: splits a host's requests between Revisions, and is ready when the cores do so.

mod placeholder;
pub mod reconcile;
pub mod rollout;
pub mod traffic;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use k8s_openapi::api::core::v1::Service;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, items_in, newest};
use crate::durable_requests;
use crate::host_certificates;
use crate::host_certificates::challenges::{challenge_rules, merge_rules};
use crate::host_tls::{self, HostCertificate, HostTls};
use crate::indexes::{HOST_CONFLICT, is_placeholder, spec_configuration_key, spec_revision_key};
use crate::informer_cache::ObjectChange;
use crate::publish::{ObjectCertificates, UnservedHosts};
use crate::route_hosts::RouteNaming;
use crate::route_rules::{NOT_CONFIGURED, naming, protocol, rule_options, rules};
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{ROLLOUT_IN_PROGRESS, RouteOutcome, status};
use rollout::divide_traffic;
use traffic::{TrafficLookup, resolve};
use types::duration;
use types::serving::annotations::{CONFIGURATION, ROLLOUT_DURATION, SERVICE, http_protocol};
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::serving::route::{ALL_TRAFFIC_ASSIGNED, INGRESS_READY, Route};
use types::settings::Settings;
use types::shared::{Condition, ConditionStatus, HasConditions, annotation, label, name, namespace};

const KIND: ControllerKind = ControllerKind::new("Route");

#[derive(Debug)]
pub struct RouteController;

impl Controller for RouteController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<Route>(KIND);
        watches.enqueue_by_name::<Configuration>(move |ns, name| routes_of_configuration(context, ns, name));
        watches.enqueue::<Revision, _>(move |change| {
            newest(change).map(|revision| routes_of_revision(context, revision)).unwrap_or_default()
        });
        watches.call::<Service>(move |change| {
            if newest(change).is_some_and(|service| is_placeholder(service)) {
                on_placeholder_change(context, change);
            }
        });
        watches.enqueue::<Service, _>(move |change| refused_name(context, change));
        host_certificates::watch(context, watches, KIND, "Route");
        watches.enqueue_on(ContextChange::OperatorCertificates, move || items_in(KIND, &context.caches.routes, None));
        // The Routes that were refused a host, in all namespaces (AMB-05).
        watches.enqueue_on(ContextChange::HostsReleased, move || {
            let refused = context.caches.routes.keys_by_index(HOST_CONFLICT);
            refused.iter().map(|(ns, name)| WorkItem::new(KIND, ns, name)).collect()
        });
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async move { restore(context) })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let owner = format!("{}/{}", item.namespace, item.name);
    let Some(route) = context.caches.routes.get(&item.namespace, &item.name) else {
        context.publisher.remove_route(&owner);
        durable_requests::remove(&context.publisher, &item.namespace, &item.name);
        context.publisher.set_object_certificates(&owner, ObjectCertificates::default());
        context.publisher.flush().await;
        context.notify(ContextChange::HostsReleased);
        return Ok(());
    };
    let settings = context.settings();
    let (tls, inside) = tls(context, &route, naming(context, &settings, &route));
    let naming = RouteNaming { tls: &tls, cluster_local_certificates: &inside, ..naming(context, &settings, &route) };
    let outcome = assign(context, &route, &settings, naming);
    match &outcome {
        RouteOutcome::Assigned(_) => {
            context.publisher.set_object_certificates(&owner, route_certificates(&tls, &inside))
        }
        RouteOutcome::HostConflict(_) | RouteOutcome::ServiceConflict(_) => {
            context.publisher.set_object_certificates(&owner, ObjectCertificates::default());
        }
        RouteOutcome::Unassigned(_) | RouteOutcome::InvalidAnnotation(_) => {}
    }
    if let Some(reason) = outcome.unready_reason() {
        context.publisher.set_not_ready(&owner, unserved_hosts(context, &route, &settings, (naming, reason)));
    }
    // COND-12: Ready is said after the swap, never before.
    let named = async {
        let RouteOutcome::Assigned(division) = &outcome else { return Ok(()) };
        host_certificates::reconcile_for_route(context, &route, naming).await?;
        placeholder::reconcile(context, &route, &division.targets, naming).await
    };
    let ((), named) = join(context.publisher.flush(), named).await;
    named?;
    let mut after = (*route).clone();
    after.status = Some(status(&route, &outcome, naming, now()));
    context.set_transient_status(item, &*route, &after).await?;
    if let RouteOutcome::Assigned(division) = &outcome
        && let Some(wait) = division.next_step(now())
    {
        context.queue.add_after(item.clone(), wait);
    }
    Ok(())
}

/// Gives the Route's hosts to the cores, if all is there that they lead to.
fn assign(context: &ControllerContext, route: &Route, settings: &Settings, naming: RouteNaming<'_>) -> RouteOutcome {
    let ns = namespace(&route.metadata);
    let goal = match resolve(route, &NamespaceLookup { context, namespace: ns }, naming) {
        Ok(goal) => goal,
        Err(why) => return RouteOutcome::Unassigned(why),
    };
    let protocol = match http_protocol(&route.metadata, settings.network.http_protocol) {
        Ok(protocol) => protocol,
        Err(why) => return RouteOutcome::InvalidAnnotation(why),
    };
    let is_of = |name: &str, parent: &str| {
        let revision = context.caches.revisions.get(ns, name);
        revision.is_some_and(|revision| label(&revision.metadata, CONFIGURATION) == Some(parent))
    };
    let division = divide_traffic(route, goal, rollout_duration(context, route), is_of, now());
    if let Some(foreign) = placeholder::conflicting_service(context, route, &division.targets, naming) {
        return RouteOutcome::ServiceConflict(foreign);
    }
    let rules = rules(route, &division.targets, rule_options(context, naming, settings, protocol));
    let (rules, _) = merge_rules(rules, challenge_rules(context, ns, naming.tls));
    match context.publisher.set_route(&format!("{ns}/{}", name(&route.metadata)), rules) {
        Ok(others_are_free) => {
            durable_requests::publish(context, route);
            if others_are_free {
                context.notify(ContextChange::HostsReleased);
            }
            RouteOutcome::Assigned(division)
        }
        Err(taken) => RouteOutcome::HostConflict(taken),
    }
}

/// What clients of its own hosts are told while nothing is routed.
fn unserved_hosts(
    context: &ControllerContext,
    route: &Route,
    settings: &Settings,
    (naming, reason): (RouteNaming<'_>, &str),
) -> UnservedHosts {
    let options = rule_options(context, naming, settings, protocol(route, settings));
    let hosts = rules(route, &[], options)
        .into_iter()
        .flat_map(|rule| rule.hosts.into_iter().map(move |host| (host.to_string(), rule.cluster_local)));
    let kind = if label(&route.metadata, SERVICE).is_some() { "Service" } else { "Route" };
    let (ns, name) = (namespace(&route.metadata), name(&route.metadata));
    let sentence = format!("{kind} {ns}/{name} is not Ready: {reason}; its conditions say more").into();
    UnservedHosts { hosts: hosts.collect(), sentence }
}

/// A placeholder that was changed or deleted is set back by its Route. One that was a tag's may have stood where another
/// Route's own is to be.
fn on_placeholder_change(context: &ControllerContext, (before, after): ObjectChange<'_, Service>) {
    let Some(before) = before else { return };
    if let Some(item) = placeholder::route_of(before) {
        context.enqueue(item);
    }
    let (ns, name) = (namespace(&before.metadata), name(&before.metadata));
    if after.is_none() && context.caches.routes.get(ns, name).is_some() {
        context.enqueue(WorkItem::new(KIND, ns, name));
    }
}

/// A core Service that is no placeholder was deleted: its name may be one that a Route of its namespace was refused.
fn refused_name(context: &ControllerContext, (before, after): ObjectChange<'_, Service>) -> Vec<WorkItem> {
    match (before, after) {
        (Some(gone), None) if !is_placeholder(gone) => {
            let ns = namespace(&gone.metadata);
            items(ns, context.caches.routes.names_by_index(ns, HOST_CONFLICT))
        }
        _ => Vec::new(),
    }
}

/// The Route's annotation, or the operator's setting.
fn rollout_duration(context: &ControllerContext, route: &Route) -> Duration {
    let own = annotation(&route.metadata, ROLLOUT_DURATION).and_then(duration::parse_go);
    own.unwrap_or_else(|| context.settings().network.rollout_duration)
}

/// Routes by what the last status says: how things were before a restart.
fn restore(context: &ControllerContext) {
    let settings = context.settings();
    let mut routes = context.caches.routes.all();
    // The previous owner of a host gets it again; among others the older comes first (AMB-05).
    let has_hosts = |route: &Route| {
        let flows = |c: &Condition| c.status == ConditionStatus::True || c.reason == ROLLOUT_IN_PROGRESS;
        // An annotation that makes no sense leaves things as they were.
        let misnoted = |c: &Condition| {
            let assigned = route.condition(ALL_TRAFFIC_ASSIGNED);
            c.reason == NOT_CONFIGURED && assigned.is_some_and(|c| c.status == ConditionStatus::True)
        };
        route.condition(INGRESS_READY).is_some_and(|c| flows(c) || misnoted(c))
    };
    routes.sort_by_key(|route| (!has_hosts(route), route.metadata.creation_timestamp.clone()));
    for route in routes {
        let assigned = route.status.as_ref().map(|status| status.traffic.as_slice()).unwrap_or_default();
        if assigned.is_empty() || !has_hosts(&route) {
            continue;
        }
        let owner = format!("{}/{}", namespace(&route.metadata), name(&route.metadata));
        let options = rule_options(context, naming(context, &settings, &route), &settings, protocol(&route, &settings));
        let (tls, inside) = tls(context, &route, naming(context, &settings, &route));
        let answers = challenge_rules(context, namespace(&route.metadata), &tls);
        let (rules, _) = merge_rules(rules(&route, assigned, options), answers);
        if let Err(taken) = context.publisher.set_route(&owner, rules) {
            tracing::warn!(route = owner, host = taken.host, owner = taken.owner, "host is taken");
        } else {
            durable_requests::publish(context, &route);
            context.publisher.set_object_certificates(&owner, route_certificates(&tls, &inside));
        }
    }
}

/// The Routes whose traffic may change with a Configuration.
fn routes_of_configuration(context: &ControllerContext, ns: &str, configuration: &str) -> Vec<WorkItem> {
    items(ns, context.caches.routes.names_by_index(ns, &spec_configuration_key(configuration)))
}

/// The Routes whose traffic may change with a Revision.
fn routes_of_revision(context: &ControllerContext, revision: &Revision) -> Vec<WorkItem> {
    let ns = namespace(&revision.metadata);
    let by_name = context.caches.routes.names_by_index(ns, &spec_revision_key(name(&revision.metadata)));
    let configuration = label(&revision.metadata, CONFIGURATION);
    let by_parent =
        configuration.map(|parent| context.caches.routes.names_by_index(ns, &spec_configuration_key(parent)));
    items(ns, by_name.into_iter().chain(by_parent.into_iter().flatten()))
}

fn items(ns: &str, routes: impl IntoIterator<Item = String>) -> Vec<WorkItem> {
    routes.into_iter().map(|name| WorkItem::new(KIND, ns, &name)).collect()
}

/// The TLS state of its public hosts, and the certificates of its cluster-local names.
fn tls(context: &ControllerContext, route: &Route, naming: RouteNaming<'_>) -> (HostTls, Vec<HostCertificate>) {
    (
        host_certificates::route_tls(context, route, naming),
        host_certificates::cluster_local_certificates(context, route, naming),
    )
}

fn route_certificates(tls: &HostTls, inside: &[HostCertificate]) -> ObjectCertificates {
    ObjectCertificates { public: tls.certificates(), cluster_local: host_tls::shown(inside), yields: false }
}

struct NamespaceLookup<'a> {
    context: &'a ControllerContext,
    namespace: &'a str,
}

impl TrafficLookup for NamespaceLookup<'_> {
    fn configuration(&self, name: &str) -> Option<Arc<Configuration>> {
        self.context.caches.configurations.get(self.namespace, name)
    }

    fn revision(&self, name: &str) -> Option<Arc<Revision>> {
        self.context.caches.revisions.get(self.namespace, name)
    }
}
