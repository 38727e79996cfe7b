//! Certificate: asked for by Routes and DomainMappings whose hosts are to have TLS, provided by us or by whoever its
//! class names, and shown to clients from its Secret.
//!
//! Ours are signed by an authority of our own (`issue`). What the operator gave with `--tls-cert` needs none.

pub(super) mod authority;
pub mod challenges;
pub mod desired;
mod issue;
pub mod state;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;

use super::context::{ControllerContext, Error, now};
use super::informer_cache::{ObjectChange, follow};
use super::route::hosts::RouteNaming;
use super::work_queue::{ControllerKind, WorkItem};
use super::{ControllerTask, config_maps};
use crate::kinds::networking::certificate::{Certificate, WILDCARD_LABEL};
use crate::kinds::serving::annotations::declines_tls;
use crate::kinds::serving::route::Route;
use crate::kinds::settings::Settings;
use crate::kinds::shared::{ConditionStatus, HasConditions as _, controller, is_controlled_by, label, name, namespace};
use authority::CA_CERT_KEY;
use issue::secret_data;
use state::{CertificateState, HostCertificate, HostTls};

pub use issue::reconcile;

/// Between two looks for certificates that end: they do so weeks after they are due.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3_600);

/// What TLS there is for the hosts of a Route.
pub(super) fn route_tls(world: &ControllerContext, route: &Route, naming: RouteNaming<'_>) -> HostTls {
    let wanted = desired_for_route(world, route, naming);
    if !is_enabled(world, &route.metadata) {
        return HostTls::Disabled(state::NOT_ENABLED);
    }
    match (world.config.listeners.https, wanted.is_empty()) {
        (_, true) => HostTls::Disabled(state::NOT_FOR_LOCAL),
        (None, false) => HostTls::NoListener,
        (Some(_), false) => HostTls::Requested(certificate_states(world, &route.metadata, naming.domain, &wanted)),
    }
}

/// The certificates of a Route's names inside; none unless the operator wants them.
pub(super) fn cluster_local_certificates(
    world: &ControllerContext,
    route: &Route,
    naming: RouteNaming<'_>,
) -> Vec<HostCertificate> {
    certificate_states(world, &route.metadata, naming.domain, &desired_for_cluster_local(route, naming))
}

/// The Certificates that a Route needs for the hosts that everybody reaches.
fn desired_for_route(world: &ControllerContext, route: &Route, naming: RouteNaming<'_>) -> Vec<Certificate> {
    if is_enabled(world, &route.metadata) { desired::for_route(route, naming) } else { Vec::new() }
}

/// ... and for its names inside, which no annotation declines.
fn desired_for_cluster_local(route: &Route, naming: RouteNaming<'_>) -> Vec<Certificate> {
    if naming.network.auto_tls.cluster_local_domain_tls {
        desired::for_cluster_local(route, naming)
    } else {
        Vec::new()
    }
}

/// Asks for all that a Route needs.
pub(super) async fn reconcile_for_route(
    world: &ControllerContext,
    route: &Route,
    naming: RouteNaming<'_>,
) -> Result<(), Error> {
    let mut wanted = desired_for_route(world, route, naming);
    wanted.extend(desired_for_cluster_local(route, naming));
    reconcile_certificates(world, &route.metadata, naming.domain, &wanted).await
}

/// Whether the hosts of such an object are to have certificates.
pub(super) fn is_enabled(world: &ControllerContext, meta: &ObjectMeta) -> bool {
    world.settings().network.auto_tls.external_domain_tls && !declines_tls(meta)
}

/// Makes the Certificates that an object wants, sets back those that were changed, and deletes those that it wants no
/// more. All are in its namespace, and in `domain`. Whose hosts they are has to be settled.
pub(super) async fn reconcile_certificates(
    world: &ControllerContext,
    owner: &ObjectMeta,
    domain: &str,
    wanted: &[Certificate],
) -> Result<(), Error> {
    if !world.leadership.is_leader() {
        return Ok(());
    }
    let ns = namespace(owner);
    delete_unwanted(world, ns, owner, wanted).await?;
    for one in wanted.iter().filter(|one| provided_certificate(world, ns, domain, one).is_none()) {
        create_or_reset(world, owner, one).await?;
    }
    Ok(())
}

/// Keeps the certificates for all names of a namespace, if the operator wants such.
pub(super) async fn reconcile_for_namespace(world: &ControllerContext, home: &Namespace) -> Result<(), Error> {
    let settings = world.settings();
    let is_wanted =
        settings.network.namespace_wildcard_selector.as_ref().is_some_and(|wanted| wanted.matches(&home.metadata));
    if !world.leadership.is_leader() || home.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut wanted = desired::for_namespace(home, public_domains(world, &settings).into_iter(), &settings.network);
    wanted.retain(|one| is_wanted && !one.spec.dns_names.iter().all(|host| world.publisher.has_certificate_for(host)));
    delete_unwanted(world, name(&home.metadata), &home.metadata, &wanted).await?;
    for one in &wanted {
        create_or_reset(world, &home.metadata, one).await?;
    }
    Ok(())
}

/// The domains that public hosts may be in.
fn public_domains<'a>(world: &'a ControllerContext, settings: &'a Settings) -> Vec<&'a str> {
    settings.domains.public().chain([world.config.domain.as_str()]).collect()
}

async fn delete_unwanted(
    world: &ControllerContext,
    ns: &str,
    owner: &ObjectMeta,
    wanted: &[Certificate],
) -> Result<(), Error> {
    for old in world.certificates.names_by_index(ns, &owner_key(owner)) {
        if !wanted.iter().any(|one| name(&one.metadata) == old) {
            delete(world, ns, &old).await?;
        }
    }
    Ok(())
}

async fn delete(world: &ControllerContext, ns: &str, name: &str) -> Result<(), Error> {
    match world.api::<Certificate>(ns).delete(name, &DeleteParams::default()).await {
        Err(why) if super::is_not_found(&why) => Ok(()),
        Err(why) => Err(why.into()),
        Ok(_) => Ok(()),
    }
}

/// How far they are.
pub(super) fn certificate_states(
    world: &ControllerContext,
    owner: &ObjectMeta,
    domain: &str,
    wanted: &[Certificate],
) -> Vec<HostCertificate> {
    let each = wanted.iter().map(|one| {
        provided_certificate(world, namespace(owner), domain, one).unwrap_or_else(|| certificate_of(world, owner, one))
    });
    each.collect()
}

/// Makes a Certificate, or sets it back.
async fn create_or_reset(world: &ControllerContext, owner: &ObjectMeta, wanted: &Certificate) -> Result<(), Error> {
    let Some(there) = world.certificates.get(namespace(&wanted.metadata), name(&wanted.metadata)) else {
        return world.create(wanted).await.map(drop);
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
    world.replace(&back).await.map(drop)
}

/// What makes a Certificate needless: the operator's own certificates, or one for all names of the namespace.
fn provided_certificate(
    world: &ControllerContext,
    ns: &str,
    domain: &str,
    wanted: &Certificate,
) -> Option<HostCertificate> {
    let hosts = &wanted.spec.dns_names;
    if hosts.iter().all(|host| world.publisher.has_certificate_for(host)) {
        let name = name(&wanted.metadata).to_owned();
        return Some(HostCertificate::new(name, hosts.clone(), CertificateState::Ready(None)));
    }
    let wild = world.certificates.by_index(ns, &wildcard_key(domain)).into_iter().find(|wild| {
        let parents: Vec<_> = wild.spec.dns_names.iter().filter_map(|name| name.split_once('.')).collect();
        let is_below = |host: &String| {
            host.split_once('.').is_some_and(|(_, parent)| parents.iter().any(|(_, known)| *known == parent))
        };
        hosts.iter().all(is_below)
    })?;
    let (name, standing) = (name(&wild.metadata).to_owned(), state_of(world, &wild));
    Some(HostCertificate::new(name, hosts.clone(), standing))
}

fn certificate_of(world: &ControllerContext, owner: &ObjectMeta, wanted: &Certificate) -> HostCertificate {
    let own = name(&wanted.metadata);
    let mut challenges = Vec::new();
    let standing = match world.certificates.get(namespace(owner), own) {
        None => CertificateState::Pending(String::new()),
        Some(there) if !is_controlled_by(&there.metadata, owner) => CertificateState::NotOwned,
        // Set back a moment ago: what its status says is not of what is wanted.
        Some(there) if there.spec != wanted.spec => CertificateState::Pending(String::new()),
        Some(there) => {
            let standing = state_of(world, &there);
            let renews = there.condition("Renewing").is_some_and(|c| c.status == ConditionStatus::True);
            if renews || !matches!(standing, CertificateState::Ready(_)) {
                challenges = there.status.as_ref().map(|s| s.http01_challenges.clone()).unwrap_or_default();
            }
            standing
        }
    };
    let secret = world.ingress.secrets.get(namespace(owner), &wanted.spec.secret_name);
    let ca = secret.as_ref().map(|secret| secret_data(secret, CA_CERT_KEY)).unwrap_or_default();
    let ca_certs = (!ca.is_empty()).then(|| String::from_utf8_lossy(ca).into_owned());
    let held = HostCertificate::new(own, wanted.spec.dns_names.clone(), standing);
    HostCertificate { ca_certs, challenges, ..held }
}

fn state_of(world: &ControllerContext, certificate: &Certificate) -> CertificateState {
    match certificate.ready() {
        Some(ready) if ready.status == ConditionStatus::True => {
            let (ns, secret) = (namespace(&certificate.metadata), &certificate.spec.secret_name);
            match world.ingress.identity(ns, secret, &world.config.expiries) {
                Ok(identity) => CertificateState::Ready(Some(identity)),
                Err(why) => CertificateState::Pending(why.reason.to_owned()),
            }
        }
        Some(ready) if ready.status == ConditionStatus::False => CertificateState::Failed(ready.reason.clone()),
        Some(ready) => CertificateState::Pending(ready.reason.clone()),
        None => CertificateState::Pending(String::new()),
    }
}

/// Certificates are found by who owns them, where they are kept, and what they stand for.
pub fn index_keys(certificate: &Certificate) -> Vec<String> {
    let meta = &certificate.metadata;
    let owner = controller(meta).map(|owner| format!("owned by {}", owner.uid));
    let wildcard = label(meta, WILDCARD_LABEL).map(wildcard_key);
    let secret = secret_key(&certificate.spec.secret_name);
    let challenges = certificate.status.iter().flat_map(|status| &status.http01_challenges);
    let answered = challenges.map(|challenge| solver_key(&challenge.service_name));
    owner.into_iter().chain(wildcard).chain([secret]).chain(answered).collect()
}

fn solver_key(service: &str) -> String {
    format!("answered by {service}")
}

fn owner_key(owner: &ObjectMeta) -> String {
    format!("owned by {}", owner.uid.as_deref().unwrap_or_default())
}

fn secret_key(secret: &str) -> String {
    format!("kept in {secret}")
}

fn wildcard_key(domain: &str) -> String {
    format!("wildcard in {domain}")
}

/// Whoever may go on by a Certificate, and itself.
fn on_certificate_change(world: &ControllerContext, (before, after): ObjectChange<'_, Certificate>) {
    let all = [before, after];
    for certificate in all.into_iter().flatten() {
        affected_items(world, certificate).into_iter().for_each(|item| world.enqueue(item));
    }
    if let Some(after) = after
        && before.is_none_or(|before| {
            let (then, now) = (&before.metadata, &after.metadata);
            before.spec != after.spec || then.uid != now.uid || then.annotations != now.annotations
        })
    {
        world.enqueue(item(after));
    }
}

/// A Secret changed: Certificates that are kept in it, and whoever goes on by them.
pub(super) fn affected_by_secret(world: &ControllerContext, ns: &str, secret: &str) -> Vec<WorkItem> {
    let kept = world.certificates.by_index(ns, &secret_key(secret));
    let mut items: Vec<_> = kept.iter().flat_map(|certificate| affected_items(world, certificate)).collect();
    items.extend(kept.iter().map(|certificate| item(certificate)));
    if authority::is_authority(ns, secret) {
        items.extend(world.certificates.all().iter().map(|certificate| item(certificate)));
    }
    items
}

/// Whose challenges a core Service answers.
pub(super) fn affected_by_service(world: &ControllerContext, ns: &str, service: &str) -> Vec<WorkItem> {
    let asked = world.certificates.by_index(ns, &solver_key(service));
    asked.iter().flat_map(|certificate| affected_items(world, certificate)).collect()
}

fn affected_items(world: &ControllerContext, certificate: &Certificate) -> Vec<WorkItem> {
    let ns = namespace(&certificate.metadata);
    match controller(&certificate.metadata).map(|owner| (owner.kind.as_str(), owner.name.as_str())) {
        Some(("Route", name)) => vec![WorkItem::new(ControllerKind::Route, ns, name)],
        Some(("DomainMapping", name)) => vec![WorkItem::new(ControllerKind::DomainMapping, ns, name)],
        _ if label(&certificate.metadata, WILDCARD_LABEL).is_some() => {
            let routes = world.routes.keys().into_iter().filter(|(home, _)| home == ns);
            routes.map(|(_, name)| WorkItem::new(ControllerKind::Route, ns, &name)).collect()
        }
        _ => Vec::new(),
    }
}

fn item(certificate: &Certificate) -> WorkItem {
    WorkItem::new(ControllerKind::Certificate, namespace(&certificate.metadata), name(&certificate.metadata))
}

pub(super) fn watches(world: &ControllerContext) -> [ControllerTask<'_>; 3] {
    [
        Box::pin(follow(world.source(), &world.certificates, |change| on_certificate_change(world, change))),
        Box::pin(run_renewal(world)),
        Box::pin(async {
            loop {
                world.publisher.certificates_changed().await;
                config_maps::requeue_kind(world, ControllerKind::Route, &world.routes);
                config_maps::requeue_kind(world, ControllerKind::DomainMapping, &world.domain_mappings);
            }
        }),
    ]
}

async fn run_renewal(world: &ControllerContext) {
    loop {
        tokio::time::sleep(RENEWAL_INTERVAL).await;
        let all: Vec<Arc<Certificate>> = world.certificates.all();
        let due = all.iter().filter(|certificate| issue::needs_renewal(certificate, now()));
        due.for_each(|certificate| world.enqueue(item(certificate)));
    }
}
