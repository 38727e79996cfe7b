//! Which clients may use a rule, by their addresses.

use std::net::IpAddr;

use super::request::RouteRequest;
use crate::forwarded_chain::client_ip;
use crate::trusted_proxies::Network;

/// Clients in `deny` are refused; with `allow`, all that are not in it as well. Empty lists refuse no client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessList {
    pub allow: Vec<Network>,
    pub deny: Vec<Network>,
}

impl AccessList {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Whether the client may use the rule. Behind trusted proxies that is the client that they name: if it is unknown, it may
    /// not. Internal requests have no client.
    #[must_use]
    pub fn admits(&self, request: &RouteRequest<'_>) -> bool {
        let (Some(peer), Some(head)) = (request.peer, request.request) else { return true };
        let Some(ip) = client_ip(head, peer) else { return self.is_empty() };
        self.admits_address(ip)
    }

    /// Whether a client of this address may use the rule.
    #[must_use]
    pub fn admits_address(&self, ip: IpAddr) -> bool {
        let is_in = |networks: &[Network]| networks.iter().any(|network| network.contains(ip));
        !is_in(&self.deny) && (self.allow.is_empty() || is_in(&self.allow))
    }
}

#[cfg(test)]
mod tests {
    use codec::http::{Parsed, RequestHead, parse_request};

    use super::*;
    use crate::client_address::{ClientAddress, ClientScheme};

    #[test]
    fn denied_networks_win_over_allowed_ones() {
        let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<Network>>();
        let text = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text, &mut head), Parsed::Head { .. }));
        for (allow, deny, client, admitted) in [
            (&[][..], &[][..], "192.0.2.1:1", true),
            (&["10.0.0.0/8"], &[], "10.0.0.1:1", true),
            (&["10.0.0.0/8"], &[], "192.0.2.1:1", false),
            (&["10.0.0.0/8"], &["10.0.0.0/24"], "10.0.0.1:1", false),
            (&["10.0.0.0/8"], &["10.0.0.0/24"], "[::ffff:10.0.1.1]:1", true),
            (&[], &["2001:db8::/32"], "[2001:db8::1]:1", false),
            (&[], &["2001:db8::/32"], "192.0.2.1:1", true),
        ] {
            let list = AccessList { allow: networks(allow), deny: networks(deny) };
            let peer = ClientAddress::new(client.parse().unwrap(), ClientScheme::Http);
            assert_eq!(list.admits(&RouteRequest::client(head.view(text), &peer)), admitted, "{list:?} {client}");
            assert!(list.admits(&RouteRequest::internal("a", "/")));
        }
    }
}
