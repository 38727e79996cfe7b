//! Gateway: what becomes of its listeners, with their certificates and the number of their routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;

use contract::tls::TlsIdentity;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::attachment;
use super::conditions::{ACCEPTED, CONFLICTED, ConditionList, ConditionRefusal, PROGRAMMED, RESOLVED_REFS, is_true};
use super::gateway_addresses;
use super::grants::{self, ReferenceTarget};
use super::infrastructure;
use super::listener_book::{ListenerBook, ListenerClaim, NotOpen};
use super::listener_outcome::{ListenerOutcome, decide, relay_mode};
use super::listener_targets::{ListenerSites, ListenerTarget, PORT_UNAVAILABLE};
use super::route_kind::GATEWAY_QUEUE;
use super::route_store::RouteStore;
use super::watches;
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches};
use crate::field_managers;
use crate::publish::ObjectCertificates;
use crate::work_queue::{ControllerKind, WorkItem};
use types::gateway_api::GROUP;
use types::gateway_api::gateway::{Gateway, GatewayAddress, GatewayListenerStatus, GatewayStatus};
use types::gateway_api::reference::SecretObjectReference;
use types::shared::{name, namespace};

/// A Secret with a certificate.
const TLS_SECRET: &str = "kubernetes.io/tls";

#[derive(Debug)]
pub(super) struct GatewayController {
    routes: Arc<RouteStore>,
    book: Arc<ListenerBook>,
}

impl GatewayController {
    pub(super) fn new(routes: Arc<RouteStore>, book: Arc<ListenerBook>) -> Self {
        Self { routes, book }
    }
}

impl Controller for GatewayController {
    fn kind(&self) -> ControllerKind {
        GATEWAY_QUEUE
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches::register_gateways(context, watches);
    }

    /// Opens the listeners and puts the certificates back, so that no known host is without them.
    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async {
            for gateway in context.caches.gateways.all() {
                let status = gateway.status.as_ref();
                if is_ours(context, &gateway) && status.is_some_and(|status| is_true(&status.conditions, PROGRAMMED)) {
                    let outcomes = outcomes(context, &gateway);
                    publish_certificates(context, &gateway, &outcomes);
                    open_listeners(&self.book, context, &gateway, &outcomes);
                }
            }
        })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

async fn reconcile(controller: &GatewayController, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let (book, key) = (&controller.book, (item.namespace.clone(), item.name.clone()));
    let gateway = context.caches.gateways.get(&item.namespace, &item.name);
    let Some(gateway) = gateway.filter(|gateway| is_ours(context, gateway)) else {
        context.publisher.set_object_certificates(&owner(&item.namespace, &item.name), ObjectCertificates::default());
        let others = book.set(context, (&key, Timestamp::UNIX_EPOCH), Vec::new());
        enqueue(context, others);
        book.forget_attempts(&key);
        if context.config.gateway_listeners.pool.release((&item.namespace, &item.name)) {
            // One that waits for an address gets this one.
            enqueue(
                context,
                watches::gateways_where(context, |_| true).into_iter().map(|one| (one.namespace, one.name)),
            );
        }
        context.publisher.flush().await;
        return Ok(());
    };
    let mut outcomes = outcomes(context, &gateway);
    publish_certificates(context, &gateway, &outcomes);
    open_listeners(book, context, &gateway, &outcomes);
    context.publisher.flush().await;
    if settle(book, context, &mut outcomes).await {
        book.forget_attempts(&key);
    } else {
        context.queue.add_after_unless_sooner(item, book.retry_delay(&key));
        context.publisher.flush().await;
    }
    let status = status(&gateway, &outcomes, &controller.routes.attached(&key), now());
    infrastructure::apply_service(context, &gateway, &status.addresses).await?;
    if gateway.status.as_ref() != Some(&status) && context.leadership.is_leader() {
        context.check_replicas(&gateway.metadata).await?;
        let after = Gateway { status: Some(status), ..(*gateway).clone() };
        let parameters = field_managers::status_params::<Gateway>();
        context.api(&item.namespace).replace_status(&item.name, &parameters, &after).await?;
    }
    Ok(())
}

/// Whether its class is ours.
pub(super) fn is_ours(context: &ControllerContext, gateway: &Gateway) -> bool {
    let class = context.caches.gateway_classes.get("", &gateway.spec.gateway_class_name);
    class.is_some_and(|class| class.is_ours())
}

/// What becomes of the listeners of a Gateway.
pub(super) fn outcomes(context: &ControllerContext, gateway: &Gateway) -> Vec<ListenerOutcome> {
    let config = &context.config.gateway_listeners;
    let addresses = gateway_addresses::addresses(gateway, &config.pool, &context.caches.gateways);
    let missing = addresses.as_ref().err().cloned();
    let sites = ListenerSites { appliance: context.config.listeners, config, addresses: addresses.unwrap_or_default() };
    let identity = |reference: &SecretObjectReference| identity(context, namespace(&gateway.metadata), reference);
    let mut outcomes = decide(&gateway.spec.listeners, &sites, &identity);
    if let Some(why) = missing {
        for outcome in &mut outcomes {
            outcome.targets.clear();
            outcome.not_open = Some(NotOpen::Address(why.clone()));
        }
    }
    outcomes
}

/// Opens the listeners of a Gateway that are not open, and closes those that it has no more.
fn open_listeners(book: &ListenerBook, context: &ControllerContext, gateway: &Gateway, outcomes: &[ListenerOutcome]) {
    let meta = &gateway.metadata;
    let key = (namespace(meta).to_owned(), name(meta).to_owned());
    let created = meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let listeners = gateway.spec.listeners.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_complete());
    let claims = listeners.flat_map(|(listener, outcome)| {
        let specs = outcome.targets.iter().filter_map(|target| target.run_time());
        specs.map(|spec| ListenerClaim {
            spec,
            hostname: attachment::hostname(listener),
            identities: outcome.identities.clone(),
            relay: relay_mode(listener),
        })
    });
    enqueue(context, book.set(context, (&key, created), claims.collect()));
}

fn enqueue(context: &ControllerContext, gateways: impl IntoIterator<Item = (String, String)>) {
    gateways.into_iter().for_each(|(ns, name)| context.enqueue(WorkItem::new(GATEWAY_QUEUE, &ns, &name)));
}

/// Waits until the cores accept, and notes which listeners are not open. Returns whether all are.
async fn settle(book: &ListenerBook, context: &ControllerContext, outcomes: &mut [ListenerOutcome]) -> bool {
    let mut all_open = true;
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_complete()) {
        for spec in outcome.targets.clone().into_iter().filter_map(ListenerTarget::run_time) {
            match book.outcome(context, spec).await {
                None => {}
                Some(NotOpen::Conflict(refusal)) => outcome.conflict = Some(refusal),
                Some(not_open) => {
                    outcome.not_open.get_or_insert(not_open);
                    all_open = false;
                }
            }
        }
    }
    all_open
}

/// The certificate in the Secret that a listener names.
fn identity(
    context: &ControllerContext,
    home: &str,
    reference: &SecretObjectReference,
) -> Result<TlsIdentity, ConditionRefusal> {
    const INVALID: &str = "InvalidCertificateRef";
    let (name, other) = (reference.name.as_str(), reference.namespace.as_deref().unwrap_or(home));
    if !reference.is_secret() {
        let kind = reference.kind.as_deref().unwrap_or_default();
        return Err(ConditionRefusal::new(INVALID, format!("A certificate cannot be in a {kind}; use a core Secret.")));
    }
    if other != home {
        let target = ReferenceTarget { group: "", kind: "Secret", name };
        if !grants::permits(&context.caches.reference_grants.list(other), ((GROUP, "Gateway"), home), target) {
            let why = format!(
                "No ReferenceGrant in the namespace {other} lets a Gateway of the namespace {home} refer to the Secret {name}."
            );
            return Err(ConditionRefusal::new("RefNotPermitted", why));
        }
    }
    let secret = context.caches.secrets.get(other, name);
    if secret.is_some_and(|secret| secret.type_.as_deref() != Some(TLS_SECRET)) {
        return Err(ConditionRefusal::new(
            INVALID,
            format!("Secret \"{other}/{name}\" has not the type {TLS_SECRET}."),
        ));
    }
    context.tls_identity(other, name).map_err(|why| ConditionRefusal::new(INVALID, why.message))
}

fn publish_certificates(context: &ControllerContext, gateway: &Gateway, outcomes: &[ListenerOutcome]) {
    let of_appliance = |outcome: &ListenerOutcome| {
        outcome.is_complete() && outcome.targets.iter().any(|target| target.run_time().is_none())
    };
    let listeners = gateway.spec.listeners.iter().zip(outcomes).filter(|(_, outcome)| of_appliance(outcome));
    let public = listeners.flat_map(|(listener, outcome)| {
        outcome.identities.iter().map(|identity| (attachment::hostname(listener), identity.clone()))
    });
    let certificates = ObjectCertificates { public: public.collect(), yields: true, ..ObjectCertificates::default() };
    let owner = owner(namespace(&gateway.metadata), name(&gateway.metadata));
    context.publisher.set_object_certificates(&owner, certificates);
}

/// As the publisher knows it.
fn owner(ns: &str, name: &str) -> String {
    format!("Gateway {ns}/{name}")
}

fn status(
    gateway: &Gateway,
    outcomes: &[ListenerOutcome],
    attached: &BTreeMap<String, i32>,
    now: Timestamp,
) -> GatewayStatus {
    let (before, generation) = (gateway.status.clone().unwrap_or_default(), gateway.metadata.generation);
    let listeners = gateway.spec.listeners.iter().zip(outcomes).map(|(listener, outcome)| {
        let known = before.listeners.iter().find(|known| known.name == listener.name);
        let known = known.map(|known| &known.conditions[..]).unwrap_or_default();
        GatewayListenerStatus {
            name: listener.name.clone(),
            supported_kinds: outcome.supported_kinds.clone(),
            attached_routes: attached.get(&listener.name).copied().unwrap_or_default(),
            conditions: listener_conditions(outcome, ConditionList::new(known, generation, now)),
        }
    });
    let listeners = listeners.collect();
    let is_invalid = |outcome: &ListenerOutcome| {
        !outcome.takes_routes() || outcome.unresolved.is_some() || matches!(outcome.not_open, Some(NotOpen::Port(_)))
    };
    let invalid = outcomes.iter().any(is_invalid);
    let programmed = outcomes.iter().any(ListenerOutcome::is_programmed);
    let parameters = gateway.spec.infrastructure.as_ref().and_then(|all| all.parameters_ref.as_ref());
    let unsupported = infrastructure::unsupported_parameters(parameters).or_else(|| unsupported_address(gateway));
    let unusable = unusable_address(outcomes);
    let mut conditions = ConditionList::new(&before.conditions, generation, now);
    let rejected = unsupported.clone().or_else(|| {
        let why = "No listener is accepted; the conditions of the listeners say more.";
        let accepted = outcomes.iter().any(ListenerOutcome::takes_routes);
        (!accepted).then(|| ConditionRefusal::new("ListenersNotValid", why))
    });
    conditions.set(ACCEPTED, if invalid { "ListenersNotValid" } else { "Accepted" }, rejected.as_ref());
    let refusal = unsupported.or(unusable).or_else(|| {
        let why = "No listener is programmed; the conditions of the listeners say more.";
        let first = outcomes.iter().find_map(|outcome| match &outcome.not_open {
            Some(NotOpen::Port(why)) => Some(format!("No listener is programmed: {why}")),
            _ => None,
        });
        (!programmed).then(|| ConditionRefusal::new("Invalid", first.unwrap_or_else(|| why.to_owned())))
    });
    conditions.set(PROGRAMMED, "Programmed", refusal.as_ref());
    GatewayStatus { addresses: addresses_of(outcomes), conditions: conditions.finish(), listeners }
}

fn listener_conditions(outcome: &ListenerOutcome, mut conditions: ConditionList<'_>) -> Vec<Condition> {
    let port = match &outcome.not_open {
        Some(NotOpen::Port(why)) => Some(ConditionRefusal::new(PORT_UNAVAILABLE, why.as_str())),
        _ => None,
    };
    let refusal = outcome.not_accepted.as_ref().or(outcome.conflict.as_ref()).or(port.as_ref());
    conditions.set(ACCEPTED, "Accepted", refusal);
    conditions.set(RESOLVED_REFS, "ResolvedRefs", outcome.unresolved.as_ref());
    conditions.set_negative(CONFLICTED, "NoConflicts", outcome.conflict.as_ref());
    let refusal = (!outcome.is_programmed()).then(|| {
        let cause = refusal.or(outcome.unresolved.as_ref()).map(|cause| cause.message.as_str());
        let message = match &outcome.not_open {
            Some(NotOpen::Address(why)) => cause.unwrap_or(why),
            _ => cause.unwrap_or_default(),
        };
        ConditionRefusal::new("Invalid", message)
    });
    conditions.set(PROGRAMMED, "Programmed", refusal.as_ref());
    conditions.finish()
}

/// The addresses at which clients reach the listeners that are open.
fn addresses_of(outcomes: &[ListenerOutcome]) -> Vec<GatewayAddress> {
    let open = outcomes.iter().filter(|outcome| outcome.is_programmed()).flat_map(|outcome| &outcome.targets);
    let reached = open.map(|target| target.ip()).map(|ip| if ip.is_unspecified() { own_address() } else { ip });
    let reached: BTreeSet<IpAddr> = reached.collect();
    let address = |ip: IpAddr| GatewayAddress { kind: Some("IPAddress".to_owned()), value: Some(ip.to_string()) };
    reached.into_iter().map(address).collect()
}

/// The address of the interface that has the default route. The socket sends nothing.
fn own_address() -> IpAddr {
    let find = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?; // an address of documentation
        Ok::<_, std::io::Error>(socket.local_addr()?.ip())
    };
    find().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn unsupported_address(gateway: &Gateway) -> Option<ConditionRefusal> {
    let kinds = gateway.spec.addresses.iter().map(|address| address.kind.as_deref().unwrap_or("IPAddress"));
    let other = kinds.into_iter().find(|kind| *kind != "IPAddress")?;
    Some(ConditionRefusal::new(
        "UnsupportedAddress",
        format!("Addresses of the type {other} are not supported; use IPAddress."),
    ))
}

/// An address of the Gateway that this host does not have.
fn unusable_address(outcomes: &[ListenerOutcome]) -> Option<ConditionRefusal> {
    let why = outcomes.iter().find_map(|outcome| match &outcome.not_open {
        Some(NotOpen::Address(why)) => Some(why.clone()),
        _ => None,
    });
    why.map(|why| ConditionRefusal::new("AddressNotUsable", why))
}
