//! DomainMapping: claims its domain, resolves its target, and gives the host to the target's Route.

pub mod reconcile;

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Api;
use kube::api::DeleteParams;

use crate::certificate::challenges::{challenge_rules, merge_rules};
use crate::certificate::desired::for_domain_mapping;
use crate::certificate::state::{HostTls, NOT_ENABLED};
use crate::context::{ControllerContext, Error, now};
use crate::field_managers;
use crate::informer_cache::{ObjectChange, follow};
use crate::publish::{HostRule, ObjectCertificates};
use crate::route::reconcile::NOT_CONFIGURED;
use crate::work_queue::{ControllerKind, WorkItem};
use crate::{ControllerTask, certificate, fill_cache, is_not_found, item_of, newest, route};
use reconcile::{DomainClaimState, DomainMappingDependencies, parse_local_name, status};
use types::networking::certificate::Certificate;
use types::serving::annotations::http_protocol;
use types::serving::cluster_domain_claim::ClusterDomainClaim;
use types::serving::domain_mapping::{DomainMapping, INGRESS_READY, REFERENCE_RESOLVED};
use types::serving::route::Route;
use types::settings::HttpProtocol;
use types::shared::{ConditionStatus, Destination, HasConditions, name, namespace};

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(mapping) = context.domain_mappings.get(&item.namespace, &item.name) else {
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
            findings.is_routed = context.routes.get(&item.namespace, target).is_some_and(|route| has_traffic(&route));
        }
    }
    let flows = findings.is_routable();
    let everybody = if flows { findings.tls.certificates() } else { Vec::new() };
    context.publisher.set_object_certificates(
        &route_owner(item),
        ObjectCertificates { public: everybody, ..ObjectCertificates::default() },
    );
    let lets_go = !flows && context.publisher.owns_host(&route_owner(item), &item.name);
    if !flows {
        context.publisher.remove_route(&route_owner(item));
    }
    context.publisher.flush().await;
    if lets_go {
        route::requeue_host_conflicts(context);
    }
    if flows {
        let wanted = desired_certificate(context, &mapping);
        certificate::reconcile_certificates(context, &mapping.metadata, &item.name, &wanted).await?;
    }
    let mut after = (*mapping).clone();
    let settings = context.settings();
    after.status = Some(status(&mapping, &findings, (&settings.network, route::ports(context)), now()));
    context.set_status(&*mapping, &after).await
}

/// The owner of its hosts in the publisher; no Route has a colon in its name.
pub(crate) fn route_owner(item: &WorkItem) -> String {
    format!("domain:{}/{}", item.namespace, item.name)
}

fn has_traffic(route: &Route) -> bool {
    route.status.as_ref().is_some_and(|status| !status.traffic.is_empty())
}

/// What TLS there is for the domain.
fn host_tls(context: &ControllerContext, mapping: &DomainMapping, claim: &DomainClaimState) -> HostTls {
    let (ns, domain) = (namespace(&mapping.metadata), name(&mapping.metadata));
    let listens = context.config.listeners.https.is_some();
    match &mapping.spec.tls {
        Some(tls) if listens => {
            HostTls::Provided(domain.into(), context.ingress.identity(ns, &tls.secret_name, &context.config.expiries))
        }
        Some(_) => HostTls::Provided(domain.into(), Err(HostTls::no_listener())),
        None if !certificate::is_enabled(context, &mapping.metadata) => HostTls::Disabled(NOT_ENABLED),
        None if !listens => HostTls::NoListener,
        None if *claim != DomainClaimState::Ours => HostTls::NotRequested,
        None => HostTls::Requested(certificate::certificate_states(
            context,
            &mapping.metadata,
            domain,
            &desired_certificate(context, mapping),
        )),
    }
}

/// The Certificate that the domain needs, if it has none of its own.
fn desired_certificate(context: &ControllerContext, mapping: &DomainMapping) -> Vec<Certificate> {
    let wants = mapping.spec.tls.is_none() && certificate::is_enabled(context, &mapping.metadata);
    let made = wants.then(|| for_domain_mapping(mapping, &context.settings().network));
    made.into_iter().collect()
}

/// The mappings that show a Secret's certificate.
pub(crate) fn affected_by_secret(context: &ControllerContext, ns: &str, secret: &str) -> Vec<WorkItem> {
    let shows = |mapping: &DomainMapping| mapping.spec.tls.as_ref().is_some_and(|tls| tls.secret_name == secret);
    let mappings = context.domain_mappings.list(ns);
    let shown = mappings.iter().filter(|mapping| shows(mapping));
    shown.map(|mapping| WorkItem::new(ControllerKind::DomainMapping, ns, name(&mapping.metadata))).collect()
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
    let Some(route) = context.routes.get(ns, target) else { return Ok(()) };
    let Some(own) = route::own_rule(context, &route) else { return Ok(()) };
    let rule = HostRule {
        hosts: vec![domain.into()],
        https_redirect: route::ports(context).redirect(protocol),
        cluster_local: false,
        ..own
    };
    let owner = route_owner(&WorkItem::new(ControllerKind::DomainMapping, ns, domain));
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
    if let Some(claim) = context.domain_claims.get("", &item.name) {
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
    context.publisher.remove_route(&route_owner(item));
    context.publisher.set_object_certificates(&route_owner(item), ObjectCertificates::default());
    context.resolver.forget(item);
    context.publisher.flush().await;
    route::requeue_host_conflicts(context);
    let claim = context.domain_claims.get("", &item.name);
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
    let all = context.domain_mappings.all();
    let named = all.iter().filter(|mapping| name(&mapping.metadata) == domain);
    named.map(|mapping| WorkItem::new(ControllerKind::DomainMapping, namespace(&mapping.metadata), domain)).collect()
}

/// The mappings whose host belongs to a Route or an Ingress, which may have released it.
pub(crate) fn mappings_with_conflicts(context: &ControllerContext) -> Vec<WorkItem> {
    let is_refused = |m: &DomainMapping| m.condition(INGRESS_READY).is_some_and(|c| c.reason == "NotOwned");
    let all = context.domain_mappings.all();
    let refused = all.iter().map(|mapping| &**mapping).filter(|mapping| is_refused(mapping));
    refused.map(|m| WorkItem::new(ControllerKind::DomainMapping, namespace(&m.metadata), name(&m.metadata))).collect()
}

/// The mappings that use a Route's traffic split.
fn mappings_of_route(context: &ControllerContext, route: &Route) -> BTreeSet<WorkItem> {
    let ns = namespace(&route.metadata);
    let mappings = context.domain_mappings.list(ns);
    let to_it = mappings.iter().filter(|mapping| mapping.spec.reference.name == name(&route.metadata));
    to_it.map(|mapping| WorkItem::new(ControllerKind::DomainMapping, ns, name(&mapping.metadata))).collect()
}

pub(crate) async fn list_all(context: &ControllerContext) -> Result<(), Error> {
    fill_cache(context, &context.domain_mappings).await?;
    Ok(context.source().fill(&context.domain_claims).await?)
}

/// What flowed before a restart flows again; Routes are restored already.
pub(crate) fn restore(context: &ControllerContext) {
    for mapping in context.domain_mappings.all() {
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
            let item = WorkItem::new(ControllerKind::DomainMapping, ns, domain);
            let everybody = tls.certificates();
            context.publisher.set_object_certificates(
                &route_owner(&item),
                ObjectCertificates { public: everybody, ..ObjectCertificates::default() },
            );
        }
    }
}

/// Reconciled when a Route that it refers to is.
pub(crate) fn on_route_change(context: &ControllerContext, (before, after): ObjectChange<'_, Route>) {
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

pub(crate) fn watches(context: &ControllerContext) -> [ControllerTask<'_>; 2] {
    [
        Box::pin(follow(context.source(), &context.domain_mappings, move |change| {
            context.enqueue(item_of(ControllerKind::DomainMapping, change));
        })),
        Box::pin(follow(context.source(), &context.domain_claims, move |change| {
            if let Some(claim) = newest(change) {
                mappings_of_domain(context, name(&claim.metadata)).into_iter().for_each(|item| context.enqueue(item));
            }
        })),
    ]
}
