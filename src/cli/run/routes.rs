//! Static routes. Host names are resolved at the start, and again every [`RESOLVE_EVERY`]; Unix sockets are checked once.

use std::collections::BTreeSet;
use std::net::ToSocketAddrs as _;
use std::os::unix::fs::FileTypeExt as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result};
use control::publish::Publisher;
use dataplane::table::EndpointAddress;
use dataplane::tls::TlsClientConfig;

use crate::config::{RouteRule, RouteTarget};

/// Interval of name resolution: a host that has moved is found within half a minute, similar to Envoy's and
/// Traefik's defaults (5 s and 30 s), and a name server is queried twice a minute for each name.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// Maximum addresses of one name: more is a mistake, and each has connections of its own.
const ADDRESSES_MAX: usize = 256;

/// A route of the command line.
struct StaticRoute {
    rule: RouteRule,
    trust: Option<Arc<TlsClientConfig>>,
    /// Current addresses of its targets.
    addresses: Vec<EndpointAddress>,
}

impl StaticRoute {
    fn new(rule: &RouteRule, trust: Option<Arc<TlsClientConfig>>) -> Self {
        Self { rule: rule.clone(), trust, addresses: Vec::new() }
    }

    fn has_names(&self) -> bool {
        self.rule.targets.iter().any(|target| matches!(target, RouteTarget::Name(..)))
    }

    /// Resolves the names; returns whether the addresses have changed. If a name cannot be resolved all
    /// addresses are kept: an unavailable name server is no reason to stop.
    fn resolve(&mut self) -> bool {
        let mut found = BTreeSet::new();
        for target in &self.rule.targets {
            match addresses(target) {
                Ok(some) => found.extend(some),
                Err(why) => {
                    tracing::warn!(host = %self.rule.host, %target, %why, "a name of --route cannot be resolved");
                    if !self.addresses.is_empty() {
                        return false;
                    }
                }
            }
        }
        let found: Vec<_> = found.into_iter().collect();
        let is_other = self.addresses != found;
        self.addresses = found;
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

    fn publish(&self, publisher: &Publisher) {
        let how = (self.rule.protocol, self.rule.timeouts);
        publisher.set_static_route(&self.rule.host, how, self.trust.clone(), &self.addresses);
    }
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

/// Publishes the routes with the TLS configuration of each, and follows the names among their targets on a
/// thread of its own, because resolving blocks.
pub(super) fn publish(
    rules: &[RouteRule],
    trust: Vec<Option<Arc<TlsClientConfig>>>,
    publisher: &Arc<Publisher>,
) -> Result<()> {
    let mut routes: Vec<_> = rules.iter().zip(trust).map(|(rule, trust)| StaticRoute::new(rule, trust)).collect();
    for route in &mut routes {
        route.resolve();
        route.warn_of_missing_sockets();
        route.publish(publisher);
    }
    routes.retain(StaticRoute::has_names);
    if routes.is_empty() {
        return Ok(());
    }
    let publisher = Arc::downgrade(publisher);
    std::thread::Builder::new()
        .name("resolver".to_owned())
        .spawn(move || follow(routes, &publisher))
        .context("start the thread that resolves names of --route")?;
    Ok(())
}

/// Ends with the publisher.
#[allow(clippy::disallowed_methods)] // a thread of its own, which blocks in the resolver anyway
fn follow(mut routes: Vec<StaticRoute>, publisher: &Weak<Publisher>) {
    loop {
        std::thread::sleep(RESOLVE_EVERY);
        for route in &mut routes {
            let is_other = route.resolve();
            let Some(publisher) = publisher.upgrade() else { return };
            if is_other {
                tracing::info!(host = %route.rule.host, addresses = ?route.addresses, "the addresses of a route have changed");
                route.publish(&publisher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_to_name_has_each_address_once() {
        let rule: RouteRule = "a=localhost:9100,127.0.0.1:9100".parse().unwrap();
        let mut route = StaticRoute::new(&rule, None);
        assert!(route.has_names() && route.resolve());
        let own = EndpointAddress::Ip(([127, 0, 0, 1], 9100).into());
        assert_eq!(route.addresses.iter().filter(|address| **address == own).count(), 1);
        assert!(!route.resolve(), "nothing has changed");
    }

    #[test]
    fn unresolvable_name_keeps_its_addresses() {
        let rule: RouteRule = "a=nowhere.invalid:9100".parse().unwrap();
        let before = vec![EndpointAddress::Ip(([127, 0, 0, 1], 9100).into())];
        let mut route = StaticRoute { rule, trust: None, addresses: before.clone() };
        assert!(!route.resolve());
        assert_eq!(route.addresses, before);
    }
}
