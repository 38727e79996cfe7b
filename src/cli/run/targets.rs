//! The target policy of this process: its own listeners, and what the operator allows.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use control::dns::{self, InstanceGateway};
use dataplane::table::EndpointAddress;
use dataplane::target_policy::{ListenerRole, OwnListener, RefusalReason, TargetPolicy};

use super::routes;
use super::sockets::BoundSockets;
use crate::config::{AllowedTargetRule, RunConfig};

/// Created once all listeners are bound, and before anything connects.
///
/// # Errors A `--route` leads to a listener of this process that no `--allow-target` names: requests would
/// loop.
pub(super) fn policy(
    config: &RunConfig,
    sockets: &BoundSockets,
    gateway: Option<&InstanceGateway>,
) -> Result<Arc<TargetPolicy>> {
    let groups: [(ListenerRole, &[TcpListener]); 9] = [
        (ListenerRole::Ingress, &sockets.http),
        (ListenerRole::Ingress, &sockets.https),
        (ListenerRole::Ingress, &sockets.private),
        (ListenerRole::Ingress, &sockets.private_https),
        (ListenerRole::Events, &sockets.events),
        (ListenerRole::Events, &sockets.events_https),
        (ListenerRole::Api, sockets.api.as_slice()),
        (ListenerRole::Admin, std::slice::from_ref(&sockets.admin)),
        (ListenerRole::Console, sockets.console.as_slice()),
    ];
    let mut listeners = Vec::new();
    for (role, bound) in groups {
        // All cores listen on one address.
        if let Some(listener) = bound.first() {
            listeners.push(OwnListener { role, address: listener.local_addr()? });
        }
    }
    if let Some(InstanceGateway { server, host_ports: (http, https) }) = gateway {
        let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        listeners.extend([*http, *https].map(|port| OwnListener { role: ListenerRole::Ingress, address: any(port) }));
        listeners.push(OwnListener { role: ListenerRole::Dns, address: (*server, dns::PORT).into() });
    }
    let allowed = config.allowed_targets.iter().map(|AllowedTargetRule(allowed)| *allowed).collect();
    let policy = TargetPolicy::new(listeners, allowed);
    check_routes(&policy, config)?;
    Ok(Arc::new(policy))
}

/// # Errors A `--route` leads to the appliance itself: requests would loop, or reach the API as its owner.
pub(super) fn check_routes(policy: &TargetPolicy, config: &RunConfig) -> Result<()> {
    for rule in &config.routes {
        // Other addresses are the operator's choice.
        let service = rule.forward_auth.iter().map(|rule| &rule.target);
        let resolved = rule.targets.iter().chain(service).filter_map(|target| routes::addresses(target).ok()).flatten();
        for address in resolved {
            match address {
                EndpointAddress::Ip(address) => {
                    if let Err(refused) = policy.check(address)
                        && let RefusalReason::OwnListener(_) = refused.reason
                    {
                        bail!("--route {}: {refused}", rule.host);
                    }
                }
                EndpointAddress::Unix(path) if is_own_socket(Path::new(path.as_str()), config) => {
                    bail!("--route {}: {path} is a socket of this appliance; name another server's socket", rule.host)
                }
                EndpointAddress::Unix(_) => {}
            }
        }
    }
    Ok(())
}

/// Whether a path leads to `--api-socket`, by whatever name, or into the data folder, where the socket of the hot restart is:
/// requests would reach the API as its owner.
fn is_own_socket(path: &Path, config: &RunConfig) -> bool {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let is_api = config
        .api_socket
        .as_deref()
        .is_some_and(|own| own == path || file(own).is_some_and(|own| file(path) == Some(own)));
    let is_in_data = match (path.canonicalize(), config.data.canonicalize()) {
        (Ok(path), Ok(data)) => path.starts_with(data),
        _ => path.starts_with(&config.data),
    };
    is_api || is_in_data
}
