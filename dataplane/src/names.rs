//! Names that stand for addresses without DNS: core Services, as their endpoints say.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// By host, lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    by_host: BTreeMap<Box<str>, Name>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// By port, who serves it; those who are not ready are left out.
    Endpoints(Vec<(u16, Vec<SocketAddr>)>),
    /// Another host, which DNS knows.
    Alias(Box<str>),
}

/// Where to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    At(SocketAddr),
    Alias(Box<str>),
    /// The name is known, and nobody serves this port of it now.
    Nobody,
}

impl Names {
    pub fn insert(&mut self, host: &str, name: Name) {
        self.by_host.insert(host.to_ascii_lowercase().into(), name);
    }

    /// `None`: ask DNS. `turn` chooses among several.
    #[must_use]
    pub fn find(&self, host: &str, port: u16, turn: impl FnOnce(usize) -> usize) -> Option<Found> {
        if self.by_host.is_empty() {
            return None;
        }
        Some(match self.by_host.get(host)? {
            Name::Alias(other) => Found::Alias(other.clone()),
            Name::Endpoints(ports) => {
                let all = ports.iter().find(|(known, _)| *known == port).map(|(_, all)| &**all);
                match all.unwrap_or_default() {
                    [] => Found::Nobody,
                    all => Found::At(all[turn(all.len()) % all.len()]),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_an_endpoint_an_alias_or_nobody() {
        let address = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let mut names = Names::default();
        assert_eq!(names.find("a.ns", 80, |_| 0), None);
        names.insert("A.ns", Name::Endpoints(vec![(80, vec![address(1), address(2)]), (81, vec![])]));
        names.insert("b.ns", Name::Alias("example.com".into()));
        assert_eq!(names.find("a.ns", 80, |_| 0), Some(Found::At(address(1))));
        assert_eq!(names.find("a.ns", 80, |count| count + 1), Some(Found::At(address(2))));
        assert_eq!(names.find("a.ns", 81, |_| 0), Some(Found::Nobody));
        assert_eq!(names.find("a.ns", 82, |_| 0), Some(Found::Nobody));
        assert_eq!(names.find("b.ns", 9, |_| 0), Some(Found::Alias("example.com".into())));
        assert_eq!(names.find("c.ns", 80, |_| 0), None);
    }
}
