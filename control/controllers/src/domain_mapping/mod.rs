//! DomainMapping: claims its domain, resolves its target, and adds the host to the target's Route.

pub mod reconcile;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::DeleteParams;

use crate::api::is_not_found;
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, items_in};
use crate::field_managers;
use crate::host_certificates;
use crate::host_certificates::challenges::{challenge_rules, merge_rules};
use crate::host_certificates::desired::for_domain_mapping;
use crate::host_tls::{HostTls, NOT_ENABLED};
use crate::informer_cache::ObjectChange;
use crate::names::domain_mapping_owner;
use crate::publish::{HostRule, ObjectCertificates, UnservedHosts};
use crate::route_rules::{self, NOT_CONFIGURED};
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{DomainClaimState, DomainMappingDependencies, parse_local_name, status};
use types::networking::certificate::Certificate;
use types::serving::annotations::http_protocol;
use types::serving::cluster_domain_claim::ClusterDomainClaim;
use types::serving::domain_mapping::{DomainMapping, INGRESS_READY, REFERENCE_RESOLVED};
use types::serving::route::Route;
use types::settings::HttpProtocol;
use types::shared::{ConditionStatus, Destination, HasConditions, name, namespace};

const KIND: ControllerKind = ControllerKind::new("DomainMapping");

#[derive(Debug)]
pub struct DomainMappingController;

impl Controller for DomainMappingController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<DomainMapping>(KIND);
        watches.enqueue_by_name::<ClusterDomainClaim>(move |_, domain| mappings_of_domain(context, domain));
        watches.call::<Route>(move |change| on_route_change(context, change));
        watches.enqueue_by_name::<Secret>(move |ns, secret| affected_by_secret(context, ns, secret));
        host_certificates::watch(context, watches, KIND, "DomainMapping");
        watches.enqueue_on(ContextChange::OperatorCertificates, move || {
            items_in(KIND, &context.caches.domain_mappings, None)
        });
        watches.enqueue_on(ContextChange::HostsReleased, move || mappings_with_conflicts(context));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async move { restore(context) })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(mapping) = context.caches.domain_mappings.get(&item.namespace, &item.name) else {
        return release(context, item).await;
    };
    context.resolver.forget(item);
    let mut findings =
        DomainMappingDependencies { claim: claim(context, item).await?, ..DomainMappingDependencies::default() };
    findings.tls = host_tls(context, &mapping, &findings.claim);
    if findings.claim == DomainClaimState::Ours {
        let destination = Destination { reference: Some(mapping.spec.reference.clone()), ..Destination::default() };
        let resolved = context.resolver.resolve(item, &destination).await?;
        findings.target =
            Some(resolved.map_err(|why| why.0).and_then(|found| parse_local_name(&found.url, &item.namespace)));
        if let Some(Ok(target)) = &findings.target {
            match http_protocol(&mapping.metadata, context.settings().network.http_protocol) {
                Ok(protocol) => {
                    findings.host_conflict = publish_route(context, &mapping, target, protocol, &findings.tls).err()
                }
                Err(why) => findings.invalid_annotation = Some(why),
            }
            findings.is_routed =
                context.caches.routes.get(&item.namespace, target).is_some_and(|route| has_traffic(&route));
        }
    }
    let flows = findings.is_routable();
    let certificates = if flows { findings.tls.certificates() } else { Vec::new() };
    context.publisher.set_object_certificates(
        &domain_mapping_owner(&item.namespace, &item.name),
        ObjectCertificates { public: certificates, ..ObjectCertificates::default() },
    );
    let lets_go = !flows && context.publisher.owns_host(&domain_mapping_owner(&item.namespace, &item.name), &item.name);
    if !flows {
        let owner = domain_mapping_owner(&item.namespace, &item.name);
        context.publisher.remove_route(&owner);
        if findings.claim == DomainClaimState::Ours && findings.host_conflict.is_none() {
            let (ns, domain) = (&item.namespace, &item.name);
            let sentence = format!("DomainMapping {ns}/{domain} is not Ready; its conditions say why").into();
            let hosts = vec![(domain.clone(), false)];
            context.publisher.set_not_ready(&owner, UnservedHosts { hosts, sentence });
        }
    }
    context.publisher.flush().await;
    if lets_go {
        context.notify(ContextChange::HostsReleased);
    }
    if flows {
        let wanted = desired_certificate(context, &mapping);
        host_certificates::reconcile_certificates(context, &mapping.metadata, &item.name, &wanted).await?;
    }
    let mut after = (*mapping).clone();
    let settings = context.settings();
    after.status = Some(status(&mapping, &findings, (&settings.network, route_rules::ports(context)), now()));
    context.set_status(&*mapping, &after).await
}

fn has_traffic(route: &Route) -> bool {
    route.status.as_ref().is_some_and(|status| !status.traffic.is_empty())
}

/// The TLS state of the domain.
fn host_tls(context: &ControllerContext, mapping: &DomainMapping, claim: &DomainClaimState) -> HostTls {
    let (ns, domain) = (namespace(&mapping.metadata), name(&mapping.metadata));
    let listens = context.config.listeners.https.is_some();
    match &mapping.spec.tls {
        Some(tls) if listens => HostTls::Provided(domain.into(), context.tls_identity(ns, &tls.secret_name)),
        Some(_) => HostTls::Provided(domain.into(), Err(HostTls::no_listener())),
        None if !host_certificates::is_enabled(context, &mapping.metadata) => HostTls::Disabled(NOT_ENABLED),
        None if !listens => HostTls::NoListener,
        None if *claim != DomainClaimState::Ours => HostTls::NotRequested,
        None => HostTls::Requested(host_certificates::certificate_states(
            context,
            &mapping.metadata,
            domain,
            &desired_certificate(context, mapping),
        )),
    }
}

/// The Certificate that the domain needs, if it has none of its own.
fn desired_certificate(context: &ControllerContext, mapping: &DomainMapping) -> Vec<Certificate> {
    let wants = mapping.spec.tls.is_none() && host_certificates::is_enabled(context, &mapping.metadata);
    let made = wants.then(|| for_domain_mapping(mapping, &context.settings().network));
    made.into_iter().collect()
}

/// The mappings that show a Secret's certificate.
fn affected_by_secret(context: &ControllerContext, ns: &str, secret: &str) -> Vec<WorkItem> {
    let shows = |mapping: &DomainMapping| mapping.spec.tls.as_ref().is_some_and(|tls| tls.secret_name == secret);
    let mappings = context.caches.domain_mappings.list(ns);
    let shown = mappings.iter().filter(|mapping| shows(mapping));
    shown.map(|mapping| WorkItem::new(KIND, ns, name(&mapping.metadata))).collect()
}

/// Gives the domain the traffic split of the Route's own host; the error is the present owner of the domain. Upstream
/// forwards under the Route's inner name with the client's in `K-Original-Host` (X-RTE-13), and restores that before
/// the instance (X-ACT-05): here there is no hop between the two, so the instance sees the client's host from the
/// beginning.
fn publish_route(
    context: &ControllerContext,
    mapping: &DomainMapping,
    target: &str,
    protocol: HttpProtocol,
    tls: &HostTls,
) -> Result<(), String> {
    let (ns, domain) = (namespace(&mapping.metadata), name(&mapping.metadata));
    let Some(route) = context.caches.routes.get(ns, target) else { return Ok(()) };
    let Some(own) = route_rules::own_rule(context, &route) else { return Ok(()) };
    let rule = HostRule {
        hosts: vec![domain.into()],
        https_redirect: route_rules::ports(context).redirect(protocol),
        cluster_local: false,
        ..own
    };
    let owner = domain_mapping_owner(ns, domain);
    let mut asked = challenge_rules(context, ns, tls);
    // For a domain too long for a certificate's common name, one below it is requested. If that host has another
    // owner, it keeps it.
    asked.retain(|(host, _)| host.strip_suffix(domain).is_some_and(|front| front.is_empty() || front.ends_with('.')));
    let (own, strange) = merge_rules(vec![rule], asked);
    let all = [own.clone(), strange].concat();
    let set = context.publisher.set_route(&owner, all);
    set.or_else(|_| context.publisher.set_route(&owner, own)).map(drop).map_err(|taken| taken.owner)
}

/// The claim of the domain, created for this namespace where the operator allows it.
async fn claim(context: &ControllerContext, item: &WorkItem) -> Result<DomainClaimState, Error> {
    if let Some(claim) = context.caches.domain_claims.get("", &item.name) {
        let is_ours = claim.spec.namespace == item.namespace;
        return Ok(if is_ours {
            DomainClaimState::Ours
        } else {
            DomainClaimState::OtherNamespace(claim.spec.namespace.clone())
        });
    }
    if !context.settings().network.autocreate_cluster_domain_claims {
        return Ok(DomainClaimState::Missing);
    }
    context.leadership.check()?;
    let api: Api<ClusterDomainClaim> = Api::all(context.client.clone());
    let made = ClusterDomainClaim::new(&item.name, &item.namespace);
    match api.create(&field_managers::object_params::<ClusterDomainClaim>(), &made).await {
        Ok(_) => Ok(DomainClaimState::Ours),
        Err(why) => Err(why.into()), // another claim came first: the next reconcile finds it
    }
}

/// Releases the domain for mappings that were refused it.
async fn release(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.publisher.remove_route(&domain_mapping_owner(&item.namespace, &item.name));
    context
        .publisher
        .set_object_certificates(&domain_mapping_owner(&item.namespace, &item.name), ObjectCertificates::default());
    context.resolver.forget(item);
    context.publisher.flush().await;
    context.notify(ContextChange::HostsReleased);
    let claim = context.caches.domain_claims.get("", &item.name);
    if context.settings().network.autocreate_cluster_domain_claims
        && context.leadership.is_leader()
        && claim.is_some_and(|claim| claim.spec.namespace == item.namespace)
    {
        let api: Api<ClusterDomainClaim> = Api::all(context.client.clone());
        match api.delete(&item.name, &DeleteParams::default()).await {
            Err(why) if is_not_found(&why) => {}
            other => drop(other?),
        }
    }
    mappings_of_domain(context, &item.name).into_iter().for_each(|item| context.enqueue(item));
    Ok(())
}

fn mappings_of_domain(context: &ControllerContext, domain: &str) -> Vec<WorkItem> {
    let all = context.caches.domain_mappings.all();
    let named = all.iter().filter(|mapping| name(&mapping.metadata) == domain);
    named.map(|mapping| WorkItem::new(KIND, namespace(&mapping.metadata), domain)).collect()
}

/// The mappings whose host belongs to a Route or an Ingress, which may have released it.
fn mappings_with_conflicts(context: &ControllerContext) -> Vec<WorkItem> {
    let is_refused = |m: &DomainMapping| m.condition(INGRESS_READY).is_some_and(|c| c.reason == "NotOwned");
    let all = context.caches.domain_mappings.all();
    let refused = all.iter().map(|mapping| &**mapping).filter(|mapping| is_refused(mapping));
    refused.map(|m| WorkItem::new(KIND, namespace(&m.metadata), name(&m.metadata))).collect()
}

/// The mappings that use a Route's traffic split.
fn mappings_of_route(context: &ControllerContext, route: &Route) -> BTreeSet<WorkItem> {
    let ns = namespace(&route.metadata);
    let mappings = context.caches.domain_mappings.list(ns);
    let to_it = mappings.iter().filter(|mapping| mapping.spec.reference.name == name(&route.metadata));
    to_it.map(|mapping| WorkItem::new(KIND, ns, name(&mapping.metadata))).collect()
}

/// Restores the routing of before a restart; Routes are restored already.
fn restore(context: &ControllerContext) {
    for mapping in context.caches.domain_mappings.all() {
        let is_true = |kind: &str| mapping.condition(kind).is_some_and(|c| c.status == ConditionStatus::True);
        // An annotation that makes no sense leaves things as they were.
        let misnoted = mapping.condition(INGRESS_READY).is_some_and(|c| c.reason == NOT_CONFIGURED);
        let flowed = is_true(INGRESS_READY) || (misnoted && is_true(REFERENCE_RESOLVED));
        if !flowed {
            continue;
        }
        let (ns, domain) = (namespace(&mapping.metadata), name(&mapping.metadata));
        let usual = context.settings().network.http_protocol;
        let protocol = http_protocol(&mapping.metadata, usual).unwrap_or(usual);
        let tls = host_tls(context, &mapping, &DomainClaimState::Ours);
        if let Err(owner) = publish_route(context, &mapping, &mapping.spec.reference.name, protocol, &tls) {
            tracing::warn!(domain, owner, "domain is taken");
        } else {
            let certificates = tls.certificates();
            context.publisher.set_object_certificates(
                &domain_mapping_owner(ns, domain),
                ObjectCertificates { public: certificates, ..ObjectCertificates::default() },
            );
        }
    }
}

/// Reconciled when a Route that it refers to is.
fn on_route_change(context: &ControllerContext, (before, after): ObjectChange<'_, Route>) {
    // Annotations change how a Route treats its requests.
    let shown = |route: Option<&Arc<Route>>| {
        let route = route?;
        Some((route.status.as_ref().map(|s| s.traffic.clone()), route.metadata.annotations.clone()))
    };
    if shown(before) == shown(after) && before.is_some() == after.is_some() {
        return;
    }
    if let Some(route) = after.or(before) {
        mappings_of_route(context, route).into_iter().for_each(|item| context.enqueue(item));
    }
}
