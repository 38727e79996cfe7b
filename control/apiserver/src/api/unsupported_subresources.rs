//! What Kubernetes does with a Pod through its node, and with a Revision's Deployment through its number. Of the nodes
//! there is one, which is never drained, and the number follows from requests: the refusal says what to do instead.

use axum::response::Response;
use http::request::Parts;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;

use crate::access::RequestAttributes;
use crate::store::ObjectKey;
use types::kind_registry::{KindMeta, ResourceStrategy as _};

use super::errors::StatusError;
use super::{ApiServer, authorization, derived_pods, prepare};

/// A subresource of a Pod, and why it is not supported.
const SUBRESOURCES: [(&str, &str); 4] = [
    ("ephemeralcontainers", TERMINAL),
    (
        "eviction",
        "no node is ever drained; \"kubectl delete pod\" ends an instance, and another is started if one is wanted",
    ),
    ("proxy", PORT),
    ("resize", "an instance has what its Revision says; change the Service's resources"),
];
const TERMINAL: &str = "no container is added to an instance that runs; \"kubectl exec\" runs a command in one of its \
    containers, and \"kubectl logs\" shows what they write";
const PORT: &str = "requests are not passed on by the API; the URL of its Route reaches an instance, and so does \"kubectl \
    port-forward\"";

const SCALE: &str = "how many instances a Revision has follows from its requests; the annotations \
    autoscaling.knative.dev/min-scale and max-scale of its template bound them";

/// The error for `kubectl rollout history` and `undo`.
const HISTORY: &str = "a Deployment belongs to one Revision and has no earlier one; \"kubectl get revisions -l \
    serving.knative.dev/service=NAME\" shows a Service's, and spec.traffic of the Service sends requests to any of them";

/// `None`: the path is about no such part.
pub(super) fn handle(server: &ApiServer, head: &Parts) -> Option<Result<Response, StatusError>> {
    let parts: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
    let (namespace, name, part) = match *parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", name, part] => (namespace, name, part),
        ["api", "v1", "namespaces", namespace, "pods", name, part @ "proxy", ..] => (namespace, name, part),
        ["apis", "apps", "v1", "namespaces", namespace, "deployments", name, part @ "scale"]
            if !has_workloads(server) || shows_revision(server, namespace, name) =>
        {
            return Some(reject(server, head, &Deployment::META, (namespace, name), (part, SCALE)));
        }
        ["apis", "apps", "v1", "namespaces", namespace, "replicasets"] if !has_workloads(server) => {
            return Some(no_rollout_history(server, head, namespace));
        }
        _ => return None,
    };
    let known = SUBRESOURCES.iter().find(|(known, _)| *known == part)?;
    Some(reject(server, head, &Pod::META, (namespace, name), *known))
}

/// Clients write Deployments of their own here.
fn has_workloads(server: &ApiServer) -> bool {
    server.registry.find("apps", "v1", "replicasets").is_some()
}

/// The Deployment is a Revision's.
fn shows_revision(server: &ApiServer, namespace: &str, name: &str) -> bool {
    let resource = prepare::resource_of(&Deployment::META);
    let key = ObjectKey { resource, namespace: namespace.into(), name: name.into() };
    let stored = server.store.read().get(&key);
    stored.is_some_and(|stored| derived_pods::revision_of(&stored.value()).is_some())
}

fn no_rollout_history(server: &ApiServer, head: &Parts, namespace: &str) -> Result<Response, StatusError> {
    let verb = authorization::verb(&head.method, false, false);
    let (group, resource) = (Deployment::META.group, "replicasets");
    let action = RequestAttributes { verb, group, resource, subresource: "", namespace, name: "" };
    authorization::check(server, &server.default_requester, &action)?;
    Err(StatusError::subresource_not_supported(&Deployment::META, "", resource, HISTORY))
}

fn reject(
    server: &ApiServer,
    head: &Parts,
    meta: &KindMeta,
    (namespace, name): (&str, &str),
    (part, why): (&str, &str),
) -> Result<Response, StatusError> {
    let verb = authorization::verb(&head.method, true, false);
    let (group, resource) = (meta.group, meta.plural);
    let action = RequestAttributes { verb, group, resource, subresource: part, namespace, name };
    authorization::check(server, &server.default_requester, &action)?;
    let key = ObjectKey { resource: prepare::resource_of(meta), namespace: namespace.into(), name: name.into() };
    if server.store.read().get(&key).is_none() {
        return Err(StatusError::not_found(meta, name));
    }
    Err(StatusError::subresource_not_supported(meta, name, part, why))
}
