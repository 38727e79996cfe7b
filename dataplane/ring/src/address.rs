//! Socket addresses, in the form of std and in the form of the kernel.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::endpoint_address::{EndpointAddress, UNIX_PATH_BYTES_MAX, UnixPath};

/// Both forms of one address. Callers box it, because the kernel reads the raw form in place.
pub(crate) struct SocketAddress {
    pub(crate) address: EndpointAddress,
    raw: RawSocketAddress,
}

enum RawSocketAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
    /// Boxed: it is four times as large as the others.
    Unix(Box<libc::sockaddr_un>),
}

impl SocketAddress {
    pub(crate) fn new(address: EndpointAddress) -> Self {
        let raw = match address {
            EndpointAddress::Unix(path) => RawSocketAddress::Unix(Box::new(sockaddr_un(path))),
            EndpointAddress::Ip(SocketAddr::V4(v4)) => RawSocketAddress::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            EndpointAddress::Ip(SocketAddr::V6(v6)) => RawSocketAddress::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        };
        Self { address, raw }
    }

    /// Points into `self`, which must outlive every use of the pointer.
    pub(crate) fn pointer(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        match &self.raw {
            RawSocketAddress::V4(v4) => ((&raw const *v4).cast(), size_of::<libc::sockaddr_in>() as libc::socklen_t),
            RawSocketAddress::V6(v6) => ((&raw const *v6).cast(), size_of::<libc::sockaddr_in6>() as libc::socklen_t),
            RawSocketAddress::Unix(unix) => {
                ((&raw const **unix).cast(), size_of::<libc::sockaddr_un>() as libc::socklen_t)
            }
        }
    }

    pub(crate) fn domain(&self) -> i32 {
        match self.raw {
            RawSocketAddress::V4(_) => libc::AF_INET,
            RawSocketAddress::V6(_) => libc::AF_INET6,
            RawSocketAddress::Unix(_) => libc::AF_UNIX,
        }
    }
}

fn sockaddr_un(path: UnixPath) -> libc::sockaddr_un {
    let path = path.as_str().as_bytes();
    let mut raw =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; UNIX_PATH_BYTES_MAX + 1] };
    assert!(path.len() <= UNIX_PATH_BYTES_MAX, "a UnixPath fits: the text ends in a zero");
    for (to, from) in raw.sun_path.iter_mut().zip(path) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    raw
}

/// Reads an address that the kernel writes in `ask` (`getsockname`, `getpeername`).
pub(crate) fn ask(
    ask: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int,
) -> io::Result<SocketAddr> {
    // SAFETY: sockaddr_storage contains only integers, for which all zero bits are valid.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut bytes = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    if ask((&raw mut storage).cast(), &raw mut bytes) < 0 {
        return Err(io::Error::last_os_error());
    }
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family was checked, and storage is large and aligned enough for every family.
            let v4 = unsafe { *(&raw const storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: same as above, for the other family.
            let v6 = unsafe { *(&raw const storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        family => Err(io::Error::other(format!("address family {family} is neither IPv4 nor IPv6"))),
    }
}
