//! Static routes. Host names are resolved at the start, and again every [`RESOLVE_EVERY`]; Unix sockets are checked once. A route
//! with a health check is checked every [`CHECK_EVERY`].

use std::collections::BTreeSet;
use std::net::ToSocketAddrs as _;
use std::os::unix::fs::FileTypeExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use control::publish::{AddressAuthorization, AddressBackend, Publisher};
use dataplane::table::EndpointAddress;

use super::certificates::RouteTls;
use super::health_check::HealthChecks;
use crate::config::{RouteRule, RouteTarget};

/// Interval of name resolution: a host that has moved is found within half a minute, similar to Envoy's and
/// Traefik's defaults (5 s and 30 s), and a name server is queried twice a minute for each name.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// Interval of health checks: HAProxy checks every 2 s, nginx and Envoy every 5 s.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Maximum addresses of one name: more is a mistake, and each has connections of its own.
const ADDRESSES_MAX: usize = 256;

/// The routes of the command line and the config file. The first set starts the thread that follows names and health.
pub(super) struct StaticRoutes {
    publisher: Arc<Publisher>,
    /// The default of the time between two bytes of a response.
    stream_idle: Duration,
    list: Arc<Mutex<Vec<StaticRoute>>>,
    is_followed: bool,
}

impl StaticRoutes {
    pub(super) fn new(publisher: &Arc<Publisher>, stream_idle: Duration) -> Self {
        Self { publisher: Arc::clone(publisher), stream_idle, list: Arc::default(), is_followed: false }
    }

    /// Publishes the routes with the TLS configuration of each, and takes back those that are gone. Addresses that stay keep their
    /// connections.
    pub(super) fn set(&mut self, rules: &[RouteRule], trust: Vec<RouteTls>) -> Result<()> {
        let mut made: Vec<_> = rules.iter().zip(trust).map(|(rule, trust)| StaticRoute::new(rule, trust)).collect();
        for route in &mut made {
            // A name that cannot be resolved now keeps its addresses.
            route.keep_addresses(&locked(&self.list));
            route.resolve();
            route.warn_of_missing_sockets();
        }
        // Published and replaced under one lock: the thread that follows names must not publish a replaced rule.
        let mut list = locked(&self.list);
        for route in &mut made {
            let RouteRule { targets, health_check, .. } = &route.rule;
            let is_same =
                |before: &&StaticRoute| before.rule.targets == *targets && before.rule.health_check == *health_check;
            route.health = list.iter().find(is_same).map(|before| before.health.clone()).unwrap_or_default();
            route.publish(&self.publisher, self.stream_idle);
        }
        for gone in list.iter().filter(|before| made.iter().all(|route| route.rule.host != before.rule.host)) {
            self.publisher.remove_static_route(&gone.rule.host);
        }
        let is_followed = made.iter().any(StaticRoute::is_followed);
        *list = made;
        drop(list);
        if is_followed && !self.is_followed {
            let (list, publisher, stream_idle) =
                (Arc::downgrade(&self.list), Arc::downgrade(&self.publisher), self.stream_idle);
            std::thread::Builder::new()
                .name("resolver".to_owned())
                .spawn(move || follow(&list, &publisher, stream_idle))
                .context("start the thread that resolves names of --route and checks addresses")?;
            self.is_followed = true;
        }
        Ok(())
    }
}

fn locked(list: &Mutex<Vec<StaticRoute>>) -> MutexGuard<'_, Vec<StaticRoute>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A route of the command line.
#[derive(Clone)]
struct StaticRoute {
    rule: RouteRule,
    trust: RouteTls,
    /// Current addresses of its targets.
    addresses: Vec<EndpointAddress>,
    /// Current addresses of its authorization service.
    authorization: Vec<EndpointAddress>,
    health: HealthChecks,
}

impl StaticRoute {
    fn new(rule: &RouteRule, trust: RouteTls) -> Self {
        let (addresses, authorization) = (Vec::new(), Vec::new());
        Self { rule: rule.clone(), trust, addresses, authorization, health: HealthChecks::default() }
    }

    /// The addresses that a route with the same targets has resolved.
    fn keep_addresses(&mut self, known: &[Self]) {
        let same = known.iter().find(|before| before.rule.targets == self.rule.targets);
        self.addresses = same.map(|before| before.addresses.clone()).unwrap_or_default();
        let service = self.service();
        let same = known.iter().find(|before| service.is_some() && before.service() == service);
        self.authorization = same.map(|before| before.authorization.clone()).unwrap_or_default();
    }

    /// Where its authorization service is.
    fn service(&self) -> Option<&RouteTarget> {
        self.rule.forward_auth.as_ref().map(|rule| &rule.target)
    }

    /// It changes without a reload.
    fn is_followed(&self) -> bool {
        self.has_names() || self.rule.health_check.is_some()
    }

    /// Checks the addresses, if the route wants it. Returns whether others are healthy now.
    fn check(&mut self) -> bool {
        let Some(path) = &self.rule.health_check else { return false };
        self.health.check(&self.rule.host, path, &self.addresses)
    }

    fn has_names(&self) -> bool {
        self.rule.targets.iter().chain(self.service()).any(|target| matches!(target, RouteTarget::Name(..)))
    }

    /// Resolves the names; returns whether the addresses have changed.
    fn resolve(&mut self) -> bool {
        let host = &self.rule.host;
        let found = resolved(host, &self.rule.targets, &self.addresses);
        let service = resolved(host, self.service().map(std::slice::from_ref).unwrap_or_default(), &self.authorization);
        let is_other = self.addresses != found || self.authorization != service;
        (self.addresses, self.authorization) = (found, service);
        is_other
    }

    /// A server may bind its socket later, so a path without one is no error.
    fn warn_of_missing_sockets(&self) {
        for address in &self.addresses {
            let EndpointAddress::Unix(path) = address else { continue };
            let why = match std::fs::metadata(path.as_str()) {
                Ok(file) if file.file_type().is_socket() => continue,
                Ok(_) => "the file is not a socket".to_owned(),
                Err(why) => why.to_string(),
            };
            tracing::warn!(host = %self.rule.host, %address, %why, "a Unix socket of --route cannot be reached yet");
        }
    }

    fn publish(&self, publisher: &Publisher, stream_idle: Duration) {
        let how = AddressBackend {
            protocol: self.rule.protocol,
            timeouts: self.rule.timeouts.resolve(stream_idle),
            trust: self.trust.addresses.clone(),
            proxy_protocol: self.rule.proxy_protocol,
            filters: self.rule.filters.clone(),
            authorization: self.rule.forward_auth.as_ref().map(|rule| AddressAuthorization {
                service: Arc::clone(&rule.service),
                trust: self.trust.authorization.clone(),
                addresses: self.authorization.clone(),
            }),
        };
        publisher.set_static_route(&self.rule.host, how, &self.health.healthy(&self.addresses));
    }
}

/// The addresses of all targets. If a name cannot be resolved all addresses of before are kept: an unavailable name server is no
/// reason to stop.
fn resolved(host: &str, targets: &[RouteTarget], before: &[EndpointAddress]) -> Vec<EndpointAddress> {
    let mut found = BTreeSet::new();
    for target in targets {
        match addresses(target) {
            Ok(some) => found.extend(some),
            Err(why) => {
                tracing::warn!(host, %target, %why, "a name of --route cannot be resolved");
                if !before.is_empty() {
                    return before.to_vec();
                }
            }
        }
    }
    found.into_iter().collect()
}

/// The addresses of a target; the system resolves a name.
///
/// # Errors
/// The name cannot be resolved.
pub(super) fn addresses(target: &RouteTarget) -> std::io::Result<Vec<EndpointAddress>> {
    match target {
        RouteTarget::Address(address) => Ok(vec![(*address).into()]),
        RouteTarget::Unix(path) => Ok(vec![EndpointAddress::Unix(*path)]),
        RouteTarget::Name(name, port) => {
            let resolved = (name.as_str(), *port).to_socket_addrs()?;
            Ok(resolved.take(ADDRESSES_MAX).map(Into::into).collect())
        }
    }
}

/// Ends with the routes or the publisher.
#[allow(clippy::disallowed_methods)] // a thread of its own, which blocks in the resolver anyway
fn follow(list: &Weak<Mutex<Vec<StaticRoute>>>, publisher: &Weak<Publisher>, stream_idle: Duration) {
    let mut resolved = Instant::now();
    loop {
        let resolves = resolved.elapsed() >= RESOLVE_EVERY;
        if resolves {
            resolved = Instant::now();
        }
        let Some(list) = list.upgrade() else { return };
        // Looked up and checked outside of the lock, because both may take seconds.
        let followed: Vec<_> = locked(&list).iter().filter(|route| route.is_followed()).cloned().collect();
        for mut route in followed {
            let has_moved = resolves && route.has_names() && route.resolve();
            let has_turned = route.check();
            let Some(publisher) = publisher.upgrade() else { return };
            let mut list = locked(&list);
            // It may have been replaced meanwhile.
            let Some(current) = list.iter_mut().find(|current| current.rule == route.rule) else { continue };
            // A reload may have resolved its addresses again, and read its trust again.
            if has_moved {
                tracing::info!(host = %route.rule.host, addresses = ?route.addresses, "the addresses of a route have changed");
                current.addresses = route.addresses;
                current.authorization = route.authorization;
            }
            current.health = route.health;
            if has_moved || has_turned {
                current.publish(&publisher, stream_idle);
            }
        }
        drop(list); // it may end meanwhile
        std::thread::sleep(CHECK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_to_name_has_each_address_once() {
        let rule: RouteRule = "a=localhost:9100,127.0.0.1:9100".parse().unwrap();
        let mut route = StaticRoute::new(&rule, RouteTls::default());
        assert!(route.has_names() && route.resolve());
        let own = EndpointAddress::Ip(([127, 0, 0, 1], 9100).into());
        assert_eq!(route.addresses.iter().filter(|address| **address == own).count(), 1);
        assert!(!route.resolve(), "nothing has changed");
    }

    #[test]
    fn unresolvable_name_keeps_its_addresses() {
        let rule: RouteRule = "a=nowhere.invalid:9100".parse().unwrap();
        let before = vec![EndpointAddress::Ip(([127, 0, 0, 1], 9100).into())];
        let mut route = StaticRoute { addresses: before.clone(), ..StaticRoute::new(&rule, RouteTls::default()) };
        assert!(!route.resolve());
        assert_eq!(route.addresses, before);
    }
}
