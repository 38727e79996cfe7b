//! Further ports of core Services, for the instances of this host: what connects to `NAME.NAMESPACE:6379` reaches a Pod that
//! is ready.
//!
//! Pods have the same address and differ in their ports. So such a Service gets an address of its own, to which its name
//! resolves; the cores accept there, at each of its ports, and relay the connections. Port 80 is the gateway's, as for
//! all names ([`super::service_hosts`]).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use contract::listener_sockets::{ListenerProtocol, ListenerSocket, ListenerSockets, ListenerSpec};
use contract::service_names::SERVICES;
use contract::table::{Protocol, RequestTimeouts};
use k8s_openapi::api::core::v1::{Service, ServicePort};

use super::limits::{ALL_SERVICE_PORTS_MAX, SERVICE_ADDRESSES_TRIED_MAX, SERVICE_PORTS_MAX};
use crate::context::ControllerContext;
use crate::listeners::ServiceListenerConfig;
use crate::publish::{HostRule, ListenerHostname, ListenerState, PathRule, WeightedBackend};
use types::shared::{name, namespace};

/// Those of the gateway, whatever address a name has.
const GATEWAY_PORTS: [u16; 2] = [80, 443];
const ANY_HOST: &str = "*";

/// The listeners of all Services.
#[derive(Debug, Default)]
pub(super) struct ServicePorts(Mutex<BTreeMap<String, OpenService>>);

/// One Service: its address, and its open ports.
#[derive(Debug)]
struct OpenService {
    address: Ipv4Addr,
    sockets: BTreeMap<u16, Arc<ListenerSockets>>,
}

/// A port, and the addresses behind it.
pub(super) type PortTarget = (u16, Vec<SocketAddr>);

/// The TCP ports of a Service that need a listener.
pub(super) fn further_ports(service: &Service) -> impl Iterator<Item = (u16, &ServicePort)> {
    let ports = service.spec.iter().filter_map(|spec| spec.ports.as_ref()).flatten();
    let is_tcp = |port: &&ServicePort| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    let numbered = ports.filter(is_tcp).filter_map(|port| Some((u16::try_from(port.port).ok()?, port)));
    numbered.filter(|(number, _)| *number > 0 && !GATEWAY_PORTS.contains(number)).take(SERVICE_PORTS_MAX)
}

/// As the publisher knows it. No Route has a blank in its name.
fn owner(service: &str) -> String {
    format!("Ports of Service {service}")
}

impl ServicePorts {
    /// The Service's name leads to these targets. Without any, nothing is open.
    pub(super) async fn publish(&self, context: &ControllerContext, service: &Service, targets: &[PortTarget]) {
        let (ns, own) = (namespace(&service.metadata), name(&service.metadata));
        let Some(config) = context.config.service_listeners.as_ref().filter(|_| !targets.is_empty()) else {
            return self.remove(context, ns, own).await;
        };
        let key = format!("{ns}/{own}");
        if let Err(why) = self.open(context, config, &key, targets) {
            tracing::warn!(service = key, %why, "the ports of a Service besides 80 are not open to instances");
            return self.remove(context, ns, own).await;
        }
        let Some(rules) = self.rules(&key, context) else { return };
        if let Err(taken) = context.publisher.set_route(&owner(&key), rules) {
            tracing::warn!(service = key, owner = taken.owner, "its ports are another object's");
        }
        for (port, addresses) in targets {
            let admitted: Vec<SocketAddr> =
                addresses.iter().copied().filter(|address| context.config.targets.check(*address).is_ok()).collect();
            let how = (Protocol::Http1, RequestTimeouts::EXTERNAL);
            context.publisher.set_addresses(&backend(&key, *port), how, None, &admitted);
        }
        context.publisher.flush().await;
        // Its name resolves to its address only once the cores accept there.
        config.domains.set_service(ns, own, self.address(&key));
    }

    /// The Service is gone, or has no such ports.
    pub(super) async fn remove(&self, context: &ControllerContext, ns: &str, name: &str) {
        let key = format!("{ns}/{name}");
        if let Some(config) = &context.config.service_listeners {
            config.domains.set_service(ns, name, None);
        }
        if self.close(context, &key) {
            context.publisher.remove_route(&owner(&key));
            context.publisher.flush().await;
        }
    }

    fn address(&self, key: &str) -> Option<Ipv4Addr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).map(|open| open.address)
    }

    /// Opens the ports, all at one address. Those of a Service whose ports have changed are closed before.
    fn open(
        &self,
        context: &ControllerContext,
        config: &ServiceListenerConfig,
        key: &str,
        targets: &[PortTarget],
    ) -> io::Result<()> {
        {
            let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if open.get(key).is_some_and(|open| open.sockets.keys().eq(targets.iter().map(|(port, _)| port))) {
                return Ok(());
            }
            let others = open.iter().filter(|(name, _)| *name != key).map(|(_, one)| one.sockets.len()).sum::<usize>();
            if others + targets.len() > ALL_SERVICE_PORTS_MAX {
                return Err(io::Error::other(format!("{others} such ports are open, limit {ALL_SERVICE_PORTS_MAX}")));
            }
        }
        self.close(context, key);
        let (address, sockets) = open_all(config, key, targets)?;
        let sockets = sockets.into_iter().map(|(spec, sockets)| {
            let sockets = ListenerSockets::new(context.publisher.listener_id(spec), spec, sockets);
            let hostnames = [ANY_HOST.to_owned()].into();
            let state = ListenerState { sockets: Some(Arc::clone(&sockets)), hostnames, ..ListenerState::default() };
            context.publisher.set_listener(spec, state);
            (spec.address.port(), sockets)
        });
        let opened = OpenService { address, sockets: sockets.collect() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), opened);
        Ok(())
    }

    /// Whether something was open.
    fn close(&self, context: &ControllerContext, key: &str) -> bool {
        let Some(open) = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key) else { return false };
        for sockets in open.sockets.values() {
            context.publisher.set_listener(sockets.spec, ListenerState::default());
        }
        true
    }

    /// A rule for each listener: all of its connections go to one backend.
    fn rules(&self, key: &str, context: &ControllerContext) -> Option<Vec<HostRule>> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rule = |(port, sockets): (&u16, &Arc<ListenerSockets>)| {
            let (id, spec) = (context.publisher.listener_id(sockets.spec), sockets.spec);
            let splits = vec![WeightedBackend::new(backend(key, *port), 100)];
            HostRule {
                hosts: vec![ANY_HOST.into()],
                paths: vec![PathRule { splits, ..PathRule::default() }],
                listener: Some(ListenerHostname { id, spec, hostname: ANY_HOST.to_owned() }.into()),
                ..HostRule::default()
            }
        };
        Some(open.get(key)?.sockets.iter().map(rule).collect())
    }
}

fn backend(key: &str, port: u16) -> String {
    format!("service/{key}:{port}/ports")
}

type OpenedSockets = Vec<(ListenerSpec, Vec<ListenerSocket>)>;

/// At the first address whose ports are all free.
fn open_all(
    config: &ServiceListenerConfig,
    key: &str,
    targets: &[PortTarget],
) -> io::Result<(Ipv4Addr, OpenedSockets)> {
    let mut outcome = Err(io::ErrorKind::AddrInUse.into());
    for turn in 0..SERVICE_ADDRESSES_TRIED_MAX {
        let address = candidate(config.server, key, turn);
        let open = |(port, _): &PortTarget| {
            let spec = ListenerSpec { address: (address, *port).into(), protocol: ListenerProtocol::Tcp };
            Ok((spec, config.opener.open(spec)?))
        };
        outcome = targets.iter().map(open).collect::<io::Result<OpenedSockets>>().map(|all| (address, all));
        match &outcome {
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => {}
            _ => break,
        }
    }
    outcome
}

/// The same for a Service as long as the process lives.
fn candidate(server: Ipv4Addr, key: &str, turn: u64) -> Ipv4Addr {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((server, key, turn));
    let (first, last) = (u32::from(*SERVICES.start()), u32::from(*SERVICES.end()));
    // Neither the network's own address nor its broadcast address.
    let number = u32::try_from(hash % u64::from(last - first - 1)).unwrap_or_default();
    Ipv4Addr::from(first + 1 + number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_candidate_is_an_address_of_services() {
        let server = Ipv4Addr::new(127, 96, 0, 1);
        assert!((0..10_000).all(|turn| SERVICES.contains(&candidate(server, "ns/db", turn))));
        assert_eq!(candidate(server, "ns/db", 0), candidate(server, "ns/db", 0));
        assert_ne!(candidate(server, "ns/db", 0), candidate(Ipv4Addr::new(127, 96, 0, 2), "ns/db", 0));
    }

    #[test]
    fn ports_of_the_gateway_and_of_udp_are_left_out() {
        let service: Service = serde_json::from_value(json!({ "spec": { "ports": [
            { "port": 80 }, { "port": 443 }, { "port": 6379 }, { "port": 53, "protocol": "UDP" }, { "port": 0 }] } }))
        .unwrap();
        assert_eq!(further_ports(&service).map(|(number, _)| number).collect::<Vec<_>>(), [6379]);
    }
}
