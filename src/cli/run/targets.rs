//! The target policy of this process: its own listeners, and what the operator allows.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Result, bail};
use control::dns::{self, InstanceGateway};
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
    let groups: [(ListenerRole, &[TcpListener]); 8] = [
        (ListenerRole::Ingress, &sockets.http),
        (ListenerRole::Ingress, &sockets.https),
        (ListenerRole::Ingress, &sockets.private),
        (ListenerRole::Ingress, &sockets.private_https),
        (ListenerRole::Events, &sockets.events),
        (ListenerRole::Events, &sockets.events_https),
        (ListenerRole::Api, sockets.api.as_slice()),
        (ListenerRole::Admin, std::slice::from_ref(&sockets.admin)),
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
    for rule in &config.routes {
        // Other addresses are the operator's choice.
        let resolved = rule.targets.iter().filter_map(|target| routes::addresses(target).ok()).flatten();
        for refused in resolved.filter_map(|address| policy.check(address).err()) {
            if let RefusalReason::OwnListener(_) = refused.reason {
                bail!("--route {}: {refused}", rule.host);
            }
        }
    }
    Ok(Arc::new(policy))
}
