//! What a listener that is opened at run time has in the table, and the hostnames that its routes belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contract::listener_sockets::{ListenerId, ListenerSockets, ListenerSpec};
use contract::table::{Route, RoutingTable, TableListener, TlsRelayMode};
use contract::tls::TlsIdentity;

/// What a listener has beside its routes. The default closes it.
#[derive(Debug, Clone, Default)]
pub struct ListenerState {
    pub sockets: Option<Arc<ListenerSockets>>,
    /// `*`, names, and `*.PARENT`, in lower case.
    pub hostnames: BTreeSet<String>,
    /// By hostname.
    pub certificates: Vec<(String, TlsIdentity)>,
    /// How connections for a hostname are relayed; others carry HTTP.
    pub relay_modes: BTreeMap<String, TlsRelayMode>,
}

/// A hostname of a listener, which has routes of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenerHostname {
    pub id: ListenerId,
    pub spec: ListenerSpec,
    /// In lower case; `*` for all hosts.
    pub hostname: String,
}

/// Equal if the cores would see no difference.
impl PartialEq for ListenerState {
    fn eq(&self, other: &Self) -> bool {
        let same_sockets = match (&self.sockets, &other.sockets) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        same_sockets
            && self.hostnames == other.hostnames
            && self.certificates == other.certificates
            && self.relay_modes == other.relay_modes
    }
}

/// Puts a route at its host of a listener, or removes what is there.
pub(super) fn set_route(table: &mut RoutingTable, at: &ListenerHostname, host: &str, route: Option<Arc<Route>>) {
    if route.is_none() && table.listener(at.id).is_none_or(TableListener::is_unused) {
        return;
    }
    table.listener_mut(at.id, at.spec).set_route(&at.hostname, host, route);
    table.remove_unused_listener(at.id);
}
