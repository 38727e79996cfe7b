//! The host name of a request, and the host names that a listener accepts.

use std::net::{IpAddr, Ipv6Addr};

/// `HOST[:PORT]`, as `Host`, an absolute target and `Origin` have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) host: Host,
    pub(super) port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// An IPv4-mapped address counts as the IPv4 address.
    Address(IpAddr),
    /// In lower case, without the dot at the end.
    Name(String),
}

impl Authority {
    /// `None`: it is malformed. User information, an empty host and an empty port count as malformed: no client sends them.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                let address: Ipv6Addr = address.parse().ok()?;
                (Host::Address(IpAddr::from(address).to_canonical()), port)
            }
            None => {
                let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                (Host::parse(host)?, port)
            }
        };
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
            None if port.is_empty() => None,
            _ => return None,
        };
        Some(Self { host, port })
    }
}

impl Host {
    /// A host without a port; an IPv6 address has no brackets here.
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical()));
        }
        let is_name = !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c));
        is_name.then(|| Self::Name(text.to_ascii_lowercase()))
    }
}

/// The hosts by which clients may call a listener.
#[derive(Debug, Clone)]
pub struct OwnHosts {
    bound: IpAddr,
    /// Besides `localhost`. `*.PARENT` stands for one label below PARENT.
    hosts: Vec<Host>,
    wildcards: Vec<String>,
}

impl OwnHosts {
    /// `names` are names, `*.PARENT` and addresses. Anything else is ignored.
    pub fn new(bound: IpAddr, names: impl IntoIterator<Item = String>) -> Self {
        let mut own = Self { bound: bound.to_canonical(), hosts: Vec::new(), wildcards: Vec::new() };
        for name in names {
            match name.strip_prefix("*.") {
                Some(parent) => own.wildcards.push(parent.to_ascii_lowercase()),
                None => own.hosts.extend(Host::parse(&name)),
            }
        }
        own
    }

    /// A listener beyond loopback accepts every address: DNS rebinding needs a name, and behind address translation the
    /// listener does not know the addresses by which clients reach it.
    pub(super) fn contains(&self, host: &Host) -> bool {
        if self.hosts.contains(host) {
            return true;
        }
        match host {
            Host::Address(address) => address.is_loopback() || *address == self.bound || !self.bound.is_loopback(),
            Host::Name(name) => {
                let parent = || name.split_once('.').map(|(_, parent)| parent);
                name == "localhost" || parent().is_some_and(|parent| self.wildcards.iter().any(|own| own == parent))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(own: &OwnHosts, text: &str) -> Option<bool> {
        Authority::parse(text).map(|authority| own.contains(&authority.host))
    }

    #[test]
    fn loopback_listener_accepts_only_its_own_hosts() {
        let names = ["gate.example.com", "*.lan", "10.1.2.3"].map(str::to_owned);
        let own = OwnHosts::new("127.0.0.1".parse().unwrap(), names);
        for text in [
            "localhost",
            "LOCALHOST:8001",
            "localhost.:8001",
            "127.0.0.1:8001",
            "127.8.9.1",
            "127.0.0.1.:80",
            "[::1]",
            "[::1]:8001",
            "[::ffff:127.0.0.1]:8001",
            "Gate.Example.com:1",
            "gate.example.com.",
            "one.lan",
            "10.1.2.3:9",
        ] {
            assert_eq!(accepts(&own, text), Some(true), "{text}");
        }
        for text in [
            "evil.example",
            "localhost.evil.example:8001",
            "evil.localhost",
            "127.0.0.1.evil.example",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0.0.0.0:8001",
            "10.1.2.4",
            "[::]:8001",
            "[fe80::1]",
            "lan",
            "two.one.lan",
        ] {
            assert_eq!(accepts(&own, text), Some(false), "{text}");
        }
    }

    #[test]
    fn listener_beyond_loopback_accepts_every_address() {
        for bound in ["0.0.0.0", "::", "10.1.2.3"] {
            let own = OwnHosts::new(bound.parse().unwrap(), ["gate".to_owned()]);
            for text in ["10.1.2.3:9090", "192.0.2.1", "[2001:db8::1]:1", "0.0.0.0:9090", "localhost", "gate:9090"] {
                assert_eq!(accepts(&own, text), Some(true), "{bound}: {text}");
            }
            for text in ["evil.example:9090", "gate.evil.example"] {
                assert_eq!(accepts(&own, text), Some(false), "{bound}: {text}");
            }
        }
    }

    #[test]
    fn malformed_authority_is_none() {
        for text in [
            "",
            ":8001",
            ".",
            "localhost:",
            "localhost:8001.",
            "localhost:8001:8001",
            "localhost:+1",
            "localhost:99999",
            "user@localhost:8001",
            "localhost@evil.example",
            "localhost, evil.example",
            "localhost/",
            "::1",
            "[::1",
            "[::1]8001",
            "[::1%lo]",
            "[127.0.0.1]",
            "local host",
            "löcalhost",
        ] {
            assert_eq!(Authority::parse(text), None, "{text}");
        }
    }
}
