//! Decides what becomes of the listeners of a Gateway: values in, values out.

use contract::table::TlsRelayMode;
use contract::tls::TlsIdentity;

use super::conditions::ConditionRefusal;
use super::listener_book::NotOpen;
use super::listener_targets::{ListenerSites, ListenerTarget, targets};
use types::gateway_api::gateway::{GatewayListener, RouteGroupKind};
use types::gateway_api::reference::SecretObjectReference;

/// The kinds of routes that HTTP listeners take.
pub(super) const ROUTE_KINDS: [&str; 2] = ["HTTPRoute", "GRPCRoute"];
const HTTPS: &str = "HTTPS";
const TLS: &str = "TLS";
const UDP: &str = "UDP";

/// What becomes of one listener.
#[derive(Debug, Clone, Default)]
pub(super) struct ListenerOutcome {
    pub(super) supported_kinds: Vec<RouteGroupKind>,
    /// Where it accepts.
    pub(super) targets: Vec<ListenerTarget>,
    /// Why one of them is not open. Routes attach all the same: it is tried again.
    pub(super) not_open: Option<NotOpen>,
    /// Its port or protocol is not served here.
    pub(super) not_accepted: Option<ConditionRefusal>,
    pub(super) conflict: Option<ConditionRefusal>,
    pub(super) unresolved: Option<ConditionRefusal>,
    /// The certificates of a listener that ends TLS.
    pub(super) identities: Vec<TlsIdentity>,
    /// A listener that ends TLS serves nothing without a certificate.
    pub(super) lacks_certificate: bool,
}

impl ListenerOutcome {
    /// Whether routes can attach to it.
    pub(super) fn takes_routes(&self) -> bool {
        self.not_accepted.is_none() && self.conflict.is_none()
    }

    /// Whether it has all that it needs to be open.
    pub(super) fn is_complete(&self) -> bool {
        self.takes_routes() && !self.lacks_certificate
    }

    pub(super) fn is_programmed(&self) -> bool {
        self.is_complete() && self.not_open.is_none()
    }
}

/// Looks up the certificate that a reference names.
pub(super) type IdentityFn<'a> = &'a dyn Fn(&SecretObjectReference) -> Result<TlsIdentity, ConditionRefusal>;

/// The outcome of each listener, in order.
pub(super) fn decide(
    listeners: &[GatewayListener],
    sites: &ListenerSites<'_>,
    identity: IdentityFn<'_>,
) -> Vec<ListenerOutcome> {
    let decided = listeners.iter().enumerate().map(|(index, listener)| {
        let (supported_kinds, unresolved) = supported_kinds(listener);
        let (targets, not_accepted) = match targets(listener, sites) {
            Ok(targets) => (targets, None),
            Err(refusal) => (Vec::new(), Some(refusal)),
        };
        let mut outcome = ListenerOutcome {
            supported_kinds,
            unresolved,
            targets,
            not_accepted,
            conflict: conflict(listener, index, listeners),
            ..ListenerOutcome::default()
        };
        if is_tls(listener) && relay_mode(listener) != Some(TlsRelayMode::Passthrough) {
            read_certificates(listener, identity, &mut outcome);
        }
        outcome
    });
    decided.collect()
}

/// Whether its connections are TLS.
pub(super) fn is_tls(listener: &GatewayListener) -> bool {
    [HTTPS, TLS].contains(&listener.protocol.as_str())
}

/// How the connections of a listener for TLS are relayed; `None`: it is for another protocol.
pub(super) fn relay_mode(listener: &GatewayListener) -> Option<TlsRelayMode> {
    let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref());
    (listener.protocol == TLS).then_some(match mode {
        Some("Passthrough") => TlsRelayMode::Passthrough,
        _ => TlsRelayMode::Terminate,
    })
}

/// The kinds of routes that a listener of a protocol can take.
fn route_kinds(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "HTTP" | HTTPS => &ROUTE_KINDS,
        TLS => &["TLSRoute"],
        "TCP" => &["TCPRoute"],
        UDP => &["UDPRoute"],
        _ => &[],
    }
}

/// Whether listeners of both protocols can share a port: HTTPS and TLS by the server name, UDP and the others in any case.
fn share_port(one: &str, other: &str) -> bool {
    let class = |protocol| if protocol == HTTPS { TLS } else { protocol };
    class(one) == class(other) || (one == UDP) != (other == UDP)
}

/// Listeners of one port have one protocol and different hostnames.
fn conflict(listener: &GatewayListener, index: usize, all: &[GatewayListener]) -> Option<ConditionRefusal> {
    let others = || all.iter().enumerate().filter(|(at, other)| *at != index && other.port == listener.port);
    if let Some((_, other)) = others().find(|(_, other)| !share_port(&other.protocol, &listener.protocol)) {
        let why = format!("The listener {} has the same port and another protocol.", other.name);
        return Some(ConditionRefusal::new("ProtocolConflict", why));
    }
    let host = |listener: &GatewayListener| listener.hostname.clone().unwrap_or_default().to_ascii_lowercase();
    let is_same = |other: &GatewayListener| {
        host(other) == host(listener) && (other.protocol == UDP) == (listener.protocol == UDP)
    };
    let (_, other) = others().find(|(_, other)| is_same(other))?;
    Some(ConditionRefusal::new(
        "HostnameConflict",
        format!("The listener {} has the same port and hostname.", other.name),
    ))
}

/// The kinds of routes that it takes, and which of the wanted ones cannot be.
fn supported_kinds(listener: &GatewayListener) -> (Vec<RouteGroupKind>, Option<ConditionRefusal>) {
    let possible = route_kinds(&listener.protocol);
    let wanted = listener.allowed_routes.as_ref().map(|allowed| &allowed.kinds[..]).unwrap_or_default();
    if wanted.is_empty() {
        return (possible.iter().map(|kind| RouteGroupKind::of_gateway_api(kind)).collect(), None);
    }
    let is_possible = |kind: &&RouteGroupKind| possible.iter().any(|known| kind.is_of_gateway_api(known));
    let taken = wanted.iter().filter(is_possible).map(|kind| RouteGroupKind::of_gateway_api(&kind.kind)).collect();
    let refused = wanted.iter().find(|kind| !is_possible(kind));
    let refusal = refused.map(|kind| {
        let why = format!("Routes of the kind {} cannot attach to a listener for {}.", kind.kind, listener.protocol);
        ConditionRefusal::new("InvalidRouteKinds", why)
    });
    (taken, refusal)
}

fn read_certificates(listener: &GatewayListener, identity: IdentityFn<'_>, outcome: &mut ListenerOutcome) {
    let references = listener.tls.as_ref().map(|tls| &tls.certificate_refs[..]).unwrap_or_default();
    for reference in references {
        match identity(reference) {
            Ok(identity) => outcome.identities.push(identity),
            Err(refusal) => {
                outcome.unresolved.get_or_insert(refusal);
            }
        }
    }
    outcome.lacks_certificate = outcome.identities.is_empty();
    if references.is_empty() {
        let why = "The listener has no certificateRefs; name a Secret of the type kubernetes.io/tls.";
        outcome.unresolved.get_or_insert(ConditionRefusal::new("InvalidCertificateRef", why));
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde_json::{Value, json};

    use super::*;
    use crate::listeners::{GatewayListenerConfig, ListenerAddresses};

    fn decide_all(listeners: Value) -> Vec<ListenerOutcome> {
        let listeners: Vec<GatewayListener> = serde_json::from_value(listeners).unwrap();
        let none = |_: &SecretObjectReference| Err(ConditionRefusal::new("InvalidCertificateRef", "not found"));
        let address = |port| Some(SocketAddr::from(([127, 0, 0, 1], port)));
        let appliance =
            ListenerAddresses { public: address(8080), https: address(8443), ..ListenerAddresses::default() };
        let config = GatewayListenerConfig::default();
        decide(&listeners, &ListenerSites { appliance, config: &config, addresses: Vec::new() }, &none)
    }

    fn reason(refusal: Option<&ConditionRefusal>) -> &'static str {
        refusal.map_or("", |refusal| refusal.reason)
    }

    #[test]
    fn listener_is_open_unless_its_address_cannot_be() {
        let mut one = decide_all(json!([{ "name": "a", "port": 9000, "protocol": "HTTP" }])).remove(0);
        assert!(one.targets.len() == 1 && one.is_programmed());
        one.not_open = Some(NotOpen::Port("in use".to_owned()));
        assert!(one.takes_routes() && !one.is_programmed());
        let refused = decide_all(json!([{ "name": "a", "port": 22, "protocol": "HTTP" }])).remove(0);
        assert_eq!((reason(refused.not_accepted.as_ref()), refused.targets.len()), ("PortUnavailable", 0));
    }

    #[test]
    fn listeners_of_one_port_conflict_by_protocol_and_hostname() {
        let all = decide_all(json!([
            { "name": "a", "port": 8080, "protocol": "HTTP", "hostname": "a.test" },
            { "name": "b", "port": 8080, "protocol": "HTTP", "hostname": "A.test" },
            { "name": "c", "port": 8080, "protocol": "HTTP" },
            { "name": "d", "port": 8443, "protocol": "HTTPS" },
            { "name": "e", "port": 8443, "protocol": "HTTP" },
        ]));
        let reasons: Vec<_> = all.iter().map(|one| reason(one.conflict.as_ref())).collect();
        let protocol = "ProtocolConflict";
        assert_eq!(reasons, ["HostnameConflict", "HostnameConflict", "", protocol, protocol]);
    }

    #[test]
    fn listeners_of_connections_take_their_own_kinds() {
        let certificate = json!({ "certificateRefs": [{ "name": "s" }] });
        let all = decide_all(json!([
            { "name": "a", "port": 9001, "protocol": "TLS", "hostname": "a.test", "tls": { "mode": "Passthrough" } },
            { "name": "b", "port": 9001, "protocol": "TLS", "hostname": "b.test", "tls": certificate },
            { "name": "c", "port": 9001, "protocol": "HTTPS", "hostname": "c.test", "tls": certificate },
            { "name": "d", "port": 9002, "protocol": "TCP" },
            { "name": "e", "port": 9002, "protocol": "UDP" },
            { "name": "f", "port": 9003, "protocol": "TCP" },
            { "name": "g", "port": 9003, "protocol": "HTTP" },
            { "name": "h", "port": 9004, "protocol": "TLS", "tls": { "mode": "Passthrough" },
                "allowedRoutes": { "kinds": [{ "kind": "TCPRoute" }, { "kind": "TLSRoute" }] } },
        ]));
        let kinds: Vec<_> = all.iter().map(|one| one.supported_kinds.first().map_or("", |kind| &kind.kind)).collect();
        let (tls, http) = ("TLSRoute", "HTTPRoute");
        assert_eq!(kinds, [tls, tls, http, "TCPRoute", "UDPRoute", "TCPRoute", http, tls]);
        let conflicts: Vec<_> = all.iter().map(|one| reason(one.conflict.as_ref())).collect();
        assert_eq!(conflicts, ["", "", "", "", "", "ProtocolConflict", "ProtocolConflict", ""]);
        assert!(all[0].is_programmed(), "TLS that is not read needs no certificate");
        assert!(!all[1].is_programmed() && all[3].is_programmed() && all[4].is_programmed());
        assert_eq!(reason(all[7].unresolved.as_ref()), "InvalidRouteKinds");
    }

    #[test]
    fn kinds_that_no_listener_takes_are_named() {
        let all = decide_all(json!([
            { "name": "a", "port": 8080, "protocol": "HTTP",
                "allowedRoutes": { "kinds": [{ "kind": "TCPRoute" }, { "kind": "HTTPRoute" }] } },
            { "name": "b", "port": 8443, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "s" }] } },
        ]));
        assert_eq!(reason(all[0].unresolved.as_ref()), "InvalidRouteKinds");
        assert_eq!(all[0].supported_kinds, [RouteGroupKind::of_gateway_api("HTTPRoute")]);
        assert!(all[0].is_programmed());
        assert_eq!(reason(all[1].unresolved.as_ref()), "InvalidCertificateRef");
        assert!(all[1].takes_routes() && !all[1].is_programmed());
    }
}
