//! The PROXY protocol (haproxy.org, `proxy-protocol.txt`), versions 1 and 2: the first bytes of a connection, with which a
//! proxy says on whose behalf it connects.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest line of version 1, with its line end: the protocol's own limit.
const V1_BYTES_MAX: usize = 107;
const V1_PREFIX: &[u8] = b"PROXY ";
/// The first 12 bytes of version 2.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, command, family and length.
const V2_HEAD_BYTES: usize = 16;
/// Addresses and extensions that are accepted. Senders add some hundred bytes of extensions at most.
const V2_REST_BYTES_MAX: usize = 4096;

/// The version that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocolVersion {
    V1,
    V2,
}

/// The result of a look at the first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedProxyHeader {
    /// The header takes this many bytes.
    Header {
        bytes: usize,
        client: ProxiedClient,
    },
    NeedBytes,
    /// These bytes do not begin with a header.
    Malformed(&'static str),
}

/// On whose behalf a proxy connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxiedClient {
    /// Its address, and the one that it connected to.
    Address { source: SocketAddr, destination: SocketAddr },
    /// The proxy's own (a health check), or a client without an address.
    Local,
}

/// Reads the header at the start of `input`.
#[must_use]
pub fn parse(input: &[u8]) -> ParsedProxyHeader {
    let v2 = input.len().min(V2_SIGNATURE.len());
    let v1 = input.len().min(V1_PREFIX.len());
    if input.is_empty() {
        ParsedProxyHeader::NeedBytes
    } else if input[..v2] == V2_SIGNATURE[..v2] {
        parse_v2(input)
    } else if input[..v1] == V1_PREFIX[..v1] {
        parse_v1(input)
    } else {
        ParsedProxyHeader::Malformed("the connection does not begin with a PROXY protocol header")
    }
}

fn parse_v1(input: &[u8]) -> ParsedProxyHeader {
    let window = &input[..input.len().min(V1_BYTES_MAX)];
    let Some(end) = memchr::memmem::find(window, b"\r\n") else {
        return match window.len() {
            V1_BYTES_MAX => ParsedProxyHeader::Malformed("the PROXY line is longer than 107 bytes"),
            _ => ParsedProxyHeader::NeedBytes,
        };
    };
    let client = std::str::from_utf8(&window[V1_PREFIX.len()..end]).ok().and_then(v1_client);
    match client {
        Some(client) => ParsedProxyHeader::Header { bytes: end + 2, client },
        None => ParsedProxyHeader::Malformed("the PROXY line is malformed"),
    }
}

/// What follows `PROXY `: `TCP4 192.0.2.1 192.0.2.2 50000 80`, or `UNKNOWN` and anything.
fn v1_client(line: &str) -> Option<ProxiedClient> {
    let mut words = line.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(ProxiedClient::Local);
    }
    let (source, destination): (IpAddr, IpAddr) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let fits = match family {
        "TCP4" => source.is_ipv4() && destination.is_ipv4(),
        "TCP6" => source.is_ipv6() && destination.is_ipv6(),
        _ => false,
    };
    let (from, to) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (source, destination) = (SocketAddr::new(source, from), SocketAddr::new(destination, to));
    (fits && words.next().is_none()).then_some(ProxiedClient::Address { source, destination })
}

fn parse_v2(input: &[u8]) -> ParsedProxyHeader {
    let Some(head) = input.first_chunk::<V2_HEAD_BYTES>() else { return ParsedProxyHeader::NeedBytes };
    let rest = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if rest > V2_REST_BYTES_MAX {
        return ParsedProxyHeader::Malformed("the PROXY header is longer than 4096 bytes");
    }
    let bytes = V2_HEAD_BYTES + rest;
    let Some(body) = input.get(V2_HEAD_BYTES..bytes) else { return ParsedProxyHeader::NeedBytes };
    let client = match (head[12], head[13]) {
        (0x20, _) => Some(ProxiedClient::Local),
        (0x21, 0x11) => v2_addresses::<4>(body, |ip| Ipv4Addr::from(ip).into()),
        (0x21, 0x21) => v2_addresses::<16>(body, |ip| Ipv6Addr::from(ip).into()),
        // Unix sockets, datagrams and families to come have no address of ours.
        (0x21, _) => Some(ProxiedClient::Local),
        _ => None,
    };
    match client {
        Some(client) => ParsedProxyHeader::Header { bytes, client },
        None => ParsedProxyHeader::Malformed("the PROXY header is malformed"),
    }
}

fn v2_addresses<const N: usize>(body: &[u8], ip: fn([u8; N]) -> IpAddr) -> Option<ProxiedClient> {
    let (source, rest) = body.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (from, rest) = rest.split_first_chunk::<2>()?;
    let (to, _extensions) = rest.split_first_chunk::<2>()?;
    Some(ProxiedClient::Address {
        source: SocketAddr::new(ip(*source), u16::from_be_bytes(*from)),
        destination: SocketAddr::new(ip(*destination), u16::from_be_bytes(*to)),
    })
}

/// The header for a connection on behalf of `source`, which had connected to `destination`.
#[must_use]
pub fn header(version: ProxyProtocolVersion, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let (source, destination) = same_family(source, destination);
    match version {
        ProxyProtocolVersion::V1 => {
            let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            let mut line = String::new();
            let (from, to) = (source.ip(), destination.ip());
            // Writing to a String cannot fail.
            let _ = write!(line, "PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port());
            line.into_bytes()
        }
        ProxyProtocolVersion::V2 => {
            let mut out = V2_SIGNATURE.to_vec();
            match (source.ip(), destination.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    out.extend([0x21, 0x11, 0, 12]);
                    out.extend(from.octets());
                    out.extend(to.octets());
                }
                (from, to) => {
                    out.extend([0x21, 0x21, 0, 36]);
                    out.extend(mapped(from).octets());
                    out.extend(mapped(to).octets());
                }
            }
            out.extend(source.port().to_be_bytes());
            out.extend(destination.port().to_be_bytes());
            out
        }
    }
}

/// The header of a connection that a proxy opens on its own behalf.
#[must_use]
pub fn local_header(version: ProxyProtocolVersion) -> &'static [u8] {
    match version {
        ProxyProtocolVersion::V1 => b"PROXY UNKNOWN\r\n",
        ProxyProtocolVersion::V2 => b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    }
}

/// Both as IPv4, or both as IPv6: a header has one family.
fn same_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let (from, to) = (source.ip().to_canonical(), destination.ip().to_canonical());
    let (from, to) = match from.is_ipv4() == to.is_ipv4() {
        true => (from, to),
        false => (mapped(from).into(), mapped(to).into()),
    };
    (SocketAddr::new(from, source.port()), SocketAddr::new(to, destination.port()))
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(source: &str, destination: &str) -> ProxiedClient {
        ProxiedClient::Address { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    #[test]
    fn line_of_version_1_names_the_client() {
        for (line, wanted) in [
            ("PROXY TCP4 192.0.2.1 192.0.2.2 50000 80", client("192.0.2.1:50000", "192.0.2.2:80")),
            ("PROXY TCP6 2001:db8::1 ::1 1 443", client("[2001:db8::1]:1", "[::1]:443")),
            ("PROXY UNKNOWN", ProxiedClient::Local),
            ("PROXY UNKNOWN ffff::1 ffff::2 1 2", ProxiedClient::Local),
        ] {
            let input = format!("{line}\r\nGET / HTTP/1.1\r\n");
            assert_eq!(parse(input.as_bytes()), ParsedProxyHeader::Header { bytes: line.len() + 2, client: wanted });
            for cut in 0..line.len() + 1 {
                assert_eq!(parse(&input.as_bytes()[..cut]), ParsedProxyHeader::NeedBytes, "{cut} of {line}");
            }
        }
    }

    #[test]
    fn malformed_header_is_rejected() {
        let long = format!("PROXY TCP4 {}", "1".repeat(200));
        for bad in [
            "GET / HTTP/1.1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 50000\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 50000 80 1\r\n",
            "PROXY TCP5 192.0.2.1 192.0.2.2 50000 80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 500000 80\r\n",
            long.as_str(),
        ] {
            assert!(matches!(parse(bad.as_bytes()), ParsedProxyHeader::Malformed(_)), "{bad:?}");
        }
        let mut odd = header(ProxyProtocolVersion::V2, "1.2.3.4:5".parse().unwrap(), "1.2.3.4:6".parse().unwrap());
        odd[12] = 0x31;
        assert!(matches!(parse(&odd), ParsedProxyHeader::Malformed(_)));
        (odd[12], odd[14]) = (0x21, 0xff);
        assert!(matches!(parse(&odd), ParsedProxyHeader::Malformed(_)));
    }

    #[test]
    fn local_header_names_no_client() {
        for version in [ProxyProtocolVersion::V1, ProxyProtocolVersion::V2] {
            let written = local_header(version);
            let bytes = written.len();
            assert_eq!(parse(written), ParsedProxyHeader::Header { bytes, client: ProxiedClient::Local });
        }
    }

    #[test]
    fn header_of_a_health_check_names_no_client() {
        let mut input = V2_SIGNATURE.to_vec();
        input.extend([0x20, 0, 0, 3, 1, 2, 3, b'G']);
        assert_eq!(parse(&input), ParsedProxyHeader::Header { bytes: 19, client: ProxiedClient::Local });
    }

    proptest! {
        #[test]
        fn written_header_is_read_back(source: SocketAddr, destination: SocketAddr, is_second: bool) {
            let version = if is_second { ProxyProtocolVersion::V2 } else { ProxyProtocolVersion::V1 };
            let written = header(version, source, destination);
            let (source, destination) = same_family(source, destination);
            let (source, destination) = (SocketAddr::new(source.ip(), source.port()), SocketAddr::new(destination.ip(), destination.port()));
            let client = ProxiedClient::Address { source, destination };
            prop_assert_eq!(parse(&written), ParsedProxyHeader::Header { bytes: written.len(), client });
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes: Vec<u8>, prefix in 0..3_usize) {
            let prefix: &[u8] = [&b""[..], V1_PREFIX, V2_SIGNATURE][prefix];
            let _ = parse(&[prefix, &bytes].concat());
        }
    }
}
