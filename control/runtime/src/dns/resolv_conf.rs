//! The `/etc/resolv.conf` of this host, and that of instances.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use contract::cgroup_ports::NAMES;

use super::CLUSTER_DOMAIN;

/// Where the resolver of every C library looks.
pub(crate) const FILE: &str = "/etc/resolv.conf";
/// The maximum number of name servers, as resolvers have it.
const SERVERS_MAX: usize = 3;
/// Domains of the host that are searched too; a kubelet allows 32 in all.
const SEARCH_MAX: usize = 29;

/// The resolver configuration of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ResolvConf {
    pub(super) servers: Vec<IpAddr>,
    search: Vec<String>,
    options: Vec<String>,
}

impl ResolvConf {
    /// As it is now: there is no notification of changes.
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string(FILE).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut host = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // One of ours would ask itself.
                    let server = words.next().and_then(|word| word.parse().ok());
                    let others = server.filter(|at| !matches!(at, IpAddr::V4(at) if NAMES.contains(at)));
                    host.servers.extend(others.filter(|_| host.servers.len() < SERVERS_MAX));
                }
                Some("search" | "domain") => {
                    host.search = words.take(SEARCH_MAX).map(str::to_owned).collect();
                }
                Some("options") => {
                    // Ours says how many dots a whole name has.
                    let others = words.filter(|word| !word.starts_with("ndots"));
                    host.options.extend(others.map(str::to_owned));
                }
                _ => {}
            }
        }
        host
    }

    /// As a kubelet writes it (`ClusterFirst`).
    fn instance_file(&self, namespace: &str, server: Ipv4Addr) -> String {
        let mut text = format!(
            "nameserver {server}\nsearch {namespace}.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}"
        );
        for word in &self.search {
            let _ = write!(text, " {word}"); // a String takes all
        }
        text.push_str("\noptions ndots:5");
        for word in &self.options {
            let _ = write!(text, " {word}");
        }
        text.push('\n');
        text
    }
}

/// The content of [`FILE`] in instances of `namespace`.
pub(crate) fn instance_file(namespace: &str, server: Ipv4Addr) -> String {
    ResolvConf::read().instance_file(namespace, server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_searches_its_namespace_first_and_then_what_the_host_searches() {
        let text = "# by hand\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\nnameserver 127.70.1.1\n\
                    nameserver ::1\nsearch corp.example lab.example\noptions ndots:2 timeout:1\n";
        let host = ResolvConf::parse(text);
        assert_eq!(host.servers, ["10.0.0.2".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(
            host.instance_file("ns", Ipv4Addr::new(127, 71, 3, 5)),
            "nameserver 127.71.3.5\n\
             search ns.svc.cluster.local svc.cluster.local cluster.local corp.example lab.example\n\
             options ndots:5 timeout:1\n"
        );
        assert_eq!(ResolvConf::parse(""), ResolvConf::default());
    }
}
