//! The configuration of the controllers, from the command line and the listeners.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock, Weak};

use anyhow::Result;
use control::clock::WallClock;
use control::controllers::address_pool::AddressPool;
use control::controllers::listeners::{GatewayListenerConfig, ListenerAddresses, ServiceListenerConfig};
use control::controllers::revision::RevisionConfig;
use control::controllers::sources::ping::PingConfig;
use control::controllers::{ContextConfig, ControllerConfig, EventStoreConfig, leader_election};
use dataplane::core_relay::CoreSenders;

use super::advertised_address;
use super::events_tls::EventsTls;
use super::gateway_sockets::GatewaySockets;
use super::listener_name::ListenerName;
use super::sockets::BoundSockets;
use super::{image_pulls, instances};
use crate::admin::Health;
use crate::config::{AdvertisedHost, RunConfig};

pub(super) fn control_config(
    config: &RunConfig,
    (sockets, gateway_sockets, service_listeners): (&BoundSockets, &Arc<GatewaySockets>, Option<ServiceListenerConfig>),
    (events_tls, event_store): (&Option<EventsTls>, EventStoreConfig),
    health: &Health,
    ways: &Arc<OnceLock<CoreSenders>>,
) -> Result<ControllerConfig> {
    let listener = advertised_address::met_at(sockets.events[0].local_addr()?);
    let events =
        config.events_address.as_ref().map_or_else(|| listener.to_string(), |AdvertisedHost(host)| host.clone());
    let context = ContextConfig {
        domain: config.domain.clone(),
        http_port: sockets.http[0].local_addr()?.port(),
        listeners: ListenerAddresses {
            public: Some(sockets.http[0].local_addr()?),
            cluster_local: sockets.private.first().map(TcpListener::local_addr).transpose()?,
            cluster_local_https: sockets.private_https.first().map(TcpListener::local_addr).transpose()?,
            https: sockets.https.first().map(TcpListener::local_addr).transpose()?,
            events: Some(loopback(sockets.events[0].local_addr()?)),
        },
        gateway_listeners: GatewayListenerConfig {
            ports: config.gateway.ports.clone(),
            reserved: reserved_ports(sockets)?,
            opener: Arc::clone(gateway_sockets) as _,
            pool: Arc::new(AddressPool::new(config.gateway.addresses.clone())),
        },
        service_listeners,
        events_url_base: format!("http://{events}"),
        events_tls: events_tls.as_ref().map(EventsTls::listener_state),
        publishes_pods: config.kubeconfig.is_none(),
        roles: config.roles.clone(),
        leader_identity: config.kubeconfig.is_some().then(leader_election::new_identity),
        quotas: config.quotas.clone(),
        targets: Arc::clone(&health.targets),
        clock: WallClock::default(),
        event_store,
        store: Weak::new(), // it is opened later
        state_root: Some(std::path::absolute(config.data.join("state"))?),
        expiries: Arc::clone(&health.expiries),
    };
    let revisions = RevisionConfig {
        images: config.images.iter().map(|rule| (rule.image.clone(), rule.command.clone())).collect(),
        containers: image_pulls::provider(config)?,
        instances: instances::rules(config),
        host_devices: config.host_devices,
    };
    let pings = PingConfig { outcomes: Arc::clone(&health.pings), relay: Arc::clone(ways) };
    // What runs Pods is made with the runtime, later.
    Ok(ControllerConfig { context, revisions, workloads: None, pings })
}

/// The address by which this process reaches its own listener.
fn loopback(mut bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => bound.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => bound.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    bound
}

/// The ports of all listeners but those for requests, which Gateways share.
fn reserved_ports(sockets: &BoundSockets) -> Result<Vec<(u16, &'static str)>> {
    let named: [(ListenerName, Option<&TcpListener>); 7] = [
        (ListenerName::Private, sockets.private.first()),
        (ListenerName::PrivateHttps, sockets.private_https.first()),
        (ListenerName::Events, sockets.events.first()),
        (ListenerName::EventsHttps, sockets.events_https.first()),
        (ListenerName::Api, sockets.api.as_ref()),
        (ListenerName::Admin, Some(&sockets.admin)),
        (ListenerName::Console, sockets.console.as_ref()),
    ];
    let bound = named.into_iter().filter_map(|(name, listener)| Some((name.flag(), listener?)));
    bound.map(|(flag, listener)| Ok((listener.local_addr()?.port(), flag))).collect()
}
