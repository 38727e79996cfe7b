//! Addresses of names without DNS: core Services, by their endpoints.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::cgroup_ports::NAMES;

/// Domains that get an address; further ones cannot be used with short names.
const DOMAINS_MAX: u32 = 65_536;

/// Addresses of services that have one of their own: 127.80.0.0/12, apart from those of domains.
pub const SERVICES: std::ops::RangeInclusive<Ipv4Addr> =
    Ipv4Addr::new(127, 80, 0, 0)..=Ipv4Addr::new(127, 95, 255, 255);

/// By host, in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceNames {
    by_host: BTreeMap<Box<str>, ServiceName>,
}

/// The target of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceName {
    /// The ready addresses by port.
    Endpoints(Vec<(u16, Vec<SocketAddr>)>),
    /// Another host, resolved by DNS.
    Alias(Box<str>),
}

/// A resolved name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvedAddress {
    At(SocketAddr),
    Alias(Box<str>),
    /// The name is known, but no endpoint serves this port now.
    Unresolved,
}

impl ServiceNames {
    pub fn insert(&mut self, host: &str, name: ServiceName) {
        self.by_host.insert(host.to_ascii_lowercase().into(), name);
    }

    /// The target of `host`, which is in lower case.
    #[must_use]
    pub fn get(&self, host: &str) -> Option<&ServiceName> {
        self.by_host.get(host)
    }

    /// `None`: use DNS. `turn` chooses among several addresses.
    #[must_use]
    pub fn find(&self, host: &str, port: u16, turn: impl FnOnce(usize) -> usize) -> Option<ResolvedAddress> {
        if self.by_host.is_empty() {
            return None;
        }
        Some(match self.by_host.get(host)? {
            ServiceName::Alias(other) => ResolvedAddress::Alias(other.clone()),
            ServiceName::Endpoints(ports) => {
                let all = ports.iter().find(|(known, _)| *known == port).map(|(_, all)| &**all);
                match all.unwrap_or_default() {
                    [] => ResolvedAddress::Unresolved,
                    all => ResolvedAddress::At(all[turn(all.len()) % all.len()]),
                }
            }
        })
    }
}

/// Completes hosts without a dot: `http://other` means the one in the domain whose names resolve to the address that
/// the client connected to. One thread adds domains, one adds services, and all read them.
#[derive(Debug, Default)]
pub struct SearchDomains {
    domains: ArcSwap<Vec<Arc<str>>>,
    services: ArcSwap<ServiceAddressTable>,
}

/// Services with an address of their own.
#[derive(Debug, Default, Clone)]
struct ServiceAddressTable {
    /// By `DOMAIN/SERVICE`.
    by_name: BTreeMap<Box<str>, Ipv4Addr>,
    /// Their domains.
    by_address: BTreeMap<Ipv4Addr, Arc<str>>,
}

impl SearchDomains {
    /// The address for names in `domain`, constant while the process lives. `None`: there are too many.
    #[must_use]
    pub fn address(&self, domain: &str) -> Option<Ipv4Addr> {
        let known = self.domains.load();
        let index = known.iter().position(|one| **one == *domain).unwrap_or(known.len());
        let number = u32::try_from(index).ok().filter(|number| *number < DOMAINS_MAX)?;
        if index == known.len() {
            let mut more = Vec::clone(&known);
            more.push(domain.into());
            self.domains.store(Arc::new(more));
        }
        Some(Ipv4Addr::from(u32::from(*NAMES.start()) + 1 + number))
    }

    /// A service of `domain` has an address of its own from now on, one of [`SERVICES`]; or none.
    pub fn set_service(&self, domain: &str, service: &str, address: Option<Ipv4Addr>) {
        let key: Box<str> = format!("{domain}/{service}").into();
        if self.services.load().by_name.get(&key).copied() == address {
            return;
        }
        self.services.rcu(|known| {
            let mut services = ServiceAddressTable::clone(known);
            if let Some(before) = services.by_name.remove(&key) {
                services.by_address.remove(&before);
            }
            if let Some(address) = address {
                services.by_name.insert(key.clone(), address);
                services.by_address.insert(address, domain.into());
            }
            services
        });
    }

    /// The own address of a service of `domain`.
    #[must_use]
    pub fn service(&self, domain: &str, service: &str) -> Option<Ipv4Addr> {
        let services = self.services.load();
        if services.by_name.is_empty() {
            return None;
        }
        services.by_name.get(&*format!("{domain}/{service}")).copied()
    }

    /// The domain whose names resolve to `address`.
    #[must_use]
    pub fn at(&self, address: IpAddr) -> Option<Arc<str>> {
        let IpAddr::V4(address) = address.to_canonical() else { return None };
        if SERVICES.contains(&address) {
            return self.services.load().by_address.get(&address).cloned();
        }
        let number = u32::from(address).checked_sub(u32::from(*NAMES.start()) + 1)?;
        self.domains.load().get(usize::try_from(number).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_keeps_its_address_and_is_found_by_it() {
        let domains = SearchDomains::default();
        let [one, two] = ["one", "two"].map(|domain| domains.address(domain).unwrap());
        assert_ne!(one, two);
        assert_eq!(domains.address("one"), Some(one));
        assert!(NAMES.contains(&one) && NAMES.contains(&two));
        assert_eq!(domains.at(two.into()).as_deref(), Some("two"));
        assert_eq!(domains.at(two.to_ipv6_mapped().into()).as_deref(), Some("two"));
        for unknown in ["127.64.0.0", "127.64.0.9", "10.0.0.1", "::1"] {
            assert_eq!(domains.at(unknown.parse().unwrap()), None, "{unknown}");
        }
    }

    #[test]
    fn service_has_its_own_address_in_its_domain() {
        let domains = SearchDomains::default();
        let namespace = domains.address("ns").unwrap();
        let address = Ipv4Addr::new(127, 80, 1, 2);
        assert!(NAMES.contains(&address) && SERVICES.contains(&address) && !SERVICES.contains(&namespace));
        domains.set_service("ns", "db", Some(address));
        assert_eq!((domains.service("ns", "db"), domains.service("other", "db")), (Some(address), None));
        assert_eq!(domains.at(address.into()).as_deref(), Some("ns"));
        let moved = Ipv4Addr::new(127, 80, 1, 3);
        domains.set_service("ns", "db", Some(moved));
        assert_eq!((domains.at(address.into()), domains.service("ns", "db")), (None, Some(moved)));
        domains.set_service("ns", "db", None);
        assert_eq!((domains.at(moved.into()), domains.service("ns", "db")), (None, None));
    }

    #[test]
    fn name_resolves_to_endpoint_alias_or_nothing() {
        let address = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let mut names = ServiceNames::default();
        assert_eq!(names.find("a.ns", 80, |_| 0), None);
        names.insert("A.ns", ServiceName::Endpoints(vec![(80, vec![address(1), address(2)]), (81, vec![])]));
        names.insert("b.ns", ServiceName::Alias("example.com".into()));
        assert_eq!(names.find("a.ns", 80, |_| 0), Some(ResolvedAddress::At(address(1))));
        assert_eq!(names.find("a.ns", 80, |count| count + 1), Some(ResolvedAddress::At(address(2))));
        assert_eq!(names.find("a.ns", 81, |_| 0), Some(ResolvedAddress::Unresolved));
        assert_eq!(names.find("a.ns", 82, |_| 0), Some(ResolvedAddress::Unresolved));
        assert_eq!(names.find("b.ns", 9, |_| 0), Some(ResolvedAddress::Alias("example.com".into())));
        assert_eq!(names.find("c.ns", 80, |_| 0), None);
    }
}
