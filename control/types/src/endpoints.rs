//! The backends of a Service: Endpoints and EndpointSlices, as controllers and operators write them.
//!
//! Kubernetes rejects loopback addresses. Here most backends have one: a process of this
//! host.

use std::collections::HashSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, ENDPOINTS, FIRST_FEW, PrinterColumn, column};
use crate::role_rules::{CONTROLLER_READS, EDIT, VIEW};
use support::names::{self, NOT_A_SUBDOMAIN, label_error};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// Addresses of one endpoint; Kubernetes' figure.
const ADDRESSES_MAX: usize = 100;
/// Endpoints of one slice; Kubernetes' figure.
const ENDPOINTS_MAX: usize = 1000;

impl ResourceStrategy for Endpoints {
    const META: KindMeta = KindMeta {
        kind: "Endpoints",
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        columns: &[PrinterColumn { format: ENDPOINTS, ..column("Endpoints", ".subsets[*]") }, AGE],
        role_rules: &[VIEW, EDIT, CONTROLLER_READS],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        for subset in self.subsets.iter_mut().flatten() {
            for port in subset.ports.iter_mut().flatten() {
                port.protocol.get_or_insert_with(|| "TCP".into());
            }
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        for (index, subset) in self.subsets.iter().flatten().enumerate() {
            let at = format!("subsets[{index}]");
            let lists = [("addresses", &subset.addresses), ("notReadyAddresses", &subset.not_ready_addresses)];
            if lists.iter().all(|(_, list)| list.as_ref().is_none_or(Vec::is_empty)) {
                problems.add(&at, "Required value: must specify `addresses` or `notReadyAddresses`");
            }
            for (name, list) in lists {
                for (index, address) in list.iter().flatten().enumerate() {
                    is_address(&address.ip, &format!("{at}.{name}[{index}].ip"), problems);
                }
            }
            let several = subset.ports.as_ref().is_some_and(|ports| ports.len() > 1);
            for (index, port) in subset.ports.iter().flatten().enumerate() {
                let at = format!("{at}.ports[{index}]");
                let name = port.name.as_deref().unwrap_or("");
                if name.is_empty() && several {
                    problems.add(format!("{at}.name"), "Required value");
                } else if !name.is_empty() && !names::is_dns1123_label(name) {
                    let why = format!("Invalid value: {name:?}: {}", label_error(name));
                    problems.add(format!("{at}.name"), why);
                }
                is_port(port.port, &at, problems);
                is_protocol(port.protocol.as_deref(), &at, problems);
            }
        }
    }
}

impl ResourceStrategy for EndpointSlice {
    const META: KindMeta = KindMeta {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        columns: &[
            column("AddressType", ".addressType"),
            PrinterColumn { format: FIRST_FEW, ..column("Ports", ".ports[*].port") },
            PrinterColumn { format: FIRST_FEW, ..column("Endpoints", ".endpoints[*].addresses[*]") },
            AGE,
        ],
        role_rules: &[VIEW, CONTROLLER_READS],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        for port in self.ports.iter_mut().flatten() {
            port.name.get_or_insert_default();
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let family = self.address_type.as_str();
        if family.is_empty() {
            problems.add("addressType", "Required value");
        } else if !matches!(family, "FQDN" | "IPv4" | "IPv6") {
            let why = format!("Unsupported value: {family:?}: supported values: \"FQDN\", \"IPv4\", \"IPv6\"");
            problems.add("addressType", why);
        }
        if before.is_some_and(|before| before.address_type != self.address_type) {
            problems.add("addressType", format!("Invalid value: {family:?}: field is immutable"));
        }
        let ports = self.ports.as_deref().unwrap_or_default();
        let mut names_seen = HashSet::new();
        for (index, port) in ports.iter().enumerate() {
            validate_port(port, &format!("ports[{index}]"), problems);
            let name = port.name.as_deref().unwrap_or("");
            if !names_seen.insert(name) {
                problems.add(format!("ports[{index}].name"), format!("Duplicate value: {name:?}"));
            }
        }
        if self.endpoints.len() > ENDPOINTS_MAX {
            let count = self.endpoints.len();
            let why = format!("Too many: {count}: must have at most {ENDPOINTS_MAX} items");
            return problems.add("endpoints", why);
        }
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            validate_endpoint(endpoint, family, &format!("endpoints[{index}]"), problems);
        }
    }
}

fn validate_port(port: &EndpointPort, at: &str, problems: &mut FieldErrors) {
    let name = port.name.as_deref().unwrap_or("");
    if !name.is_empty() && !names::is_dns1123_label(name) {
        let why = format!("Invalid value: {name:?}: {}", label_error(name));
        problems.add(format!("{at}.name"), why);
    }
    if let Some(number) = port.port {
        is_port(number, at, problems);
    }
    is_protocol(port.protocol.as_deref(), at, problems);
}

fn validate_endpoint(endpoint: &Endpoint, family: &str, at: &str, problems: &mut FieldErrors) {
    let count = endpoint.addresses.len();
    if count == 0 {
        problems.add(format!("{at}.addresses"), "Required value: must contain at least 1 address");
    } else if count > ADDRESSES_MAX {
        let why = format!("Too many: {count}: must have at most {ADDRESSES_MAX} items");
        problems.add(format!("{at}.addresses"), why);
    }
    for (index, address) in endpoint.addresses.iter().enumerate() {
        let at = format!("{at}.addresses[{index}]");
        match (family, address.parse::<IpAddr>()) {
            ("IPv4" | "IPv6", Err(_)) => is_address(address, &at, problems),
            ("IPv4", Ok(IpAddr::V6(_))) => {
                problems.add(at, format!("Invalid value: {address:?}: must be an IPv4 address"));
            }
            ("IPv6", Ok(IpAddr::V4(_))) => {
                problems.add(at, format!("Invalid value: {address:?}: must be an IPv6 address"));
            }
            ("FQDN", _) if !names::is_dns_subdomain(address.trim_end_matches('.')) => {
                problems.add(at, format!("Invalid value: {address:?}: {NOT_A_SUBDOMAIN}"));
            }
            _ => {}
        }
    }
    if let Some(name) = endpoint.hostname.as_deref().filter(|name| !names::is_dns1123_label(name)) {
        problems.add(format!("{at}.hostname"), format!("Invalid value: {name:?}: {}", label_error(name)));
    }
}

fn is_address(text: &str, at: &str, problems: &mut FieldErrors) {
    if text.parse::<IpAddr>().is_err() {
        let why = format!("Invalid value: {text:?}: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
        problems.add(at, why);
    }
}

fn is_port(port: i32, at: &str, problems: &mut FieldErrors) {
    if !(1..=65535).contains(&port) {
        let why = format!("Invalid value: {port}: must be between 1 and 65535, inclusive");
        problems.add(format!("{at}.port"), why);
    }
}

fn is_protocol(protocol: Option<&str>, at: &str, problems: &mut FieldErrors) {
    if let Some(protocol) = protocol.filter(|protocol| !PROTOCOLS.contains(protocol)) {
        let why = format!("Unsupported value: {protocol:?}: supported values: \"SCTP\", \"TCP\", \"UDP\"");
        problems.add(format!("{at}.protocol"), why);
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn made<R: ResourceStrategy + DeserializeOwned>(mut object: Value) -> (R, Vec<String>) {
        object["metadata"] = json!({ "name": "x" });
        let mut made: R = serde_json::from_value(object).unwrap();
        made.set_defaults(None, &RequestContext::default());
        let mut problems = FieldErrors::default();
        made.validate(None, &mut problems);
        (made, problems.list.into_iter().map(|problem| problem.field).collect())
    }

    /// APP-32: Endpoints and slices are filled in and judged as Kubernetes does it, but for loopback.
    #[test]
    fn addresses_and_ports_are_judged_where_they_stand() {
        let subset = json!({ "addresses": [{ "ip": "127.0.0.1" }], "ports": [{ "port": 80 }] });
        let (good, wrong) = made::<Endpoints>(json!({ "subsets": [subset] }));
        assert!(wrong.is_empty());
        let port = &good.subsets.as_ref().unwrap()[0].ports.as_ref().unwrap()[0];
        assert_eq!(port.protocol.as_deref(), Some("TCP"));
        let bad = json!([{ "ports": [{ "port": 0 }, { "port": 1, "name": "UP", "protocol": "X" }] },
            { "notReadyAddresses": [{ "ip": "x" }] }]);
        let expected = [
            "subsets[0]",
            "subsets[0].ports[0].name",
            "subsets[0].ports[0].port",
            "subsets[0].ports[1].name",
            "subsets[0].ports[1].protocol",
            "subsets[1].notReadyAddresses[0].ip",
        ];
        assert_eq!(made::<Endpoints>(json!({ "subsets": bad })).1, expected);

        let slice = |family: &str, addresses: Value| {
            let object = json!({ "addressType": family, "endpoints": [{ "addresses": addresses }] });
            made::<EndpointSlice>(object).1
        };
        assert!(slice("IPv4", json!(["127.0.0.1"])).is_empty() && slice("FQDN", json!(["a.b."])).is_empty());
        for (family, addresses, field) in [
            ("", json!(["127.0.0.1"]), "addressType"),
            ("X", json!(["127.0.0.1"]), "addressType"),
            ("IPv4", json!([]), "endpoints[0].addresses"),
            ("IPv4", json!(["::1"]), "endpoints[0].addresses[0]"),
            ("IPv6", json!(["127.0.0.1"]), "endpoints[0].addresses[0]"),
            ("IPv4", json!(["x"]), "endpoints[0].addresses[0]"),
            ("FQDN", json!(["UP_"]), "endpoints[0].addresses[0]"),
        ] {
            assert_eq!(slice(family, addresses.clone()), [field], "{family} {addresses}");
        }
        let ports = json!({ "addressType": "IPv4", "endpoints": [], "ports": [{ "port": 80 }, { "port": 81 }] });
        assert_eq!(made::<EndpointSlice>(ports).1, ["ports[1].name"]);
    }
}
