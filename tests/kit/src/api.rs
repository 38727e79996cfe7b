//! The Kubernetes-style API as tests use it: JSON objects in, JSON objects out.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::{HttpCall, HttpResponse, wait};

/// The generated page of all kinds: a heading for each version of a group, and a table of its kinds; at the end a table
/// of definitions with the version that is stored. The kit has no code of the program that it tests.
const KINDS_PAGE: &str = include_str!("../../../docs/reference/kinds.md");

/// Where the objects of a kind are.
#[derive(Clone, Copy)]
struct KindPath {
    /// `GROUP/VERSION`, or `v1` in the core group.
    version: &'static str,
    plural: &'static str,
    namespaced: bool,
}

impl KindPath {
    /// The stored version of a kind; of two kinds with one name, the one that has a definition: Knative's.
    fn of(kind: &str) -> Self {
        let (mut section, mut named) = ("", Vec::new());
        for line in KINDS_PAGE.lines() {
            let cells: Vec<&'static str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            match (line.strip_prefix("## "), &cells[..]) {
                (Some(heading), _) => section = heading,
                (None, [_, name, plural, _, scope, ..]) if *name == kind => {
                    named.push(Self { version: section, plural, namespaced: *scope == "namespace" });
                }
                _ => {}
            }
        }
        let stored = named.iter().find(|one| one.is_stored()).or_else(|| named.first());
        *stored.unwrap_or_else(|| panic!("docs/reference/kinds.md has no kind {kind}: write it again"))
    }

    /// Whether a definition says that objects are stored in this version.
    fn is_stored(self) -> bool {
        let (group, version) = self.version.split_once('/').unwrap_or_default();
        KINDS_PAGE.contains(&format!("| {}.{group} | {version} |", self.plural))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct KitApi {
    address: SocketAddr,
    user: Option<&'static str>,
}

impl KitApi {
    pub fn at(address: SocketAddr) -> Self {
        Self { address, user: None }
    }

    /// The same API with impersonation (`kubectl --as`).
    #[must_use]
    pub fn as_user(self, user: &'static str) -> Self {
        Self { user: Some(user), ..self }
    }

    pub fn send(&self, call: HttpCall) -> HttpResponse {
        match self.user {
            Some(user) => call.header("Impersonate-User", user),
            None => call,
        }
        .send(self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `path("Service", "default", "hello")`; an empty name gives the collection.
    pub fn path(kind: &str, namespace: &str, name: &str) -> String {
        let KindPath { version, plural, namespaced } = KindPath::of(kind);
        let root = if version.contains('/') { "apis" } else { "api" };
        let mut path = match namespaced {
            true => format!("/{root}/{version}/namespaces/{namespace}/{plural}"),
            false => format!("/{root}/{version}/{plural}"),
        };
        if !name.is_empty() {
            path = format!("{path}/{name}");
        }
        path
    }

    /// POST; panics unless it is answered with 201.
    pub fn create(&self, object: &Value) -> Value {
        let response = self.try_create(object);
        assert_eq!(response.status, 201, "creating {object}: {response}");
        response.json()
    }

    pub fn try_create(&self, object: &Value) -> HttpResponse {
        let (kind, namespace) = (text(object, "/kind"), text(object, "/metadata/namespace"));
        self.send(HttpCall::post(&Self::path(kind, namespace, "")).json(object))
    }

    /// GET; `None` for 404, panics for anything but 200 and 404.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let response = self.send(HttpCall::get(&Self::path(kind, namespace, name)));
        match response.status {
            200 => Some(response.json()),
            404 => None,
            _ => panic!("getting {kind} {namespace}/{name}: {response}"),
        }
    }

    /// The items of a collection.
    pub fn list(&self, kind: &str, namespace: &str) -> Vec<Value> {
        self.list_selected(kind, namespace, "")
    }

    /// The items that a label selector takes, in the form it has in a URL.
    pub fn list_selected(&self, kind: &str, namespace: &str, selector: &str) -> Vec<Value> {
        let path = format!("{}?labelSelector={selector}", Self::path(kind, namespace, ""));
        let response = self.send(HttpCall::get(&path));
        assert_eq!(response.status, 200, "listing {path}: {response}");
        response.json()["items"].as_array().cloned().unwrap_or_default()
    }

    /// JSON merge patch; panics unless it is answered with 200.
    pub fn patch(&self, kind: &str, namespace: &str, name: &str, patch: &Value) -> Value {
        let response = self.try_patch(kind, namespace, name, patch);
        assert_eq!(response.status, 200, "patching {kind} {namespace}/{name}: {response}");
        response.json()
    }

    pub fn try_patch(&self, kind: &str, namespace: &str, name: &str, patch: &Value) -> HttpResponse {
        let call = HttpCall::new("PATCH", &Self::path(kind, namespace, name))
            .header("Content-Type", "application/merge-patch+json")
            .body(patch.to_string());
        self.send(call)
    }

    /// DELETE; panics unless it is answered with 200 or 202.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let response = self.send(HttpCall::new("DELETE", &Self::path(kind, namespace, name)));
        assert!(matches!(response.status, 200 | 202), "deleting {kind} {namespace}/{name}: {response}");
    }

    /// Waits until `Ready` is `True` for the object's present generation; panics with its conditions.
    pub fn wait_ready(&self, kind: &str, namespace: &str, name: &str, limit: Duration) -> Value {
        self.wait_for(kind, namespace, name, limit, is_ready)
    }

    /// Waits until the object is as `wanted`; panics with its status.
    pub fn wait_for(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        limit: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let found = wait::try_until(limit, || {
            last = self.get(kind, namespace, name);
            last.clone().filter(|object| wanted(object))
        });
        match found {
            Some(object) => object,
            None => {
                let status = last.map_or("absent".to_owned(), |object| format!("{:#}", object["status"]));
                panic!("{kind} {namespace}/{name} is not as wanted after {limit:?}: {status}")
            }
        }
    }

    /// Waits until the object is gone.
    pub fn wait_gone(&self, kind: &str, namespace: &str, name: &str, limit: Duration) {
        let what = format!("{kind} {namespace}/{name} to be gone");
        wait::until(limit, &what, || self.get(kind, namespace, name).is_none().then_some(()));
    }
}

/// `Ready` is `True`, and says so about the spec as it is now.
#[must_use]
pub fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| ready["status"] == "True")
        && object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

/// The condition of that type.
#[must_use]
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use serde_json::json;

    use super::*;
    use crate::TIMEOUT;
    use crate::server::{HandlerReply, ReceivedMessage, TestServer};

    #[test]
    fn paths_are_those_of_kubernetes() {
        assert_eq!(KitApi::path("Namespace", "", "a"), "/api/v1/namespaces/a");
        assert_eq!(KitApi::path("ConfigMap", "n", ""), "/api/v1/namespaces/n/configmaps");
        assert_eq!(KitApi::path("Broker", "n", "b"), "/apis/eventing.knative.dev/v1/namespaces/n/brokers/b");
    }

    #[test]
    fn ready_counts_only_for_the_present_generation() {
        let object = |ready: &str, observed: u32| {
            json!({ "metadata": { "generation": 2 }, "status": { "observedGeneration": observed,
                    "conditions": [{ "type": "Active", "status": "False" }, { "type": "Ready", "status": ready }] } })
        };
        assert!(is_ready(&object("True", 2)));
        assert!(!is_ready(&object("True", 1)));
        assert!(!is_ready(&object("Unknown", 2)));
        assert!(!is_ready(&json!({})));
    }

    #[test]
    fn waiting_looks_again_until_the_object_is_as_wanted() {
        let looks = AtomicU32::new(0);
        let server = TestServer::start("127.0.0.1:0".parse().unwrap(), move || {
            let looks = std::rc::Rc::new(looks);
            move |_| {
                let look = looks.fetch_add(1, SeqCst);
                async move {
                    HandlerReply::Send(match look {
                        0 => ReceivedMessage::new(404),
                        n => ReceivedMessage::new(200).body(json!({ "status": { "n": n } }).to_string()),
                    })
                }
            }
        });
        let object = KitApi::at(server.address()).wait_for("Route", "n", "r", TIMEOUT, |o| o["status"]["n"] == 3);
        assert_eq!(object["status"]["n"], 3);
    }

    #[test]
    fn kind_is_found_in_its_stored_version() {
        for (kind, path) in [
            ("Service", "/apis/serving.knative.dev/v1/namespaces/ns/services/a"),
            ("EventType", "/apis/eventing.knative.dev/v1beta2/namespaces/ns/eventtypes/a"),
            ("PingSource", "/apis/sources.knative.dev/v1/namespaces/ns/pingsources/a"),
            ("ClusterDomainClaim", "/apis/networking.internal.knative.dev/v1alpha1/clusterdomainclaims/a"),
            ("Event", "/api/v1/namespaces/ns/events/a"),
            ("Namespace", "/api/v1/namespaces/a"),
        ] {
            assert_eq!(KitApi::path(kind, "ns", "a"), path);
        }
    }
}
