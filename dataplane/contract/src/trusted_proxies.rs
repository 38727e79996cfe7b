//! Trusted proxies: peers whose statements about their clients are accepted.
//!
//! A client can send any `X-Forwarded-For`. Only what trusted proxies added to it is true: the list is read from its end, and
//! ends at the first address that is not a trusted proxy's.

use std::net::IpAddr;
use std::str::FromStr;

/// Trusted networks, and how many entries of a list are accepted at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<Network>,
    /// Entries that are accepted from the end of a list; `None`: as many as are trusted proxies, and one more.
    hops_max: Option<usize>,
}

/// `ADDRESS[/PREFIX]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a network like 10.0.0.0/8 or 2001:db8::/32, nor an address");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= whole).ok_or_else(bad)?,
            None => whole,
        };
        Ok(Self { address, prefix })
    }
}

impl Network {
    /// Whether an address that is not a mapped one is in it.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
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

impl TrustedProxies {
    #[must_use]
    pub fn new(networks: Vec<Network>, hops_max: Option<usize>) -> Self {
        Self { networks, hops_max }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Whether `ip` is a trusted proxy's address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.networks.iter().any(|network| network.contains(ip))
    }

    /// How many entries of a list to accept from its end. `hops` are its entries in reverse order; `None` is one that is not
    /// an address.
    #[must_use]
    pub fn accepted(&self, hops: impl Iterator<Item = Option<IpAddr>>) -> usize {
        let mut accepted = 0;
        for hop in hops.take(self.hops_max.unwrap_or(usize::MAX)) {
            accepted += 1;
            // The entry of the client itself: what stands before it was written by the client.
            if !hop.is_some_and(|ip| self.contains(ip)) {
                break;
            }
        }
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(networks: &[&str], hops_max: Option<usize>) -> TrustedProxies {
        TrustedProxies::new(networks.iter().map(|text| text.parse().unwrap()).collect(), hops_max)
    }

    #[test]
    fn network_contains_its_addresses_only() {
        let trusted = proxies(&["10.0.0.0/8", "::1", "2001:db8::/32"], None);
        for (ip, is_in) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("11.0.0.1", false),
            ("::1", true),
            ("2001:db8:1::", true),
            ("2001:db9::", false),
        ] {
            assert_eq!(trusted.contains(ip.parse().unwrap()), is_in, "{ip}");
        }
        assert!(!TrustedProxies::default().contains("10.0.0.1".parse().unwrap()));
        for bad in ["", "a", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0.1:80"] {
            assert!(bad.parse::<Network>().is_err(), "{bad:?}");
        }
    }

    /// A list is accepted from its end to the first address that is not a trusted proxy's.
    #[test]
    fn list_is_accepted_up_to_the_client() {
        let reversed = |list: &[&str]| {
            let hops: Vec<_> = list.iter().rev().map(|hop| hop.parse().ok()).collect();
            hops.into_iter()
        };
        let trusted = proxies(&["10.0.0.0/8"], None);
        for (list, accepted) in [
            (&["192.0.2.7"][..], 1),
            (&["1.2.3.4", "192.0.2.7"], 1),
            (&["1.2.3.4", "192.0.2.7", "10.0.0.9"], 2),
            (&["10.0.0.8", "10.0.0.9"], 2),
            (&["1.2.3.4", "unknown"], 1),
            (&[], 0),
        ] {
            assert_eq!(trusted.accepted(reversed(list)), accepted, "{list:?}");
        }
        let one = proxies(&["10.0.0.0/8"], Some(1));
        assert_eq!(one.accepted(reversed(&["192.0.2.7", "10.0.0.9"])), 1);
        assert_eq!(proxies(&["0.0.0.0/0"], Some(2)).accepted(reversed(&["1.1.1.1", "2.2.2.2", "3.3.3.3"])), 2);
    }
}
