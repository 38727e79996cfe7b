//! Name resolution between Services: for instances that call `http://other`, `other.NAMESPACE` or
//! `other.NAMESPACE.svc.cluster.local`.
//!
//! A small name server on a loopback address of this appliance's own. It answers for names below
//! `cluster.local` from the table that the cores read, forwards all others to the host's name servers, and is the
//! `nameserver` in the `/etc/resolv.conf` of instances. Routes' names resolve to an address of their namespace, whose ports 80
//! and 443 the instance's control group redirects to the gateway (see [`contract::cgroup_ports`]). Needs port 53, so mostly root.
//! Out of scope: caches, and anything that a request waits for.

mod forward;
mod query;
mod resolv_conf;
mod server;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contract::service_names::SearchDomains;
use contract::table_publisher::TablePublisher;

pub(crate) use resolv_conf::{FILE as RESOLVER, instance_file};

/// The domain of names between Services.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// Where a name server is asked.
pub const PORT: u16 = 53;
/// Addresses that are tried: two appliances of a host meet on the same one about never.
const ADDRESSES_TRIED_MAX: u64 = 16;
/// A query of one question is below 300 bytes, with options of EDNS below this.
const QUERY_BYTES_MAX: usize = 1_232;
/// Queries of a connection, and what the host's servers answer.
const REPLY_BYTES_MAX: usize = 65_535;
/// Queries that wait for the host's servers at once; more are not answered, and clients ask again.
const FORWARDS_MAX: usize = 256;
/// Concurrent connections to the name server: few answers are so long that clients use TCP.
const CONNECTIONS_MAX: usize = 64;
/// The host's next server is asked after this; below the 5 s after which a client asks again.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection that brings no query for so long is closed.
const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of aliases that are followed for one name.
const ALIASES_MAX: usize = 8;
/// Seconds for which an answer may be kept: Services come and go.
const TTL_S: u32 = 5;

/// How an instance resolves the names that it calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceGateway {
    /// The name server that it asks.
    pub server: Ipv4Addr,
    /// The gateway's ports behind ports 80 and 443 of the addresses of names.
    pub host_ports: (u16, u16),
}

/// A name server that has its address and does not serve yet.
#[derive(Debug)]
pub struct DnsServer {
    address: Ipv4Addr,
    udp: UdpSocket,
    tcp: TcpListener,
}

impl DnsServer {
    /// Takes an address of loopback for the appliance that keeps its files in `data`; the same one at each start, as
    /// long as it is free.
    ///
    /// # Errors
    /// In words, for the log: what this host does not allow.
    pub fn bind(data: &Path) -> Result<Self, String> {
        if !Path::new(RESOLVER).exists() {
            return Err(format!("this host has no {}", RESOLVER));
        }
        let key =
            BuildHasherDefault::<DefaultHasher>::default().hash_one(data.canonicalize().as_deref().unwrap_or(data));
        let mut last = None;
        for turn in 0..ADDRESSES_TRIED_MAX {
            match Self::at(address(key.wrapping_add(turn))) {
                Ok(server) => return Ok(server),
                Err(why) if why.kind() == io::ErrorKind::AddrInUse => last = Some(why),
                Err(why) => return Err(format!("port {PORT} of loopback: {why}")),
            }
        }
        let why = last.map(|why| why.to_string()).unwrap_or_default();
        Err(format!("port {PORT} of loopback: {why}; a name server of this host listens on every address"))
    }

    fn at(address: Ipv4Addr) -> io::Result<Self> {
        let udp = UdpSocket::bind((address, PORT))?;
        let tcp = TcpListener::bind((address, PORT))?;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { address, udp, tcp })
    }

    /// Where it is asked.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Serves on a thread of its own, which alone adds to `domains`, until the process ends.
    ///
    /// # Errors
    /// There is no thread or no reactor to be had.
    pub fn serve(self, tables: Arc<TablePublisher>, domains: Arc<SearchDomains>) -> io::Result<()> {
        server::start(self, tables, domains)
    }
}

/// One of the addresses of [`contract::group_port::NAMES`], from the upper half: namespaces have theirs from below.
fn address(key: u64) -> Ipv4Addr {
    let [a, b, c, ..] = key.to_le_bytes();
    Ipv4Addr::new(127, 96 | (a & 0x1f), b, 1 + c % 254)
}

/// Where the host's name servers are asked.
fn at_port(server: std::net::IpAddr) -> SocketAddr {
    SocketAddr::new(server, PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_among_those_of_names() {
        let mut all = (0..10_000_u64).map(|key| address(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        assert!(all.all(|address| contract::cgroup_ports::NAMES.contains(&address)));
    }
}
