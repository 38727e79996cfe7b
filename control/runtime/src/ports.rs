//! The container ports of an instance, and where each is on this host.

use std::net::{Ipv4Addr, SocketAddr};

/// Container ports, each with the port of this host that it is. The first is the one that serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstancePorts(Vec<(u16, u16)>);

impl InstancePorts {
    /// `serving` is the host's `real` port.
    pub(crate) fn new(serving: u16, real: u16) -> Self {
        Self(vec![(serving, real)])
    }

    pub(crate) fn add(&mut self, container_port: u16, real: u16) {
        self.0.push((container_port, real));
    }

    /// The same where no port can be the instance's own: all but the one that serves, which its program is told, are the host's.
    pub(crate) fn shared_with_host(&self) -> Self {
        let serving = self.0.iter().take(1).copied();
        Self(serving.chain(self.0.iter().skip(1).map(|(port, _)| (*port, *port))).collect())
    }

    pub(crate) fn pairs(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// The host's port of the container port that serves.
    pub(crate) fn serving(&self) -> u16 {
        self.0.first().map_or(0, |(_, real)| *real)
    }

    /// The port of this host that a program in the instance means by `port`: its own, or else the host's of that number.
    #[must_use]
    pub fn host_port(&self, port: u16) -> u16 {
        self.0.iter().find(|(container_port, _)| *container_port == port).map_or(port, |(_, real)| *real)
    }

    /// Where the container port is, if the instance has it.
    pub(crate) fn address_of(&self, port: u16) -> Option<SocketAddr> {
        let found = self.0.iter().find(|(container_port, _)| *container_port == port);
        found.map(|(_, real)| SocketAddr::from((Ipv4Addr::LOCALHOST, *real)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ports_lead_to_ports_of_the_host() {
        let mut ports = InstancePorts::new(8080, 20_001);
        ports.add(9000, 20_002);
        assert_eq!([8080, 9000, 7000].map(|port| ports.host_port(port)), [20_001, 20_002, 7000]);
        assert_eq!((ports.serving(), ports.address_of(7000)), (20_001, None));
        let shared = ports.shared_with_host();
        assert_eq!([8080, 9000].map(|port| shared.host_port(port)), [20_001, 9000]);
        assert_eq!(shared.address_of(9000), Some(([127, 0, 0, 1], 9000).into()));
    }
}
