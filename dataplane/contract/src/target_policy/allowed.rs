//! Entries of `--allow-target`: addresses that the operator allows although the policy refuses them.

use std::net::IpAddr;
use std::str::FromStr;

/// `CIDR[:PORT]`: a network or one address, on one port or on all. An IPv6 network with a port is in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowedTarget {
    network: IpAddr,
    prefix: u8,
    port: Option<u16>,
}

impl AllowedTarget {
    /// An entry without a port does not open listeners of this process: a wide network is meant for other hosts.
    pub(super) fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Whether it has this address, as written or by the IPv4 address inside it.
    pub(super) fn covers(&self, written: IpAddr, embedded: IpAddr, port: u16) -> bool {
        self.port.is_none_or(|own| own == port) && (self.contains(written) || self.contains(embedded))
    }

    fn contains(&self, ip: IpAddr) -> bool {
        match (self.network, ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                u32::from(network) & mask == u32::from(ip) & mask
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                u128::from(network) & mask == u128::from(ip) & mask
            }
            _ => false,
        }
    }
}

impl FromStr for AllowedTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not CIDR[:PORT], like 169.254.10.0/24, 10.0.0.1:80 or [fe80::/10]:80");
        let (cidr, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (cidr, behind) = rest.split_once(']').ok_or_else(bad)?;
                let port = (!behind.is_empty()).then(|| behind.strip_prefix(':').ok_or_else(bad)).transpose()?;
                (cidr, port)
            }
            None => match text.split_once(':') {
                Some((cidr, port)) if !port.contains(':') => (cidr, Some(port)),
                _ => (text, None),
            },
        };
        let port = port.map(|port| port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)).transpose()?;
        let (network, prefix) = cidr.split_once('/').map_or((cidr, None), |(ip, prefix)| (ip, Some(prefix)));
        let network: IpAddr = network.parse().map_err(|_| bad())?;
        let whole = if network.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= whole).ok_or_else(bad)?,
            None => whole,
        };
        Ok(Self { network, prefix, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_a_network_with_or_without_a_port() {
        for (text, network, prefix, port) in [
            ("169.254.10.0/24", "169.254.10.0", 24, None),
            ("10.0.0.1", "10.0.0.1", 32, None),
            ("10.0.0.1:80", "10.0.0.1", 32, Some(80)),
            ("0.0.0.0/0:80", "0.0.0.0", 0, Some(80)),
            ("fe80::/10", "fe80::", 10, None),
            ("fe80::1", "fe80::1", 128, None),
            ("[fe80::/10]:80", "fe80::", 10, Some(80)),
            ("[::1]", "::1", 128, None),
        ] {
            let expected = AllowedTarget { network: network.parse().unwrap(), prefix, port };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "a",
            "localhost:80",
            "10.0.0.1/33",
            "10.0.0.1:0",
            "10.0.0.1:x",
            "[::1",
            "[::1]80",
            "::/129",
            "10.0.0.1:",
        ] {
            assert!(bad.parse::<AllowedTarget>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn network_covers_its_addresses_only() {
        let covers = |entry: &str, ip: &str| {
            let ip: IpAddr = ip.parse().unwrap();
            entry.parse::<AllowedTarget>().unwrap().covers(ip, ip, 80)
        };
        assert!(covers("169.254.0.0/16", "169.254.169.254") && covers("0.0.0.0/0", "1.2.3.4"));
        assert!(covers("::/0", "fe80::1") && covers("fe80::/10", "febf::1") && covers("10.0.0.1:80", "10.0.0.1"));
        assert!(!covers("169.254.0.0/16", "169.255.0.1") && !covers("0.0.0.0/0", "::1"));
        assert!(!covers("10.0.0.1:81", "10.0.0.1") && !covers("fe80::/10", "fec0::1"));
    }
}
