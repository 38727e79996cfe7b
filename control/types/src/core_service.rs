//! Core Services: names of backends. Defaults and rules are Kubernetes'; addresses are not assigned.
//!
//! Nothing here forwards from a cluster IP to endpoints, so a Service that asks for none is headless
//! (`clusterIP: None`): its name stands for its endpoints. An address in a client's request is stored as it is.

use std::collections::HashSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ClientIPConfig, Service, ServicePort, ServiceSpec, SessionAffinityConfig};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, LABELS, PrinterColumn, SERVICE_EXTERNAL_ADDRESSES, SERVICE_PORTS, column};
use crate::role_rules::{CONTROLLER_READS, EDIT, VIEW};
use support::labels;
use support::names::{self, NOT_A_SUBDOMAIN};

const CLUSTER_IP: &str = "ClusterIP";
const EXTERNAL_NAME: &str = "ExternalName";
const LOAD_BALANCER: &str = "LoadBalancer";
const NODE_PORT: &str = "NodePort";
const TYPES: [&str; 4] = [CLUSTER_IP, EXTERNAL_NAME, LOAD_BALANCER, NODE_PORT];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// The value for an address that is not assigned.
const HEADLESS: &str = "None";

/// Default duration of session affinity in seconds; Kubernetes' figure.
const AFFINITY_SECONDS: i32 = 10_800;
/// ... and the longest: a day.
const AFFINITY_SECONDS_MAX: i32 = 86_400;

impl ResourceStrategy for Service {
    const META: KindMeta = KindMeta {
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        categories: &["all"],
        has_status: true,
        columns: &[
            column("Type", ".spec.type"),
            column("Cluster-IP", ".spec.clusterIP|=<none>"),
            PrinterColumn { format: SERVICE_EXTERNAL_ADDRESSES, ..column("External-IP", "") },
            PrinterColumn { format: SERVICE_PORTS, ..column("Port(s)", ".spec.ports[*]") },
            AGE,
            PrinterColumn { format: LABELS, priority: 1, ..column("Selector", ".spec.selector|=<none>") },
        ],
        role_rules: &[VIEW.on(&["", "status"]), EDIT, CONTROLLER_READS],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, _: &RequestContext) {
        let spec = self.spec.get_or_insert_default();
        let was = before.and_then(|before| before.spec.as_ref());
        if let Some(was) = was {
            clear_stale_fields(spec, was);
        }
        set_plain_defaults(spec);
        set_cluster_ip(spec, was);
        if before.is_none() {
            self.status.get_or_insert_default().load_balancer.get_or_insert_default();
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let Some(spec) = &self.spec else { return problems.add("spec", "Required value") };
        let before = before.and_then(|before| before.spec.as_ref());
        validate_type(spec, problems);
        validate_ports(spec, problems);
        validate_addresses(spec, before, problems);
        validate_affinity(spec, problems);
        validate_families(spec, problems);
    }
}

/// Warnings about an accepted Service.
#[must_use]
pub fn warnings(service: &serde_json::Value) -> Vec<String> {
    let spec = &service["spec"];
    let named = spec["externalName"].as_str().is_some_and(|name| !name.is_empty());
    if named && spec["type"] != EXTERNAL_NAME {
        return vec![r#"spec.externalName is ignored when spec.type is not "ExternalName""#.into()];
    }
    Vec::new()
}

fn has_type(spec: &ServiceSpec, kind: &str) -> bool {
    spec.type_.as_deref() == Some(kind)
}

fn is_externally_reachable(spec: &ServiceSpec) -> bool {
    let addresses = spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    has_type(spec, LOAD_BALANCER) || has_type(spec, NODE_PORT) || (has_type(spec, CLUSTER_IP) && addresses)
}

/// Fields that only exist because the Service had another type, or external addresses, are removed with that; fields that a
/// client sets now are not.
fn clear_stale_fields(spec: &mut ServiceSpec, was: &ServiceSpec) {
    spec.type_.get_or_insert_with(|| CLUSTER_IP.into());
    if is_externally_reachable(was)
        && !is_externally_reachable(spec)
        && spec.external_traffic_policy == was.external_traffic_policy
    {
        spec.external_traffic_policy = None;
    }
    if has_type(was, LOAD_BALANCER) && !has_type(spec, LOAD_BALANCER) {
        if spec.allocate_load_balancer_node_ports == was.allocate_load_balancer_node_ports {
            spec.allocate_load_balancer_node_ports = None;
        }
        if spec.load_balancer_class == was.load_balancer_class {
            spec.load_balancer_class = None;
        }
        if spec.health_check_node_port == was.health_check_node_port {
            spec.health_check_node_port = None;
        }
    }
    if has_type(spec, EXTERNAL_NAME) && spec.internal_traffic_policy == was.internal_traffic_policy {
        spec.internal_traffic_policy = None;
    }
    let had_node_ports = has_type(was, LOAD_BALANCER) || has_type(was, NODE_PORT);
    if had_node_ports && !has_type(spec, LOAD_BALANCER) && !has_type(spec, NODE_PORT) {
        let known: HashSet<_> = was.ports.iter().flatten().filter_map(|port| port.node_port).collect();
        for port in spec.ports.iter_mut().flatten() {
            port.node_port = port.node_port.filter(|number| !known.contains(number));
        }
    }
}

fn set_plain_defaults(spec: &mut ServiceSpec) {
    spec.type_.get_or_insert_with(|| CLUSTER_IP.into());
    if spec.session_affinity.get_or_insert_with(|| "None".into()) == "ClientIP" {
        let config = spec.session_affinity_config.get_or_insert_with(SessionAffinityConfig::default);
        let client = config.client_ip.get_or_insert_with(ClientIPConfig::default);
        client.timeout_seconds.get_or_insert(AFFINITY_SECONDS);
    } else {
        spec.session_affinity_config = None;
    }
    for port in spec.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".into());
        let unset = match &port.target_port {
            None | Some(IntOrString::Int(0)) => true,
            Some(IntOrString::String(name)) => name.is_empty(),
            Some(IntOrString::Int(_)) => false,
        };
        if unset {
            port.target_port = Some(IntOrString::Int(port.port));
        }
    }
    if is_externally_reachable(spec) {
        spec.external_traffic_policy.get_or_insert_with(|| "Cluster".into());
    }
    if !has_type(spec, EXTERNAL_NAME) {
        spec.internal_traffic_policy.get_or_insert_with(|| "Cluster".into());
    }
    if has_type(spec, LOAD_BALANCER) {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
    }
}

/// The address as it was, or headless; and its dependent fields.
fn set_cluster_ip(spec: &mut ServiceSpec, before: Option<&ServiceSpec>) {
    let was = before.and_then(|before| before.cluster_ip.clone());
    let unsaid = spec.cluster_ip.as_deref().unwrap_or("").is_empty();
    let kept = unsaid || spec.cluster_ip == was;
    if has_type(spec, CLUSTER_IP) {
        if unsaid {
            let first = spec.cluster_ips.as_ref().and_then(|ips| ips.first().cloned());
            let headless = || spec.ports.as_ref().is_some_and(|ports| !ports.is_empty()).then(|| HEADLESS.into());
            spec.cluster_ip = was.or(first).or_else(headless);
        }
    } else if kept && spec.cluster_ip.as_deref() == Some(HEADLESS) && before.is_some() {
        // It was not requested, and these types cannot have it.
        (spec.cluster_ip, spec.cluster_ips) = (None, None);
    }
    if has_type(spec, EXTERNAL_NAME) {
        if kept {
            (spec.cluster_ip, spec.cluster_ips) = (None, None);
        }
        (spec.ip_families, spec.ip_family_policy) = (None, None);
        return;
    }
    if let Some(address) = spec.cluster_ip.clone().filter(|address| !address.is_empty()) {
        let further = spec.cluster_ips.take().into_iter().flatten().skip(1);
        spec.cluster_ips = Some(std::iter::once(address).chain(further).collect());
    }
    spec.ip_families.get_or_insert_with(|| vec!["IPv4".into()]);
    spec.ip_family_policy.get_or_insert_with(|| "SingleStack".into());
}

fn validate_type(spec: &ServiceSpec, problems: &mut FieldErrors) {
    let kind = spec.type_.as_deref().unwrap_or("");
    one_of("spec.type", kind, &TYPES, problems);
    if kind == EXTERNAL_NAME {
        let name = spec.external_name.as_deref().unwrap_or("").trim_end_matches('.');
        if name.is_empty() {
            problems.add("spec.externalName", "Required value");
        } else if !names::is_dns_subdomain(&name.to_ascii_lowercase()) {
            problems.add("spec.externalName", format!("Invalid value: {name:?}: {NOT_A_SUBDOMAIN}"));
        }
        if spec.cluster_ips.as_ref().is_some_and(|ips| !ips.is_empty()) {
            problems.add("spec.clusterIPs", "Forbidden: may not be set for ExternalName services");
        }
    }
    if matches!(kind, LOAD_BALANCER | NODE_PORT) && spec.cluster_ip.as_deref() == Some(HEADLESS) {
        let why = format!("Invalid value: [\"None\"]: may not be set to 'None' for {kind} services");
        problems.add("spec.clusterIPs[0]", why);
    }
}

fn validate_ports(spec: &ServiceSpec, problems: &mut FieldErrors) {
    let ports = spec.ports.as_deref().unwrap_or_default();
    let headless = spec.cluster_ip.as_deref() == Some(HEADLESS);
    if ports.is_empty() && !headless && !has_type(spec, EXTERNAL_NAME) {
        problems.add("spec.ports", "Required value");
    }
    let (mut names_seen, mut numbers_seen) = (HashSet::new(), HashSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        let name = port.name.as_deref().unwrap_or("");
        if name.is_empty() {
            if ports.len() > 1 {
                problems.add(format!("{at}.name"), "Required value");
            }
        } else {
            if !names::is_dns1123_label(name) {
                let why = format!("Invalid value: {name:?}: {}", names::label_error(name));
                problems.add(format!("{at}.name"), why);
            }
            if !names_seen.insert(name) {
                problems.add(format!("{at}.name"), format!("Duplicate value: {name:?}"));
            }
        }
        validate_port(port, &at, problems);
        let protocol = port.protocol.as_deref().unwrap_or("");
        if !numbers_seen.insert((protocol, port.port)) {
            let quoted = serde_json::json!({ "port": port.port, "protocol": protocol });
            problems.add(at.clone(), format!("Duplicate value: {quoted}"));
        }
        if has_type(spec, CLUSTER_IP) && port.node_port.is_some_and(|port| port != 0) {
            let why = "Forbidden: may not be used when `type` is 'ClusterIP'";
            problems.add(format!("{at}.nodePort"), why);
        }
    }
}

fn validate_port(port: &ServicePort, at: &str, problems: &mut FieldErrors) {
    number(port.port, &format!("{at}.port"), problems);
    one_of(&format!("{at}.protocol"), port.protocol.as_deref().unwrap_or(""), &PROTOCOLS, problems);
    if let Some(protocol) = &port.app_protocol
        && let Some(why) = labels::label_key_error(protocol)
    {
        problems.add(format!("{at}.appProtocol"), format!("Invalid value: {protocol:?}: {why}"));
    }
    match &port.target_port {
        Some(IntOrString::Int(target)) => number(*target, &format!("{at}.targetPort"), problems),
        Some(IntOrString::String(name)) => {
            if let Some(why) = names::port_name_error(name) {
                problems.add(format!("{at}.targetPort"), format!("Invalid value: {name:?}: {why}"));
            }
        }
        None => {}
    }
}

fn number(port: i32, at: &str, problems: &mut FieldErrors) {
    if !(1..=65535).contains(&port) {
        problems.add(at, format!("Invalid value: {port}: must be between 1 and 65535, inclusive"));
    }
}

fn validate_addresses(spec: &ServiceSpec, before: Option<&ServiceSpec>, problems: &mut FieldErrors) {
    let address = |spec: &ServiceSpec| spec.cluster_ip.clone().unwrap_or_default();
    let now = address(spec);
    if !now.is_empty() && now != HEADLESS && now.parse::<IpAddr>().is_err() && !has_type(spec, EXTERNAL_NAME) {
        let why = format!("Invalid value: {now:?}: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
        problems.add("spec.clusterIPs[0]", why);
    }
    if let Some(before) = before.filter(|before| !has_type(before, EXTERNAL_NAME) && !has_type(spec, EXTERNAL_NAME)) {
        let was = address(before);
        if !was.is_empty() && !now.is_empty() && was != now {
            let quoted = serde_json::json!([now]);
            problems.add("spec.clusterIPs[0]", format!("Invalid value: {quoted}: may not change once set"));
        }
    }
    for (index, ip) in spec.external_ips.iter().flatten().enumerate() {
        if ip.parse::<IpAddr>().is_err() {
            let why = format!("Invalid value: {ip:?}: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
            problems.add(format!("spec.externalIPs[{index}]"), why);
        }
    }
}

fn validate_affinity(spec: &ServiceSpec, problems: &mut FieldErrors) {
    let affinity = spec.session_affinity.as_deref().unwrap_or("");
    one_of("spec.sessionAffinity", affinity, &["ClientIP", "None"], problems);
    let client = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    if let Some(seconds) = client.and_then(|client| client.timeout_seconds)
        && !(1..=AFFINITY_SECONDS_MAX).contains(&seconds)
    {
        let why = format!("Invalid value: {seconds}: must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
        problems.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", why);
    }
    for (field, value) in [
        ("spec.externalTrafficPolicy", &spec.external_traffic_policy),
        ("spec.internalTrafficPolicy", &spec.internal_traffic_policy),
    ] {
        if let Some(value) = value {
            one_of(field, value, &["Cluster", "Local"], problems);
        }
    }
    if spec.external_traffic_policy.is_some() && !is_externally_reachable(spec) {
        let value = spec.external_traffic_policy.as_deref().unwrap_or("");
        let why = format!("Invalid value: {value:?}: may only be set for externally-accessible services");
        problems.add("spec.externalTrafficPolicy", why);
    }
}

fn validate_families(spec: &ServiceSpec, problems: &mut FieldErrors) {
    for (key, value) in spec.selector.iter().flatten() {
        let wrong = [(key, labels::label_key_error(key)), (value, labels::label_value_error(value))];
        for (text, why) in wrong.into_iter().filter_map(|(text, why)| Some((text, why?))) {
            problems.add("spec.selector", format!("Invalid value: {text:?}: {why}"));
        }
    }
    for (index, family) in spec.ip_families.iter().flatten().enumerate() {
        one_of(&format!("spec.ipFamilies[{index}]"), family, &["IPv4", "IPv6"], problems);
    }
    if let Some(policy) = &spec.ip_family_policy {
        let all = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        one_of("spec.ipFamilyPolicy", policy, &all, problems);
    }
    for (index, range) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
        let range = range.trim();
        let good = range.split_once('/').is_some_and(|(address, bits)| {
            let most = if address.contains(':') { 128 } else { 32 };
            address.parse::<IpAddr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
        });
        if !good {
            let why =
                format!("Invalid value: {range:?}: must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
            problems.add(format!("spec.LoadBalancerSourceRanges[{index}]"), why);
        }
    }
}

fn one_of(field: &str, value: &str, all: &[&str], problems: &mut FieldErrors) {
    if !all.contains(&value) {
        let all: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
        problems.add(field, format!("Unsupported value: {value:?}: supported values: {}", all.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({ "metadata": { "name": "s" }, "spec": spec })).unwrap()
    }

    fn defaulted(spec: Value, before: Option<&Service>) -> Service {
        let mut service = service(spec);
        service.set_defaults(before, &RequestContext::default());
        service
    }

    fn spec(service: &Service) -> Value {
        serde_json::to_value(service.spec.as_ref().unwrap()).unwrap()
    }

    /// APP-32: what a client leaves out is filled in as Kubernetes does it.
    #[test]
    fn what_is_left_out_is_filled_in() {
        let made = defaulted(json!({ "ports": [{ "port": 80 }] }), None);
        let expected = json!({ "clusterIP": "None", "clusterIPs": ["None"], "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "type": "ClusterIP",
            "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }] });
        assert_eq!(spec(&made), expected);
        let alias = defaulted(json!({ "type": "ExternalName", "externalName": "a.b" }), None);
        let expected = json!({ "type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None" });
        assert_eq!(spec(&alias), expected);
        let outside = spec(&defaulted(json!({ "type": "LoadBalancer", "ports": [{ "port": 80 }] }), None));
        assert_eq!(outside["externalTrafficPolicy"], "Cluster");
        assert_eq!(outside["allocateLoadBalancerNodePorts"], true);
        let sticky = spec(&defaulted(json!({ "sessionAffinity": "ClientIP" }), None));
        assert_eq!(sticky["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10_800);
    }

    #[test]
    fn an_address_stays_until_the_type_has_none() {
        let before = defaulted(json!({ "clusterIP": "10.0.0.7", "ports": [{ "port": 80 }] }), None);
        let after = defaulted(json!({ "ports": [{ "port": 81 }] }), Some(&before));
        assert_eq!(spec(&after)["clusterIPs"], json!(["10.0.0.7"]));
        let headless = defaulted(json!({ "ports": [{ "port": 80 }] }), None);
        for (patch, left) in [
            (json!({ "type": "LoadBalancer", "clusterIP": "None", "ports": [{ "port": 80 }] }), Value::Null),
            (json!({ "type": "ExternalName", "externalName": "a", "clusterIP": "None" }), Value::Null),
            (json!({ "ports": [{ "port": 82 }] }), json!("None")),
        ] {
            let mut problems = FieldErrors::default();
            let after = defaulted(patch.clone(), Some(&headless));
            after.validate(Some(&headless), &mut problems);
            assert_eq!((&spec(&after)["clusterIP"], problems.list), (&left, Vec::new()), "{patch}");
        }
    }

    /// APP-32: a Service that is shut to those outside takes what belongs to being open with it.
    #[test]
    fn what_belongs_to_another_type_goes_with_it_and_what_is_said_stays() {
        let port = json!([{ "port": 80, "nodePort": 30_080, "protocol": "TCP", "targetPort": 80 }]);
        let open = defaulted(
            json!({ "type": "LoadBalancer", "loadBalancerClass": "a/b", "clusterIP": "10.0.0.7", "ports": port }),
            None,
        );
        let mut shut = spec(&open);
        shut["type"] = "ClusterIP".into();
        let after = defaulted(shut.clone(), Some(&open));
        let mut problems = FieldErrors::default();
        after.validate(Some(&open), &mut problems);
        assert_eq!(problems.list, []);
        let after = spec(&after);
        for gone in ["externalTrafficPolicy", "allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            assert_eq!(after[gone], Value::Null, "{gone}");
        }
        assert_eq!(after["ports"][0]["nodePort"], Value::Null);
        assert_eq!(after["clusterIP"], "10.0.0.7");

        shut["externalTrafficPolicy"] = "Local".into();
        shut["ports"][0]["nodePort"] = 30_081.into();
        let mut problems = FieldErrors::default();
        defaulted(shut, Some(&open)).validate(Some(&open), &mut problems);
        let fields: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["spec.ports[0].nodePort", "spec.externalTrafficPolicy"]);

        let addressed = defaulted(json!({ "externalIPs": ["1.2.3.4"], "ports": [{ "port": 80 }] }), None);
        let mut plain = spec(&addressed);
        assert_eq!(plain["externalTrafficPolicy"], "Cluster");
        plain["externalIPs"] = json!([]);
        assert_eq!(spec(&defaulted(plain, Some(&addressed)))["externalTrafficPolicy"], Value::Null);
    }

    #[test]
    fn each_rule_names_the_field_that_breaks_it() {
        for (given, field) in [
            (json!({ "type": "Foo", "ports": [{ "port": 80 }] }), "spec.type"),
            (json!({ "type": "LoadBalancer" }), "spec.ports"),
            (json!({ "ports": [{ "port": 0, "targetPort": 1 }] }), "spec.ports[0].port"),
            (json!({ "ports": [{ "port": 1, "targetPort": 70_000 }] }), "spec.ports[0].targetPort"),
            (json!({ "ports": [{ "port": 1, "targetPort": "UPPER" }] }), "spec.ports[0].targetPort"),
            (json!({ "ports": [{ "port": 1, "protocol": "X" }] }), "spec.ports[0].protocol"),
            (json!({ "ports": [{ "port": 1, "nodePort": 30_000 }] }), "spec.ports[0].nodePort"),
            (json!({ "ports": [{ "port": 1, "name": "a" }, { "port": 2 }] }), "spec.ports[1].name"),
            (json!({ "ports": [{ "port": 1, "name": "a" }, { "port": 1, "name": "b" }] }), "spec.ports[1]"),
            (json!({ "clusterIP": "x", "ports": [{ "port": 1 }] }), "spec.clusterIPs[0]"),
            (json!({ "type": "NodePort", "clusterIP": "None", "ports": [{ "port": 1 }] }), "spec.clusterIPs[0]"),
            (json!({}), "spec.ports"),
            (json!({ "clusterIP": "None", "externalIPs": ["x"] }), "spec.externalIPs[0]"),
            (json!({ "clusterIP": "None", "sessionAffinity": "X" }), "spec.sessionAffinity"),
            (json!({ "clusterIP": "None", "externalTrafficPolicy": "Local" }), "spec.externalTrafficPolicy"),
            (json!({ "clusterIP": "None", "selector": { "a b": "c" } }), "spec.selector"),
            (json!({ "clusterIP": "None", "ipFamilies": ["IPv5"] }), "spec.ipFamilies[0]"),
            (json!({ "clusterIP": "None", "ipFamilyPolicy": "Some" }), "spec.ipFamilyPolicy"),
            (json!({ "ports": [{ "port": 1, "appProtocol": "a b" }] }), "spec.ports[0].appProtocol"),
            (
                json!({ "type": "LoadBalancer", "ports": [{ "port": 1 }], "loadBalancerSourceRanges": ["10.0.0.0/40"] }),
                "spec.LoadBalancerSourceRanges[0]",
            ),
            (json!({ "type": "ExternalName" }), "spec.externalName"),
        ] {
            let mut problems = FieldErrors::default();
            defaulted(given.clone(), None).validate(None, &mut problems);
            let fields: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(fields, [field], "{given}");
        }
    }
}
