//! What the controllers are told of the command line and of the listeners.

use std::sync::{Arc, OnceLock, Weak};

use anyhow::Result;
use control::clock::WallClock;
use control::controllers::ingress::Listeners;
use control::controllers::{ControlConfig, duty};
use dataplane::events::relay::Ways;

use super::events_tls::EventsTls;
use super::instances;
use super::outward;
use super::sockets::Sockets;
use crate::admin::Health;
use crate::config::Config;

pub(super) fn control_config(
    config: &Config,
    sockets: &Sockets,
    events_tls: Option<&EventsTls>,
    health: &Health,
    ways: &Arc<OnceLock<Ways>>,
) -> Result<ControlConfig> {
    let events = outward::met_at(sockets.events[0].local_addr()?);
    Ok(ControlConfig {
        domain: config.domain.clone(),
        http_port: sockets.http[0].local_addr()?.port(),
        listeners: Listeners {
            public: Some(sockets.http[0].local_addr()?),
            private: sockets.private.first().map(std::net::TcpListener::local_addr).transpose()?,
            private_https: sockets
                .private_https
                .first()
                .map(std::net::TcpListener::local_addr)
                .transpose()?,
            https: sockets.https.first().map(std::net::TcpListener::local_addr).transpose()?,
        },
        events_url_base: format!("http://{events}"),
        events_tls: events_tls.map(EventsTls::told),
        shows_pods: config.kubeconfig.is_none(),
        holder: config.kubeconfig.is_some().then(duty::holder),
        images: config.images.iter().map(|rule| (rule.image.clone(), rule.command.clone())).collect(),
        instances: instances::rules(config),
        host_devices: config.host_devices,
        quotas: config.quotas.clone(),
        targets: Arc::clone(&health.targets),
        clock: WallClock::default(),
        store: Weak::new(), // it is opened later
        pings: Arc::clone(&health.pings),
        expiries: Arc::clone(&health.expiries),
        ways: Arc::clone(ways),
    })
}
