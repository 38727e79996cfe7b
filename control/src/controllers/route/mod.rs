//! Route: divides a host's requests over Revisions, and is ready when they really go there.

pub mod hosts;
mod placeholder;
pub mod reconcile;
pub mod rollout;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use k8s_openapi::api::core::v1::Service;

use super::cache::Change;
use super::certificate::challenges::{answers, put_in};
use super::certificate::standing::{self, Held, Tls};
use super::queue::{Item, Kind};
use super::world::{Error, World, now};
use super::{certificate, domain_mapping, ingress};
use crate::kinds::duration;
use crate::kinds::serving::annotations::{CONFIGURATION, ROLLOUT_DURATION, http_protocol};
use crate::kinds::serving::configuration::Configuration;
use crate::kinds::serving::revision::Revision;
use crate::kinds::serving::route::{ALL_TRAFFIC_ASSIGNED, INGRESS_READY, Route};
use crate::kinds::settings::{HttpProtocol, Settings};
use crate::kinds::shared::{Condition, HasConditions, Verdict, annotation, label, name, namespace};
use crate::publish::{HostRule, Shown};
use hosts::{Naming, Ports};
use reconcile::{NOT_CONFIGURED, Outcome, ROLLOUT_IN_PROGRESS, status};
use rollout::divide;
use traffic::{Lookup, Ways, resolve, rules};

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let owner = format!("{}/{}", item.namespace, item.name);
    let Some(route) = world.routes.get(&item.namespace, &item.name) else {
        world.publisher.remove_route(&owner);
        world.publisher.set_certificates_of(&owner, Shown::default());
        world.publisher.flow().await;
        hosts_are_free(world);
        return Ok(());
    };
    let settings = world.settings();
    let (tls, inside) = tls(world, &route, naming(world, &settings, &route));
    let naming = Naming { tls: &tls, inside: &inside, ..naming(world, &settings, &route) };
    let outcome = assign(world, &route, &settings, naming);
    match &outcome {
        Outcome::Flowing(_) => world.publisher.set_certificates_of(&owner, shown(&tls, &inside)),
        Outcome::Taken(_) | Outcome::Foreign(_) => {
            world.publisher.set_certificates_of(&owner, Shown::default());
        }
        Outcome::Unassigned(_) | Outcome::Misnoted(_) => {}
    }
    // COND-12: Ready is said after the swap, never before.
    let named = async {
        let Outcome::Flowing(division) = &outcome else { return Ok(()) };
        certificate::ask_for_route(world, &route, naming).await?;
        placeholder::keep(world, &route, &division.targets, naming).await
    };
    let ((), named) = join(world.publisher.flow(), named).await;
    named?;
    let mut after = (*route).clone();
    after.status = Some(status(&route, &outcome, naming, now()));
    world.set_status_of(item, &*route, &after).await?;
    if let Outcome::Flowing(division) = &outcome
        && let Some(wait) = division.next_step(now())
    {
        world.queue.add_later(item.clone(), wait);
    }
    Ok(())
}

/// Gives the Route's hosts to the cores, if all is there that they lead to.
fn assign(world: &World, route: &Route, settings: &Settings, naming: Naming<'_>) -> Outcome {
    let ns = namespace(&route.metadata);
    let goal = match resolve(route, &Here { world, namespace: ns }, naming) {
        Ok(goal) => goal,
        Err(why) => return Outcome::Unassigned(why),
    };
    let protocol = match http_protocol(&route.metadata, settings.network.http_protocol) {
        Ok(protocol) => protocol,
        Err(why) => return Outcome::Misnoted(why),
    };
    let is_of = |name: &str, parent: &str| {
        let revision = world.revisions.get(ns, name);
        revision.is_some_and(|revision| label(&revision.metadata, CONFIGURATION) == Some(parent))
    };
    let division = divide(route, goal, rollout_duration(world, route), is_of, now());
    if let Some(foreign) = placeholder::foreign(world, route, &division.targets, naming) {
        return Outcome::Foreign(foreign);
    }
    let rules = rules(route, &division.targets, ways(world, naming, settings, protocol));
    let (rules, _) = put_in(rules, answers(world, ns, naming.tls));
    match world.publisher.set_route(&format!("{ns}/{}", name(&route.metadata)), rules) {
        Ok(others_are_free) => {
            if others_are_free {
                hosts_are_free(world);
            }
            Outcome::Flowing(division)
        }
        Err(taken) => Outcome::Taken(taken),
    }
}

/// Somebody let go of hosts: they are for whoever was refused them, in whatever namespace (AMB-05).
pub(super) fn hosts_are_free(world: &World) {
    let routes = world.routes.keys_having(REFUSED).into_iter();
    routes.for_each(|(ns, name)| world.look_at(Item::new(Kind::Route, &ns, &name)));
    let others = ingress::refused(world).into_iter().chain(domain_mapping::refused(world));
    others.for_each(|item| world.look_at(item));
}

/// A placeholder that was changed or deleted is set back by its Route. One that was a tag's may have stood where another
/// Route's own is to be.
pub(super) fn placeholder_changed(world: &World, (before, after): Change<'_, Service>) {
    let Some(before) = before else { return };
    if let Some(item) = placeholder::route_of(before) {
        world.look_at(item);
    }
    let (ns, name) = (namespace(&before.metadata), name(&before.metadata));
    if after.is_none() && world.routes.get(ns, name).is_some() {
        world.look_at(Item::new(Kind::Route, ns, name));
    }
}

/// A core Service went: its name may be one that a Route of `ns` was refused.
pub(super) fn name_is_free(world: &World, ns: &str) {
    refused(world, ns).for_each(|item| world.look_at(item));
}

/// The Route's own word, or the operator's.
fn rollout_duration(world: &World, route: &Route) -> Duration {
    let own = annotation(&route.metadata, ROLLOUT_DURATION).and_then(duration::parse_go);
    own.unwrap_or_else(|| world.settings().network.rollout_duration)
}

/// Routes by what the last status says: how things were before a restart.
pub fn restore(world: &World) {
    let settings = world.settings();
    let mut routes = world.routes.all();
    // Who had a host before has it again; among others the older comes first (AMB-05).
    let has_hosts = |route: &Route| {
        let flows = |c: &Condition| c.status == Verdict::True || c.reason == ROLLOUT_IN_PROGRESS;
        // An annotation that makes no sense leaves things as they were.
        let misnoted = |c: &Condition| {
            let assigned = route.condition(ALL_TRAFFIC_ASSIGNED);
            c.reason == NOT_CONFIGURED && assigned.is_some_and(|c| c.status == Verdict::True)
        };
        route.condition(INGRESS_READY).is_some_and(|c| flows(c) || misnoted(c))
    };
    routes.sort_by_key(|route| (!has_hosts(route), route.metadata.creation_timestamp.clone()));
    for route in routes {
        let assigned = route.status.as_ref().map(|status| status.traffic.as_slice()).unwrap_or_default();
        if assigned.is_empty() || !has_hosts(&route) {
            continue;
        }
        let owner = format!("{}/{}", namespace(&route.metadata), name(&route.metadata));
        let ways = ways(world, naming(world, &settings, &route), &settings, protocol(&route, &settings));
        let (tls, inside) = tls(world, &route, naming(world, &settings, &route));
        let answers = answers(world, namespace(&route.metadata), &tls);
        let (rules, _) = put_in(rules(&route, assigned, ways), answers);
        if let Err(taken) = world.publisher.set_route(&owner, rules) {
            tracing::warn!(route = owner, host = taken.host, owner = taken.owner, "host is taken");
        } else {
            world.publisher.set_certificates_of(&owner, shown(&tls, &inside));
        }
    }
}

/// The division of the Route's own host, as it flows now.
#[must_use]
pub fn own_rule(world: &World, route: &Route) -> Option<HostRule> {
    let assigned = route.status.as_ref().map(|status| status.traffic.as_slice())?;
    let settings = world.settings();
    let ways = ways(world, naming(world, &settings, route), &settings, protocol(route, &settings));
    rules(route, assigned, ways).into_iter().next()
}

/// The Routes whose traffic may change with a Configuration.
pub fn of_configuration(world: &World, ns: &str, configuration: &str) -> Vec<Item> {
    items(ns, world.routes.names_having(ns, &wants_configuration(configuration)))
}

/// The Routes whose traffic may change with a Revision.
pub fn of_revision(world: &World, revision: &Revision) -> Vec<Item> {
    let ns = namespace(&revision.metadata);
    let by_name = world.routes.names_having(ns, &wants_revision(name(&revision.metadata)));
    let configuration = label(&revision.metadata, CONFIGURATION);
    let by_parent = configuration.map(|parent| world.routes.names_having(ns, &wants_configuration(parent)));
    items(ns, by_name.into_iter().chain(by_parent.into_iter().flatten()))
}

/// The Routes that send to `revision`, or to `configuration`, or are shown to, by name.
pub fn senders(world: &World, ns: &str, revision: &str, configuration: Option<&str>) -> BTreeSet<String> {
    let words = [wants_revision(revision), has_revision(revision)];
    let of_parent = configuration.map(|parent| [wants_configuration(parent), has_configuration(parent)]);
    let words = words.iter().chain(of_parent.iter().flatten());
    words.flat_map(|word| world.routes.names_having(ns, word)).collect()
}

/// Routes are found by what they ask for, and by what they are shown to send to.
pub fn words(route: &Route) -> Vec<String> {
    let wanted = route.spec.traffic.iter().flat_map(|target| {
        [target.revision().map(wants_revision), target.configuration().map(wants_configuration)]
    });
    let shown = route.status.iter().flat_map(|status| &status.traffic).flat_map(|target| {
        [target.revision().map(has_revision), target.configuration().map(has_configuration)]
    });
    let is_refused = route.condition(INGRESS_READY).is_some_and(|c| c.reason == "NotOwned");
    wanted.chain(shown).flatten().chain(is_refused.then(|| REFUSED.to_owned())).collect()
}

/// Somebody else has a host of theirs.
const REFUSED: &str = "refused";

fn wants_revision(name: &str) -> String {
    format!("wants revision {name}")
}

fn wants_configuration(name: &str) -> String {
    format!("wants configuration {name}")
}

fn has_revision(name: &str) -> String {
    format!("has revision {name}")
}

fn has_configuration(name: &str) -> String {
    format!("has configuration {name}")
}

fn refused(world: &World, ns: &str) -> impl Iterator<Item = Item> {
    items(ns, world.routes.names_having(ns, REFUSED)).into_iter()
}

fn items(ns: &str, routes: impl IntoIterator<Item = String>) -> Vec<Item> {
    routes.into_iter().map(|name| Item::new(Kind::Route, ns, &name)).collect()
}

fn ways<'a>(world: &World, naming: Naming<'a>, settings: &Settings, protocol: HttpProtocol) -> Ways<'a> {
    let listeners = world.config.listeners;
    Ways {
        naming,
        by_tag_header: settings.features.is_enabled("tag-header-based-routing"),
        https_redirect: naming.ports.redirect(protocol),
        has_inner_door: listeners.private.is_some() || listeners.private_https.is_some(),
    }
}

/// What its clients without TLS are answered; if its annotation makes no sense, as the operator says.
fn protocol(route: &Route, settings: &Settings) -> HttpProtocol {
    let usual = settings.network.http_protocol;
    http_protocol(&route.metadata, usual).unwrap_or(usual)
}

/// X-RTE-01: the domain that the Route's labels choose, or the one that the appliance was started with.
fn naming<'a>(world: &'a World, settings: &'a Settings, route: &Route) -> Naming<'a> {
    let labels = route.metadata.labels.as_ref();
    let chosen = settings.domains.of(labels.unwrap_or(&BTreeMap::new()));
    Naming {
        domain: chosen.unwrap_or(&world.config.domain),
        ports: ports(world),
        tls: &Tls::Unasked,
        inside: &[],
        network: &settings.network,
        services: world.core_names.services(),
    }
}

/// What TLS there is for its public hosts, and the certificates of its names inside.
fn tls(world: &World, route: &Route, naming: Naming<'_>) -> (Tls, Vec<Held>) {
    (certificate::of_route(world, route, naming), certificate::inside_of_route(world, route, naming))
}

fn shown(tls: &Tls, inside: &[Held]) -> Shown {
    Shown { everybody: tls.shown(), inside: standing::shown(inside) }
}

/// Where everybody's requests come in.
#[must_use]
pub fn ports(world: &World) -> Ports {
    Ports { http: world.config.http_port, https: world.config.listeners.https.map(|address| address.port()) }
}

struct Here<'a> {
    world: &'a World,
    namespace: &'a str,
}

impl Lookup for Here<'_> {
    fn configuration(&self, name: &str) -> Option<Arc<Configuration>> {
        self.world.configurations.get(self.namespace, name)
    }

    fn revision(&self, name: &str) -> Option<Arc<Revision>> {
        self.world.revisions.get(self.namespace, name)
    }
}
