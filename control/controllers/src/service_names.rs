//! Core Services as destinations: their names, and their endpoints, for the cores.
//!
//! The appliance uses no cluster DNS, so `NAME.NAMESPACE.svc.cluster.local` is resolved by
//! the EndpointSlices, or else the Endpoints, of the Service.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use contract::service_names::{ServiceName, ServiceNames};
use k8s_openapi::api::core::v1::{EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::caches::Caches;
use crate::context::ControllerContext;
use crate::controller::{Watches, newest};
use crate::indexes::{NOT_PLACEHOLDER, is_placeholder};
use crate::names::SERVICE_NAME;
use runtime::dns::CLUSTER_DOMAIN;
use types::shared::{label, name, namespace};

/// Publishes the names whenever a Service or its endpoints change. Placeholders of Routes are left out.
pub(crate) fn register<'a>(context: &'a ControllerContext, watches: &mut Watches<'a>) {
    let publish = move || context.publisher.set_service_names(compile(&context.caches));
    watches.call::<Service>(move |change| {
        if newest(change).is_some_and(|service| !is_placeholder(service)) {
            publish();
        }
    });
    watches.call::<Endpoints>(move |_| publish());
    watches.call::<EndpointSlice>(move |_| publish());
}

fn compile(caches: &Caches) -> ServiceNames {
    let mut names = ServiceNames::default();
    let mut slices: BTreeMap<(String, String), Vec<_>> = BTreeMap::new();
    for slice in caches.endpoint_slices.all() {
        if let Some(service) = label(&slice.metadata, SERVICE_NAME) {
            let key = (namespace(&slice.metadata).to_owned(), service.to_owned());
            slices.entry(key).or_default().push(slice);
        }
    }
    for service in caches.core_services.all_by_index(NOT_PLACEHOLDER) {
        let (ns, name) = (namespace(&service.metadata), name(&service.metadata));
        let of_it = slices.get(&(ns.to_owned(), name.to_owned()));
        let places: Vec<ServiceEndpoint> = match of_it {
            Some(slices) => slices.iter().flat_map(|slice| of_slice(slice)).collect(),
            None => caches.endpoints.get(ns, name).map(|found| of_endpoints(&found)).unwrap_or_default(),
        };
        let meaning = service_name(&service, &places);
        for host in [format!("{name}.{ns}"), format!("{name}.{ns}.svc"), format!("{name}.{ns}.svc.{CLUSTER_DOMAIN}")] {
            names.insert(&host, meaning.clone());
        }
    }
    names
}

/// A port's name, and its endpoints.
type ServiceEndpoint = (String, SocketAddr);

fn service_name(service: &Service, places: &[ServiceEndpoint]) -> ServiceName {
    let spec = service.spec.as_ref();
    if let Some(host) = spec.and_then(|spec| spec.external_name.as_deref()) {
        return ServiceName::Alias(host.trim_end_matches('.').to_ascii_lowercase().into());
    }
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let of_port = |port_name: &str| -> Vec<SocketAddr> {
        places.iter().filter(|(name, _)| name == port_name).map(|(_, at)| *at).collect()
    };
    ServiceName::Endpoints(
        ports
            .iter()
            .filter_map(|port| {
                let number = u16::try_from(port.port).ok()?;
                Some((number, of_port(port.name.as_deref().unwrap_or_default())))
            })
            .collect(),
    )
}

fn of_slice(slice: &EndpointSlice) -> Vec<ServiceEndpoint> {
    let ready = slice.endpoints.iter().filter(|endpoint| {
        // Not said is ready, as Kubernetes reads it.
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
    });
    let addresses: Vec<IpAddr> =
        ready.flat_map(|endpoint| &endpoint.addresses).filter_map(|text| text.parse().ok()).collect();
    let ports = slice.ports.iter().flatten().filter_map(|port| {
        let number = u16::try_from(port.port?).ok()?;
        Some((port.name.clone().unwrap_or_default(), number))
    });
    cross_product(ports, &addresses)
}

fn of_endpoints(endpoints: &Endpoints) -> Vec<ServiceEndpoint> {
    let of_subset = |subset: &EndpointSubset| {
        let addresses: Vec<IpAddr> =
            subset.addresses.iter().flatten().filter_map(|address| address.ip.parse().ok()).collect();
        let ports = subset
            .ports
            .iter()
            .flatten()
            .filter_map(|port| Some((port.name.clone().unwrap_or_default(), u16::try_from(port.port).ok()?)));
        cross_product(ports, &addresses)
    };
    endpoints.subsets.iter().flatten().flat_map(of_subset).collect()
}

fn cross_product(ports: impl Iterator<Item = (String, u16)>, addresses: &[IpAddr]) -> Vec<ServiceEndpoint> {
    let each = |(name, port): (String, u16)| {
        addresses.iter().map(move |ip| (name.clone(), SocketAddr::new(*ip, port))).collect::<Vec<_>>()
    };
    ports.flat_map(each).collect()
}

#[cfg(test)]
mod tests {
    use contract::service_names::ResolvedAddress;
    use serde_json::{Value, json};

    use super::*;

    fn compiled(service: Value, endpoints: Value, slices: Value) -> ServiceNames {
        let caches = Caches::default();
        let meta = json!({"name": "s", "namespace": "ns"});
        let service = json!({"metadata": meta, "spec": service});
        caches.core_services.replace(vec![serde_json::from_value(service).unwrap()], |_| {});
        let endpoints = json!({"metadata": meta, "subsets": endpoints});
        caches.endpoints.replace(vec![serde_json::from_value(endpoints).unwrap()], |_| {});
        caches.endpoint_slices.replace(serde_json::from_value(slices).unwrap(), |_| {});
        compile(&caches)
    }

    /// EV-ADR-02: a Service resolves to its endpoints, by the port's name.
    #[test]
    fn a_service_stands_for_its_ready_endpoints() {
        let ports = json!([{"name": "http", "port": 80}, {"name": "other", "port": 81}]);
        let endpoints = json!([{"addresses": [{"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.9"}],
            "ports": [{"name": "http", "port": 8080}]}]);
        let find = |names: &ServiceNames, port: u16| names.find("s.ns.svc.cluster.local", port, |_| 0);
        let at = |text: &str| Some(ResolvedAddress::At(text.parse().unwrap()));
        let names = compiled(json!({"ports": ports}), endpoints.clone(), json!([]));
        assert_eq!((find(&names, 80), find(&names, 81)), (at("10.0.0.1:8080"), Some(ResolvedAddress::Unresolved)));
        assert_eq!(names.find("s.ns.svc", 80, |_| 0), at("10.0.0.1:8080"));
        assert_eq!(names.find("s.ns", 80, |_| 0), at("10.0.0.1:8080"));
        assert_eq!(names.find("s.other", 80, |_| 0), None);

        // Slices take precedence over Endpoints; endpoints that are not ready are left out.
        let slice = json!([{"metadata": {"name": "s-1", "namespace": "ns", "labels": {SERVICE_NAME: "s"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 9090}],
            "endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": false}}, {"addresses": ["10.0.0.3"]}]}]);
        let names = compiled(json!({"ports": ports}), endpoints, slice);
        assert_eq!(find(&names, 80), at("10.0.0.3:9090"));

        let names = compiled(json!({"type": "ExternalName", "externalName": "Db.example.com."}), json!([]), json!([]));
        assert_eq!(find(&names, 80), Some(ResolvedAddress::Alias("db.example.com".into())));
    }
}
