//! Route: divides a host's requests over Revisions, and is ready when they really go there.

pub mod hosts;
pub mod reconcile;
pub mod traffic;

use std::sync::Arc;

use super::ingress;
use super::queue::{Item, Kind};
use super::settings;
use super::world::{Error, World, now};
use crate::kinds::serving::annotations::CONFIGURATION;
use crate::kinds::serving::configuration::Configuration;
use crate::kinds::serving::revision::Revision;
use crate::kinds::serving::route::{INGRESS_READY, Route};
use crate::kinds::shared::{HasConditions, Verdict, label, name, namespace};
use hosts::Naming;
use reconcile::{Outcome, status};
use traffic::{Lookup, Ways, resolve, rules};

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let owner = format!("{}/{}", item.namespace, item.name);
    let Some(route) = world.routes.get(&item.namespace, &item.name) else {
        world.publisher.remove_route(&owner);
        world.publisher.flow().await;
        // Its hosts are free for whoever was refused them.
        refused(world, &item.namespace).for_each(|item| world.look_at(item));
        ingress::refused(world).into_iter().for_each(|item| world.look_at(item));
        return Ok(());
    };
    let naming = naming(world);
    let outcome = match resolve(&route, &Here { world, namespace: &item.namespace }, naming) {
        Ok(assigned) => match world.publisher.set_route(&owner, rules(&route, &assigned, ways(world))) {
            Ok(()) => Outcome::Flowing(assigned),
            Err(taken) => Outcome::Taken(taken),
        },
        Err(why) => Outcome::Unassigned(why),
    };
    // COND-12: Ready is said after the swap, never before.
    world.publisher.flow().await;
    let mut after = (*route).clone();
    after.status = Some(status(&route, &outcome, naming, now()));
    world.set_status(&*route, &after).await
}

/// Routes by what the last status says: how things were before a restart.
pub fn restore(world: &World) {
    let mut routes = world.routes.all();
    // Who had a host before has it again; among others the older comes first (AMB-05).
    let has_hosts = |route: &Route| route.condition(INGRESS_READY).is_some_and(|c| c.status == Verdict::True);
    routes.sort_by_key(|route| (!has_hosts(route), route.metadata.creation_timestamp.clone()));
    for route in routes {
        let assigned = route.status.as_ref().map(|status| status.traffic.as_slice()).unwrap_or_default();
        if assigned.is_empty() || !has_hosts(&route) {
            continue;
        }
        let owner = format!("{}/{}", namespace(&route.metadata), name(&route.metadata));
        if let Err(taken) = world.publisher.set_route(&owner, rules(&route, assigned, ways(world))) {
            tracing::warn!(route = owner, host = taken.host, owner = taken.owner, "host is taken");
        }
    }
}

/// The Routes whose traffic may change with a Configuration.
pub fn of_configuration(world: &World, ns: &str, configuration: &str) -> Vec<Item> {
    items(world, ns, |route| route.spec.traffic.iter().any(|t| t.configuration() == Some(configuration)))
}

/// The Routes whose traffic may change with a Revision.
pub fn of_revision(world: &World, revision: &Revision) -> Vec<Item> {
    let wanted = revision.metadata.name.as_deref();
    let configuration = label(&revision.metadata, CONFIGURATION);
    items(world, namespace(&revision.metadata), |route| {
        route.spec.traffic.iter().any(|target| {
            target.revision().is_some_and(|name| Some(name) == wanted)
                || target.configuration().is_some_and(|name| Some(name) == configuration)
        })
    })
}

fn refused(world: &World, ns: &str) -> impl Iterator<Item = Item> {
    let not_owned = |route: &Route| route.condition(INGRESS_READY).is_some_and(|c| c.reason == "NotOwned");
    items(world, ns, not_owned).into_iter()
}

fn items(world: &World, ns: &str, wanted: impl Fn(&Route) -> bool) -> Vec<Item> {
    let routes = world.routes.list(ns);
    routes.iter().filter(|r| wanted(r)).map(|r| Item::new(Kind::Route, ns, name(&r.metadata))).collect()
}

fn ways(world: &World) -> Ways<'_> {
    Ways { naming: naming(world), by_tag_header: settings::by_tag_header(world) }
}

fn naming(world: &World) -> Naming<'_> {
    Naming { domain: &world.config.domain, http_port: world.config.http_port }
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
