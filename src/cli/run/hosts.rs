//! The host names by which clients may call API and admin, besides `localhost` and addresses.

use std::net::IpAddr;

use super::advertised_address;
use crate::config::{AllowedHostRule, RunConfig};

/// Names by which Pods call the API server of a cluster.
const KUBERNETES: [&str; 4] =
    ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

/// Of a listener that is bound to `bound`. The host's own name and those of a cluster are for listeners
/// beyond loopback: others are not reached through them, and an attacker's name server may resolve them.
pub(super) fn own(config: &RunConfig, bound: IpAddr) -> Vec<String> {
    let mut own: Vec<String> = config.allowed_hosts.iter().map(|AllowedHostRule(host)| host.clone()).collect();
    if !bound.is_loopback() {
        own.extend(names(bound));
        own.extend(KUBERNETES.map(str::to_owned));
    }
    own
}

/// The host names and addresses of a listener, as far as this host knows them.
pub(super) fn names(bound: IpAddr) -> Vec<String> {
    let mut names = vec![advertised_address::address(bound).to_string()];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
    names.extend(is_name.then_some(host));
    names
}
