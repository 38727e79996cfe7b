//! Names that stand for addresses without DNS: core Services, as their endpoints say.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::cgroup_ports::NAMES;

/// Domains that have an address of their own; behind them nothing is found by a short name.
const DOMAINS_MAX: u32 = 65_536;

/// By host, lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceNames {
    by_host: BTreeMap<Box<str>, ServiceName>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceName {
    /// By port, who serves it; those who are not ready are left out.
    Endpoints(Vec<(u16, Vec<SocketAddr>)>),
    /// Another host, which DNS knows.
    Alias(Box<str>),
}

/// Where to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvedAddress {
    At(SocketAddr),
    Alias(Box<str>),
    /// The name is known, and nobody serves this port of it now.
    Unresolved,
}

impl ServiceNames {
    pub fn insert(&mut self, host: &str, name: ServiceName) {
        self.by_host.insert(host.to_ascii_lowercase().into(), name);
    }

    /// What stands behind `host`, in lower case.
    #[must_use]
    pub fn get(&self, host: &str) -> Option<&ServiceName> {
        self.by_host.get(host)
    }

    /// `None`: ask DNS. `turn` chooses among several.
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

/// What hosts without a dot are completed by: who calls `http://other` means the one in the domain whose names lead
/// to the address that was called. Domains are added by one thread and read by all.
#[derive(Debug, Default)]
pub struct SearchDomains {
    domains: ArcSwap<Vec<Arc<str>>>,
}

impl SearchDomains {
    /// The address of names in `domain`, the same for as long as the process lives. `None`: there are too many.
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

    /// The domain whose names lead to `address`.
    #[must_use]
    pub fn at(&self, address: IpAddr) -> Option<Arc<str>> {
        let IpAddr::V4(address) = address.to_canonical() else { return None };
        let number = u32::from(address).checked_sub(u32::from(*NAMES.start()) + 1)?;
        self.domains.load().get(usize::try_from(number).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_keeps_its_address_and_is_found_by_it() {
        let domains = SearchDomains::default();
        let [one, two] = ["one", "two"].map(|domain| domains.address(domain).unwrap());
        assert_ne!(one, two);
        assert_eq!(domains.address("one"), Some(one));
        assert!(NAMES.contains(&one) && NAMES.contains(&two));
        assert_eq!(domains.at(two.into()).as_deref(), Some("two"));
        assert_eq!(domains.at(two.to_ipv6_mapped().into()).as_deref(), Some("two"));
        for nobody in ["127.64.0.0", "127.64.0.9", "10.0.0.1", "::1"] {
            assert_eq!(domains.at(nobody.parse().unwrap()), None, "{nobody}");
        }
    }

    #[test]
    fn a_name_is_an_endpoint_an_alias_or_nobody() {
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
