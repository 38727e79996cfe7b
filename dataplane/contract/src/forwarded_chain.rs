//! The chain of clients and proxies before a request, as `X-Forwarded-For` and `Forwarded` tell it.
//!
//! Only the end of a list is true: what trusted proxies added to what they received.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use codec::http::{FieldName, RequestView, tokens};

use crate::client_address::ClientAddress;

/// The address of the client that began the chain; `None`: a proxy says that it does not know it, or the two fields
/// name different clients. A proxy that writes only one of them may pass on what the client wrote in the other.
#[must_use]
pub fn client_ip(request: RequestView<'_>, peer: &ClientAddress) -> Option<IpAddr> {
    if peer.trust().is_none() {
        return Some(peer.canonical().ip());
    }
    let hop = accepted_hops(request, peer).next().map(|hop| std::str::from_utf8(hop).ok().and_then(hop_address));
    let element = accepted_elements(request, peer).next().map(node_address);
    match (hop, element) {
        (Some(hop), Some(element)) if hop != element => None,
        (Some(client), _) | (None, Some(client)) => client,
        (None, None) => Some(peer.canonical().ip()),
    }
}

/// The end of `X-Forwarded-For` that trusted proxies wrote.
pub fn accepted_hops<'a>(request: RequestView<'a>, peer: &ClientAddress) -> impl Iterator<Item = &'a [u8]> {
    let hops: Vec<_> = request.values(FieldName::ForwardedFor).flat_map(tokens).collect(); // only behind a trusted proxy
    let address = |hop: &&[u8]| std::str::from_utf8(hop).ok().and_then(hop_address);
    let accepted = peer.trust().map_or(0, |trust| trust.accepted(hops.iter().rev().map(address)));
    let skipped = hops.len() - accepted;
    hops.into_iter().skip(skipped)
}

/// The end of `Forwarded` that trusted proxies wrote.
pub fn accepted_elements<'a>(request: RequestView<'a>, peer: &ClientAddress) -> impl Iterator<Item = &'a [u8]> {
    let elements: Vec<_> = request.values(FieldName::Forwarded).flat_map(elements).collect();
    let accepted = peer.trust().map_or(0, |trust| trust.accepted(elements.iter().rev().map(|hop| node_address(hop))));
    let skipped = elements.len() - accepted;
    elements.into_iter().skip(skipped)
}

/// The elements of a `Forwarded` list: separated by commas that are not in quotes.
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    let separates = move |byte: &u8| {
        is_quoted ^= *byte == b'"';
        *byte == b',' && !is_quoted
    };
    value.split(separates).map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// The address in the `for` parameter of an element.
#[must_use]
pub fn node_address(element: &[u8]) -> Option<IpAddr> {
    let mut pairs = std::str::from_utf8(element).ok()?.split(';').map(str::trim);
    let node = pairs.find_map(|pair| {
        let (name, node) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(node.trim())
    })?;
    hop_address(node)
}

/// The address of a hop: plain, or in the format of `Forwarded` (RFC 7239, section 6), with IPv6 in brackets, with or
/// without a port and quotes. A mapped IPv4 address becomes the IPv4 address, so that networks match it.
#[must_use]
pub fn hop_address(hop: &str) -> Option<IpAddr> {
    let hop = hop.strip_prefix('"').map_or(Some(hop), |rest| rest.strip_suffix('"'))?;
    let in_brackets = || hop.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let alone = hop.parse().ok().or_else(|| in_brackets().map(IpAddr::V6));
    let address = alone.or_else(|| hop.parse().ok().map(|address: SocketAddr| address.ip()));
    address.map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use codec::http::{Parsed, RequestHead, parse_request};

    use super::*;
    use crate::client_address::ClientScheme;
    use crate::trusted_proxies::TrustedProxies;

    #[test]
    fn client_is_the_first_hop_that_trusted_proxies_vouch_for() {
        for (peer, fields, client) in [
            ("192.0.2.1:1", "X-Forwarded-For: 10.0.0.9\r\n", Some("192.0.2.1")),
            ("10.0.0.1:1", "", Some("10.0.0.1")),
            ("10.0.0.1:1", "X-Forwarded-For: 203.0.113.1, 192.0.2.7, 10.0.0.2\r\n", Some("192.0.2.7")),
            ("10.0.0.1:1", "Forwarded: for=203.0.113.1, for=\"[2001:db8::1]:7\"\r\n", Some("2001:db8::1")),
            ("10.0.0.1:1", "X-Forwarded-For: 203.0.113.1, unknown\r\n", None),
            ("10.0.0.1:1", "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.7\r\n", Some("192.0.2.7")),
            ("10.0.0.1:1", "X-Forwarded-For: 203.0.113.1\r\nForwarded: for=192.0.2.7\r\n", None),
            ("10.0.0.1:1", "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=203.0.113.1\r\n", None),
            ("10.0.0.1:1", "X-Forwarded-For: ::ffff:192.0.2.7, ::ffff:10.0.0.2\r\n", Some("192.0.2.7")),
            ("10.0.0.1:1", "Forwarded: for=\"[::ffff:192.0.2.7]:5\"\r\n", Some("192.0.2.7")),
            ("[::ffff:192.0.2.1]:1", "", Some("192.0.2.1")),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let mut head = RequestHead::default();
            assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }));
            let proxies = Arc::new(TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()], None));
            let peer = ClientAddress::new(peer.parse().unwrap(), ClientScheme::Http).trusting(&proxies);
            let wanted = client.map(|client| client.parse::<IpAddr>().unwrap());
            assert_eq!(client_ip(head.view(text.as_bytes()), &peer), wanted, "{fields}");
        }
    }
}
