//! What stands behind core Services with a selector: an EndpointSlice for Pods whose ports are the same ones, and the
//! Endpoints of older clients.
//!
//! All Pods have this host's address, and each has a port of its own where its container's port is. So the Pods of one
//! Service are as many slices as they have different ports.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as CorePort, EndpointSubset, Endpoints, ObjectReference, Pod, Service, ServicePort,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::owned_pods::{delete, owned, ready_since};
use super::service_ports::{self, PortTarget, ServicePorts};
use super::{WorkloadConfig, service_hosts};
use crate::api::Error;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::names::SERVICE_NAME;
use crate::owned_child::owner_references;
use crate::pods::is_derived;
use crate::work_queue::{ControllerKind, WorkItem};
use runtime::InstancePorts;
use support::child_name::child_name;
use types::selector;
use types::shared::{label, name, namespace};

const KIND: ControllerKind = ControllerKind::of_statuses("Endpoints");
/// By which Kubernetes' controllers know their slices.
const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
/// Pods that are named in one Service's endpoints; Kubernetes' figure for Endpoints.
const ENDPOINTS_MAX: usize = 1000;

#[derive(Debug)]
pub struct EndpointsController {
    workloads: WorkloadConfig,
    ports: ServicePorts,
}

impl EndpointsController {
    /// Nothing here stands behind the names of a Service.
    async fn remove_names(&self, context: &ControllerContext, item: &WorkItem) {
        service_hosts::remove(context, &item.namespace, &item.name).await;
        self.ports.remove(context, &item.namespace, &item.name).await;
    }

    #[must_use]
    pub fn new(workloads: WorkloadConfig) -> Self {
        Self { workloads, ports: ServicePorts::default() }
    }
}

impl Controller for EndpointsController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.enqueue::<Service, _>(|change| {
            newest(change).map(|service| WorkItem::new(KIND, namespace(&service.metadata), name(&service.metadata)))
        });
        watches.call::<Pod>(move |(before, after)| {
            let both = [before, after].into_iter().flatten().filter(|pod| !is_derived(&pod.metadata));
            for pod in both {
                for service in context.caches.core_services.list(namespace(&pod.metadata)) {
                    if selects(&service, pod) {
                        context.enqueue(WorkItem::new(KIND, namespace(&pod.metadata), name(&service.metadata)));
                    }
                }
            }
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

fn selects(service: &Service, pod: &Pod) -> bool {
    let labels = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()).filter(|labels| !labels.is_empty());
    labels.is_some_and(|labels| selector::matches(labels, &[], &pod.metadata))
}

async fn reconcile(
    controller: &EndpointsController,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    let Some(service) = context.caches.core_services.get(&item.namespace, &item.name) else {
        controller.remove_names(context, item).await;
        return Ok(());
    };
    let has_selector =
        service.spec.as_ref().and_then(|spec| spec.selector.as_ref()).is_some_and(|labels| !labels.is_empty());
    if service.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let slices: Vec<EndpointSlice> = owned(context, &service.metadata).await?;
    if !has_selector {
        controller.remove_names(context, item).await;
        // Its author writes them now, as long as the selector is away.
        for slice in slices.iter().filter(|slice| label(&slice.metadata, MANAGED_BY.0) == Some(MANAGED_BY.1)) {
            delete(context, slice, None).await?;
        }
        return Ok(());
    }
    let runner = &controller.workloads.runner;
    let address = |pod: &Pod| {
        let run = runner.run(pod.metadata.uid.as_deref().unwrap_or_default())?;
        Some(PodAddress { serving: run.address?, ports: run.ports })
    };
    let pods = context.caches.pods.list(&item.namespace);
    let chosen = pods.iter().filter(|pod| !is_derived(&pod.metadata) && selects(&service, pod));
    let mut backends: Vec<PodBackend> =
        chosen.filter_map(|pod| PodBackend::of(&service, pod, address(pod))).take(ENDPOINTS_MAX).collect();
    backends.sort_by(|one, other| one.pod.name.cmp(&other.pod.name));
    let wanted = desired_slices(&service, &backends);
    for slice in &slices {
        if !wanted.iter().any(|one| name(&one.metadata) == name(&slice.metadata)) {
            delete(context, slice, None).await?;
        }
    }
    for one in wanted {
        match slices.iter().find(|slice| name(&slice.metadata) == name(&one.metadata)) {
            None => drop(context.create(&one).await?),
            Some(there) if there.endpoints != one.endpoints || there.ports != one.ports => {
                let repaired = EndpointSlice { endpoints: one.endpoints, ports: one.ports, ..there.clone() };
                context.replace(&repaired).await?;
            }
            Some(_) => {}
        }
    }
    service_hosts::publish(context, &service, &http_addresses(&service, &backends)).await;
    controller.ports.publish(context, &service, &further_targets(&service, &backends)).await;
    apply_endpoints(context, &service, &backends).await
}

/// Where the Service's name leads to.
fn http_addresses(service: &Service, backends: &[PodBackend]) -> Vec<SocketAddr> {
    service_hosts::http_port(service).map(|port| addresses_of(port, backends)).unwrap_or_default()
}

/// The same of its further ports, in their order.
fn further_targets(service: &Service, backends: &[PodBackend]) -> Vec<PortTarget> {
    let ports: BTreeMap<u16, &ServicePort> = service_ports::further_ports(service).collect();
    ports.into_iter().map(|(number, port)| (number, addresses_of(port, backends))).collect()
}

fn addresses_of(port: &ServicePort, backends: &[PodBackend]) -> Vec<SocketAddr> {
    let name = port.name.clone().unwrap_or_default();
    let of = |one: &PodBackend| {
        let (.., number) = one.ports.iter().find(|(port, ..)| *port == name)?;
        Some(SocketAddr::new(one.address.ip(), *number))
    };
    backends.iter().filter(|one| one.ready).filter_map(of).collect()
}

async fn apply_endpoints(context: &ControllerContext, service: &Service, backends: &[PodBackend]) -> Result<(), Error> {
    let wanted = desired_endpoints(service, backends);
    match context.api::<Endpoints>(namespace(&service.metadata)).get_opt(name(&service.metadata)).await? {
        None => drop(context.create(&wanted).await?),
        Some(there) if there.subsets.clone().unwrap_or_default() != wanted.subsets.clone().unwrap_or_default() => {
            context.replace(&Endpoints { subsets: wanted.subsets, ..there }).await?;
        }
        Some(_) => {}
    }
    Ok(())
}

/// Where the ports of a Pod are.
#[derive(Debug, Clone)]
struct PodAddress {
    /// Its first container port.
    serving: SocketAddr,
    ports: InstancePorts,
}

/// A Pod behind a Service: where, by each of the Service's ports.
#[derive(Debug, Clone, PartialEq)]
struct PodBackend {
    pod: ObjectReference,
    address: SocketAddr,
    /// The port's name and number, in the order of the Service.
    ports: Vec<(String, String, u16)>,
    ready: bool,
    /// Its containers are ready, also while it ends.
    serving: bool,
    terminating: bool,
}

impl PodBackend {
    /// `None`: it is nowhere yet, or has ended.
    fn of(service: &Service, pod: &Pod, address: Option<PodAddress>) -> Option<Self> {
        let address = address?;
        let ports = service.spec.as_ref()?.ports.iter().flatten();
        let found = ports.filter_map(|port| {
            let number = target(port, pod, &address)?;
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            Some((port.name.clone().unwrap_or_default(), protocol, number))
        });
        let meta = &pod.metadata;
        let terminating = meta.deletion_timestamp.is_some();
        let publishes_all = service.spec.as_ref()?.publish_not_ready_addresses == Some(true);
        let serving = ready_since(pod).is_some();
        Some(Self {
            ports: found.collect(),
            address: address.serving,
            ready: (serving && !terminating) || publishes_all,
            serving,
            terminating,
            pod: ObjectReference {
                kind: Some("Pod".to_owned()),
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                uid: meta.uid.clone(),
                ..ObjectReference::default()
            },
        })
    }
}

/// The port of this host that a Service's port is at a Pod. Its container ports are where `address` says; any other is the
/// host's port of that number.
fn target(port: &ServicePort, pod: &Pod, address: &PodAddress) -> Option<u16> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let container_ports = || containers.iter().flat_map(|one| one.ports.iter().flatten());
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(0)) => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(wanted)) => {
            container_ports().find(|one| one.name.as_ref() == Some(wanted)).map(|one| one.container_port)?
        }
    };
    let own = container_ports().map(|one| one.container_port).find(|port| *port > 0);
    let own = own.unwrap_or_else(|| probed_port(pod).unwrap_or(PORT_DEFAULT));
    if number == own {
        return Some(address.serving.port());
    }
    u16::try_from(number).ok().filter(|port| *port > 0).map(|port| address.ports.host_port(port))
}

/// The port of a container that names none and has no probe that does.
const PORT_DEFAULT: i32 = 8080;

/// The port that the probes of the first container ask.
fn probed_port(pod: &Pod) -> Option<i32> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let probes = [&container.readiness_probe, &container.liveness_probe, &container.startup_probe];
    probes.into_iter().flatten().find_map(|probe| {
        let number = |port: &IntOrString| match port {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(_) => None,
        };
        let get = probe.http_get.as_ref().and_then(|get| number(&get.port));
        let tcp = probe.tcp_socket.as_ref().and_then(|tcp| number(&tcp.port));
        get.or(tcp).or(probe.grpc.as_ref().map(|grpc| grpc.port))
    })
}

/// Pods with the same ports, together.
fn by_ports(backends: &[PodBackend]) -> BTreeMap<&[(String, String, u16)], Vec<&PodBackend>> {
    let mut groups: BTreeMap<&[(String, String, u16)], Vec<&PodBackend>> = BTreeMap::new();
    for one in backends {
        groups.entry(&one.ports).or_default().push(one);
    }
    groups
}

fn desired_slices(service: &Service, backends: &[PodBackend]) -> Vec<EndpointSlice> {
    let own = name(&service.metadata);
    let labels = [(SERVICE_NAME.to_owned(), own.to_owned()), (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())];
    let labels: BTreeMap<String, String> =
        service.metadata.labels.clone().unwrap_or_default().into_iter().chain(labels).collect();
    let slice = |(ports, pods): (&[(String, String, u16)], Vec<&PodBackend>)| {
        let numbers: Vec<String> = ports.iter().map(|(.., number)| number.to_string()).collect();
        let suffix = if numbers.is_empty() { "none".to_owned() } else { numbers.join("-") };
        let endpoint = |one: &&PodBackend| Endpoint {
            addresses: vec![one.address.ip().to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(one.ready),
                serving: Some(one.serving),
                terminating: Some(one.terminating),
            }),
            node_name: Some(types::node::NODE.to_owned()),
            target_ref: Some(one.pod.clone()),
            ..Endpoint::default()
        };
        EndpointSlice {
            metadata: ObjectMeta {
                name: Some(child_name(own, &format!("-{suffix}"))),
                namespace: service.metadata.namespace.clone(),
                labels: Some(labels.clone()),
                owner_references: owner_references(service),
                ..ObjectMeta::default()
            },
            address_type: "IPv4".to_owned(),
            endpoints: pods.iter().map(endpoint).collect(),
            ports: Some(
                ports
                    .iter()
                    .map(|(name, protocol, number)| EndpointPort {
                        name: Some(name.clone()),
                        port: Some(i32::from(*number)),
                        protocol: Some(protocol.clone()),
                        ..EndpointPort::default()
                    })
                    .collect(),
            ),
        }
    };
    let mut slices: Vec<EndpointSlice> = by_ports(backends).into_iter().map(slice).collect();
    if slices.is_empty() {
        // It says that nothing is there: without a slice, Endpoints that others wrote would count.
        slices.push(slice((&[], Vec::new())));
    }
    slices
}

fn desired_endpoints(service: &Service, backends: &[PodBackend]) -> Endpoints {
    let subset = |(ports, pods): (&[(String, String, u16)], Vec<&PodBackend>)| {
        let address = |one: &&PodBackend| EndpointAddress {
            ip: one.address.ip().to_string(),
            node_name: Some(types::node::NODE.to_owned()),
            target_ref: Some(one.pod.clone()),
            ..EndpointAddress::default()
        };
        let (ready, waiting): (Vec<_>, Vec<_>) =
            pods.into_iter().filter(|one| !one.terminating || one.ready).partition(|one| one.ready);
        let some =
            |list: &[&PodBackend]| Some(list.iter().map(address).collect()).filter(|all: &Vec<_>| !all.is_empty());
        EndpointSubset {
            addresses: some(&ready),
            not_ready_addresses: some(&waiting),
            ports: Some(
                ports
                    .iter()
                    .map(|(name, protocol, number)| CorePort {
                        name: Some(name.clone()).filter(|name| !name.is_empty()),
                        port: i32::from(*number),
                        protocol: Some(protocol.clone()),
                        ..CorePort::default()
                    })
                    .collect(),
            ),
        }
    };
    let subsets = by_ports(backends).into_iter().map(subset);
    let subsets = subsets.filter(|one: &EndpointSubset| one.addresses.is_some() || one.not_ready_addresses.is_some());
    Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            labels: service.metadata.labels.clone(),
            owner_references: owner_references(service),
            ..ObjectMeta::default()
        },
        subsets: Some(subsets.collect()).filter(|all: &Vec<_>| !all.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, ready: bool) -> Pod {
        let ready = json!({ "type": "Ready", "status": if ready { "True" } else { "False" } });
        let ports = json!([{ "name": "web", "containerPort": 8080 }, { "name": "admin", "containerPort": 9000 }]);
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "ns" },
            "spec": { "containers": [{ "name": "c", "ports": ports }] }, "status": { "conditions": [ready] } }))
        .unwrap()
    }

    fn service(ports: Value) -> Service {
        serde_json::from_value(json!({ "metadata": { "name": "s", "namespace": "ns" },
            "spec": { "selector": { "app": "a" }, "ports": ports } }))
        .unwrap()
    }

    #[test]
    fn service_port_leads_to_the_pods_own_port_by_number_and_name() {
        let address = PodAddress { serving: "127.0.0.1:20001".parse().unwrap(), ports: InstancePorts::default() };
        for (target_port, number) in [
            (json!("web"), Some(20_001)),
            (json!(8080), Some(20_001)),
            (json!("admin"), Some(9000)),
            (json!(7000), Some(7000)),
            (json!("other"), None),
        ] {
            let port: ServicePort = serde_json::from_value(json!({ "port": 80, "targetPort": target_port })).unwrap();
            assert_eq!(target(&port, &pod("p", true), &address), number, "{target_port}");
        }
    }

    #[test]
    fn pods_with_ports_of_their_own_are_slices_of_their_own() {
        let service = service(json!([{ "port": 80, "targetPort": "web" }]));
        let of = |pod: &Pod, port: u16| {
            let address = PodAddress { serving: ([127, 0, 0, 1], port).into(), ports: InstancePorts::default() };
            PodBackend::of(&service, pod, Some(address)).unwrap()
        };
        let backends = [of(&pod("a", true), 20_001), of(&pod("b", false), 20_002)];
        let slices = desired_slices(&service, &backends);
        let told: Vec<_> = slices
            .iter()
            .map(|slice| (slice.ports.as_ref().unwrap()[0].port, slice.endpoints[0].conditions.as_ref().unwrap().ready))
            .collect();
        assert_eq!(told, [(Some(20_001), Some(true)), (Some(20_002), Some(false))]);
        let subsets = desired_endpoints(&service, &backends).subsets.unwrap();
        assert!(subsets[0].addresses.is_some() && subsets[1].not_ready_addresses.is_some());
        assert_eq!(desired_slices(&service, &[])[0].endpoints, []);
    }
}
