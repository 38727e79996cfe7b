//! Which addresses this process connects to on behalf of its users.
//!
//! A subscriber, a sink, a backend or a probe is an address that a user names. Without a policy a user could have this
//! process send requests where only this process may send them: to its own API and admin listeners, which trust loopback,
//! and to the metadata service of a cloud, which trusts the host. Every connect that a user's object causes passes
//! [`TargetPolicy::admit_connect`] with the resolved address, so a name that resolves to another address later changes
//! nothing. The operator allows exceptions with `--allow-target`.

mod allowed;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use allowed::AllowedTarget;
use ring::EndpointAddress;

/// Where clouds serve credentials and user data to a host, besides 169.254.0.0/16.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba Cloud
    Ipv4Addr::new(168, 63, 129, 16),   // Azure WireServer
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle Cloud Classic
];
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254), // Amazon EC2
    Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254), // Google Compute Engine
];

/// A listener of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnListener {
    pub role: ListenerRole,
    pub address: SocketAddr,
}

/// What a listener of this process serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerRole {
    /// Requests to routes: `--http`, `--https`, `--private`, `--private-https`, and those for instances.
    Ingress,
    /// Events: `--events` and `--events-https`.
    Events,
    Api,
    Admin,
    Console,
    /// The name server for instances.
    Dns,
}

impl fmt::Display for ListenerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "an ingress listener",
            Self::Events => "the events listener",
            Self::Api => "the API listener",
            Self::Admin => "the admin listener",
            Self::Console => "the console",
            Self::Dns => "the name server",
        })
    }
}

/// Why an address is refused as a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    OwnListener(ListenerRole),
    LinkLocal,
    Metadata,
    Unspecified,
    Multicast,
    Broadcast,
}

impl RefusalReason {
    /// The values of the label `reason` in metrics, in the order of [`RefusalReason::index`].
    pub const NAMES: [&'static str; 6] =
        ["own_listener", "link_local", "metadata", "unspecified", "multicast", "broadcast"];

    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::OwnListener(_) => 0,
            Self::LinkLocal => 1,
            Self::Metadata => 2,
            Self::Unspecified => 3,
            Self::Multicast => 4,
            Self::Broadcast => 5,
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnListener(role) => write!(f, "it is {role} of this appliance"),
            Self::LinkLocal => f.write_str("it is a link-local address"),
            Self::Metadata => f.write_str("it is a cloud's metadata service"),
            Self::Unspecified => f.write_str("it is an unspecified address"),
            Self::Multicast => f.write_str("it is a multicast address"),
            Self::Broadcast => f.write_str("it is the broadcast address"),
        }
    }
}

/// The policy refuses this address as a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("target {address} is refused: {reason}; the operator can allow it with --allow-target {address}")]
pub struct TargetRefused {
    pub address: SocketAddr,
    pub reason: RefusalReason,
}

impl TargetRefused {
    /// The refusal inside the error of a connect, if the policy caused it.
    #[must_use]
    pub fn of(why: &io::Error) -> Option<&Self> {
        why.get_ref()?.downcast_ref()
    }
}

impl From<TargetRefused> for io::Error {
    fn from(refused: TargetRefused) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refused)
    }
}

/// Decides which addresses are targets. Immutable: listeners are bound before the first connect.
#[derive(Debug, Default)]
pub struct TargetPolicy {
    listeners: Box<[OwnListener]>,
    allowed: Box<[AllowedTarget]>,
    /// Refused connects by [`RefusalReason::NAMES`].
    refused: [AtomicU64; RefusalReason::NAMES.len()],
}

impl TargetPolicy {
    #[must_use]
    pub fn new(listeners: Vec<OwnListener>, allowed: Vec<AllowedTarget>) -> Self {
        Self { listeners: listeners.into(), allowed: allowed.into(), refused: Default::default() }
    }

    /// Whether `address` is a target. A few comparisons, without allocation.
    ///
    /// # Errors
    /// The policy refuses it.
    pub fn check(&self, address: SocketAddr) -> Result<(), TargetRefused> {
        let (ip, port) = (embedded(address.ip()), address.port());
        let reason = match special(ip) {
            Some(reason) => Some(reason),
            None => self.own_listener(ip, port).map(RefusalReason::OwnListener),
        };
        let Some(reason) = reason else { return Ok(()) };
        let is_own = matches!(reason, RefusalReason::OwnListener(_));
        if self.allowed.iter().any(|one| one.covers(address.ip(), ip, port) && (one.has_port() || !is_own)) {
            return Ok(());
        }
        Err(TargetRefused { address, reason })
    }

    /// The same for an event that is sent to `path`: Brokers, Channels and sinks of this process are targets too, and its
    /// events listener serves nothing else.
    ///
    /// # Errors
    /// The policy refuses it.
    pub fn check_delivery(&self, address: SocketAddr, path: &str) -> Result<(), TargetRefused> {
        match self.check(address) {
            Err(TargetRefused { reason: RefusalReason::OwnListener(ListenerRole::Events), .. })
                if ["/brokers/", "/channels/", "/sinks/"].iter().any(|begin| path.starts_with(begin)) =>
            {
                Ok(())
            }
            checked => checked,
        }
    }

    /// [`check`](Self::check) before a connect; a refusal is counted.
    ///
    /// # Errors
    /// The policy refuses it: `PermissionDenied` with a [`TargetRefused`] inside.
    pub fn admit_connect(&self, address: impl Into<EndpointAddress>) -> io::Result<()> {
        match address.into() {
            EndpointAddress::Ip(address) => self.check(address).map_err(|refused| self.count(refused).into()),
            // Only a `--route` names a path, and the policy is not asked about those.
            EndpointAddress::Unix(path) => {
                let why = format!("{path} is refused: only --route leads to Unix sockets");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
        }
    }

    /// Counts a connect that was refused.
    pub fn count(&self, refused: TargetRefused) -> TargetRefused {
        self.refused[refused.reason.index()].fetch_add(1, Relaxed);
        refused
    }

    /// How many connects were refused, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RefusalReason::NAMES.into_iter().zip(self.refused.iter().map(|count| count.load(Relaxed)))
    }

    fn own_listener(&self, ip: IpAddr, port: u16) -> Option<ListenerRole> {
        let mut on_port = self.listeners.iter().filter(|listener| listener.address.port() == port);
        on_port.find(|listener| listener.is_reached_by(ip)).map(|listener| listener.role)
    }
}

impl OwnListener {
    /// A listener on loopback counts for all of loopback, whatever part of it is bound.
    fn is_reached_by(&self, ip: IpAddr) -> bool {
        let bound = self.address.ip().to_canonical();
        bound == ip
            || (ip.is_loopback() && (bound.is_loopback() || bound.is_unspecified()))
            || (bound.is_unspecified() && is_local(ip))
    }
}

/// Whether this host has the address now: only then the kernel allows binding a socket to it. Checked only for an
/// address with the port of a wildcard listener, which is rare, so the system call is affordable. If the kernel gives
/// another error, the address counts as local.
fn is_local(ip: IpAddr) -> bool {
    match UdpSocket::bind((ip, 0)) {
        Err(why) => why.kind() != io::ErrorKind::AddrNotAvailable,
        Ok(_) => true,
    }
}

/// Addresses that are refused on every port.
fn special(ip: IpAddr) -> Option<RefusalReason> {
    match ip {
        IpAddr::V4(v4) => match v4.octets() {
            [0, ..] => Some(RefusalReason::Unspecified), // Linux connects 0.0.0.0 to loopback
            [169, 254, ..] => Some(RefusalReason::LinkLocal),
            [224..=239, ..] => Some(RefusalReason::Multicast),
            [255, 255, 255, 255] => Some(RefusalReason::Broadcast),
            _ => METADATA_V4.contains(&v4).then_some(RefusalReason::Metadata),
        },
        IpAddr::V6(v6) if v6.is_unspecified() => Some(RefusalReason::Unspecified),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(RefusalReason::LinkLocal),
        IpAddr::V6(v6) if v6.is_multicast() => Some(RefusalReason::Multicast),
        IpAddr::V6(v6) => METADATA_V6.contains(&v6).then_some(RefusalReason::Metadata),
    }
}

/// The IPv4 address inside an IPv6 one that a kernel or a gateway translates to it; any other address as it is.
fn embedded(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => ip,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => v4(high, low), // IPv4-compatible, IPv4-mapped
        [0, 0, 0, 0, 0xffff, 0, high, low] => v4(high, low),     // IPv4-translated (RFC 2765)
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),  // NAT64 (RFC 6052)
        [0x64, 0xff9b, 1, .., high, low] => v4(high, low),       // NAT64, local (RFC 8215)
        [0x2002, high, low, ..] => v4(high, low),                // 6to4 (RFC 3056)
        [0x2001, 0, .., high, low] => v4(!high, !low),           // Teredo (RFC 4380)
        _ => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(listeners: &[(ListenerRole, &str)], allowed: &[&str]) -> TargetPolicy {
        let listener = |(role, at): &(ListenerRole, &str)| OwnListener { role: *role, address: at.parse().unwrap() };
        TargetPolicy::new(
            listeners.iter().map(listener).collect(),
            allowed.iter().map(|text| text.parse().unwrap()).collect(),
        )
    }

    fn reason(policy: &TargetPolicy, address: &str) -> Option<RefusalReason> {
        policy.check(address.parse().unwrap()).err().map(|refused| refused.reason)
    }

    #[test]
    fn special_address_in_any_form_is_refused() {
        let policy = TargetPolicy::default();
        for (address, expected) in [
            ("0.0.0.0:80", RefusalReason::Unspecified),
            ("0.1.2.3:80", RefusalReason::Unspecified),
            ("[::]:80", RefusalReason::Unspecified),
            ("[::ffff:0.0.0.0]:80", RefusalReason::Unspecified),
            ("169.254.169.254:80", RefusalReason::LinkLocal),
            ("169.254.0.1:8080", RefusalReason::LinkLocal),
            ("[::ffff:169.254.169.254]:80", RefusalReason::LinkLocal),
            ("[::169.254.169.254]:80", RefusalReason::LinkLocal),
            ("[::ffff:0:169.254.169.254]:80", RefusalReason::LinkLocal),
            ("[64:ff9b::169.254.169.254]:80", RefusalReason::LinkLocal),
            ("[64:ff9b:1::a9fe:a9fe]:80", RefusalReason::LinkLocal),
            ("[2002:a9fe:a9fe::1]:80", RefusalReason::LinkLocal),
            ("[2001:0:1:2:3:4:5601:5601]:80", RefusalReason::LinkLocal),
            ("[fe80::1]:80", RefusalReason::LinkLocal),
            ("[febf::1]:80", RefusalReason::LinkLocal),
            ("[fd00:ec2::254]:80", RefusalReason::Metadata),
            ("[fd20:ce::254]:80", RefusalReason::Metadata),
            ("100.100.100.200:80", RefusalReason::Metadata),
            ("[::ffff:168.63.129.16]:80", RefusalReason::Metadata),
            ("224.0.0.1:80", RefusalReason::Multicast),
            ("239.255.255.255:80", RefusalReason::Multicast),
            ("[ff02::1]:80", RefusalReason::Multicast),
            ("255.255.255.255:80", RefusalReason::Broadcast),
        ] {
            assert_eq!(reason(&policy, address), Some(expected), "{address}");
        }
        for address in [
            "127.0.0.1:80",
            "10.0.0.1:80",
            "192.168.1.1:80",
            "8.8.8.8:443",
            "169.253.1.1:80",
            "[::1]:80",
            "[fd00::1]:80",
            "[2001:db8::1]:80",
            "[fec0::1]:80",
            "[::ffff:10.0.0.1]:80",
            "100.100.100.201:80",
        ] {
            assert_eq!(reason(&policy, address), None, "{address}");
        }
    }

    #[test]
    fn own_listener_on_every_local_address_is_refused() {
        let own = |role| Some(RefusalReason::OwnListener(role));
        let all = [
            (ListenerRole::Admin, "127.0.0.1:9090"),
            (ListenerRole::Api, "[::]:8001"),
            (ListenerRole::Ingress, "0.0.0.0:8080"),
            (ListenerRole::Events, "10.1.2.3:8081"),
        ];
        let policy = policy(&all, &[]);
        for (address, role) in [
            ("127.0.0.1:9090", ListenerRole::Admin),
            ("127.9.9.9:9090", ListenerRole::Admin),
            ("[::1]:9090", ListenerRole::Admin),
            ("[::ffff:127.0.0.1]:9090", ListenerRole::Admin),
            ("[::127.0.0.1]:9090", ListenerRole::Admin),
            ("127.0.0.1:8001", ListenerRole::Api),
            ("[::1]:8001", ListenerRole::Api),
            ("127.0.0.1:8080", ListenerRole::Ingress),
            ("10.1.2.3:8081", ListenerRole::Events),
            ("[::ffff:10.1.2.3]:8081", ListenerRole::Events),
        ] {
            assert_eq!(reason(&policy, address), own(role), "{address}");
        }
        for address in
            ["127.0.0.1:9091", "203.0.113.7:9090", "203.0.113.7:8080", "127.0.0.1:8081", "[2001:db8::7]:8001"]
        {
            assert_eq!(reason(&policy, address), None, "{address}");
        }
    }

    #[test]
    fn interface_address_with_wildcard_port_is_refused() {
        let out = UdpSocket::bind("0.0.0.0:0").unwrap();
        if out.connect("192.0.2.1:9").is_err() {
            return; // a host without a default route has only loopback
        }
        let interface = SocketAddr::new(out.local_addr().unwrap().ip(), 8080);
        let wildcard = policy(&[(ListenerRole::Ingress, "0.0.0.0:8080")], &[]);
        assert!(wildcard.check(interface).is_err(), "{interface}");
        let loopback = policy(&[(ListenerRole::Ingress, "127.0.0.1:8080")], &[]);
        assert_eq!(loopback.check(interface).is_ok(), !interface.ip().is_loopback());
    }

    #[test]
    fn delivery_to_own_stream_is_allowed() {
        let all = [(ListenerRole::Events, "127.0.0.1:8081"), (ListenerRole::Admin, "127.0.0.1:9090")];
        let policy = policy(&all, &[]);
        let is_ok = |address: &str, path: &str| policy.check_delivery(address.parse().unwrap(), path).is_ok();
        assert!(is_ok("127.0.0.1:8081", "/brokers/ns/b") && is_ok("127.0.0.1:8081", "/channels/ns/c"));
        assert!(!is_ok("127.0.0.1:8081", "/") && !is_ok("127.0.0.1:8081", "/debug"));
        assert!(!is_ok("127.0.0.1:9090", "/brokers/ns/b"));
    }

    #[test]
    fn allow_list_opens_own_listeners_by_port_only() {
        let all = [(ListenerRole::Admin, "127.0.0.1:9090"), (ListenerRole::Api, "127.0.0.1:8001")];
        let by_port = policy(&all, &["127.0.0.1:9090", "169.254.0.0/16", "[fe80::/10]:80"]);
        for address in ["127.0.0.1:9090", "[::ffff:127.0.0.1]:9090", "169.254.169.254:1", "[fe80::1]:80"] {
            assert_eq!(reason(&by_port, address), None, "{address}");
        }
        for address in ["127.0.0.1:8001", "127.0.0.2:9090", "[fe80::1]:81"] {
            assert!(reason(&by_port, address).is_some(), "{address}");
        }
        let without_port = policy(&all, &["127.0.0.0/8", "::/0"]);
        assert!(reason(&without_port, "127.0.0.1:9090").is_some());
    }

    #[test]
    fn refused_connect_is_counted_by_reason() {
        let policy = TargetPolicy::default();
        let why = policy.admit_connect(SocketAddr::from(([169, 254, 1, 1], 80))).unwrap_err();
        assert_eq!(TargetRefused::of(&why).unwrap().reason, RefusalReason::LinkLocal);
        assert!(why.to_string().contains("--allow-target 169.254.1.1:80"), "{why}");
        assert_eq!(policy.refused().filter(|(_, count)| *count > 0).collect::<Vec<_>>(), [("link_local", 1)]);
        assert!(TargetRefused::of(&io::ErrorKind::PermissionDenied.into()).is_none());
    }
}
