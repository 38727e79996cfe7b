//! Certificate: asked for by Routes and DomainMappings whose hosts are to have TLS, provided by us or by whoever its
//! class names, and shown to clients from its Secret.
//!
//! Ours are signed by an authority of our own (`issue`). What the operator gave with `--tls-cert` needs none.

pub(super) mod authority;
pub mod challenges;
mod issue;
pub mod standing;
pub mod wanted;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;

use super::cache::{Change, follow};
use super::queue::{Item, Kind};
use super::route::hosts::Naming;
use super::world::{Error, World, now};
use super::{Task, settings};
use crate::kinds::networking::certificate::{Certificate, WILDCARD_LABEL};
use crate::kinds::serving::annotations::declines_tls;
use crate::kinds::serving::route::Route;
use crate::kinds::settings::Settings;
use crate::kinds::shared::{
    HasConditions as _, Verdict, controller, is_controlled_by, label, name, namespace,
};
use authority::CA;
use issue::part;
use standing::{Held, Standing, Tls};

pub use issue::reconcile;

/// Between two looks for certificates that end: they do so weeks after they are due.
const RENEWAL_EVERY: Duration = Duration::from_secs(3_600);

/// What TLS there is for the hosts of a Route.
pub(super) fn of_route(world: &World, route: &Route, naming: Naming<'_>) -> Tls {
    let wanted = wanted_by_route(world, route, naming);
    if !is_on(world, &route.metadata) {
        return Tls::Off(standing::NOT_ENABLED);
    }
    match (world.config.listeners.https, wanted.is_empty()) {
        (_, true) => Tls::Off(standing::NOT_FOR_LOCAL),
        (None, false) => Tls::NoListener,
        (Some(_), false) => Tls::Asked(look(world, &route.metadata, naming.domain, &wanted)),
    }
}

/// The certificates of a Route's names inside; none unless the operator wants them.
pub(super) fn inside_of_route(world: &World, route: &Route, naming: Naming<'_>) -> Vec<Held> {
    look(world, &route.metadata, naming.domain, &wanted_inside(route, naming))
}

/// The Certificates that a Route needs for the hosts that everybody reaches.
fn wanted_by_route(world: &World, route: &Route, naming: Naming<'_>) -> Vec<Certificate> {
    if is_on(world, &route.metadata) { wanted::of_route(route, naming) } else { Vec::new() }
}

/// ... and for its names inside, which no annotation declines.
fn wanted_inside(route: &Route, naming: Naming<'_>) -> Vec<Certificate> {
    if naming.network.tls_for.local_domains { wanted::inside_of_route(route, naming) } else { Vec::new() }
}

/// Asks for all that a Route needs.
pub(super) async fn ask_for_route(world: &World, route: &Route, naming: Naming<'_>) -> Result<(), Error> {
    let mut wanted = wanted_by_route(world, route, naming);
    wanted.extend(wanted_inside(route, naming));
    ask(world, &route.metadata, naming.domain, &wanted).await
}

/// Whether the hosts of such an object are to have certificates.
pub(super) fn is_on(world: &World, meta: &ObjectMeta) -> bool {
    world.settings().network.tls_for.external_domains && !declines_tls(meta)
}

/// Makes the Certificates that an object wants, sets back those that were changed, and deletes those that it wants no
/// more. All are in its namespace, and in `domain`. Whose hosts they are has to be settled.
pub(super) async fn ask(
    world: &World,
    owner: &ObjectMeta,
    domain: &str,
    wanted: &[Certificate],
) -> Result<(), Error> {
    if !world.duty.is_ours() {
        return Ok(());
    }
    let ns = namespace(owner);
    delete_others(world, ns, owner, wanted).await?;
    for one in wanted.iter().filter(|one| provided(world, ns, domain, one).is_none()) {
        make(world, owner, one).await?;
    }
    Ok(())
}

/// Keeps the certificates for all names of a namespace, if the operator wants such.
pub(super) async fn ask_for_namespace(world: &World, home: &Namespace) -> Result<(), Error> {
    let settings = world.settings();
    let is_wanted =
        settings.network.wildcards_for.as_ref().is_some_and(|wanted| wanted.takes(&home.metadata));
    if !world.duty.is_ours() || home.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut wanted = wanted::of_namespace(home, domains(world, &settings).into_iter(), &settings.network);
    wanted
        .retain(|one| is_wanted && !one.spec.dns_names.iter().all(|host| world.publisher.vouches_for(host)));
    delete_others(world, name(&home.metadata), &home.metadata, &wanted).await?;
    for one in &wanted {
        make(world, &home.metadata, one).await?;
    }
    Ok(())
}

/// The domains that public hosts may be in.
fn domains<'a>(world: &'a World, settings: &'a Settings) -> Vec<&'a str> {
    settings.domains.public().chain([world.config.domain.as_str()]).collect()
}

async fn delete_others(
    world: &World,
    ns: &str,
    owner: &ObjectMeta,
    wanted: &[Certificate],
) -> Result<(), Error> {
    for old in world.certificates.names_having(ns, &owned_by(owner)) {
        if !wanted.iter().any(|one| name(&one.metadata) == old) {
            delete(world, ns, &old).await?;
        }
    }
    Ok(())
}

async fn delete(world: &World, ns: &str, name: &str) -> Result<(), Error> {
    match world.api::<Certificate>(ns).delete(name, &DeleteParams::default()).await {
        Err(why) if super::is_absent(&why) => Ok(()),
        Err(why) => Err(why.into()),
        Ok(_) => Ok(()),
    }
}

/// How far they are.
pub(super) fn look(world: &World, owner: &ObjectMeta, domain: &str, wanted: &[Certificate]) -> Vec<Held> {
    let each = wanted
        .iter()
        .map(|one| provided(world, namespace(owner), domain, one).unwrap_or_else(|| held(world, owner, one)));
    each.collect()
}

/// Makes a Certificate, or sets it back.
async fn make(world: &World, owner: &ObjectMeta, wanted: &Certificate) -> Result<(), Error> {
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
fn provided(world: &World, ns: &str, domain: &str, wanted: &Certificate) -> Option<Held> {
    let hosts = &wanted.spec.dns_names;
    if hosts.iter().all(|host| world.publisher.vouches_for(host)) {
        let name = name(&wanted.metadata).to_owned();
        return Some(Held::new(name, hosts.clone(), Standing::Ready(None)));
    }
    let wild = world.certificates.having(ns, &wildcard_in(domain)).into_iter().find(|wild| {
        let parents: Vec<_> = wild.spec.dns_names.iter().filter_map(|name| name.split_once('.')).collect();
        let is_below = |host: &String| {
            host.split_once('.').is_some_and(|(_, parent)| parents.iter().any(|(_, known)| *known == parent))
        };
        hosts.iter().all(is_below)
    })?;
    let (name, standing) = (name(&wild.metadata).to_owned(), standing(world, &wild));
    Some(Held::new(name, hosts.clone(), standing))
}

fn held(world: &World, owner: &ObjectMeta, wanted: &Certificate) -> Held {
    let own = name(&wanted.metadata);
    let mut challenges = Vec::new();
    let standing = match world.certificates.get(namespace(owner), own) {
        None => Standing::Coming(String::new()),
        Some(there) if !is_controlled_by(&there.metadata, owner) => Standing::NotOwned,
        // Set back a moment ago: what its status says is not of what is wanted.
        Some(there) if there.spec != wanted.spec => Standing::Coming(String::new()),
        Some(there) => {
            let standing = standing(world, &there);
            let renews = there.condition("Renewing").is_some_and(|c| c.status == Verdict::True);
            if renews || !matches!(standing, Standing::Ready(_)) {
                challenges = there.status.as_ref().map(|s| s.http01_challenges.clone()).unwrap_or_default();
            }
            standing
        }
    };
    let secret = world.ingress.secrets.get(namespace(owner), &wanted.spec.secret_name);
    let ca = secret.as_ref().map(|secret| part(secret, CA)).unwrap_or_default();
    let ca_certs = (!ca.is_empty()).then(|| String::from_utf8_lossy(ca).into_owned());
    let held = Held::new(own, wanted.spec.dns_names.clone(), standing);
    Held { ca_certs, challenges, ..held }
}

fn standing(world: &World, certificate: &Certificate) -> Standing {
    match certificate.ready() {
        Some(ready) if ready.status == Verdict::True => {
            let (ns, secret) = (namespace(&certificate.metadata), &certificate.spec.secret_name);
            match world.ingress.identity(ns, secret, &world.config.expiries) {
                Ok(identity) => Standing::Ready(Some(identity)),
                Err(why) => Standing::Coming(why.reason.to_owned()),
            }
        }
        Some(ready) if ready.status == Verdict::False => Standing::Failed(ready.reason.clone()),
        Some(ready) => Standing::Coming(ready.reason.clone()),
        None => Standing::Coming(String::new()),
    }
}

/// Certificates are found by who owns them, where they are kept, and what they stand for.
pub fn words(certificate: &Certificate) -> Vec<String> {
    let meta = &certificate.metadata;
    let owner = controller(meta).map(|owner| format!("owned by {}", owner.uid));
    let wildcard = label(meta, WILDCARD_LABEL).map(wildcard_in);
    let secret = kept_in(&certificate.spec.secret_name);
    let challenges = certificate.status.iter().flat_map(|status| &status.http01_challenges);
    let answered = challenges.map(|challenge| answered_by(&challenge.service_name));
    owner.into_iter().chain(wildcard).chain([secret]).chain(answered).collect()
}

fn answered_by(service: &str) -> String {
    format!("answered by {service}")
}

fn owned_by(owner: &ObjectMeta) -> String {
    format!("owned by {}", owner.uid.as_deref().unwrap_or_default())
}

fn kept_in(secret: &str) -> String {
    format!("kept in {secret}")
}

fn wildcard_in(domain: &str) -> String {
    format!("wildcard in {domain}")
}

/// Whoever may go on by a Certificate, and itself.
fn changed(world: &World, (before, after): Change<'_, Certificate>) {
    let all = [before, after];
    for certificate in all.into_iter().flatten() {
        concerned(world, certificate).into_iter().for_each(|item| world.look_at(item));
    }
    if let Some(after) = after
        && before.is_none_or(|before| {
            let (then, now) = (&before.metadata, &after.metadata);
            before.spec != after.spec || then.uid != now.uid || then.annotations != now.annotations
        })
    {
        world.look_at(item(after));
    }
}

/// A Secret changed: Certificates that are kept in it, and whoever goes on by them.
pub(super) fn of_secret(world: &World, ns: &str, secret: &str) -> Vec<Item> {
    let kept = world.certificates.having(ns, &kept_in(secret));
    let mut items: Vec<_> = kept.iter().flat_map(|certificate| concerned(world, certificate)).collect();
    items.extend(kept.iter().map(|certificate| item(certificate)));
    if authority::is_it(ns, secret) {
        items.extend(world.certificates.all().iter().map(|certificate| item(certificate)));
    }
    items
}

/// Whose challenges a core Service answers.
pub(super) fn of_service(world: &World, ns: &str, service: &str) -> Vec<Item> {
    let asked = world.certificates.having(ns, &answered_by(service));
    asked.iter().flat_map(|certificate| concerned(world, certificate)).collect()
}

fn concerned(world: &World, certificate: &Certificate) -> Vec<Item> {
    let ns = namespace(&certificate.metadata);
    match controller(&certificate.metadata).map(|owner| (owner.kind.as_str(), owner.name.as_str())) {
        Some(("Route", name)) => vec![Item::new(Kind::Route, ns, name)],
        Some(("DomainMapping", name)) => vec![Item::new(Kind::DomainMapping, ns, name)],
        _ if label(&certificate.metadata, WILDCARD_LABEL).is_some() => {
            let routes = world.routes.keys().into_iter().filter(|(home, _)| home == ns);
            routes.map(|(_, name)| Item::new(Kind::Route, ns, &name)).collect()
        }
        _ => Vec::new(),
    }
}

fn item(certificate: &Certificate) -> Item {
    Item::new(Kind::Certificate, namespace(&certificate.metadata), name(&certificate.metadata))
}

pub(super) fn watches(world: &World) -> [Task<'_>; 3] {
    [
        Box::pin(follow(world.all(), &world.certificates, |change| changed(world, change))),
        Box::pin(renew_in_time(world)),
        Box::pin(async {
            loop {
                world.publisher.certificates_set().await;
                settings::look_at(world, Kind::Route, &world.routes);
                settings::look_at(world, Kind::DomainMapping, &world.domain_mappings);
            }
        }),
    ]
}

async fn renew_in_time(world: &World) {
    loop {
        tokio::time::sleep(RENEWAL_EVERY).await;
        let all: Vec<Arc<Certificate>> = world.certificates.all();
        let due = all.iter().filter(|certificate| issue::is_due(certificate, now()));
        due.for_each(|certificate| world.look_at(item(certificate)));
    }
}
