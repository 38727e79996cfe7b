//! HTTPRoute and GRPCRoute: attaches a route to listeners, and publishes its rules for their hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::attachment::{AttachedListener, AttachingRoute, attach};
use super::conditions::{ACCEPTED, ConditionRefusal, is_true};
use super::listener_book::ListenerBook;
use super::path_rules;
use super::policies::{self, PolicyCache, RoutePolicies};
use super::route_kind::{GATEWAY_QUEUE, GatewayRoute, RouteTransport};
use super::route_status::{ParentOutcome, statuses};
use super::route_store::{Dependency, RoutePrecedence, RouteProgram, RouteReferences, RouteStore, RuleHost};
use super::rule_compiler::CompiledRules;
use super::watches;
use super::{backend_tls, gateways};
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches};
use crate::field_managers;
use crate::publish::PathRule;
use crate::work_queue::{ControllerKind, WorkItem};
use contract::client_address::ClientScheme;
use contract::table::TlsRelayMode;
use types::gateway_api::CONTROLLER_NAME;
use types::gateway_api::parent::ParentReference;
use types::selector;
use types::shared::{name, namespace};

#[derive(Debug)]
pub(super) struct GatewayRouteController<R> {
    store: Arc<RouteStore>,
    book: Arc<ListenerBook>,
    policies: Arc<PolicyCache>,
    kind: PhantomData<R>,
}

impl<R: GatewayRoute> GatewayRouteController<R> {
    pub(super) fn new(store: &Arc<RouteStore>, book: &Arc<ListenerBook>, policies: &Arc<PolicyCache>) -> Self {
        let (store, book, policies) = (Arc::clone(store), Arc::clone(book), Arc::clone(policies));
        Self { store, book, policies, kind: PhantomData }
    }
}

impl<R: GatewayRoute> Controller for GatewayRouteController<R> {
    fn kind(&self) -> ControllerKind {
        R::QUEUE
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches::register_routes::<R>(&self.store, context, watches);
        policies::register_routes::<R>(&self.store, context, watches);
    }

    /// Puts back what was served before a restart, so that no known host is answered 404 (APP-16).
    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async {
            for route in R::cache(&context.caches).all() {
                let parents = route.parent_statuses().map(|statuses| &statuses.parents[..]).unwrap_or_default();
                let is_served = parents
                    .iter()
                    .any(|parent| parent.controller_name == CONTROLLER_NAME && is_true(&parent.conditions, ACCEPTED));
                if is_served {
                    let item = WorkItem::new(R::QUEUE, namespace(route.meta()), name(route.meta()));
                    self.store.set(&item, plan(context, &self.policies, &*route).program);
                }
            }
            self.store.publish(&context.publisher);
        })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile::<R>(self, context, item))
    }
}

async fn reconcile<R: GatewayRoute>(
    GatewayRouteController { store, book, policies, .. }: &GatewayRouteController<R>,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    let route = R::cache(&context.caches).get(&item.namespace, &item.name);
    let planned = route.as_ref().map(|route| plan(context, policies, &**route));
    let specs = planned.as_ref().map(|plan| plan.program.run_time_listeners()).unwrap_or_default();
    let (changed, outcomes) = match planned {
        Some(RoutePlan { program, outcomes }) => (store.set(item, program), Some(outcomes)),
        None => (store.remove(item), None),
    };
    if !changed.is_empty() {
        policies::policies_of_route(context, R::KIND, item).into_iter().for_each(|policy| context.enqueue(policy));
    }
    for (namespace, name) in changed {
        context.enqueue(WorkItem::new(GATEWAY_QUEUE, &namespace, &name));
    }
    for (namespace, service) in store.take_moved_services() {
        let policies = backend_tls::policies_of(context, &namespace, &service);
        policies.into_iter().for_each(|policy| context.enqueue(policy));
    }
    // Other routes apply their changes meanwhile, so that a host with rules of many is published once for all.
    tokio::task::yield_now().await;
    if store.publish(&context.publisher) {
        context.notify(ContextChange::HostsReleased);
    }
    store.take_admitted().into_iter().for_each(|item| context.enqueue(item));
    context.publisher.flush().await;
    for spec in specs {
        book.settled(spec).await;
    }
    let (Some(route), Some(mut outcomes)) = (route, outcomes) else { return Ok(()) };
    if let Some(conflict) = store.conflict(item) {
        let why = format!("The host {} belongs to {}, which had it first.", conflict.host, conflict.owner);
        for parent in outcomes.parents.iter_mut().filter(|parent| parent.not_accepted.is_none()) {
            parent.not_accepted = Some(ConditionRefusal::new("HostnameConflict", why.clone()));
        }
    }
    let before = route.parent_statuses();
    let Outcomes { parents, unresolved } = outcomes;
    let status = statuses(before, &parents, unresolved.as_ref(), route.meta().generation, now());
    let is_same = before.map_or(status.parents.is_empty(), |before| *before == status);
    if !is_same && context.leadership.is_leader() {
        context.check_replicas(route.meta()).await?;
        let mut after = (*route).clone();
        after.set_parent_statuses(status);
        context.api(&item.namespace).replace_status(&item.name, &field_managers::status_params::<R>(), &after).await?;
    }
    Ok(())
}

/// What a route asks of the data plane, and what its status says.
struct RoutePlan {
    program: RouteProgram,
    outcomes: Outcomes,
}

struct Outcomes {
    parents: Vec<ParentOutcome>,
    unresolved: Option<ConditionRefusal>,
}

fn plan<R: GatewayRoute>(context: &ControllerContext, policies: &PolicyCache, route: &R) -> RoutePlan {
    let meta = route.meta();
    let mut references = RouteReferences::default();
    let (mut parents, mut attached) = (Vec::new(), Vec::new());
    for parent in route.parent_refs().iter().filter(|parent| parent.is_gateway()) {
        let Some(found) = attach_to(context, route, parent, &mut references) else { continue };
        let not_accepted = found.map(|listeners| attached.extend(listeners)).err();
        parents.push(ParentOutcome { parent: parent.clone(), not_accepted });
    }
    let (rules, compiled) = compile((context, policies), route, &attached, &mut references);
    if let Some(refusal) = compiled.unsupported {
        for parent in parents.iter_mut().filter(|parent| parent.not_accepted.is_none()) {
            parent.not_accepted = Some(refusal.clone());
        }
    }
    let program = RouteProgram {
        precedence: RoutePrecedence {
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            namespace: namespace(meta).to_owned(),
            name: name(meta).to_owned(),
            kind: R::KIND,
        },
        rules,
        listeners: attached.into_iter().map(|listener| (listener.gateway, listener.section)).collect(),
        references,
    };
    RoutePlan { program, outcomes: Outcomes { parents, unresolved: compiled.unresolved } }
}

/// The rules for the hosts of the listeners. Those of listeners that do not read TLS have backends of their own.
fn compile<R: GatewayRoute>(
    (context, policies): (&ControllerContext, &PolicyCache),
    route: &R,
    attached: &[AttachedListener],
    references: &mut RouteReferences,
) -> (BTreeMap<RuleHost, Vec<PathRule>>, CompiledRules) {
    let policies = RoutePolicies::of(context, policies, route);
    let is_unread = |listener: &&AttachedListener| listener.relay == Some(TlsRelayMode::Passthrough);
    let (unread, read): (Vec<_>, Vec<_>) = attached.iter().partition(is_unread);
    if unread.is_empty() {
        let compiled = path_rules::compile(context, (route, R::TRANSPORT), references);
        let rules = rules_by_host(&read, &|gateways| policies.rules(&compiled, gateways));
        references.extend(policies.into_references());
        return (rules, compiled);
    }
    let compiled = path_rules::compile(context, (route, RouteTransport::TlsPassthrough), references);
    let mut rules = rules_by_host(&unread, &|_| compiled.rules.clone());
    if !read.is_empty() {
        let compiled = path_rules::compile(context, (route, R::TRANSPORT), references);
        rules.extend(rules_by_host(&read, &|gateways| policies.rules(&compiled, gateways)));
    }
    references.extend(policies.into_references());
    (rules, compiled)
}

/// The listeners of one parent that the route attaches to; `None`: the parent is not ours.
fn attach_to<R: GatewayRoute>(
    context: &ControllerContext,
    route: &R,
    parent: &ParentReference,
    references: &mut RouteReferences,
) -> Option<Result<Vec<AttachedListener>, ConditionRefusal>> {
    let home = namespace(route.meta());
    let ns = parent.namespace.as_deref().unwrap_or(home);
    references.dependencies.insert(Dependency::Gateway(ns.to_owned(), parent.name.clone()));
    references.dependencies.insert(Dependency::Namespace(home.to_owned()));
    let gateway = context.caches.gateways.get(ns, &parent.name)?;
    if !gateways::is_ours(context, &gateway) {
        return None;
    }
    let outcomes = gateways::outcomes(context, &gateway);
    let attaching = AttachingRoute { kind: R::KIND, namespace: home, hostnames: route.hostnames() };
    let selects = |selector: &LabelSelector, ns: &str| selects(context, selector, ns);
    Some(attach(attaching, parent, (&gateway, &outcomes), &selects))
}

/// Whether a namespace has the labels that a selector wants.
fn selects(context: &ControllerContext, selector: &LabelSelector, ns: &str) -> bool {
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    let labels = selector.match_labels.clone().unwrap_or_default();
    let namespace = context.caches.namespaces.get("", ns);
    namespace.is_some_and(|namespace| selector::matches(&labels, expressions, &namespace.metadata))
}

/// Namespaces and names of Gateways.
type GatewayKeys = BTreeSet<(String, String)>;

/// How requests reach a host.
#[derive(Default)]
struct HostEntry {
    by_http: bool,
    by_https: bool,
    gateways: GatewayKeys,
}

/// The rules for each host of the listeners, for requests that come in by the listeners' schemes. `rules` has those of routes
/// of some Gateways.
fn rules_by_host(
    attached: &[&AttachedListener],
    rules: &dyn Fn(&GatewayKeys) -> Vec<PathRule>,
) -> BTreeMap<RuleHost, Vec<PathRule>> {
    let mut entries: BTreeMap<RuleHost, HostEntry> = BTreeMap::new();
    for listener in attached {
        for (target, host) in
            listener.targets.iter().flat_map(|target| listener.hosts.iter().map(move |host| (target, host)))
        {
            let of = target.run_time().map(|spec| (spec, listener.hostname.clone()));
            let entry = entries.entry(RuleHost { host: host.clone(), listener: of }).or_default();
            entry.by_http |= !listener.is_tls;
            entry.by_https |= listener.is_tls;
            entry.gateways.insert(listener.gateway.clone());
        }
    }
    // Mostly one: a route has the same policies at all hosts of a Gateway.
    let mut made: BTreeMap<GatewayKeys, Vec<PathRule>> = BTreeMap::new();
    let by_host = entries.into_iter().map(|(host, entry)| {
        let scheme = match (entry.by_http, entry.by_https) {
            _ if host.listener.is_some() => None, // it has one scheme
            (true, true) => None,
            (_, is_tls) => Some(if is_tls { ClientScheme::Https } else { ClientScheme::Http }),
        };
        let rules = made.entry(entry.gateways).or_insert_with_key(rules);
        (host, rules.iter().cloned().map(|rule| PathRule { scheme, ..rule }).collect())
    });
    by_host.collect()
}
