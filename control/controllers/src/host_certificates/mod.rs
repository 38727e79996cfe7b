//! The Certificates of hosts, for the controllers of Routes, DomainMappings and namespaces: the desired ones, the existing
//! ones, and the state of each.

pub mod challenges;
pub mod desired;

use k8s_openapi::api::core::v1::{Endpoints, Namespace, Secret, Service as CoreService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;

use crate::api::{Error, is_not_found};
use crate::context::ControllerContext;
use crate::controller::{Watches, items_in};
use crate::host_tls::{self, CertificateState, HostCertificate, HostTls};
use crate::indexes::{owner_key, secret_key, solver_key, wildcard_key};
use crate::names::SERVICE_NAME;
use crate::route_hosts::RouteNaming;
use crate::tls_secrets::{CA_CERT_KEY, secret_data};
use crate::work_queue::{ControllerKind, WorkItem};
use types::networking::certificate::{Certificate, WILDCARD_LABEL};
use types::serving::annotations::declines_tls;
use types::serving::route::Route;
use types::settings::Settings;
use types::shared::{ConditionStatus, HasConditions as _, controller, is_controlled_by, label, name, namespace};

/// The TLS state of the hosts of a Route.
pub(crate) fn route_tls(context: &ControllerContext, route: &Route, naming: RouteNaming<'_>) -> HostTls {
    let wanted = desired_for_route(context, route, naming);
    if !is_enabled(context, &route.metadata) {
        return HostTls::Disabled(host_tls::NOT_ENABLED);
    }
    match (context.config.listeners.https, wanted.is_empty()) {
        (_, true) => HostTls::Disabled(host_tls::NOT_FOR_LOCAL),
        (None, false) => HostTls::NoListener,
        (Some(_), false) => HostTls::Requested(certificate_states(context, &route.metadata, naming.domain, &wanted)),
    }
}

/// The certificates of a Route's names inside; none unless the operator wants them.
pub(crate) fn cluster_local_certificates(
    context: &ControllerContext,
    route: &Route,
    naming: RouteNaming<'_>,
) -> Vec<HostCertificate> {
    certificate_states(context, &route.metadata, naming.domain, &desired_for_cluster_local(route, naming))
}

/// The Certificates that a Route needs for its public hosts.
fn desired_for_route(context: &ControllerContext, route: &Route, naming: RouteNaming<'_>) -> Vec<Certificate> {
    if is_enabled(context, &route.metadata) { desired::for_route(route, naming) } else { Vec::new() }
}

/// ... and for its names inside, which no annotation declines.
fn desired_for_cluster_local(route: &Route, naming: RouteNaming<'_>) -> Vec<Certificate> {
    if naming.network.auto_tls.cluster_local_domain_tls {
        desired::for_cluster_local(route, naming)
    } else {
        Vec::new()
    }
}

/// Requests all Certificates that a Route needs.
pub(crate) async fn reconcile_for_route(
    context: &ControllerContext,
    route: &Route,
    naming: RouteNaming<'_>,
) -> Result<(), Error> {
    let mut wanted = desired_for_route(context, route, naming);
    wanted.extend(desired_for_cluster_local(route, naming));
    reconcile_certificates(context, &route.metadata, naming.domain, &wanted).await
}

/// Whether the hosts of such an object are to have certificates.
pub(crate) fn is_enabled(context: &ControllerContext, meta: &ObjectMeta) -> bool {
    context.settings().network.auto_tls.external_domain_tls && !declines_tls(meta)
}

/// Creates the Certificates that an object needs, resets those that were changed, and deletes those that it no longer
/// needs. All are in its namespace, and in `domain`. The hosts' owner must be settled before.
pub(crate) async fn reconcile_certificates(
    context: &ControllerContext,
    owner: &ObjectMeta,
    domain: &str,
    wanted: &[Certificate],
) -> Result<(), Error> {
    if !context.leadership.is_leader() {
        return Ok(());
    }
    let ns = namespace(owner);
    delete_unwanted(context, ns, owner, wanted).await?;
    for one in wanted.iter().filter(|one| provided_certificate(context, ns, domain, one).is_none()) {
        create_or_reset(context, owner, one).await?;
    }
    Ok(())
}

/// Keeps the certificates for all names of a namespace, if the operator wants such.
pub(crate) async fn reconcile_for_namespace(context: &ControllerContext, home: &Namespace) -> Result<(), Error> {
    let settings = context.settings();
    let is_wanted =
        settings.network.namespace_wildcard_selector.as_ref().is_some_and(|wanted| wanted.matches(&home.metadata));
    if !context.leadership.is_leader() || home.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut wanted = desired::for_namespace(home, public_domains(context, &settings).into_iter(), &settings.network);
    wanted
        .retain(|one| is_wanted && !one.spec.dns_names.iter().all(|host| context.publisher.has_certificate_for(host)));
    delete_unwanted(context, name(&home.metadata), &home.metadata, &wanted).await?;
    for one in &wanted {
        create_or_reset(context, &home.metadata, one).await?;
    }
    Ok(())
}

/// The domains that public hosts may be in.
pub(crate) fn public_domains<'a>(context: &'a ControllerContext, settings: &'a Settings) -> Vec<&'a str> {
    settings.domains.public().chain([context.config.domain.as_str()]).collect()
}

async fn delete_unwanted(
    context: &ControllerContext,
    ns: &str,
    owner: &ObjectMeta,
    wanted: &[Certificate],
) -> Result<(), Error> {
    for old in context.caches.certificates.names_by_index(ns, &owner_key(owner)) {
        if !wanted.iter().any(|one| name(&one.metadata) == old) {
            delete(context, ns, &old).await?;
        }
    }
    Ok(())
}

pub(crate) async fn delete(context: &ControllerContext, ns: &str, name: &str) -> Result<(), Error> {
    match context.api::<Certificate>(ns).delete(name, &DeleteParams::default()).await {
        Err(why) if is_not_found(&why) => Ok(()),
        Err(why) => Err(why.into()),
        Ok(_) => Ok(()),
    }
}

/// How far they are.
pub(crate) fn certificate_states(
    context: &ControllerContext,
    owner: &ObjectMeta,
    domain: &str,
    wanted: &[Certificate],
) -> Vec<HostCertificate> {
    let each = wanted.iter().map(|one| {
        provided_certificate(context, namespace(owner), domain, one)
            .unwrap_or_else(|| certificate_of(context, owner, one))
    });
    each.collect()
}

/// Makes a Certificate, or sets it back.
async fn create_or_reset(context: &ControllerContext, owner: &ObjectMeta, wanted: &Certificate) -> Result<(), Error> {
    let Some(there) = context.caches.certificates.get(namespace(&wanted.metadata), name(&wanted.metadata)) else {
        return context.create(wanted).await.map(drop);
    };
    let (meta, own) = (&there.metadata, &wanted.metadata);
    let same = there.spec == wanted.spec && meta.annotations == own.annotations && meta.labels == own.labels;
    if same || !is_controlled_by(meta, owner) {
        return Ok(());
    }
    let mut back = (*there).clone();
    back.spec = wanted.spec.clone();
    back.metadata.annotations.clone_from(&own.annotations);
    back.metadata.labels.clone_from(&own.labels);
    context.replace(&back).await.map(drop)
}

/// Whether a Certificate is unnecessary: because of the operator's own certificates, or one for all names of the namespace.
fn provided_certificate(
    context: &ControllerContext,
    ns: &str,
    domain: &str,
    wanted: &Certificate,
) -> Option<HostCertificate> {
    let hosts = &wanted.spec.dns_names;
    if hosts.iter().all(|host| context.publisher.has_certificate_for(host)) {
        let name = name(&wanted.metadata).to_owned();
        return Some(HostCertificate::new(name, hosts.clone(), CertificateState::Ready(None)));
    }
    let wild = context.caches.certificates.by_index(ns, &wildcard_key(domain)).into_iter().find(|wild| {
        let parents: Vec<_> = wild.spec.dns_names.iter().filter_map(|name| name.split_once('.')).collect();
        let is_below = |host: &String| {
            host.split_once('.').is_some_and(|(_, parent)| parents.iter().any(|(_, known)| *known == parent))
        };
        hosts.iter().all(is_below)
    })?;
    let (name, standing) = (name(&wild.metadata).to_owned(), state_of(context, &wild));
    Some(HostCertificate::new(name, hosts.clone(), standing))
}

fn certificate_of(context: &ControllerContext, owner: &ObjectMeta, wanted: &Certificate) -> HostCertificate {
    let own = name(&wanted.metadata);
    let mut challenges = Vec::new();
    let standing = match context.caches.certificates.get(namespace(owner), own) {
        None => CertificateState::Pending(String::new()),
        Some(there) if !is_controlled_by(&there.metadata, owner) => CertificateState::NotOwned,
        // Set back just now: what its status says is not of what is wanted.
        Some(there) if there.spec != wanted.spec => CertificateState::Pending(String::new()),
        Some(there) => {
            let standing = state_of(context, &there);
            let renews = there.condition("Renewing").is_some_and(|c| c.status == ConditionStatus::True);
            if renews || !matches!(standing, CertificateState::Ready(_)) {
                challenges = there.status.as_ref().map(|s| s.http01_challenges.clone()).unwrap_or_default();
            }
            standing
        }
    };
    let secret = context.caches.secrets.get(namespace(owner), &wanted.spec.secret_name);
    let ca = secret.as_ref().map(|secret| secret_data(secret, CA_CERT_KEY)).unwrap_or_default();
    let ca_certs = (!ca.is_empty()).then(|| String::from_utf8_lossy(ca).into_owned());
    let held = HostCertificate::new(own, wanted.spec.dns_names.clone(), standing);
    HostCertificate { ca_certs, challenges, ..held }
}

fn state_of(context: &ControllerContext, certificate: &Certificate) -> CertificateState {
    match certificate.ready() {
        Some(ready) if ready.status == ConditionStatus::True => {
            let (ns, secret) = (namespace(&certificate.metadata), &certificate.spec.secret_name);
            match context.tls_identity(ns, secret) {
                Ok(identity) => CertificateState::Ready(Some(identity)),
                Err(why) => CertificateState::Pending(why.reason.to_owned()),
            }
        }
        Some(ready) if ready.status == ConditionStatus::False => CertificateState::Failed(ready.reason.clone()),
        Some(ready) => CertificateState::Pending(ready.reason.clone()),
        None => CertificateState::Pending(String::new()),
    }
}

/// Objects of the kind `owner` depend on the Certificates that they own: on how far these are, on their Secrets, and on
/// the Services that answer their challenges. Routes depend on those of all names of their namespace as well.
pub(crate) fn watch<'a>(
    context: &'a ControllerContext,
    watches: &mut Watches<'a>,
    kind: ControllerKind,
    owner: &'static str,
) {
    let dependents = move |certificate: &Certificate| dependents(context, kind, owner, certificate);
    let answered = move |ns: &str, service: &str| -> Vec<WorkItem> {
        let asked = context.caches.certificates.by_index(ns, &solver_key(service));
        asked.iter().flat_map(|certificate| dependents(certificate)).collect()
    };
    watches.enqueue::<Certificate, _>(move |(before, after)| {
        [before, after].into_iter().flatten().flat_map(|certificate| dependents(certificate)).collect::<Vec<_>>()
    });
    watches.enqueue_by_name::<Secret>(move |ns, secret| {
        let kept = context.caches.certificates.by_index(ns, &secret_key(secret));
        kept.iter().flat_map(|certificate| dependents(certificate)).collect()
    });
    watches.enqueue_by_name::<CoreService>(answered);
    watches.enqueue_by_name::<Endpoints>(answered);
    watches.enqueue::<EndpointSlice, _>(move |(before, after)| {
        // A slice that changes its label leaves one Service and comes to another.
        let both = [before, after]
            .into_iter()
            .flatten()
            .filter_map(|slice| Some(answered(namespace(&slice.metadata), label(&slice.metadata, SERVICE_NAME)?)));
        both.flatten().collect::<Vec<_>>()
    });
}

/// The objects of the kind `owner` that depend on a Certificate.
fn dependents(
    context: &ControllerContext,
    kind: ControllerKind,
    owner: &str,
    certificate: &Certificate,
) -> Vec<WorkItem> {
    let ns = namespace(&certificate.metadata);
    match controller(&certificate.metadata).map(|owner| (owner.kind.as_str(), owner.name.as_str())) {
        Some((own @ ("Route" | "DomainMapping"), name)) => {
            if own == owner {
                vec![WorkItem::new(kind, ns, name)]
            } else {
                Vec::new()
            }
        }
        _ if owner == "Route" && label(&certificate.metadata, WILDCARD_LABEL).is_some() => {
            items_in(kind, &context.caches.routes, Some(ns))
        }
        _ => Vec::new(),
    }
}
