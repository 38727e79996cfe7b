//! Ingress: routes hosts to core Services for another control plane, and is ready when every core does.

pub mod backends;
pub mod gateway;
pub mod inner_tls;
pub mod reconcile;
pub mod rules;
mod wiring;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dataplane::tls::Identity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Endpoints, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::cache::Cache;
use super::queue::{Item, Kind};
use super::route;
use super::world::{Error, World, now};
use crate::expiry::{Expiries, Source};
use crate::hand;
use crate::kinds::networking::ingress::{HttpPath, Ingress, Split};
use crate::kinds::serving::revision::Revision;
use crate::kinds::serving::route::Route;
use crate::kinds::shared::{HasConditions, label, name, namespace};
use crate::publish::Shown;
use backends::{Backing, Lookup, Unresolved, backing};
use inner_tls::InnerTrusts;
use reconcile::{Outcome, status};

pub use reconcile::Listeners;
pub use wiring::{hear_service, list_all, look_again, watches};

/// One name's look-up may take so long; a resolver that is silent must not hold the others up for more.
const LOOK_UP_MAX: Duration = Duration::from_secs(5);
/// Addresses taken of one name.
const NAME_ADDRESSES_MAX: usize = 64;
/// The label by which a slice names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// What Ingresses are made true with.
#[derive(Debug, Default)]
pub struct Room {
    pub ingresses: Cache<Ingress>,
    pub endpoints: Cache<Endpoints>,
    pub slices: Cache<EndpointSlice>,
    pub secrets: Cache<Secret>,
    /// Whom backends have to prove to be.
    inner_trusts: InnerTrusts,
    /// Those that lead to names outside or to Routes and Revisions: looked at now and then, and when one of
    /// those changes.
    loose: Mutex<BTreeSet<Item>>,
    /// Read from Secrets, by namespace, name and version.
    identities: Mutex<HashMap<(String, String), (String, Identity)>>,
}

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let ingress = world.ingress.ingresses.get(&item.namespace, &item.name);
    let Some(ingress) = ingress.filter(|ingress| ingress.is_ours()) else {
        let owner = owner(&item.namespace, &item.name);
        world.publisher.remove_route(&owner);
        world.publisher.set_certificates_of(&owner, Shown::default());
        world.ingress.set_loose(item, false);
        world.publisher.flow().await;
        route::hosts_are_free(world);
        return Ok(());
    };
    let outcome = program(world, &ingress).await;
    // X-KI-17: Ready is said after the swap, never before.
    world.publisher.flow().await;
    let mut after = (*ingress).clone();
    after.status = Some(status(&ingress, &outcome, world.config.listeners, now()));
    world.set_status(&*ingress, &after).await
}

/// Tells the cores what the Ingress says.
async fn program(world: &World, ingress: &Ingress) -> Outcome {
    match publish(world, ingress).await {
        Ok(outcome) => outcome,
        Err(Unresolved { reason, message }) => Outcome::Unconfigured { reason, message },
    }
}

async fn publish(world: &World, ingress: &Ingress) -> Result<Outcome, Unresolved> {
    let (ns, name) = (namespace(&ingress.metadata), name(&ingress.metadata));
    let owner = owner(ns, name);
    // Until everything is found: what is missing now may come without telling.
    world.ingress.set_loose(&item(ingress), true);
    let mut found: BTreeMap<String, Vec<(String, u32)>> = BTreeMap::new();
    let mut loose = false;
    for (path, split) in ways(ingress) {
        let by_tls = inner_tls::is_wanted(world, path);
        let key = backends::key(split, by_tls);
        if found.contains_key(&key) {
            continue;
        }
        let trust = |protocol| by_tls.then(|| inner_tls::trust(world, ns, protocol)).transpose();
        let shares = match backing(split, by_tls, world)? {
            Backing::Addresses { protocol, addresses } => {
                let admitted = admitted(world, split, addresses);
                let addresses = admitted.as_deref().unwrap_or_default();
                world.publisher.set_addresses(&key, protocol, trust(protocol)?, addresses);
                admitted?;
                vec![(key.clone(), 1)]
            }
            Backing::Name { protocol, host, port } => {
                loose = true;
                let trust = trust(protocol)?;
                if let Some(listener) = gateway(world, &host)? {
                    world.publisher.set_gateway(&key, protocol, trust, listener);
                } else {
                    let admitted = admitted(world, split, look_up(&host, port).await?);
                    let addresses = admitted.as_deref().unwrap_or_default();
                    world.publisher.set_addresses(&key, protocol, trust, addresses);
                    admitted?;
                }
                vec![(key.clone(), 1)]
            }
            Backing::Revisions(shares) => {
                loose = true;
                shares
            }
        };
        found.insert(key, shares);
    }
    world.ingress.set_loose(&item(ingress), loose);
    let certificates = certificates(world, ingress)?;
    let shares = |path: &HttpPath, split: &Split| {
        let key = backends::key(split, inner_tls::is_wanted(world, path));
        found.get(&key).cloned().unwrap_or_default()
    };
    let listens = world.config.listeners.https.is_some();
    let rules = rules::rules(ingress, listens, &shares)
        .map_err(|message| Unresolved { reason: "InvalidHeader", message })?;
    match world.publisher.set_route(&owner, rules) {
        Ok(true) => route::hosts_are_free(world),
        Ok(false) => {}
        Err(taken) => return Ok(Outcome::Taken(taken)),
    }
    world.publisher.set_certificates_of(&owner, certificates);
    let silent = found.values().flatten().find(|(key, _)| !world.publisher.answers(key));
    Ok(match silent {
        Some((key, _)) => Outcome::Empty(key.clone()),
        None => Outcome::Flowing,
    })
}

/// The splits that get traffic, each with its path.
fn ways(ingress: &Ingress) -> impl Iterator<Item = (&HttpPath, &Split)> {
    let paths = ingress.spec.rules.iter().flat_map(|rule| rule.paths());
    let all = paths.flat_map(|path| path.splits.iter().map(move |split| (path, split)));
    all.filter(|(_, split)| split.percent > 0)
}

fn splits(ingress: &Ingress) -> impl Iterator<Item = &Split> {
    ways(ingress).map(|(_, split)| split)
}

/// As the publisher knows it; Routes are known by their names alone.
fn owner(ns: &str, name: &str) -> String {
    format!("Ingress {ns}/{name}")
}

/// The addresses that the target policy lets a split have. It is asked again where a connection is opened.
fn admitted(world: &World, split: &Split, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Unresolved> {
    let (mut targets, mut refused) = (Vec::with_capacity(addresses.len()), None);
    for address in addresses {
        match world.config.targets.check(address) {
            Ok(()) => targets.push(address),
            Err(why) => refused = Some(why),
        }
    }
    let Some(refused) = refused else { return Ok(targets) };
    let (ns, name) = (&split.service_namespace, &split.service_name);
    tracing::warn!(service = format!("{ns}/{name}"), "address is not routed to: {refused}");
    if targets.is_empty() {
        let message = format!("Service \"{ns}/{name}\": {refused}.");
        return Err(Unresolved { reason: "TargetRefused", message });
    }
    Ok(targets)
}

/// The listener of ours that a status of ours called `host`, if any.
fn gateway(world: &World, host: &str) -> Result<Option<SocketAddr>, Unresolved> {
    match world.config.listeners.named(host) {
        Some(Some(address)) => Ok(Some(address)),
        Some(None) => Err(Unresolved {
            reason: "ListenerOff",
            message: format!("{host} is a listener that is off; start with --private ADDRESS."),
        }),
        None => Ok(None),
    }
}

async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, Unresolved> {
    let failed = |why: &dyn std::fmt::Display| Unresolved {
        reason: "NameNotResolved",
        message: format!("The name {host} is not resolved: {why}."),
    };
    let asked = host.to_owned();
    let looking = hand::run("look-up", move || (asked, port).to_socket_addrs());
    let mut addresses: Vec<_> = match tokio::time::timeout(LOOK_UP_MAX, looking).await {
        Ok(Ok(Ok(addresses))) => addresses.take(NAME_ADDRESSES_MAX).collect(),
        Ok(Ok(Err(why)) | Err(why)) => return Err(failed(&why)),
        Err(_) => return Err(failed(&"no answer within 5 s")),
    };
    addresses.sort_unstable();
    Ok(addresses)
}

/// X-KI-12: the certificates that the Ingress names, for their hosts: those that only rules for callers inside have are
/// shown to nobody else.
fn certificates(world: &World, ingress: &Ingress) -> Result<Shown, Unresolved> {
    let (mut shown, inside) = (Shown::default(), rules::inside_hosts(ingress));
    for tls in &ingress.spec.tls {
        let expiries = &world.config.expiries;
        let identity = world.ingress.identity(&tls.secret_namespace, &tls.secret_name, expiries)?;
        for host in tls.hosts.iter().map(|host| host.to_ascii_lowercase()) {
            let to = if inside.contains(&host) { &mut shown.inside } else { &mut shown.everybody };
            to.push((host, identity.clone()));
        }
    }
    Ok(shown)
}

impl Room {
    /// The certificate in a Secret.
    pub(super) fn identity(&self, ns: &str, name: &str, expiries: &Expiries) -> Result<Identity, Unresolved> {
        let secret = self.secrets.get(ns, name).ok_or_else(|| Unresolved {
            reason: "SecretNotFound",
            message: format!("Secret \"{ns}/{name}\" not found."),
        })?;
        let version = secret.metadata.resource_version.clone().unwrap_or_default();
        let mut known = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ns.to_owned(), name.to_owned());
        if let Some((_, identity)) = known.get(&key).filter(|(read, _)| *read == version) {
            return Ok(identity.clone());
        }
        let part = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| &bytes.0[..]);
        let read =
            Identity::from_pem(part("tls.crt").unwrap_or_default(), part("tls.key").unwrap_or_default());
        let identity = read.map_err(|why| Unresolved {
            reason: "SecretInvalid",
            message: format!("Secret \"{ns}/{name}\": tls.crt and tls.key: {why}."),
        })?;
        let chain = part("tls.crt").unwrap_or_default();
        expiries.record(Source::Secret, &format!("{ns}/{name}"), chain, Timestamp::now());
        known.insert(key, (version, identity.clone()));
        Ok(identity)
    }

    /// The Secret is gone, and what was read from it.
    fn forget_identity(&self, ns: &str, name: &str, expiries: &Expiries) {
        expiries.forget(Source::Secret, &format!("{ns}/{name}"));
        let mut known = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&(ns.to_owned(), name.to_owned()));
    }

    fn set_loose(&self, item: &Item, loose: bool) {
        let mut all = self.loose.lock().unwrap_or_else(PoisonError::into_inner);
        if loose {
            all.insert(item.clone());
        } else {
            all.remove(item);
        }
    }

    /// Those to look at when a Route or Revision changes, and now and then.
    #[must_use]
    pub fn loose(&self) -> Vec<Item> {
        self.loose.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Puts back what was served before a restart, so that no known host is answered 404 (APP-16).
pub async fn restore(world: &World) {
    for ingress in world.ingress.ingresses.all() {
        if ingress.is_ours() && ingress.is_ready() {
            program(world, &ingress).await;
        }
    }
}

/// The Ingresses that were refused a host: somebody may have let go of it.
pub fn refused(world: &World) -> Vec<Item> {
    let all = world.ingress.ingresses.all();
    let refused = all.iter().filter(|ingress| ingress.ready().is_some_and(|c| c.reason == "NotOwned"));
    refused.map(|ingress| item(ingress)).collect()
}

fn item(ingress: &Ingress) -> Item {
    Item::new(Kind::Ingress, namespace(&ingress.metadata), name(&ingress.metadata))
}

impl Lookup for World {
    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>> {
        self.core_names.services().get(namespace, name)
    }

    fn endpoints(&self, namespace: &str, name: &str) -> Option<Arc<Endpoints>> {
        self.ingress.endpoints.get(namespace, name)
    }

    fn slices(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        let mut slices = self.ingress.slices.list(namespace);
        slices.retain(|slice| label(&slice.metadata, SERVICE_LABEL) == Some(service));
        slices
    }

    fn revision(&self, namespace: &str, name: &str) -> Option<Arc<Revision>> {
        self.revisions.get(namespace, name)
    }

    fn route(&self, namespace: &str, name: &str) -> Option<Arc<Route>> {
        self.routes.get(namespace, name)
    }
}
