//! The listeners for requests, their names in statuses, and what opens further ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::{fmt, io};

use contract::listener_sockets::{ListenerSocket, ListenerSpec};
use contract::service_names::SearchDomains;

use crate::address_pool::AddressPool;
use crate::port_ranges::PortRanges;

/// The names under which a cluster would know our listeners.
pub(crate) const PUBLIC_NAME: &str = "sluicegate.knative-serving.svc.cluster.local";

pub(crate) const CLUSTER_LOCAL_NAME: &str = "sluicegate-private.knative-serving.svc.cluster.local";

/// Where requests are accepted.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListenerAddresses {
    pub public: Option<SocketAddr>,
    pub cluster_local: Option<SocketAddr>,
    /// ... and for TLS.
    pub cluster_local_https: Option<SocketAddr>,
    /// For TLS.
    pub https: Option<SocketAddr>,
    /// For events, as this process reaches it.
    pub events: Option<SocketAddr>,
}

impl ListenerAddresses {
    /// The listener that an Ingress's status calls `host`: `None` if the name is unknown, and the inner one if it is
    /// off. A request to it with another Host is routed once more; each pass makes the head longer, so a loop ends at
    /// the head's limit.
    #[must_use]
    pub fn by_status_name(self, host: &str) -> Option<Option<SocketAddr>> {
        let address = match host {
            PUBLIC_NAME => self.public,
            CLUSTER_LOCAL_NAME => self.cluster_local,
            _ => return None,
        };
        Some(address.map(|mut address| {
            match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
                _ => {}
            }
            address
        }))
    }
}

/// What Gateways may open at run time, and how.
#[derive(Debug, Clone)]
pub struct GatewayListenerConfig {
    pub ports: PortRanges,
    /// Ports of other listeners of the appliance, with their flags.
    pub reserved: Vec<(u16, &'static str)>,
    pub opener: Arc<dyn OpenSockets>,
    /// The addresses of Gateways that name none.
    pub pool: Arc<AddressPool>,
}

/// What core Services open at run time, for the instances of this host.
#[derive(Debug, Clone)]
pub struct ServiceListenerConfig {
    pub opener: Arc<dyn OpenSockets>,
    /// Where the addresses of Services are looked up.
    pub domains: Arc<SearchDomains>,
    /// An address that no other appliance of this host has, nor its predecessor: addresses of Services are derived from it.
    pub server: Ipv4Addr,
}

/// Opens sockets for listeners at run time.
pub trait OpenSockets: fmt::Debug + Send + Sync {
    /// One socket for each core.
    ///
    /// # Errors
    ///
    /// The kernel's: the address is in use, this host does not have it, or a privilege is missing.
    fn open(&self, spec: ListenerSpec) -> io::Result<Vec<ListenerSocket>>;

    /// The cores close the sockets of a listener: releases what is kept of them.
    fn release(&self, spec: ListenerSpec);
}

/// Nothing is opened at run time.
impl Default for GatewayListenerConfig {
    fn default() -> Self {
        Self { ports: PortRanges::default(), reserved: Vec::new(), opener: Arc::new(NoSockets), pool: Arc::default() }
    }
}

#[derive(Debug)]
struct NoSockets;

impl OpenSockets for NoSockets {
    fn open(&self, _: ListenerSpec) -> io::Result<Vec<ListenerSocket>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn release(&self, _: ListenerSpec) {}
}
