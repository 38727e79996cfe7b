//! Names of core Services for the instances of this host: what calls `http://NAME.NAMESPACE` reaches the cores, which
//! send it to a Pod that is ready.
//!
//! All Pods have the same address and differ in their ports, which a name cannot say. So the name leads to the
//! listener of its namespace, like a Route's, and there the host chooses the Service. That is for HTTP on port 80; other ports
//! are in [`super::service_ports`].

use std::net::SocketAddr;

use contract::table::{Protocol, RequestTimeouts};
use k8s_openapi::api::core::v1::{Service, ServicePort};

use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::publish::{HostRule, WeightedBackend};
use runtime::dns::CLUSTER_DOMAIN;
use types::shared::{name, namespace};

/// The port of URLs that name none.
const HTTP: i32 = 80;
const H2C_NAMES: [&str; 2] = ["h2c", "http2"];

/// As the publisher knows it. No Route has a blank in its name.
fn owner(ns: &str, name: &str) -> String {
    format!("Service {ns}/{name}")
}

/// The Service's port that its name leads to.
pub(super) fn http_port(service: &Service) -> Option<&ServicePort> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    let is_tcp = |port: &&ServicePort| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    ports.iter().filter(is_tcp).find(|port| port.port == HTTP)
}

fn protocol(port: &ServicePort) -> Protocol {
    let name = port.name.as_deref().unwrap_or_default();
    let is_h2c = H2C_NAMES.contains(&name.split('-').next().unwrap_or_default());
    if is_h2c || port.app_protocol.as_deref() == Some("kubernetes.io/h2c") { Protocol::H2c } else { Protocol::Http1 }
}

/// The names lead to these addresses. A name that a Route has stays the Route's.
pub(super) async fn publish(context: &ControllerContext, service: &Service, addresses: &[SocketAddr]) {
    let (ns, own) = (namespace(&service.metadata), name(&service.metadata));
    let owner = owner(ns, own);
    let Some(port) = http_port(service) else { return remove(context, ns, own).await };
    let key = format!("service/{ns}/{own}:{HTTP}/names");
    let admitted: Vec<SocketAddr> =
        addresses.iter().copied().filter(|address| context.config.targets.check(*address).is_ok()).collect();
    let hosts = [format!("{own}.{ns}"), format!("{own}.{ns}.svc"), format!("{own}.{ns}.svc.{CLUSTER_DOMAIN}")];
    let rule = HostRule { cluster_local: true, ..HostRule::new(hosts, vec![WeightedBackend::new(key.clone(), 100)]) };
    match context.publisher.set_route(&owner, vec![rule]) {
        Ok(true) => context.notify(ContextChange::HostsReleased),
        Ok(false) => {}
        Err(taken) => {
            tracing::debug!(service = format!("{ns}/{own}"), owner = taken.owner, "its name is another object's");
            return;
        }
    }
    // After the route: a backend without a route would never be removed.
    context.publisher.set_addresses(&key, (protocol(port), RequestTimeouts::EXTERNAL), None, &admitted);
    context.publisher.flush().await;
}

/// The Service is gone, or nothing here stands behind it.
pub(super) async fn remove(context: &ControllerContext, ns: &str, name: &str) {
    if context.publisher.remove_route(&owner(ns, name)) {
        context.notify(ContextChange::HostsReleased);
    }
    context.publisher.flush().await;
}
