//! The addresses of the host for Gateways that name none: each Gateway gets one of its own.
//!
//! Gateways on one address share its ports, so two of them cannot serve the same hosts. With an address of its own, a
//! Gateway is isolated from all others. A Gateway keeps its address for as long as it exists, also over a restart,
//! because its status has it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// More than the Gateways of one host, and few enough to look at each of them.
const POOL_ADDRESSES_MAX: u128 = 4096;

/// Addresses, written as `10.0.0.5,10.0.0.8-10.0.0.12`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressRanges(Vec<RangeInclusive<IpAddr>>);

/// Namespace and name of a Gateway.
type GatewayName = (String, String);

/// The addresses, and which Gateway has which.
#[derive(Debug, Default)]
pub struct AddressPool {
    ranges: AddressRanges,
    assigned: Mutex<BTreeMap<GatewayName, IpAddr>>,
}

impl AddressPool {
    #[must_use]
    pub fn new(ranges: AddressRanges) -> Self {
        Self { ranges, assigned: Mutex::default() }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.0.is_empty()
    }

    /// The address of a Gateway: the one that it has, or one of `before`, or else the first that is free. `None`: all are
    /// assigned. `is_taken` tells of addresses that Gateways name themselves.
    pub(crate) fn assign(
        &self,
        gateway: (&str, &str),
        before: impl IntoIterator<Item = IpAddr>,
        is_taken: impl Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        let key = (gateway.0.to_owned(), gateway.1.to_owned());
        let mut assigned = self.lock();
        if let Some(address) = assigned.get(&key) {
            return Some(*address);
        }
        let is_free = |address: &IpAddr| !assigned.values().any(|other| other == address) && !is_taken(*address);
        let kept = before.into_iter().find(|address| self.ranges.contains(*address) && is_free(address));
        let address = kept.or_else(|| self.ranges.addresses().find(is_free))?;
        assigned.insert(key, address);
        Some(address)
    }

    /// Returns whether the Gateway had an address.
    pub(crate) fn release(&self, gateway: (&str, &str)) -> bool {
        self.lock().remove(&(gateway.0.to_owned(), gateway.1.to_owned())).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GatewayName, IpAddr>> {
        self.assigned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AddressRanges {
    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(&address))
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().flat_map(|range| {
            let is_v4 = range.start().is_ipv4();
            (number(*range.start())..=number(*range.end())).map(move |number| address(number, is_v4))
        })
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn address(number: u128, is_v4: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if is_v4 => IpAddr::V4(number.into()),
        _ => IpAddr::V6(number.into()),
    }
}

impl FromStr for AddressRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranges: Vec<_> = text.split(',').map(|part| range(part.trim())).collect::<Result<_, _>>()?;
        let count = ranges.iter().map(|range| (number(*range.end()) - number(*range.start())).saturating_add(1));
        let count = count.fold(0, u128::saturating_add);
        if count > POOL_ADDRESSES_MAX {
            return Err(format!("{text:?} has {count} addresses, limit {POOL_ADDRESSES_MAX}"));
        }
        Ok(Self(ranges))
    }
}

fn range(text: &str) -> Result<RangeInclusive<IpAddr>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let address = |text: &str| text.trim().parse().ok().filter(|address: &IpAddr| !address.is_unspecified());
    match (address(first), address(last)) {
        (Some(first), Some(last)) if first <= last && first.is_ipv4() == last.is_ipv4() => Ok(first..=last),
        _ => {
            Err(format!("{text:?} is neither an address nor a range of addresses, like 10.0.0.5 or 10.0.0.8-10.0.0.12"))
        }
    }
}

impl fmt::Display for AddressRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |range: &RangeInclusive<IpAddr>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        f.write_str(&self.0.iter().map(range).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn gateway_keeps_its_address_and_the_next_gets_another() {
        let pool = AddressPool::new("127.0.0.5-127.0.0.7, ::1".parse().unwrap());
        let assign = |name: &str, before: &[&str]| {
            let before: Vec<IpAddr> = before.iter().map(|text| ip(text)).collect();
            pool.assign(("ns", name), before, |address| address == ip("127.0.0.6")).map(|address| address.to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(assign("restarted", &["10.0.0.1", "127.0.0.7"]), some("127.0.0.7"));
        assert_eq!(assign("a", &["127.0.0.7"]), some("127.0.0.5"));
        assert_eq!(assign("a", &[]), some("127.0.0.5"));
        assert_eq!(assign("b", &[]), some("::1"), "the other is taken");
        assert_eq!(assign("c", &[]), None);
        assert!(pool.release(("ns", "a")) && !pool.release(("ns", "a")));
        assert_eq!(assign("c", &[]), some("127.0.0.5"));
    }

    #[test]
    fn address_ranges_are_read_and_written() {
        let ranges: AddressRanges = "10.0.0.5, 10.0.0.8-10.0.0.12,::1".parse().unwrap();
        assert_eq!(ranges.to_string(), "10.0.0.5,10.0.0.8-10.0.0.12,::1");
        assert_eq!(ranges.addresses().count(), 7);
        for bad in ["", "x", "10.0.0.5-", "10.0.0.9-10.0.0.8", "10.0.0.1-::1", "0.0.0.0", "10.0.0.0-10.0.255.255"] {
            assert!(bad.parse::<AddressRanges>().is_err(), "{bad:?}");
        }
        assert!("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse::<AddressRanges>().is_err());
        assert!("::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse::<AddressRanges>().is_err());
    }
}
