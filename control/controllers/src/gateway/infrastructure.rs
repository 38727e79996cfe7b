//! The core Service of a Gateway that has labels or annotations in `infrastructure`.
//!
//! The appliance itself serves the listeners, so a Gateway needs no other object. Programs that read Services, such as
//! external-dns, find the labels, the annotations, the ports and the addresses of the Gateway in this one. Its name is
//! `GATEWAY-CLASS`, as Gateway API recommends for generated objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Error as ClientError};
use serde_json::{Value, json};

use super::conditions::ConditionRefusal;
use super::route_kind::GATEWAY_QUEUE;
use crate::api::Error;
use crate::context::ControllerContext;
use crate::owned_child::owner_references;
use crate::work_queue::WorkItem;
use support::child_name::child_name;
use support::names::is_dns1035_label;
use types::gateway_api::gateway::{Gateway, GatewayAddress, GatewayListener};
use types::gateway_api::reference::ParametersReference;
use types::shared::{controller, is_controlled_by, name, namespace};

/// The label by which generated objects name their Gateway.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
const GATEWAY_CLASS_NAME: &str = "gateway.networking.k8s.io/gateway-class-name";
/// The manager of the Service's fields in `managedFields`.
const FIELD_MANAGER: &str = "sluicegate";
/// The longest value of a label.
const LABEL_VALUE_BYTES_MAX: usize = 63;

/// The appliance has no kind of parameters, so every reference to some is refused.
pub(super) fn unsupported_parameters(reference: Option<&ParametersReference>) -> Option<ConditionRefusal> {
    let ParametersReference { group, kind, name, .. } = reference?;
    let why = format!(
        "parametersRef names the {kind} {name} of the group {group:?}; the appliance supports no parameters, so remove it."
    );
    Some(ConditionRefusal::new("InvalidParameters", why))
}

/// The Gateway that a generated Service belongs to.
pub(super) fn gateway_of(service: &ObjectMeta) -> Option<WorkItem> {
    let owner = controller(service).filter(|owner| owner.kind == "Gateway")?;
    Some(WorkItem::new(GATEWAY_QUEUE, namespace(service), &owner.name))
}

/// Creates, changes or deletes the Service, as `infrastructure` says.
pub(super) async fn apply_service(
    context: &ControllerContext,
    gateway: &Gateway,
    addresses: &[GatewayAddress],
) -> Result<(), Error> {
    let (ns, service_name) = (namespace(&gateway.metadata), service_name(gateway));
    let existing = context.caches.core_services.get(ns, &service_name);
    let is_own = existing.as_ref().is_some_and(|service| is_controlled_by(&service.metadata, &gateway.metadata));
    // In a cluster it would get a load balancer that leads nowhere.
    let is_elsewhere = !context.config.publishes_pods;
    if is_elsewhere || !context.leadership.is_leader() || (existing.is_some() && !is_own) {
        return Ok(());
    }
    let api: Api<Service> = context.api(ns);
    let Some(wanted) = service(gateway, &service_name) else {
        return match is_own {
            true => delete(&api, &service_name).await,
            false => Ok(()),
        };
    };
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&service_name, &parameters, &Patch::Apply(&wanted)).await?;
    api.patch_status(&service_name, &parameters, &Patch::Apply(&status(&service_name, addresses))).await?;
    Ok(())
}

async fn delete(api: &Api<Service>, name: &str) -> Result<(), Error> {
    match api.delete(name, &DeleteParams::default()).await {
        Err(ClientError::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// A Gateway may have a name that no Service can have.
fn service_name(gateway: &Gateway) -> String {
    let plain = format!("{}-{}", name(&gateway.metadata), gateway.spec.gateway_class_name).replace('.', "-");
    let named = if is_dns1035_label(&plain) { plain } else { format!("gateway-{plain}") };
    child_name(&named, "")
}

/// The Service, if `infrastructure` has metadata for it.
fn service(gateway: &Gateway, service_name: &str) -> Option<Value> {
    let infrastructure = gateway.spec.infrastructure.as_ref()?;
    if infrastructure.labels.is_empty() && infrastructure.annotations.is_empty() {
        return None;
    }
    let mut labels = infrastructure.labels.clone();
    let own = [(GATEWAY_NAME, name(&gateway.metadata)), (GATEWAY_CLASS_NAME, &gateway.spec.gateway_class_name)];
    let own = own.into_iter().filter(|(_, value)| value.len() <= LABEL_VALUE_BYTES_MAX);
    labels.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let metadata = json!({
        "name": service_name,
        "labels": labels,
        "annotations": infrastructure.annotations,
        "ownerReferences": owner_references(gateway),
    });
    let spec = json!({
        "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": ports(&gateway.spec.listeners),
    });
    Some(json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec }))
}

/// One port for all listeners of a number.
fn ports(listeners: &[GatewayListener]) -> Vec<Value> {
    let transport = |listener: &GatewayListener| if listener.protocol == "UDP" { "UDP" } else { "TCP" };
    let distinct: BTreeMap<_, _> =
        listeners.iter().map(|listener| ((listener.port, transport(listener)), listener.port)).collect();
    let port = |((number, transport), _): ((i32, &str), i32)| {
        let name = format!("{}-{number}", transport.to_ascii_lowercase());
        json!({ "name": name, "protocol": transport, "port": number, "targetPort": number })
    };
    distinct.into_iter().map(port).collect()
}

fn status(name: &str, addresses: &[GatewayAddress]) -> Value {
    let reached = addresses.iter().filter_map(|address| address.value.as_deref());
    let ingress: Vec<_> = reached.map(|ip| json!({ "ip": ip })).collect();
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "status": { "loadBalancer": { "ingress": ingress } } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str, infrastructure: Value) -> Gateway {
        let listener =
            |name: &str, port: i32, protocol: &str| json!({ "name": name, "port": port, "protocol": protocol });
        let listeners = [listener("a", 80, "HTTP"), listener("b", 80, "HTTP"), listener("c", 53, "UDP")];
        let spec =
            json!({ "gatewayClassName": "sluicegate", "listeners": listeners, "infrastructure": infrastructure });
        Gateway::new("ns", name, serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn service_has_metadata_and_ports_of_its_gateway() {
        let gateway = gateway("web", json!({ "labels": { "a": "1" }, "annotations": { "b": "2" } }));
        let made = service(&gateway, &service_name(&gateway)).unwrap();
        let labels = json!({ "a": "1", GATEWAY_NAME: "web", GATEWAY_CLASS_NAME: "sluicegate" });
        assert_eq!(made["metadata"]["name"], "web-sluicegate");
        assert_eq!((&made["metadata"]["labels"], &made["metadata"]["annotations"]["b"]), (&labels, &json!("2")));
        let ports: Vec<_> = made["spec"]["ports"].as_array().unwrap().iter().map(|port| port["name"].clone()).collect();
        assert_eq!(ports, ["udp-53", "tcp-80"]);
    }

    #[test]
    fn gateway_without_metadata_has_no_service() {
        for infrastructure in [Value::Null, json!({}), json!({ "labels": {} })] {
            let gateway = gateway("web", infrastructure);
            assert_eq!(service(&gateway, "web"), None);
        }
    }

    #[test]
    fn name_of_every_gateway_makes_a_service_name() {
        for (gateway_name, made) in
            [("web", "web-sluicegate"), ("a.b", "a-b-sluicegate"), ("1a", "gateway-1a-sluicegate")]
        {
            assert_eq!(service_name(&gateway(gateway_name, Value::Null)), made);
        }
        assert!(is_dns1035_label(&service_name(&gateway(&"a".repeat(253), Value::Null))));
    }

    #[test]
    fn parameters_are_refused() {
        assert_eq!(unsupported_parameters(None), None);
        let reference = ParametersReference { kind: "Proxy".to_owned(), ..ParametersReference::default() };
        assert_eq!(unsupported_parameters(Some(&reference)).unwrap().reason, "InvalidParameters");
    }
}
