//! Route: divides a host's requests over Revisions, and is ready when they really go there.

pub mod hosts;
mod placeholder;
pub mod reconcile;
pub mod rollout;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use k8s_openapi::api::core::v1::Service;

use crate::certificate::challenges::{challenge_rules, merge_rules};
use crate::certificate::state::{self, HostCertificate, HostTls};
use crate::context::{ControllerContext, Error, now};
use crate::informer_cache::ObjectChange;
use crate::publish::{HostRule, ObjectCertificates};
use crate::work_queue::{ControllerKind, WorkItem};
use crate::{certificate, domain_mapping, ingress};
use hosts::{PublicPorts, RouteNaming};
use reconcile::{NOT_CONFIGURED, ROLLOUT_IN_PROGRESS, RouteOutcome, status};
use rollout::divide_traffic;
use traffic::{RouteRuleOptions, TrafficLookup, resolve, rules};
use types::duration;
use types::serving::annotations::{CONFIGURATION, ROLLOUT_DURATION, http_protocol};
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::serving::route::{ALL_TRAFFIC_ASSIGNED, INGRESS_READY, Route};
use types::settings::{HttpProtocol, Settings};
use types::shared::{Condition, ConditionStatus, HasConditions, annotation, label, name, namespace};

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let owner = format!("{}/{}", item.namespace, item.name);
    let Some(route) = context.routes.get(&item.namespace, &item.name) else {
        context.publisher.remove_route(&owner);
        context.publisher.set_object_certificates(&owner, ObjectCertificates::default());
        context.publisher.flush().await;
        requeue_host_conflicts(context);
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
    // COND-12: Ready is said after the swap, never before.
    let named = async {
        let RouteOutcome::Assigned(division) = &outcome else { return Ok(()) };
        certificate::reconcile_for_route(context, &route, naming).await?;
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
        let revision = context.revisions.get(ns, name);
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
            if others_are_free {
                requeue_host_conflicts(context);
            }
            RouteOutcome::Assigned(division)
        }
        Err(taken) => RouteOutcome::HostConflict(taken),
    }
}

/// Hosts were released: requeues the Routes that were refused them, in all namespaces (AMB-05).
pub(crate) fn requeue_host_conflicts(context: &ControllerContext) {
    let routes = context.routes.keys_by_index(HOST_CONFLICT).into_iter();
    routes.for_each(|(ns, name)| context.enqueue(WorkItem::new(ControllerKind::Route, &ns, &name)));
    let others =
        ingress::ingresses_with_conflicts(context).into_iter().chain(domain_mapping::mappings_with_conflicts(context));
    others.for_each(|item| context.enqueue(item));
}

/// A placeholder that was changed or deleted is set back by its Route. One that was a tag's may have stood where another
/// Route's own is to be.
pub(crate) fn on_placeholder_change(context: &ControllerContext, (before, after): ObjectChange<'_, Service>) {
    let Some(before) = before else { return };
    if let Some(item) = placeholder::route_of(before) {
        context.enqueue(item);
    }
    let (ns, name) = (namespace(&before.metadata), name(&before.metadata));
    if after.is_none() && context.routes.get(ns, name).is_some() {
        context.enqueue(WorkItem::new(ControllerKind::Route, ns, name));
    }
}

/// A core Service was deleted: its name may be one that a Route of `ns` was refused.
pub(crate) fn requeue_name_conflicts(context: &ControllerContext, ns: &str) {
    routes_with_conflicts(context, ns).for_each(|item| context.enqueue(item));
}

/// The Route's annotation, or the operator's setting.
fn rollout_duration(context: &ControllerContext, route: &Route) -> Duration {
    let own = annotation(&route.metadata, ROLLOUT_DURATION).and_then(duration::parse_go);
    own.unwrap_or_else(|| context.settings().network.rollout_duration)
}

/// Routes by what the last status says: how things were before a restart.
pub fn restore(context: &ControllerContext) {
    let settings = context.settings();
    let mut routes = context.routes.all();
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
        let ways = rule_options(context, naming(context, &settings, &route), &settings, protocol(&route, &settings));
        let (tls, inside) = tls(context, &route, naming(context, &settings, &route));
        let answers = challenge_rules(context, namespace(&route.metadata), &tls);
        let (rules, _) = merge_rules(rules(&route, assigned, ways), answers);
        if let Err(taken) = context.publisher.set_route(&owner, rules) {
            tracing::warn!(route = owner, host = taken.host, owner = taken.owner, "host is taken");
        } else {
            context.publisher.set_object_certificates(&owner, route_certificates(&tls, &inside));
        }
    }
}

/// The division of the Route's own host, as it flows now.
#[must_use]
pub fn own_rule(context: &ControllerContext, route: &Route) -> Option<HostRule> {
    let assigned = route.status.as_ref().map(|status| status.traffic.as_slice())?;
    let settings = context.settings();
    let ways = rule_options(context, naming(context, &settings, route), &settings, protocol(route, &settings));
    rules(route, assigned, ways).into_iter().next()
}

/// The Routes whose traffic may change with a Configuration.
pub fn routes_of_configuration(context: &ControllerContext, ns: &str, configuration: &str) -> Vec<WorkItem> {
    items(ns, context.routes.names_by_index(ns, &spec_configuration_key(configuration)))
}

/// The Routes whose traffic may change with a Revision.
pub fn routes_of_revision(context: &ControllerContext, revision: &Revision) -> Vec<WorkItem> {
    let ns = namespace(&revision.metadata);
    let by_name = context.routes.names_by_index(ns, &spec_revision_key(name(&revision.metadata)));
    let configuration = label(&revision.metadata, CONFIGURATION);
    let by_parent = configuration.map(|parent| context.routes.names_by_index(ns, &spec_configuration_key(parent)));
    items(ns, by_name.into_iter().chain(by_parent.into_iter().flatten()))
}

/// The Routes that send to `revision`, or to `configuration`, or are shown to, by name.
pub fn routes_sending_to(
    context: &ControllerContext,
    ns: &str,
    revision: &str,
    configuration: Option<&str>,
) -> BTreeSet<String> {
    let words = [spec_revision_key(revision), status_revision_key(revision)];
    let of_parent = configuration.map(|parent| [spec_configuration_key(parent), status_configuration_key(parent)]);
    let words = words.iter().chain(of_parent.iter().flatten());
    words.flat_map(|word| context.routes.names_by_index(ns, word)).collect()
}

/// Routes are found by what they ask for, and by what they are shown to send to.
pub fn index_keys(route: &Route) -> Vec<String> {
    let wanted = route.spec.traffic.iter().flat_map(|target| {
        [target.revision().map(spec_revision_key), target.configuration().map(spec_configuration_key)]
    });
    let shown = route.status.iter().flat_map(|status| &status.traffic).flat_map(|target| {
        [target.revision().map(status_revision_key), target.configuration().map(status_configuration_key)]
    });
    let is_refused = route.condition(INGRESS_READY).is_some_and(|c| c.reason == "NotOwned");
    wanted.chain(shown).flatten().chain(is_refused.then(|| HOST_CONFLICT.to_owned())).collect()
}

/// Another object owns one of its hosts.
const HOST_CONFLICT: &str = "refused";

fn spec_revision_key(name: &str) -> String {
    format!("wants revision {name}")
}

fn spec_configuration_key(name: &str) -> String {
    format!("wants configuration {name}")
}

fn status_revision_key(name: &str) -> String {
    format!("has revision {name}")
}

fn status_configuration_key(name: &str) -> String {
    format!("has configuration {name}")
}

fn routes_with_conflicts(context: &ControllerContext, ns: &str) -> impl Iterator<Item = WorkItem> {
    items(ns, context.routes.names_by_index(ns, HOST_CONFLICT)).into_iter()
}

fn items(ns: &str, routes: impl IntoIterator<Item = String>) -> Vec<WorkItem> {
    routes.into_iter().map(|name| WorkItem::new(ControllerKind::Route, ns, &name)).collect()
}

fn rule_options<'a>(
    context: &ControllerContext,
    naming: RouteNaming<'a>,
    settings: &Settings,
    protocol: HttpProtocol,
) -> RouteRuleOptions<'a> {
    let listeners = context.config.listeners;
    RouteRuleOptions {
        naming,
        by_tag_header: settings.features.is_enabled("tag-header-based-routing"),
        https_redirect: naming.ports.redirect(protocol),
        has_cluster_local_listener: listeners.cluster_local.is_some() || listeners.cluster_local_https.is_some(),
    }
}

/// What its clients without TLS are answered; if its annotation makes no sense, as the operator says.
fn protocol(route: &Route, settings: &Settings) -> HttpProtocol {
    let usual = settings.network.http_protocol;
    http_protocol(&route.metadata, usual).unwrap_or(usual)
}

/// X-RTE-01: the domain that the Route's labels choose, or the one that the appliance was started with.
fn naming<'a>(context: &'a ControllerContext, settings: &'a Settings, route: &Route) -> RouteNaming<'a> {
    let labels = route.metadata.labels.as_ref();
    let chosen = settings.domains.of(labels.unwrap_or(&BTreeMap::new()));
    RouteNaming {
        domain: chosen.unwrap_or(&context.config.domain),
        ports: ports(context),
        tls: &HostTls::NotRequested,
        cluster_local_certificates: &[],
        network: &settings.network,
        services: context.service_names.services(),
    }
}

/// What TLS there is for its public hosts, and the certificates of its names inside.
fn tls(context: &ControllerContext, route: &Route, naming: RouteNaming<'_>) -> (HostTls, Vec<HostCertificate>) {
    (certificate::route_tls(context, route, naming), certificate::cluster_local_certificates(context, route, naming))
}

fn route_certificates(tls: &HostTls, inside: &[HostCertificate]) -> ObjectCertificates {
    ObjectCertificates { public: tls.certificates(), cluster_local: state::shown(inside) }
}

/// The ports of public requests.
#[must_use]
pub fn ports(context: &ControllerContext) -> PublicPorts {
    PublicPorts { http: context.config.http_port, https: context.config.listeners.https.map(|address| address.port()) }
}

struct NamespaceLookup<'a> {
    context: &'a ControllerContext,
    namespace: &'a str,
}

impl TrafficLookup for NamespaceLookup<'_> {
    fn configuration(&self, name: &str) -> Option<Arc<Configuration>> {
        self.context.configurations.get(self.namespace, name)
    }

    fn revision(&self, name: &str) -> Option<Arc<Revision>> {
        self.context.revisions.get(self.namespace, name)
    }
}
