//! Two kinds for tests, and a server over a temporary folder.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use futures_util::StreamExt as _;
use http::{Method, Request, Response, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluicegate_control::kind_registry::{
    CORE, KindEntry, KindMeta, KindRegistry, RequestContext, ResourceStrategy, UnknownFieldPolicy,
};
use sluicegate_control::kinds::field_errors::FieldErrors;
use sluicegate_control::kinds::printer_column::PrinterColumn;
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tempfile::TempDir;
use tower::ServiceExt as _;

pub(crate) const WIDGETS: &str = "/apis/test.sluicegate.dev/v1/namespaces/default/widgets";
pub(crate) const GADGETS: &str = "/apis/test.sluicegate.dev/v1/namespaces/default/gadgets";
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A kind with defaults, rules, a status and columns; unknown fields are pruned.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Widget {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: WidgetSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<WidgetStatus>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct WidgetSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) color: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WidgetStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<WidgetCondition>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct WidgetCondition {
    pub r#type: String,
    pub(crate) status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl ResourceStrategy for Widget {
    const META: KindMeta = KindMeta {
        group: "test.sluicegate.dev",
        version: "v1",
        kind: "Widget",
        plural: "widgets",
        singular: "widget",
        short_names: &["wg"],
        categories: &["all"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[
            PrinterColumn { name: "Size", path: ".spec.size", format: "integer", priority: 0, custom: None },
            PrinterColumn {
                name: "Ready",
                path: r#".status.conditions[?(@.type=="Ready")].status"#,
                format: "string",
                priority: 0,
                custom: None,
            },
            PrinterColumn { name: "Color", path: ".spec.color", format: "string", priority: 1, custom: None },
            PrinterColumn {
                name: "Age",
                path: ".metadata.creationTimestamp",
                format: "date",
                priority: 0,
                custom: None,
            },
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        self.spec.size.get_or_insert(1);
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        if self.spec.size.is_some_and(|size| size > 100) {
            problems.add("spec.size", "expected at most 100");
        }
        if before.is_some_and(|before| before.spec.color != self.spec.color) {
            problems.add("spec.color", "Immutable fields changed");
        }
    }
}

/// A kind that only controllers create, and that refuses unknown fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Gadget {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: WidgetSpec,
}

impl ResourceStrategy for Gadget {
    const META: KindMeta = KindMeta {
        kind: "Gadget",
        plural: "gadgets",
        singular: "gadget",
        short_names: &[],
        has_status: false,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: false,
        ..Widget::META
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}

pub(crate) struct TestApiServer {
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) registry: Arc<KindRegistry>,
    pub(crate) dir: TempDir,
}

pub(crate) fn registry() -> Arc<KindRegistry> {
    let mut entries = kinds::core_kinds::core_entries();
    entries.push(KindEntry::of::<Widget>());
    entries.push(KindEntry::of::<Gadget>());
    Arc::new(KindRegistry { entries })
}

impl TestApiServer {
    pub(crate) async fn open() -> Self {
        Self::of(registry()).await
    }

    /// With the kinds that the appliance serves.
    pub(crate) async fn real() -> Self {
        Self::of(Arc::new(kinds::registry())).await
    }

    async fn of(registry: Arc<KindRegistry>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(ObjectStore::open(dir.path()).unwrap());
        api::seed(&store, &registry).await.unwrap();
        Self { store, registry, dir }
    }

    pub(crate) fn client(&self) -> kube::Client {
        api::client(Arc::clone(&self.store), Arc::clone(&self.registry))
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        let router = api::router(Arc::clone(&self.store), Arc::clone(&self.registry));
        router.oneshot(request).await.unwrap()
    }

    /// Code and document of one exchange with a JSON body.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        self.ask_as(method, path, media, body.to_string()).await
    }

    pub(crate) async fn ask_as(&self, method: Method, path: &str, media: &str, body: impl Into<Body>) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, media).body(body.into());
        read(self.send(request.unwrap()).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        read(self.send(Request::get(path).body(Body::empty()).unwrap()).await).await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> (u16, Value) {
        let request = Request::get(path).header(header::ACCEPT, accept).body(Body::empty()).unwrap();
        read(self.send(request).await).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (u16, Value) {
        read(self.send(Request::delete(path).body(Body::empty()).unwrap()).await).await
    }

    /// Makes a widget and returns it.
    pub(crate) async fn widget(&self, name: &str, labels: &Value) -> Value {
        let widget = serde_json::json!({ "apiVersion": "test.sluicegate.dev/v1", "kind": "Widget",
            "metadata": { "name": name, "labels": labels } });
        let (code, made) = self.ask(Method::POST, WIDGETS, &widget).await;
        assert_eq!(code, 201, "{made}");
        made
    }
}

async fn read(response: Response<Body>) -> (u16, Value) {
    let code = response.status().as_u16();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// A watch's lines, one at a time.
pub(crate) struct WatchLines {
    body: axum::body::BodyDataStream,
    buffer: Vec<u8>,
}

impl TestApiServer {
    pub(crate) async fn watch(&self, path: &str) -> WatchLines {
        let response = self.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200);
        WatchLines { body: response.into_body().into_data_stream(), buffer: Vec::new() }
    }
}

impl WatchLines {
    /// The next event; `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.buffer.extend_from_slice(&self.body.next().await?.unwrap());
        }
    }

    /// Type and name of the next event.
    pub(crate) async fn next_change(&mut self) -> (String, String) {
        let event = self.next().await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }

    /// Reads on until this happened to an object of this name.
    pub(crate) async fn until(&mut self, what: &str, name: &str) -> Value {
        while let Some(event) = self.next().await {
            if event["type"] == what && event["object"]["metadata"]["name"] == name {
                return event["object"].clone();
            }
        }
        panic!("the watch ended before {name} was {what}");
    }
}
