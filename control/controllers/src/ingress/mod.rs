//! Ingress: routes hosts to core Services for another control plane, and is ready when every core has the routes.

pub mod gateway_services;
pub mod reconcile;
pub mod rules;
pub mod system_internal_tls;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches};
use crate::publish::{ObjectCertificates, UnservedHosts};
use crate::service_backends::{self as backends, BackendResolveError, SplitBackend, resolve_backend};
use crate::work_queue::{ControllerKind, WorkItem};
use contract::table::RequestTimeouts;
use reconcile::{IngressOutcome, status};
use support::blocking;
use system_internal_tls::InternalTlsTrusts;
use types::networking::ingress::{HttpIngressPath, Ingress, IngressBackendSplit};
use types::serving::annotations::ROUTE;
use types::shared::{HasConditions, label, name, namespace};

/// One name's look-up may take so long; a resolver that is silent must not hold the others up for more.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses taken of one name.
const NAME_ADDRESSES_MAX: usize = 64;

/// How long the response of a Knative Service may take to begin, where no Revision of ours says it: upstream's default of
/// `max-revision-timeout-seconds`.
const KNATIVE_RESPONSE_START: Duration = Duration::from_secs(600);

const KIND: ControllerKind = ControllerKind::new("Ingress");

#[derive(Debug, Default)]
pub struct IngressController {
    /// How backends have to identify themselves.
    internal_tls: InternalTlsTrusts,
    /// Those that lead to names outside or to Routes and Revisions: looked at now and then, and when one of
    /// those changes.
    polled: Mutex<BTreeSet<WorkItem>>,
}

impl Controller for IngressController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches::register(self, context, watches);
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(restore(self, context))
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

async fn reconcile(controller: &IngressController, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let ingress = context.caches.ingresses.get(&item.namespace, &item.name);
    let Some(ingress) = ingress.filter(|ingress| ingress.is_ours()) else {
        let owner = route_owner(&item.namespace, &item.name);
        context.publisher.remove_route(&owner);
        context.publisher.set_object_certificates(&owner, ObjectCertificates::default());
        controller.set_polled(item, false);
        context.publisher.flush().await;
        context.notify(ContextChange::HostsReleased);
        return Ok(());
    };
    let outcome = program_routes(controller, context, &ingress).await;
    // X-KI-17: Ready is said after the swap, never before.
    context.publisher.flush().await;
    let mut after = (*ingress).clone();
    after.status = Some(status(&ingress, &outcome, context.config.listeners, now()));
    context.set_status(&*ingress, &after).await
}

/// Publishes the Ingress's rules to the cores.
async fn program_routes(
    controller: &IngressController,
    context: &ControllerContext,
    ingress: &Ingress,
) -> IngressOutcome {
    match publish(controller, context, ingress).await {
        Ok(outcome) => outcome,
        Err(BackendResolveError { reason, message }) => {
            let (ns, name) = (namespace(&ingress.metadata), name(&ingress.metadata));
            let sentence = format!("Ingress {ns}/{name} is not Ready: {reason}; its conditions say more").into();
            let unserved = UnservedHosts { hosts: rules::unserved_hosts(ingress), sentence };
            context.publisher.set_not_ready(&route_owner(ns, name), unserved);
            IngressOutcome::NotConfigured { reason, message }
        }
    }
}

async fn publish(
    controller: &IngressController,
    context: &ControllerContext,
    ingress: &Ingress,
) -> Result<IngressOutcome, BackendResolveError> {
    let (ns, name) = (namespace(&ingress.metadata), name(&ingress.metadata));
    let owner = route_owner(ns, name);
    let timeouts = timeouts(ingress);
    // Until everything is found: what is missing now may come without telling.
    controller.set_polled(&item(ingress), true);
    let mut found: BTreeMap<String, Vec<(String, u32)>> = BTreeMap::new();
    let mut loose = false;
    for (path, split) in weighted_splits(ingress) {
        let by_tls = system_internal_tls::is_required(context, path);
        let key = backends::key(split, by_tls);
        if found.contains_key(&key) {
            continue;
        }
        let trust = |protocol| {
            by_tls.then(|| system_internal_tls::trust(context, &controller.internal_tls, ns, protocol)).transpose()
        };
        let shares = match resolve_backend(split, by_tls, context)? {
            SplitBackend::Addresses { protocol, addresses } => {
                let admitted = admitted(context, split, addresses);
                let addresses = admitted.as_deref().unwrap_or_default();
                context.publisher.set_addresses(&key, (protocol, timeouts), trust(protocol)?, addresses);
                admitted?;
                vec![(key.clone(), 1)]
            }
            SplitBackend::Name { protocol, host, port } => {
                loose = true;
                let trust = trust(protocol)?;
                if let Some(listener) = gateway(context, &host)? {
                    context.publisher.set_gateway(&key, protocol, trust, listener);
                } else {
                    let admitted = admitted(context, split, dns_lookup(&host, port).await?);
                    let addresses = admitted.as_deref().unwrap_or_default();
                    context.publisher.set_addresses(&key, (protocol, timeouts), trust, addresses);
                    admitted?;
                }
                vec![(key.clone(), 1)]
            }
            SplitBackend::Revisions(shares) => {
                loose = true;
                shares
            }
        };
        found.insert(key, shares);
    }
    controller.set_polled(&item(ingress), loose);
    let certificates = certificates(context, ingress)?;
    let shares = |path: &HttpIngressPath, split: &IngressBackendSplit| {
        let key = backends::key(split, system_internal_tls::is_required(context, path));
        found.get(&key).cloned().unwrap_or_default()
    };
    let listens = context.config.listeners.https.is_some();
    let rules = rules::rules(ingress, listens, &shares)
        .map_err(|message| BackendResolveError { reason: "InvalidHeader", message })?;
    match context.publisher.set_route(&owner, rules) {
        Ok(true) => context.notify(ContextChange::HostsReleased),
        Ok(false) => {}
        Err(taken) => return Ok(IngressOutcome::HostConflict(taken)),
    }
    context.publisher.set_object_certificates(&owner, certificates);
    let silent = found.values().flatten().find(|(key, _)| !context.publisher.has_endpoints(key));
    Ok(match silent {
        Some((key, _)) => IngressOutcome::NoEndpoints(key.clone()),
        None => IngressOutcome::Programmed,
    })
}

/// The timeouts of its backends. Behind an Ingress of a Knative Route are instances that may take as long as their own timeout
/// allows, and that end requests by it.
fn timeouts(ingress: &Ingress) -> RequestTimeouts {
    match label(&ingress.metadata, ROUTE) {
        Some(_) => RequestTimeouts { response_start: KNATIVE_RESPONSE_START, ..RequestTimeouts::EXTERNAL },
        None => RequestTimeouts::EXTERNAL,
    }
}

/// The splits that get traffic, each with its path.
fn weighted_splits(ingress: &Ingress) -> impl Iterator<Item = (&HttpIngressPath, &IngressBackendSplit)> {
    let paths = ingress.spec.rules.iter().flat_map(|rule| rule.paths());
    let all = paths.flat_map(|path| path.splits.iter().map(move |split| (path, split)));
    all.filter(|(_, split)| split.percent > 0)
}

fn splits(ingress: &Ingress) -> impl Iterator<Item = &IngressBackendSplit> {
    weighted_splits(ingress).map(|(_, split)| split)
}

/// As the publisher knows it; Routes are known by their names alone.
fn route_owner(ns: &str, name: &str) -> String {
    format!("Ingress {ns}/{name}")
}

/// The addresses that the target policy lets a split have.
fn admitted(
    context: &ControllerContext,
    split: &IngressBackendSplit,
    addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, BackendResolveError> {
    let service = format!("{}/{}", split.service_namespace, split.service_name);
    backends::admit_addresses(&context.config.targets, &service, addresses)
}

/// The listener of ours that a status of ours called `host`, if any.
fn gateway(context: &ControllerContext, host: &str) -> Result<Option<SocketAddr>, BackendResolveError> {
    match context.config.listeners.by_status_name(host) {
        Some(Some(address)) => Ok(Some(address)),
        Some(None) => Err(BackendResolveError {
            reason: "ListenerNotConfigured",
            message: format!("{host} is a listener that is off; start with --cluster-local ADDRESS."),
        }),
        None => Ok(None),
    }
}

async fn dns_lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, BackendResolveError> {
    let failed = |why: &dyn std::fmt::Display| BackendResolveError {
        reason: "DNSResolutionFailed",
        message: format!("The name {host} is not resolved: {why}."),
    };
    let asked = host.to_owned();
    let looking = blocking::run("look-up", move || (asked, port).to_socket_addrs());
    let mut addresses: Vec<_> = match tokio::time::timeout(LOOKUP_TIMEOUT, looking).await {
        Ok(Ok(Ok(addresses))) => addresses.take(NAME_ADDRESSES_MAX).collect(),
        Ok(Ok(Err(why)) | Err(why)) => return Err(failed(&why)),
        Err(_) => return Err(failed(&"no answer within 5 s")),
    };
    addresses.sort_unstable();
    Ok(addresses)
}

/// X-KI-12: the certificates that the Ingress names, for their hosts: those that only rules for callers inside have are
/// shown only to callers inside.
fn certificates(context: &ControllerContext, ingress: &Ingress) -> Result<ObjectCertificates, BackendResolveError> {
    let (mut shown, inside) = (ObjectCertificates::default(), rules::cluster_local_hosts(ingress));
    for tls in &ingress.spec.tls {
        let identity = context.tls_identity(&tls.secret_namespace, &tls.secret_name)?;
        for host in tls.hosts.iter().map(|host| host.to_ascii_lowercase()) {
            let to = if inside.contains(&host) { &mut shown.cluster_local } else { &mut shown.public };
            to.push((host, identity.clone()));
        }
    }
    Ok(shown)
}

impl IngressController {
    fn set_polled(&self, item: &WorkItem, loose: bool) {
        let mut all = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        if loose {
            all.insert(item.clone());
        } else {
            all.remove(item);
        }
    }

    /// The ones to reconcile when a Route or Revision changes, and periodically.
    fn polled_items(&self) -> Vec<WorkItem> {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Puts back what was served before a restart, so that no known host is answered 404 (APP-16).
async fn restore(controller: &IngressController, context: &ControllerContext) {
    for ingress in context.caches.ingresses.all() {
        if ingress.is_ours() && ingress.is_ready() {
            program_routes(controller, context, &ingress).await;
        }
    }
}

/// The Ingresses that were refused a host, which may be free now.
fn ingresses_with_conflicts(context: &ControllerContext) -> Vec<WorkItem> {
    let all = context.caches.ingresses.all();
    let refused = all.iter().filter(|ingress| ingress.ready().is_some_and(|c| c.reason == "NotOwned"));
    refused.map(|ingress| item(ingress)).collect()
}

fn item(ingress: &Ingress) -> WorkItem {
    WorkItem::new(KIND, namespace(&ingress.metadata), name(&ingress.metadata))
}
