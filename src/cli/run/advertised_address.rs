//! The advertised address of a listener: other hosts cannot connect to a wildcard address.
//!
//! One rule for all advertised addresses: the source address of the host's outgoing traffic. Other hosts
//! reach it, and so does every program of this one. A host without a route to the outside is reached on its
//! loopback.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// `bound`, or the address to advertise for it.
pub(super) fn met_at(bound: SocketAddr) -> SocketAddr {
    SocketAddr::new(address(bound.ip()), bound.port())
}

/// The same for an address without a port.
pub(super) fn address(bound: IpAddr) -> IpAddr {
    if !bound.is_unspecified() {
        return bound;
    }
    // No packet is sent: the kernel picks its source address. The targets are documentation addresses. A
    // listener on `[::]` accepts IPv4 as well.
    let v4 = || sent_from(Ipv4Addr::UNSPECIFIED.into(), "192.0.2.1:9");
    match bound {
        IpAddr::V4(_) => v4().unwrap_or(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => {
            let v6 = sent_from(Ipv6Addr::UNSPECIFIED.into(), "[2001:db8::1]:9");
            v6.or_else(v4).unwrap_or(Ipv6Addr::LOCALHOST.into())
        }
    }
}

fn sent_from(any: IpAddr, to: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let from = socket.local_addr().ok()?.ip();
    (!from.is_unspecified()).then_some(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_address_is_never_advertised() {
        for bound in ["0.0.0.0:81", "[::]:81"] {
            let met = met_at(bound.parse().unwrap());
            assert!(!met.ip().is_unspecified() && met.port() == 81, "{bound}: {met}");
        }
        for bound in ["127.0.0.1:81", "10.1.2.3:81", "[::1]:81"] {
            assert_eq!(met_at(bound.parse().unwrap()).to_string(), bound);
        }
    }
}
