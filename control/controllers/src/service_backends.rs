//! The backends of a split's core Service: values in, values out.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use contract::table::Protocol;
use contract::target_policy::TargetPolicy;
use k8s_openapi::api::core::v1::{Endpoints, Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::names::revision_key;
use runtime::dns::CLUSTER_DOMAIN;
use types::networking::ingress::IngressBackendSplit;
use types::serving::revision::Revision;
use types::serving::route::Route;

/// Ports by which a Service says that its instances speak HTTP/2 without TLS.
const H2C_NAMES: [&str; 2] = ["h2c", "http2"];
const H2C_PROTOCOL: &str = "kubernetes.io/h2c";
const EXTERNAL_NAME: &str = "ExternalName";

/// Where Services and what is after them are looked up, in the Ingress's namespace or another.
pub trait ServiceLookup {
    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>>;
    fn endpoints(&self, namespace: &str, name: &str) -> Option<Arc<Endpoints>>;
    /// The EndpointSlices that are labelled with the Service's name.
    fn slices(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>>;
    fn revision(&self, namespace: &str, name: &str) -> Option<Arc<Revision>>;
    fn route(&self, namespace: &str, name: &str) -> Option<Arc<Route>>;
}

/// The backends of a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitBackend {
    /// Ready endpoints, in order; possibly none yet.
    Addresses { protocol: Protocol, addresses: Vec<SocketAddr> },
    /// A name outside, to be looked up.
    Name { protocol: Protocol, host: String, port: u16 },
    /// Our own Revisions: backend keys with their weights.
    Revisions(Vec<(String, u32)>),
}

/// Why a split leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendResolveError {
    pub reason: &'static str,
    pub message: String,
}

fn unresolved(reason: &'static str, message: String) -> BackendResolveError {
    BackendResolveError { reason, message }
}

/// The key under which a split's addresses are published, as they are reached by TLS or not.
#[must_use]
pub fn key(split: &IngressBackendSplit, by_tls: bool) -> String {
    let port = match &split.service_port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    let scheme = if by_tls { "tls+" } else { "" };
    format!("{scheme}service/{}/{}:{port}", split.service_namespace, split.service_name)
}

/// What the split's Service leads to. A Revision or Route of ours of that name stands for the Service that
/// Knative would have made for it.
/// By TLS the Service's ports say together what is spoken: the one for TLS has a name of its own.
pub fn resolve_backend(
    split: &IngressBackendSplit,
    by_tls: bool,
    lookup: &impl ServiceLookup,
) -> Result<SplitBackend, BackendResolveError> {
    let (ns, name) = (split.service_namespace.as_str(), split.service_name.as_str());
    let Some(service) = lookup.service(ns, name) else {
        if lookup.revision(ns, name).is_some() {
            return Ok(SplitBackend::Revisions(vec![(revision_key(ns, name), 1)]));
        }
        return match lookup.route(ns, name) {
            Some(route) => route_backend(ns, &route),
            None => Err(unresolved("ServiceNotFound", format!("Service \"{ns}/{name}\" not found."))),
        };
    };
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.as_deref().unwrap_or_default();
    let port = ports.iter().find(|port| is_named(port, &split.service_port));
    if spec.type_.as_deref() == Some(EXTERNAL_NAME) {
        let host = spec.external_name.unwrap_or_default().to_ascii_lowercase();
        if let Some(route) = parse_cluster_host(&host).and_then(|(name, ns)| lookup.route(ns, name)) {
            return route_backend(parse_cluster_host(&host).map(|(_, ns)| ns).unwrap_or_default(), &route);
        }
        return external_backend(host, port, protocol_of_ports(ports, port, by_tls), &split.service_port)
            .ok_or_else(|| no_port(ns, name, &split.service_port));
    }
    let port = port.ok_or_else(|| no_port(ns, name, &split.service_port))?;
    let slices = lookup.slices(ns, name);
    let addresses = if slices.is_empty() {
        lookup.endpoints(ns, name).map(|endpoints| endpoint_addresses(&endpoints, port)).unwrap_or_default()
    } else {
        slice_addresses(&slices, port)
    };
    Ok(SplitBackend::Addresses { protocol: protocol_of_ports(ports, Some(port), by_tls), addresses })
}

/// The addresses of a Service that the target policy lets it have. The policy is asked again where a connection is opened.
pub(crate) fn admit_addresses(
    policy: &TargetPolicy,
    service: &str,
    addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, BackendResolveError> {
    let (mut targets, mut refused) = (Vec::with_capacity(addresses.len()), None);
    for address in addresses {
        match policy.check(address) {
            Ok(()) => targets.push(address),
            Err(why) => refused = Some(why),
        }
    }
    let Some(refused) = refused else { return Ok(targets) };
    tracing::warn!(service, "address is not routed to: {refused}");
    if targets.is_empty() {
        return Err(unresolved("TargetRefused", format!("Service \"{service}\": {refused}.")));
    }
    Ok(targets)
}

fn no_port(ns: &str, name: &str, port: &IntOrString) -> BackendResolveError {
    let port = match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => format!("{name:?}"),
    };
    unresolved("PortNotFound", format!("Service \"{ns}/{name}\" has no port {port}."))
}

fn is_named(port: &ServicePort, wanted: &IntOrString) -> bool {
    match wanted {
        IntOrString::Int(number) => port.port == *number,
        IntOrString::String(name) => port.name.as_deref() == Some(name) || port.port.to_string() == *name,
    }
}

/// X-KI-11: the port's name decides, or what it says its application speaks.
fn protocol(port: &ServicePort) -> Protocol {
    let name = port.name.as_deref().unwrap_or_default();
    let named = H2C_NAMES.iter().any(|known| name.split('-').next() == Some(known));
    if named || port.app_protocol.as_deref() == Some(H2C_PROTOCOL) { Protocol::H2c } else { Protocol::Http1 }
}

/// `NAME.NAMESPACE.svc`, with or without the cluster's domain.
fn parse_cluster_host(host: &str) -> Option<(&str, &str)> {
    let host = host.strip_suffix(CLUSTER_DOMAIN).and_then(|host| host.strip_suffix('.')).unwrap_or(host);
    host.strip_suffix(".svc")?.split_once('.')
}

/// The Revisions that a Route sends to.
pub(crate) fn route_backend(ns: &str, route: &Route) -> Result<SplitBackend, BackendResolveError> {
    let traffic = route.status.iter().flat_map(|status| &status.traffic);
    let weighted = traffic.filter_map(|target| {
        let weight = u32::try_from(target.percent?).ok().filter(|weight| *weight > 0)?;
        Some((revision_key(ns, target.revision()?), weight))
    });
    let weighted: Vec<_> = weighted.collect();
    if weighted.is_empty() {
        let name = route.metadata.name.as_deref().unwrap_or_default();
        return Err(unresolved("RouteNotReady", format!("Route \"{ns}/{name}\" has no traffic yet.")));
    }
    Ok(SplitBackend::Revisions(weighted))
}

fn protocol_of_ports(ports: &[ServicePort], port: Option<&ServicePort>, by_tls: bool) -> Protocol {
    let speaks_http2 = |port: &ServicePort| protocol(port) == Protocol::H2c;
    match port {
        _ if by_tls && ports.iter().any(speaks_http2) => Protocol::H2c,
        Some(port) => protocol(port),
        None => Protocol::default(),
    }
}

fn external_backend(
    host: String,
    port: Option<&ServicePort>,
    protocol: Protocol,
    wanted: &IntOrString,
) -> Option<SplitBackend> {
    let number = match (port, wanted) {
        (Some(port), _) => match &port.target_port {
            Some(IntOrString::Int(number)) => *number,
            _ => port.port,
        },
        (None, IntOrString::Int(number)) => *number,
        (None, IntOrString::String(_)) => return None,
    };
    let port = u16::try_from(number).ok().filter(|port| *port > 0)?;
    Some(match host.parse::<IpAddr>() {
        Ok(ip) => SplitBackend::Addresses { protocol, addresses: vec![SocketAddr::new(ip, port)] },
        Err(_) => SplitBackend::Name { protocol, host, port },
    })
}

/// The port of a list that belongs to the Service's: by its name, or the only one there is.
fn matching<'a>(
    service: &ServicePort,
    listed: impl Iterator<Item = (Option<&'a str>, Option<i32>)> + Clone,
) -> Option<u16> {
    let wanted = service.name.as_deref().unwrap_or_default();
    let named = listed.clone().find(|(name, _)| name.unwrap_or_default() == wanted);
    let single = || {
        let mut all = listed.clone();
        let first = all.next()?;
        all.next().is_none().then_some(first)
    };
    u16::try_from(named.or_else(single)?.1?).ok()
}

fn endpoint_addresses(endpoints: &Endpoints, service: &ServicePort) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = endpoints
        .subsets
        .iter()
        .flatten()
        .filter_map(|subset| {
            let ports = subset.ports.iter().flatten().map(|port| (port.name.as_deref(), Some(port.port)));
            Some((subset, matching(service, ports)?))
        })
        .flat_map(|(subset, port)| {
            let ready = subset.addresses.iter().flatten();
            ready.filter_map(move |address| Some(SocketAddr::new(address.ip.parse().ok()?, port)))
        })
        .collect();
    sort_addresses(&mut addresses);
    addresses
}

fn slice_addresses(slices: &[Arc<EndpointSlice>], service: &ServicePort) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = slices
        .iter()
        .filter_map(|slice| {
            let ports = slice.ports.iter().flatten().map(|port| (port.name.as_deref(), port.port));
            Some((slice, matching(service, ports)?))
        })
        .flat_map(|(slice, port)| {
            // What does not say is ready (Kubernetes' reading).
            let ready = slice
                .endpoints
                .iter()
                .filter(|one| one.conditions.as_ref().and_then(|known| known.ready).unwrap_or(true));
            ready.flat_map(|one| &one.addresses).filter_map(move |ip| Some(SocketAddr::new(ip.parse().ok()?, port)))
        })
        .collect();
    sort_addresses(&mut addresses);
    addresses
}

fn sort_addresses(addresses: &mut Vec<SocketAddr>) {
    addresses.sort_unstable();
    addresses.dedup();
}

#[cfg(test)]
mod tests;
