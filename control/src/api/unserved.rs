//! What Kubernetes does with a Pod through its node. There are no nodes here: who asks for it is told what to do instead.

use axum::response::Response;
use http::request::Parts;
use k8s_openapi::api::core::v1::Pod;

use crate::access::Action;
use crate::kind::Resource as _;
use crate::store::Key;

use super::errors::Refusal;
use super::{Server, grant, object};

/// A part of a Pod's path, and why there is none.
const PARTS: [(&str, &str); 7] = [
    ("attach", TERMINAL),
    ("exec", TERMINAL),
    ("ephemeralcontainers", TERMINAL),
    (
        "eviction",
        "no node is ever drained; \"kubectl delete pod\" ends an instance, and another is started if one is wanted",
    ),
    ("portforward", PORT),
    ("proxy", PORT),
    ("resize", "an instance has what its Revision says; change the Service's resources"),
];
const TERMINAL: &str = "an instance is a process of the appliance's host, and nothing is run beside it; \"kubectl logs\" \
    shows what it writes, and the host's own tools look into it";
const PORT: &str = "an instance is a process of the appliance's host; its Route's URL reaches it, and on the host the \
    port that its EndpointSlice names";

/// `None`: the path is about no such part.
pub(super) fn answer(server: &Server, head: &Parts) -> Option<Result<Response, Refusal>> {
    let parts: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
    let (namespace, name, part) = match *parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", name, part] => (namespace, name, part),
        ["api", "v1", "namespaces", namespace, "pods", name, part @ "proxy", ..] => (namespace, name, part),
        _ => return None,
    };
    let (part, why) = PARTS.iter().find(|(known, _)| *known == part)?;
    let verb = grant::verb(&head.method, true, false);
    Some(refuse(server, verb, namespace, name, part, why))
}

fn refuse(
    server: &Server,
    verb: &str,
    namespace: &str,
    name: &str,
    part: &str,
    why: &str,
) -> Result<Response, Refusal> {
    let meta = &Pod::META;
    let action = Action { verb, group: "", resource: meta.plural, subresource: part, namespace, name };
    grant::check(server, &server.requester, &action)?;
    let key = Key { resource: object::resource_of(meta), namespace: namespace.into(), name: name.into() };
    if server.store.read().get(&key).is_none() {
        return Err(Refusal::not_found(meta, name));
    }
    Err(Refusal::unserved(meta, name, part, why))
}
