//! Decides where the listeners of a Gateway accept: values in, values out.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use contract::listener_sockets::{ListenerProtocol, ListenerSpec};

use super::conditions::ConditionRefusal;
use crate::listeners::{GatewayListenerConfig, ListenerAddresses};
use types::gateway_api::gateway::GatewayListener;

/// The reason of a port that a listener cannot have.
pub(super) const PORT_UNAVAILABLE: &str = "PortUnavailable";

/// What serves a listener of a Gateway at one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ListenerTarget {
    /// `--http` or `--https`, with the hosts of the appliance.
    Appliance(SocketAddr),
    /// A listener that is opened at run time.
    RunTime(ListenerSpec),
}

impl ListenerTarget {
    pub(super) fn ip(self) -> IpAddr {
        match self {
            Self::Appliance(address) | Self::RunTime(ListenerSpec { address, .. }) => address.ip(),
        }
    }

    /// The listener that is opened at run time.
    pub(super) fn run_time(self) -> Option<ListenerSpec> {
        match self {
            Self::Appliance(_) => None,
            Self::RunTime(spec) => Some(spec),
        }
    }
}

/// What decides where the listeners of one Gateway accept.
#[derive(Debug, Clone)]
pub(super) struct ListenerSites<'a> {
    /// The listeners of the command line.
    pub(super) appliance: ListenerAddresses,
    pub(super) config: &'a GatewayListenerConfig,
    /// Those of the Gateway. Empty: that of `--http`, or of `--https` for its port.
    pub(super) addresses: Vec<IpAddr>,
}

/// The protocol of a listener, if it is one that is served. HTTPS and TLS share their sockets: the server name decides.
pub(super) fn protocol_of(listener: &GatewayListener) -> Option<ListenerProtocol> {
    match listener.protocol.as_str() {
        "HTTP" => Some(ListenerProtocol::Http),
        "HTTPS" | "TLS" => Some(ListenerProtocol::Https),
        "TCP" => Some(ListenerProtocol::Tcp),
        "UDP" => Some(ListenerProtocol::Udp),
        _ => None,
    }
}

/// Where a listener accepts, one target for each address.
pub(super) fn targets(
    listener: &GatewayListener,
    sites: &ListenerSites<'_>,
) -> Result<Vec<ListenerTarget>, ConditionRefusal> {
    let Some(protocol) = protocol_of(listener) else {
        let why = format!("The protocol {} is not supported; use HTTP, HTTPS, TLS, TCP or UDP.", listener.protocol);
        return Err(ConditionRefusal::new("UnsupportedProtocol", why));
    };
    let Some(port) = u16::try_from(listener.port).ok().filter(|port| *port > 0) else {
        return Err(ConditionRefusal::new(PORT_UNAVAILABLE, format!("{} is not a port.", listener.port)));
    };
    let ListenerAddresses { public, https, .. } = sites.appliance;
    // Connections of the appliance's own listeners are HTTP. A socket for UDP can have the same port.
    let (own, others) = match listener.protocol.as_str() {
        "HTTP" => (public, [None, https]),
        "HTTPS" => (https, [public, None]),
        "UDP" => (None, [None, None]),
        _ => (None, [public, https]),
    };
    if sites.addresses.is_empty() {
        if let Some(own) = own.filter(|own| own.port() == port) {
            return Ok(vec![ListenerTarget::Appliance(own)]);
        }
        let ip = public.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
        return target(SocketAddr::new(ip, port), protocol, (None, others), sites.config).map(|target| vec![target]);
    }
    let each =
        sites.addresses.iter().map(|ip| target(SocketAddr::new(*ip, port), protocol, (own, others), sites.config));
    each.collect()
}

/// The target at one address. `own` is the listener of the command line for the protocol, and `others` those for others.
fn target(
    address: SocketAddr,
    protocol: ListenerProtocol,
    (own, others): (Option<SocketAddr>, [Option<SocketAddr>; 2]),
    config: &GatewayListenerConfig,
) -> Result<ListenerTarget, ConditionRefusal> {
    if own == Some(address) {
        return Ok(ListenerTarget::Appliance(address));
    }
    let port = address.port();
    let refused = |why: String| Err(ConditionRefusal::new(PORT_UNAVAILABLE, why));
    let is_same = |other: &SocketAddr| other.port() == port && overlaps(other.ip(), address.ip());
    let of_other = others.into_iter().flatten().find(is_same);
    if let Some(other) = of_other {
        return refused(format!("{other} is the appliance's own listener for another protocol; use another port."));
    }
    let reserved = config.reserved.iter().filter(|_| !protocol.is_datagram()).find(|(reserved, _)| *reserved == port);
    if let Some((_, flag)) = reserved {
        return refused(format!("Port {port} is the appliance's own ({flag}); use another port."));
    }
    if !config.ports.contains(port) {
        let allowed = &config.ports;
        return refused(format!(
            "Gateways may not open port {port}: --gateway-ports is {allowed}. Use such a port, or start the appliance with \
             --gateway-ports {allowed},{port}."
        ));
    }
    Ok(ListenerTarget::RunTime(ListenerSpec { address, protocol }))
}

fn overlaps(one: IpAddr, other: IpAddr) -> bool {
    one == other || one.is_unspecified() || other.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(protocol: &str, port: i32) -> GatewayListener {
        GatewayListener { protocol: protocol.to_owned(), port, ..GatewayListener::default() }
    }

    /// The targets of a listener, or the reason why there are none.
    fn targets_of(protocol: &str, port: i32, addresses: &[&str]) -> Vec<String> {
        let config = GatewayListenerConfig { reserved: vec![(9090, "--admin")], ..GatewayListenerConfig::default() };
        let own = |text: &str| Some(text.parse().unwrap());
        let appliance = ListenerAddresses {
            public: own("127.0.0.1:8080"),
            https: own("127.0.0.1:8443"),
            ..ListenerAddresses::default()
        };
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        match targets(&listener(protocol, port), &ListenerSites { appliance, config: &config, addresses }) {
            Ok(targets) => targets
                .into_iter()
                .map(|target| match target {
                    ListenerTarget::Appliance(address) => format!("appliance {address}"),
                    ListenerTarget::RunTime(spec) => spec.to_string(),
                })
                .collect(),
            Err(refusal) => vec![format!("{} {}", refusal.reason, refusal.message)],
        }
    }

    #[test]
    fn listener_is_served_by_the_appliance_or_opened() {
        assert_eq!(targets_of("HTTP", 8080, &[]), ["appliance 127.0.0.1:8080"]);
        assert_eq!(targets_of("HTTPS", 8443, &[]), ["appliance 127.0.0.1:8443"]);
        assert_eq!(targets_of("HTTP", 80, &[]), ["127.0.0.1:80 (HTTP)"]);
        assert_eq!(targets_of("HTTPS", 443, &[]), ["127.0.0.1:443 (HTTPS)"]);
        assert_eq!(targets_of("TLS", 443, &[]), ["127.0.0.1:443 (HTTPS)"]);
        assert_eq!(targets_of("TCP", 5432, &[]), ["127.0.0.1:5432 (TCP)"]);
        assert_eq!(targets_of("UDP", 8080, &[]), ["127.0.0.1:8080 (UDP)"]);
        let both = ["127.0.0.2", "::1"];
        assert_eq!(targets_of("HTTP", 9000, &both), ["127.0.0.2:9000 (HTTP)", "[::1]:9000 (HTTP)"]);
        let several = ["127.0.0.1", "127.0.0.2"];
        assert_eq!(targets_of("HTTP", 8080, &several), ["appliance 127.0.0.1:8080", "127.0.0.2:8080 (HTTP)"]);
    }

    #[test]
    fn port_that_no_gateway_may_open_is_refused_with_the_reason() {
        for (protocol, port, addresses, wanted) in [
            ("HTTPS", 8080, &[][..], "another protocol"),
            ("TLS", 8443, &[], "another protocol"),
            ("TCP", 8080, &[], "another protocol"),
            ("HTTP", 8443, &["0.0.0.0"], "another protocol"),
            ("HTTP", 9090, &[], "--admin"),
            ("HTTP", 22, &[], "--gateway-ports 80,443,1024-65535,22"),
            ("HTTP", 70_000, &[], "70000 is not a port"),
        ] {
            let refused = targets_of(protocol, port, addresses).concat();
            assert!(refused.starts_with(PORT_UNAVAILABLE) && refused.contains(wanted), "{protocol} {port}: {refused}");
        }
        assert!(targets_of("SCTP", 5432, &[]).concat().starts_with("UnsupportedProtocol"));
    }
}
