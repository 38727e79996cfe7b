//! One kind under test: requests over a socket, and the common properties of their responses.

use std::sync::Arc;

use http::{Method, Request, header};
use kube::{Client, Config};
use serde_json::{Value, json};
use sluicegate_control::access::CONTROLLER_USER;
use sluicegate_control::api;
use sluicegate_control::kind_registry::{KindEntry, KindMeta};

use crate::support::TestApiServer;
use crate::verb_matrix_kinds::KindRow;

const MERGE: &str = "application/merge-patch+json";

/// One kind under test.
pub(crate) struct KindBench {
    pub(crate) server: Arc<TestApiServer>,
    pub(crate) client: Client,
    pub(crate) entry: KindEntry,
    pub(crate) row: KindRow,
    /// Where its objects are.
    pub(crate) collection: String,
    pub(crate) name: &'static str,
}

pub(crate) struct BenchResponse {
    pub(crate) code: u16,
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Value,
}

impl KindBench {
    pub(crate) fn meta(&self) -> &'static KindMeta {
        self.entry.meta
    }

    /// `services.serving.knative.dev`
    pub(crate) fn qualified(&self) -> String {
        let meta = self.meta();
        if meta.group.is_empty() { meta.plural.into() } else { format!("{}.{}", meta.plural, meta.group) }
    }

    pub(crate) fn one(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }

    /// The object that the row describes, with `patch` laid over it.
    pub(crate) fn object(&self, patch: &Value) -> Value {
        let mut object = self.row.object.clone();
        json_patch::merge(
            &mut object,
            &json!({ "apiVersion": api_version(self.meta()), "kind": self.meta().kind,
            "metadata": { "name": self.name, "labels": { "golden": "yes" } } }),
        );
        json_patch::merge(&mut object, patch);
        object
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> BenchResponse {
        let media = if method == Method::PATCH { MERGE } else { "application/json" };
        self.ask_as(method, path, media, "application/json", body).await
    }

    pub(crate) async fn ask_as(
        &self,
        method: Method,
        path: &str,
        media: &str,
        accept: &str,
        body: &Value,
    ) -> BenchResponse {
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        request = request.header(header::CONTENT_TYPE, media);
        // AMB-62: followers make Revisions, users do not.
        if self.meta().kind == "Revision" {
            request = request.header("impersonate-user", CONTROLLER_USER).header("impersonate-group", "system:masters");
        }
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let response = self.client.send(request.body(bytes.into()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let warnings = head.headers.get_all("warning").iter().map(|one| one.to_str().unwrap().to_owned()).collect();
        let bytes = body.collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        BenchResponse { code: head.status.as_u16(), warnings, body }
    }

    /// Asks, and is answered with this code.
    pub(crate) async fn expect(&self, code: u16, method: Method, path: &str, body: &Value) -> Value {
        let said = format!("{} {method} {path}", self.meta().kind);
        let answer = self.ask(method, path, body).await;
        assert_eq!(answer.code, code, "{said}: {}", answer.body);
        if code >= 400 {
            assert_eq!(
                (&answer.body["kind"], &answer.body["apiVersion"], &answer.body["status"], &answer.body["code"]),
                (&json!("Status"), &json!("v1"), &json!("Failure"), &json!(code)),
                "{said}"
            );
            assert!(answer.body["metadata"].is_object(), "{said}");
        }
        answer.body
    }

    pub(crate) async fn refused(
        &self,
        (code, reason, message): (u16, &str, &str),
        method: Method,
        path: &str,
        body: &Value,
    ) -> Value {
        let said = format!("{} {method} {path}", self.meta().kind);
        let body = self.expect(code, method, path, body).await;
        assert_eq!((body["reason"].as_str(), body["message"].as_str()), (Some(reason), Some(message)), "{said}");
        body
    }

    /// What a refusal about the object, or an answer about its end, says of it.
    pub(crate) fn details(&self) -> Value {
        let mut details = json!({ "name": self.name, "kind": self.meta().plural });
        if !self.meta().group.is_empty() {
            details["group"] = self.meta().group.into();
        }
        details
    }

    pub(crate) fn revision(&self) -> u64 {
        self.server.store.read().revision()
    }

    /// A generation is counted for kinds that have more than data.
    pub(crate) fn has_generation(&self) -> bool {
        let group = self.meta().group;
        ["apiextensions.k8s.io", "discovery.k8s.io", "gateway.networking.k8s.io"].contains(&group)
            || !(group.is_empty() || group.ends_with("k8s.io"))
    }

    pub(crate) fn is_core(&self) -> bool {
        let group = self.meta().group;
        group.is_empty() || (group.ends_with("k8s.io") && group != "gateway.networking.k8s.io")
    }
}

pub(crate) fn api_version(meta: &KindMeta) -> String {
    if meta.group.is_empty() { meta.version.into() } else { format!("{}/{}", meta.group, meta.version) }
}

pub(crate) fn collection(meta: &KindMeta, namespace: Option<&str>) -> String {
    let root = if meta.group.is_empty() { "/api/v1".into() } else { format!("/apis/{}", api_version(meta)) };
    match namespace.filter(|_| meta.namespaced) {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", meta.plural),
        None => format!("{root}/{}", meta.plural),
    }
}

pub(crate) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

pub(crate) fn names(table: &Value) -> Vec<String> {
    let columns = table["columnDefinitions"].as_array().unwrap();
    let name = |column: &Value| {
        let wide = if column["priority"] == 0 { "" } else { "*" };
        format!("{wide}{}", column["name"].as_str().unwrap())
    };
    columns.iter().map(name).collect()
}

/// The API on a socket of its own.
pub(crate) async fn served(server: &TestApiServer) -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = api::router(server.store.clone(), server.registry.clone());
    tokio::spawn(api::http_server::serve(
        listener,
        router,
        crate::timeouts::protection(),
        api::listener::tcp_peer,
        std::future::pending(),
    ));
    Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap()
}
