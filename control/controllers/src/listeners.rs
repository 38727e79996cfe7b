//! The listeners for requests, and their names in statuses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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
