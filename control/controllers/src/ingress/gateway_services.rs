//! Core Services for our listeners, by the names that statuses use.
//!
//! A client that reads `status.publicLoadBalancer` of an Ingress, or the gateway's Service as with any ingress,
//! finds address and port there. Only in our own API: in a cluster its operator creates them.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Error};
use serde_json::{Value, json};

use crate::context::ControllerContext;
use crate::listeners::{CLUSTER_LOCAL_NAME, PUBLIC_NAME};
use types::settings::SERVING;

/// The manager of their fields in `managedFields`.
const FIELD_MANAGER: &str = "sluicegate";

/// Writes them as the listeners are now.
pub async fn publish_services(context: &ControllerContext) -> Result<(), Error> {
    let api: Api<Service> = Api::namespaced(context.client.clone(), SERVING);
    let listeners = context.config.listeners;
    for (host, plain, by_tls) in [
        (PUBLIC_NAME, listeners.public, listeners.https),
        (CLUSTER_LOCAL_NAME, listeners.cluster_local, listeners.cluster_local_https),
    ] {
        let ports = [("http2", plain), ("https", by_tls)];
        let ports: Vec<_> = ports.into_iter().filter_map(|(name, address)| Some((name, address?))).collect();
        let name = host.split('.').next().unwrap_or(host);
        let Some(reached) = listeners.by_status_name(host).flatten() else {
            match api.delete(name, &DeleteParams::default()).await {
                Err(Error::Api(status)) if status.is_not_found() => continue,
                other => other.map(drop)?,
            }
            continue;
        };
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let service = service(name, &ports);
        api.patch(name, &params, &Patch::Apply(&service)).await?;
        api.patch_status(name, &params, &Patch::Apply(&status(name, reached))).await?;
    }
    Ok(())
}

fn service(name: &str, ports: &[(&str, SocketAddr)]) -> Value {
    let ports: Vec<_> = ports
        .iter()
        .map(|(name, address)| json!({ "name": name, "protocol": "TCP", "port": address.port(), "targetPort": address.port() }))
        .collect();
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": SERVING },
        "spec": { "type": "LoadBalancer", "ports": ports } })
}

fn status(name: &str, reached: SocketAddr) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": SERVING },
        "status": { "loadBalancer": { "ingress": [{ "ip": reached.ip() }] } } })
}
