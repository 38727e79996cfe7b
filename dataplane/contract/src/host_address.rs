//! Hosts that are addresses.

use std::net::{IpAddr, Ipv4Addr};

/// The address of a host that needs no look-up.
#[must_use]
pub fn parse_literal(host: &str) -> Option<IpAddr> {
    if host == "localhost" || host.ends_with(".localhost") {
        return Some(Ipv4Addr::LOCALHOST.into()); // RFC 6761
    }
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host).parse().ok()
}
