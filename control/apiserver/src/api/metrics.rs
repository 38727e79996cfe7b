//! `metrics.k8s.io`: what Pods and this host use, measured for each request.

use axum::response::Response;
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::instance_usage::{MeasuredUsage, UsageReport};
use types::kind_registry::ResourceStrategy as _;
use types::metrics::PodMetrics;
use types::node::NODE;

use super::errors::StatusError;
use super::selectors::RequestSelector;
use super::{ApiRequest, content_negotiation, logs, prepare};

/// Answers a GET of PodMetrics or NodeMetrics, which cannot be watched.
pub(super) async fn handle(call: &ApiRequest, method: &Method) -> Result<Response, StatusError> {
    if method != Method::GET || call.parameters.watch {
        return Err(StatusError::method_not_allowed());
    }
    let selector =
        RequestSelector::parse(&call.target.entry, &call.parameters.label_selector, &call.parameters.field_selector)?;
    let report = match &call.server.usage {
        Some(usage) => usage.measure().await,
        None => UsageReport::default(),
    };
    let meta = call.target.entry.meta;
    let items = if meta.plural == PodMetrics::META.plural {
        pods(call, &selector, &report)
    } else {
        let wanted = call.target.name.as_deref().is_none_or(|name| name == NODE);
        report.host.filter(|_| wanted).map(node).into_iter().collect()
    };
    let (version, now) = (meta.api_version(), jiff::Timestamp::now());
    let whole = |mut item: Value| {
        item["apiVersion"] = version.as_str().into();
        item["kind"] = meta.kind.into();
        item["timestamp"] = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
        item
    };
    let mut items = items.into_iter().map(whole);
    let answer = match &call.target.name {
        Some(name) => items.next().ok_or_else(|| StatusError::not_found(meta, name))?,
        None => json!({
            "apiVersion": version, "kind": format!("{}List", meta.kind), "metadata": {},
            "items": items.collect::<Vec<_>>(),
        }),
    };
    Ok(content_negotiation::json(StatusCode::OK, answer.to_string()))
}

/// The figures of the Pods that are meant and run.
fn pods(call: &ApiRequest, selector: &RequestSelector, report: &UsageReport) -> Vec<Value> {
    let listing = call.server.store.read().list(&prepare::resource_of(&Pod::META), call.target.namespace.as_deref());
    let named = |name: &str| call.target.name.as_deref().is_none_or(|wanted| wanted == name);
    let meant = listing.into_iter().filter(|pod| named(&pod.key.name) && selector.matches(pod));
    meant.filter_map(|pod| of_pod(&pod.value(), report)).collect()
}

fn of_pod(pod: &Value, report: &UsageReport) -> Option<Value> {
    let containers = pod["status"]["containerStatuses"].as_array()?;
    // All containers of an instance are in one group. It has the name of the one that serves.
    let (name, instance) = containers.iter().find_map(|one| {
        let (instance, sidecar) = logs::parse_container_id(one["containerID"].as_str()?)?;
        sidecar.is_none().then_some((&one["name"], instance))
    })?;
    let usage = report.instances.get(&instance)?;
    let (meta, window) = (&pod["metadata"], window(usage));
    Some(json!({
        "metadata": { "name": meta["name"], "namespace": meta["namespace"], "labels": meta["labels"],
            "creationTimestamp": meta["creationTimestamp"] },
        "window": window,
        "containers": [{ "name": name, "usage": quantities(usage) }],
    }))
}

fn node(usage: MeasuredUsage) -> Value {
    json!({ "metadata": { "name": NODE }, "window": window(&usage), "usage": quantities(&usage) })
}

fn quantities(usage: &MeasuredUsage) -> Value {
    json!({ "cpu": format!("{}n", usage.nanocores), "memory": format!("{}Ki", usage.memory_bytes / 1024) })
}

fn window(usage: &MeasuredUsage) -> String {
    format!("{}ms", usage.window.as_millis())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn figures_of_an_instance_are_those_of_its_pod() {
        let usage = MeasuredUsage { nanocores: 5, memory_bytes: 2048, window: Duration::from_millis(1500) };
        let report = UsageReport { instances: [(71, usage)].into(), ..UsageReport::default() };
        let pod = |id: &str| {
            json!({ "metadata": { "name": "p", "namespace": "ns" }, "status": { "containerStatuses": [
                { "name": "beside", "containerID": format!("{id}/beside") }, { "name": "app", "containerID": id } ] } })
        };
        let shown = of_pod(&pod("process://71"), &report).unwrap();
        let usage = json!([{ "name": "app", "usage": { "cpu": "5n", "memory": "2Ki" } }]);
        assert_eq!((&shown["containers"], &shown["window"]), (&usage, &json!("1500ms")));
        assert_eq!(of_pod(&pod("process://72"), &report), None);
        assert_eq!(of_pod(&json!({ "metadata": {} }), &report), None);
    }
}
