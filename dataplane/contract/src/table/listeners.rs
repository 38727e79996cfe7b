//! Listeners that control opens at run time, each with routes and certificates of its own.
//!
//! A listener's requests see nothing else: neither the hosts of [`RoutingTable::hosts`] nor those of another listener.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{HostTable, Route, RoutingTable, host_name};
use crate::listener_sockets::{ListenerId, ListenerSockets, ListenerSpec};
use crate::tls::CertificateStore;

/// The hostname of a listener for all hosts, and a route's host at it.
const ANY: &str = "*";

/// All listeners, by id. A copy of the table shares them.
pub type TableListeners = Arc<BTreeMap<ListenerId, Arc<TableListener>>>;

/// A listener as the cores see it.
#[derive(Debug, Clone)]
pub struct TableListener {
    pub spec: ListenerSpec,
    /// `None`: it is not open.
    pub sockets: Option<Arc<ListenerSockets>>,
    /// By the hostnames, for a listener that ends TLS.
    pub certificates: Arc<CertificateStore>,
    /// By [`hostname_key`].
    hostnames: BTreeMap<Box<str>, Arc<HostnameRoutes>>,
    /// Of hostnames whose connections are relayed, by [`hostname_key`].
    relay_modes: BTreeMap<Box<str>, TlsRelayMode>,
}

/// How connections of TLS are relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsRelayMode {
    /// Unread, to a server that makes the handshake.
    Passthrough,
    /// Without TLS, which ends here.
    Terminate,
}

/// What becomes of a connection of TLS.
#[derive(Debug, Clone)]
pub enum TlsTarget {
    /// It carries HTTP.
    Http,
    /// It is relayed. `None`: no route has the server name.
    Relay(TlsRelayMode, Option<Arc<Route>>),
}

/// The routes of one hostname of a listener. In Gateway API listeners of one port differ by their hostname, and each has
/// routes of its own. Listeners for TCP and UDP have the hostname `*` alone, and their route is `any_host`.
#[derive(Debug, Clone, Default)]
pub struct HostnameRoutes {
    /// Its hosts, all within the hostname.
    pub hosts: HostTable,
    /// For the hosts that it does not name.
    pub any_host: Option<Arc<Route>>,
    /// A listener has this hostname. Its routes may come before it and leave after it.
    is_open: bool,
}

impl TableListener {
    #[must_use]
    pub fn new(spec: ListenerSpec) -> Self {
        Self {
            spec,
            sockets: None,
            certificates: Arc::default(),
            hostnames: BTreeMap::new(),
            relay_modes: BTreeMap::new(),
        }
    }

    /// Replaces the hostnames: `*`, names, and `*.PARENT`, in lower case. Routes of other hostnames are not served.
    pub fn set_hostnames(&mut self, hostnames: &BTreeSet<String>) {
        let keys: BTreeSet<&str> = hostnames.iter().map(|hostname| hostname_key(hostname)).collect();
        for key in &keys {
            self.hostnames.entry((*key).into()).or_default();
        }
        for (key, routes) in &mut self.hostnames {
            let is_open = keys.contains(&**key);
            if routes.is_open != is_open {
                Arc::make_mut(routes).is_open = is_open;
            }
        }
        self.hostnames.retain(|_, routes| !routes.is_unused());
    }

    /// Replaces the hostnames whose connections are relayed.
    pub fn set_relay_modes(&mut self, modes: &BTreeMap<String, TlsRelayMode>) {
        self.relay_modes = modes.iter().map(|(hostname, mode)| (hostname_key(hostname).into(), *mode)).collect();
    }

    /// Whether connections of TLS may be relayed, so that their server name decides who makes the handshake.
    #[inline]
    #[must_use]
    pub fn relays_tls(&self) -> bool {
        !self.relay_modes.is_empty()
    }

    /// What becomes of a connection for this server name, which is in lower case.
    #[must_use]
    pub fn tls_target(&self, server_name: Option<&str>) -> TlsTarget {
        let Some((hostname, routes)) = self.open_hostname(server_name) else {
            // Where HTTP is served too, the certificate decides.
            let is_http = self.hostnames.keys().any(|hostname| !self.relay_modes.contains_key(hostname));
            return if is_http { TlsTarget::Http } else { TlsTarget::Relay(TlsRelayMode::Passthrough, None) };
        };
        let Some(mode) = self.relay_modes.get(hostname) else { return TlsTarget::Http };
        let named = server_name.and_then(|name| routes.hosts.find(name));
        TlsTarget::Relay(*mode, named.or(routes.any_host.as_ref()).cloned())
    }

    /// The route of all connections or datagrams, of a listener for TCP or UDP.
    #[must_use]
    pub fn any_route(&self) -> Option<&Arc<Route>> {
        self.routes_of(None)?.any_host.as_ref()
    }

    /// Puts a route at a host of a hostname, or removes what is there.
    pub fn set_route(&mut self, hostname: &str, host: &str, route: Option<Arc<Route>>) {
        let key = hostname_key(hostname);
        if route.is_none() && !self.hostnames.contains_key(key) {
            return;
        }
        let routes = Arc::make_mut(self.hostnames.entry(key.into()).or_default());
        match route {
            route if host == ANY => routes.any_host = route,
            Some(route) => routes.hosts.insert(host, route),
            None => routes.hosts.remove(host),
        }
        if routes.is_unused() {
            self.hostnames.remove(key);
        }
    }

    /// Whether it has neither hostnames nor routes.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.sockets.is_none() && self.hostnames.is_empty()
    }

    /// The routes of the most specific hostname for a host; `None` stands for a client that names no server.
    #[must_use]
    pub fn routes_of(&self, host: Option<&str>) -> Option<&HostnameRoutes> {
        self.open_hostname(host).map(|(_, routes)| routes)
    }

    /// The route for a Host header's value; case, port and a trailing dot are ignored.
    #[must_use]
    pub fn route(&self, host: &str) -> Option<&Arc<Route>> {
        let name = host_name(host);
        let lower;
        let name = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            lower = name.to_ascii_lowercase(); // allocates only for odd clients
            &lower
        } else {
            name
        };
        let routes = self.routes_of(Some(name))?;
        routes.hosts.find(name).or(routes.any_host.as_ref())
    }

    /// Whether a request for `host` came over a connection that was opened for the server name of another hostname: RFC
    /// 9110 15.5.20. A host that no hostname has is not found instead.
    #[must_use]
    pub fn is_misdirected(&self, server_name: Option<&str>, host: &str) -> bool {
        let host = host_name(host).to_ascii_lowercase();
        let server_name = server_name.map(|name| host_name(name).to_ascii_lowercase());
        if server_name.as_ref() == Some(&host) {
            return false;
        }
        let Some((own, _)) = self.open_hostname(Some(&host)) else { return false };
        self.open_hostname(server_name.as_deref()).is_none_or(|(opened, _)| opened != own)
    }

    /// The most specific hostname for a name in lower case, by its key.
    fn open_hostname(&self, name: Option<&str>) -> Option<(&str, &HostnameRoutes)> {
        let get = |key: &str| {
            let (key, routes) = self.hostnames.get_key_value(key)?;
            routes.is_open.then_some((&**key, &**routes))
        };
        // A name that begins with a dot is not a host; it would match the key of a wildcard.
        let named = name.filter(|name| !name.starts_with('.')).and_then(|name| {
            // At most as many lookups as the name has dots, and a name has at most 255 bytes.
            get(name).or_else(|| name.match_indices('.').find_map(|(at, _)| get(&name[at..])))
        });
        named.or_else(|| get(ANY))
    }
}

impl HostnameRoutes {
    fn is_unused(&self) -> bool {
        !self.is_open && self.hosts.is_empty() && self.any_host.is_none()
    }
}

/// `.example.com` for `*.example.com`, which is not a valid host.
fn hostname_key(hostname: &str) -> &str {
    hostname.strip_prefix('*').filter(|parent| parent.starts_with('.')).unwrap_or(hostname)
}

impl RoutingTable {
    /// The listener of a connection.
    #[inline]
    #[must_use]
    pub fn listener(&self, id: ListenerId) -> Option<&TableListener> {
        self.listeners.get(&id).map(|listener| &**listener)
    }

    /// A listener, to change it.
    pub fn listener_mut(&mut self, id: ListenerId, spec: ListenerSpec) -> &mut TableListener {
        let listeners = Arc::make_mut(&mut self.listeners);
        Arc::make_mut(listeners.entry(id).or_insert_with(|| Arc::new(TableListener::new(spec))))
    }

    /// Removes a listener that has neither sockets nor routes.
    pub fn remove_unused_listener(&mut self, id: ListenerId) {
        if self.listener(id).is_some_and(TableListener::is_unused) {
            Arc::make_mut(&mut self.listeners).remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener_sockets::ListenerProtocol;

    fn named(name: &str) -> Arc<Route> {
        let mut route = Route::default();
        (route.hash, route.matches_subdomains) = (Some(name.into()), true);
        Arc::new(route)
    }

    /// A listener with these hostnames, each with a route for all of its hosts that has its name.
    fn listener(hostnames: &[&str]) -> TableListener {
        let spec = ListenerSpec { address: "127.0.0.1:80".parse().unwrap(), protocol: ListenerProtocol::Https };
        let mut listener = TableListener::new(spec);
        listener.set_hostnames(&hostnames.iter().map(|&hostname| hostname.to_owned()).collect());
        hostnames.iter().for_each(|hostname| listener.set_route(hostname, hostname, Some(named(hostname))));
        listener
    }

    fn found<'a>(listener: &'a TableListener, host: &str) -> &'a str {
        listener.route(host).and_then(|route| route.hash.as_deref()).unwrap_or("none")
    }

    #[test]
    fn request_is_routed_by_the_most_specific_hostname() {
        let listener = listener(&["*", "*.example.com", "*.a.example.com", "b.a.example.com"]);
        for (host, hostname) in [
            ("other.test", "*"),
            ("example.com", "*"),
            ("x.example.com", "*.example.com"),
            ("x.y.example.com:8080", "*.example.com"),
            ("X.A.Example.com.", "*.a.example.com"),
            ("b.a.example.com", "b.a.example.com"),
            (".example.com", "*"),
        ] {
            assert_eq!(found(&listener, host), hostname, "{host}");
        }
    }

    /// A less specific hostname does not serve what the more specific one has no route for.
    #[test]
    fn hostname_without_a_route_hides_less_specific_ones() {
        let mut listener = listener(&["*", "*.example.com"]);
        listener.set_route("*", "x.example.com", Some(named("wrong")));
        assert_eq!(found(&listener, "x.example.com"), "*.example.com");
        listener.set_route("*.example.com", "*.example.com", None);
        assert_eq!(found(&listener, "x.example.com"), "none");
        listener.set_hostnames(&["*".to_owned()].into());
        assert_eq!(found(&listener, "x.example.com"), "wrong");
    }

    #[test]
    fn host_of_another_hostname_is_misdirected() {
        let some = listener(&["a.test", "*.b.test", "c.b.test"]);
        for (server_name, host, misdirected) in [
            (Some("a.test"), "A.test:443", false),
            (Some("x.b.test"), "y.b.test", false),
            (Some("a.test"), "x.b.test", true),
            (Some("x.b.test"), "c.b.test", true),
            (Some("a.test"), "unknown.test", false),
            (None, "a.test", true),
        ] {
            assert_eq!(some.is_misdirected(server_name, host), misdirected, "{server_name:?} {host}");
        }
        let all = listener(&["*", "a.test"]);
        assert!(all.is_misdirected(None, "a.test") && !all.is_misdirected(None, "b.test"));
    }

    #[test]
    fn server_name_decides_who_makes_the_handshake() {
        let mut listener = listener(&["http.test", "*.relay.test", "end.test", "empty.test"]);
        listener.set_route("empty.test", "empty.test", None);
        assert!(!listener.relays_tls());
        let modes = [
            ("*.relay.test", TlsRelayMode::Passthrough),
            ("end.test", TlsRelayMode::Terminate),
            ("empty.test", TlsRelayMode::Terminate),
        ];
        listener.set_relay_modes(&modes.map(|(hostname, mode)| (hostname.to_owned(), mode)).into());
        assert!(listener.relays_tls());
        let target = |name: Option<&str>| match listener.tls_target(name) {
            TlsTarget::Http => "http".to_owned(),
            TlsTarget::Relay(mode, route) => {
                format!("{mode:?} {}", route.and_then(|route| route.hash.clone()).as_deref().unwrap_or("none"))
            }
        };
        assert_eq!(target(Some("http.test")), "http");
        assert_eq!(target(Some("a.b.relay.test")), "Passthrough *.relay.test");
        assert_eq!(target(Some("end.test")), "Terminate end.test");
        assert_eq!(target(Some("empty.test")), "Terminate none");
        assert_eq!((target(Some("other.test")), target(None)), ("http".to_owned(), "http".to_owned()));
        listener.set_hostnames(&["*.relay.test".to_owned(), "end.test".to_owned(), "empty.test".to_owned()].into());
        listener.set_route("http.test", "http.test", None);
        assert_eq!((target_of(&listener, Some("other.test")), target_of(&listener, None)), (true, true));
    }

    /// Whether such a connection is refused.
    fn target_of(listener: &TableListener, name: Option<&str>) -> bool {
        matches!(listener.tls_target(name), TlsTarget::Relay(_, None))
    }

    #[test]
    fn unused_listener_leaves_the_table() {
        let (mut table, id) = (RoutingTable::default(), ListenerId::after(0));
        let one = listener(&["a.test"]);
        *table.listener_mut(id, one.spec) = one.clone();
        table.remove_unused_listener(id);
        assert!(table.listener(id).is_some());
        let changed = table.listener_mut(id, one.spec);
        changed.set_hostnames(&BTreeSet::new());
        assert!(changed.route("a.test").is_none(), "no listener has the hostname");
        changed.set_route("a.test", "a.test", None);
        table.remove_unused_listener(id);
        assert!(table.listeners.is_empty());
    }
}
