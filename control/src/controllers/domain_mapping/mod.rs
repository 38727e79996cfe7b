//! DomainMapping: claims its domain, finds who answers, and gives that one's Route the host.

pub mod reconcile;

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Api;
use kube::api::DeleteParams;

use super::cache::{Change, follow};
use super::certificate::challenges::{answers, put_in};
use super::certificate::standing::{NOT_ENABLED, Tls};
use super::certificate::wanted::of_domain_mapping;
use super::managers;
use super::queue::{Item, Kind};
use super::route::reconcile::NOT_CONFIGURED;
use super::world::{Error, World, now};
use super::{Task, certificate, either, is_absent, itself, list, route};
use crate::kinds::networking::certificate::Certificate;
use crate::kinds::serving::annotations::http_protocol;
use crate::kinds::serving::domain_claim::ClusterDomainClaim;
use crate::kinds::serving::domain_mapping::{DomainMapping, INGRESS_READY, REFERENCE_RESOLVED};
use crate::kinds::serving::route::Route;
use crate::kinds::settings::HttpProtocol;
use crate::kinds::shared::{Destination, HasConditions, Verdict, name, namespace};
use crate::publish::{HostRule, Shown};
use reconcile::{Claim, Findings, local_name, status};

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let Some(mapping) = world.domain_mappings.get(&item.namespace, &item.name) else {
        return leave(world, item).await;
    };
    world.resolver.forget(item);
    let mut findings = Findings { claim: claim(world, item).await?, ..Findings::default() };
    findings.tls = tls(world, &mapping, &findings.claim);
    if findings.claim == Claim::Ours {
        let destination =
            Destination { reference: Some(mapping.spec.reference.clone()), ..Destination::default() };
        let resolved = world.resolver.resolve(item, &destination).await?;
        findings.target =
            Some(resolved.map_err(|why| why.0).and_then(|found| local_name(&found.url, &item.namespace)));
        if let Some(Ok(target)) = &findings.target {
            match http_protocol(&mapping.metadata, world.settings().network.http_protocol) {
                Ok(protocol) => {
                    findings.taken = serve(world, &mapping, target, protocol, &findings.tls).err()
                }
                Err(why) => findings.misnoted = Some(why),
            }
            findings.is_routed =
                world.routes.get(&item.namespace, target).is_some_and(|route| has_traffic(&route));
        }
    }
    let flows = findings.flows();
    let everybody = if flows { findings.tls.shown() } else { Vec::new() };
    world.publisher.set_certificates_of(&owner(item), Shown { everybody, ..Shown::default() });
    let lets_go = !flows && world.publisher.has_host(&owner(item), &item.name);
    if !flows {
        world.publisher.remove_route(&owner(item));
    }
    world.publisher.flow().await;
    if lets_go {
        route::hosts_are_free(world);
    }
    if flows {
        let wanted = wanted(world, &mapping);
        certificate::ask(world, &mapping.metadata, &item.name, &wanted).await?;
    }
    let mut after = (*mapping).clone();
    let settings = world.settings();
    after.status = Some(status(&mapping, &findings, (&settings.network, route::ports(world)), now()));
    world.set_status(&*mapping, &after).await
}

/// Whose hosts they are in the publisher's eyes; no Route has a colon in its name.
pub(super) fn owner(item: &Item) -> String {
    format!("domain:{}/{}", item.namespace, item.name)
}

fn has_traffic(route: &Route) -> bool {
    route.status.as_ref().is_some_and(|status| !status.traffic.is_empty())
}

/// What TLS there is for the domain.
fn tls(world: &World, mapping: &DomainMapping, claim: &Claim) -> Tls {
    let (ns, domain) = (namespace(&mapping.metadata), name(&mapping.metadata));
    let listens = world.config.listeners.https.is_some();
    match &mapping.spec.tls {
        Some(tls) if listens => {
            Tls::Given(domain.into(), world.ingress.identity(ns, &tls.secret_name, &world.config.expiries))
        }
        Some(_) => Tls::Given(domain.into(), Err(Tls::unheard())),
        None if !certificate::is_on(world, &mapping.metadata) => Tls::Off(NOT_ENABLED),
        None if !listens => Tls::NoListener,
        None if *claim != Claim::Ours => Tls::Unasked,
        None => Tls::Asked(certificate::look(world, &mapping.metadata, domain, &wanted(world, mapping))),
    }
}

/// The Certificate that the domain needs, if it has none of its own.
fn wanted(world: &World, mapping: &DomainMapping) -> Vec<Certificate> {
    let wants = mapping.spec.tls.is_none() && certificate::is_on(world, &mapping.metadata);
    let made = wants.then(|| of_domain_mapping(mapping, &world.settings().network));
    made.into_iter().collect()
}

/// The mappings that show a Secret's certificate.
pub(super) fn of_secret(world: &World, ns: &str, secret: &str) -> Vec<Item> {
    let shows =
        |mapping: &DomainMapping| mapping.spec.tls.as_ref().is_some_and(|tls| tls.secret_name == secret);
    let mappings = world.domain_mappings.list(ns);
    let shown = mappings.iter().filter(|mapping| shows(mapping));
    shown.map(|mapping| Item::new(Kind::DomainMapping, ns, name(&mapping.metadata))).collect()
}

/// Gives the domain the division of the Route's own host; the error is who has the domain. Upstream sends on under the Route's inner name
/// with the client's in `K-Original-Host` (X-RTE-13), and puts that back before the instance (X-ACT-05): here is no hop between the two, so
/// the instance sees the client's from the beginning.
fn serve(
    world: &World,
    mapping: &DomainMapping,
    target: &str,
    protocol: HttpProtocol,
    tls: &Tls,
) -> Result<(), String> {
    let (ns, domain) = (namespace(&mapping.metadata), name(&mapping.metadata));
    let Some(route) = world.routes.get(ns, target) else { return Ok(()) };
    let Some(own) = route::own_rule(world, &route) else { return Ok(()) };
    let rule = HostRule {
        hosts: vec![domain.into()],
        https_redirect: route::ports(world).redirect(protocol),
        inside_only: false,
        ..own
    };
    let owner = owner(&Item::new(Kind::DomainMapping, ns, domain));
    let mut asked = answers(world, ns, tls);
    // For a domain too long for a certificate's own name one below it is asked. If it is somebody else's it stays his.
    asked.retain(|(host, _)| {
        host.strip_suffix(domain).is_some_and(|front| front.is_empty() || front.ends_with('.'))
    });
    let (own, strange) = put_in(vec![rule], asked);
    let all = [own.clone(), strange].concat();
    let set = world.publisher.set_route(&owner, all);
    set.or_else(|_| world.publisher.set_route(&owner, own)).map(drop).map_err(|taken| taken.owner)
}

/// Who may have the domain, made to be us where the operator lets us.
async fn claim(world: &World, item: &Item) -> Result<Claim, Error> {
    if let Some(claim) = world.domain_claims.get("", &item.name) {
        let is_ours = claim.spec.namespace == item.namespace;
        return Ok(if is_ours { Claim::Ours } else { Claim::Another(claim.spec.namespace.clone()) });
    }
    if !world.settings().network.autocreate_cluster_domain_claims {
        return Ok(Claim::Nobodys);
    }
    world.duty.check()?;
    let api: Api<ClusterDomainClaim> = Api::all(world.client.clone());
    let made = ClusterDomainClaim::new(&item.name, &item.namespace);
    match api.create(&managers::objects::<ClusterDomainClaim>(), &made).await {
        Ok(_) => Ok(Claim::Ours),
        Err(why) => Err(why.into()), // somebody else's came first: the next look finds it
    }
}

/// The domain is free for whoever was refused it.
async fn leave(world: &World, item: &Item) -> Result<(), Error> {
    world.publisher.remove_route(&owner(item));
    world.publisher.set_certificates_of(&owner(item), Shown::default());
    world.resolver.forget(item);
    world.publisher.flow().await;
    route::hosts_are_free(world);
    let claim = world.domain_claims.get("", &item.name);
    if world.settings().network.autocreate_cluster_domain_claims
        && world.duty.is_ours()
        && claim.is_some_and(|claim| claim.spec.namespace == item.namespace)
    {
        let api: Api<ClusterDomainClaim> = Api::all(world.client.clone());
        match api.delete(&item.name, &DeleteParams::default()).await {
            Err(why) if is_absent(&why) => {}
            other => drop(other?),
        }
    }
    of_domain(world, &item.name).into_iter().for_each(|item| world.look_at(item));
    Ok(())
}

fn of_domain(world: &World, domain: &str) -> Vec<Item> {
    let all = world.domain_mappings.all();
    let named = all.iter().filter(|mapping| name(&mapping.metadata) == domain);
    named.map(|mapping| Item::new(Kind::DomainMapping, namespace(&mapping.metadata), domain)).collect()
}

/// The mappings whose host is a Route's or an Ingress's: somebody may have let go of it.
pub(super) fn refused(world: &World) -> Vec<Item> {
    let is_refused = |m: &DomainMapping| m.condition(INGRESS_READY).is_some_and(|c| c.reason == "NotOwned");
    let all = world.domain_mappings.all();
    let refused = all.iter().map(|mapping| &**mapping).filter(|mapping| is_refused(mapping));
    refused.map(|m| Item::new(Kind::DomainMapping, namespace(&m.metadata), name(&m.metadata))).collect()
}

/// The mappings whose requests a Route divides.
fn of_route(world: &World, route: &Route) -> BTreeSet<Item> {
    let ns = namespace(&route.metadata);
    let mappings = world.domain_mappings.list(ns);
    let to_it = mappings.iter().filter(|mapping| mapping.spec.reference.name == name(&route.metadata));
    to_it.map(|mapping| Item::new(Kind::DomainMapping, ns, name(&mapping.metadata))).collect()
}

pub(super) async fn list_all(world: &World) -> Result<(), Error> {
    list(world, &world.domain_mappings).await?;
    Ok(world.all().fill(&world.domain_claims).await?)
}

/// What flowed before a restart flows again; Routes are restored already.
pub(super) fn restore(world: &World) {
    for mapping in world.domain_mappings.all() {
        let is_true = |kind: &str| mapping.condition(kind).is_some_and(|c| c.status == Verdict::True);
        // An annotation that makes no sense leaves things as they were.
        let misnoted = mapping.condition(INGRESS_READY).is_some_and(|c| c.reason == NOT_CONFIGURED);
        let flowed = is_true(INGRESS_READY) || (misnoted && is_true(REFERENCE_RESOLVED));
        if !flowed {
            continue;
        }
        let (ns, domain) = (namespace(&mapping.metadata), name(&mapping.metadata));
        let usual = world.settings().network.http_protocol;
        let protocol = http_protocol(&mapping.metadata, usual).unwrap_or(usual);
        let tls = tls(world, &mapping, &Claim::Ours);
        if let Err(owner) = serve(world, &mapping, &mapping.spec.reference.name, protocol, &tls) {
            tracing::warn!(domain, owner, "domain is taken");
        } else {
            let item = Item::new(Kind::DomainMapping, ns, domain);
            let everybody = tls.shown();
            world.publisher.set_certificates_of(&owner(&item), Shown { everybody, ..Shown::default() });
        }
    }
}

/// Looked at when a Route that it leads to is.
pub(super) fn hear_route(world: &World, (before, after): Change<'_, Route>) {
    // Annotations change how a Route treats its requests.
    let shown = |route: Option<&Arc<Route>>| {
        let route = route?;
        Some((route.status.as_ref().map(|s| s.traffic.clone()), route.metadata.annotations.clone()))
    };
    if shown(before) == shown(after) && before.is_some() == after.is_some() {
        return;
    }
    if let Some(route) = after.or(before) {
        of_route(world, route).into_iter().for_each(|item| world.look_at(item));
    }
}

pub(super) fn watches(world: &World) -> [Task<'_>; 2] {
    [
        Box::pin(follow(world.all(), &world.domain_mappings, move |change| {
            world.look_at(itself(Kind::DomainMapping, change));
        })),
        Box::pin(follow(world.all(), &world.domain_claims, move |change| {
            if let Some(claim) = either(change) {
                of_domain(world, name(&claim.metadata)).into_iter().for_each(|item| world.look_at(item));
            }
        })),
    ]
}
