//! `managedFields` as Kubernetes' API server writes them: complete sets, after each kind of write.

use http::Method;
use serde_json::{Value, json};

use crate::support::{MAPS, TestApiServer};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const KSVCS: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
const MEDIA: &str = "application/apply-patch+yaml";

/// The owners of an object's fields: the manager, the operation, and the fields.
fn owned(object: &Value) -> Vec<(&str, &str, &Value)> {
    let entries = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(entries.iter().all(|entry| entry["apiVersion"].is_string() && entry["fieldsType"] == "FieldsV1"));
    entries
        .iter()
        .map(|one| (one["manager"].as_str().unwrap(), one["operation"].as_str().unwrap(), &one["fieldsV1"]))
        .collect()
}

async fn apply(server: &TestApiServer, path: &str, query: &str, object: &Value) -> (u16, Value) {
    server.ask_as(Method::PATCH, &format!("{path}?{query}"), MEDIA, object.to_string()).await
}

/// APP-30: a create, and what a plain write changes of it.
#[tokio::test]
async fn creates_and_updates_are_noted_with_the_maps_and_lists_they_bring() {
    let server = TestApiServer::real().await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "m", "labels": { "a": "b" } }, "data": { "x": "1" } });
    let (_, made) = server.ask(Method::POST, &format!("{MAPS}?fieldManager=kubectl-create"), &map).await;
    let labels = json!({ "f:labels": { ".": {}, "f:a": {} } });
    let first = json!({ "f:metadata": labels, "f:data": { ".": {}, "f:x": {} } });
    assert_eq!(owned(&made), [("kubectl-create", "Update", &first)]);

    let patch = json!({ "data": { "y": "2" }, "metadata": { "annotations": { "n": "1" } } });
    let path = format!("{MAPS}/m?fieldManager=kubectl-patch");
    let (_, changed) = server.ask(Method::PATCH, &path, &patch).await;
    let second = json!({ "f:data": { "f:y": {} }, "f:metadata": { "f:annotations": { ".": {}, "f:n": {} } } });
    let both = [("kubectl-create", "Update", &first), ("kubectl-patch", "Update", &second)];
    assert_eq!(owned(&changed), both);

    let gone = json!({ "data": null });
    let (_, left) = server.ask(Method::PATCH, &path, &gone).await;
    let (first, second) = (json!({ "f:metadata": labels }), json!({ "f:metadata": second["f:metadata"] }));
    let both = [("kubectl-create", "Update", &first), ("kubectl-patch", "Update", &second)];
    assert_eq!(owned(&left), both, "what goes is nobody's");
}

/// APP-30: of Kubernetes' kinds what the type holds by value has no owner, and neither has what the server chose; of
/// Knative's kinds defaults have none.
#[tokio::test]
async fn a_new_service_is_owned_as_its_kind_is_defined() {
    let server = TestApiServer::real().await;
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
        "spec": { "ports": [{ "port": 80 }], "selector": { "app": "a" } } });
    let (code, made) = server.ask(Method::POST, &format!("{SERVICES}?fieldManager=c"), &service).await;
    let ports = json!({ ".": {},
        r#"k:{"port":80,"protocol":"TCP"}"#: { ".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {} } });
    let fields = json!({ "f:spec": { "f:internalTrafficPolicy": {}, "f:ports": ports, "f:selector": {},
        "f:sessionAffinity": {}, "f:type": {} } });
    assert_eq!((code, owned(&made)), (201, vec![("c", "Update", &fields)]), "{made}");

    let ksvc = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": { "name": "k" },
        "spec": { "template": { "spec": { "containers": [{ "image": "a" }] } } } });
    let (_, made) = server.ask(Method::POST, &format!("{KSVCS}?fieldManager=kn"), &ksvc).await;
    let fields = json!({ "f:spec": { ".": {}, "f:template": { ".": {}, "f:spec": { ".": {}, "f:containers": {} } } } });
    assert_eq!(owned(&made), [("kn", "Update", &fields)], "{made}");
    let path = format!("{KSVCS}/k");
    let traffic = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service",
        "spec": { "traffic": [{ "latestRevision": true, "percent": 100, "tag": "t" }] } });
    let (code, applied) = apply(&server, &path, "fieldManager=a", &traffic).await;
    let fields = json!({ "f:spec": { "f:traffic": {} } });
    assert_eq!((code, owned(&applied)[0]), (200, ("a", "Apply", &fields)), "a default is no conflict: {applied}");
}

/// APP-30: an apply owns what it says; one that changes nothing has no time; the times alone make no new version.
#[tokio::test]
async fn an_apply_owns_what_it_says_and_is_dated_by_what_it_changes() {
    let server = TestApiServer::real().await;
    let path = format!("{MAPS}/m");
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "m", "labels": { "a": "b" } }, "data": { "x": "1" } });
    let (_, made) = apply(&server, &path, "fieldManager=one", &map).await;
    let fields = json!({ "f:data": { "f:x": {} }, "f:metadata": { "f:labels": { "f:a": {} } } });
    assert_eq!(owned(&made), [("one", "Apply", &fields)]);
    let (_, shared) = apply(&server, &path, "fieldManager=two", &map).await;
    assert_eq!(owned(&shared), [("two", "Apply", &fields), ("one", "Apply", &fields)]);
    let entries = &shared["metadata"]["managedFields"];
    assert_eq!((entries[0].get("time"), entries[1]["time"].is_string()), (None, true));
    let (_, again) = apply(&server, &path, "fieldManager=two", &map).await;
    assert_eq!(again, shared);
}

/// APP-30: conflicts are reported by owner, each field of one place before those inside it.
#[tokio::test]
async fn conflicts_are_reported_by_owner_in_order() {
    let server = TestApiServer::real().await;
    let path = format!("{MAPS}/m");
    let map = |x: &str, y: &str, z: &str| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m", "labels": { "l": x } },
            "data": { "x": x, "y": y }, "immutable": z == "2" })
    };
    apply(&server, &path, "fieldManager=one", &map("1", "1", "1")).await;
    server.ask(Method::PATCH, &format!("{path}?fieldManager=two"), &json!({ "data": { "y": "9" } })).await;
    let (code, refusal) = apply(&server, &path, "fieldManager=three", &map("2", "2", "2")).await;
    let reported = "Apply failed with 4 conflicts: conflicts with \"one\":\n- .immutable\n- .data.x\n\
        - .metadata.labels.l\nconflicts with \"two\" using v1:\n- .data.y";
    assert_eq!((code, &refusal["message"]), (409, &json!(reported)));
}

/// APP-30: kubectl comes from applying by itself to applying by the server without a conflict with its former self, but
/// not over what others changed since.
#[tokio::test]
async fn kubectl_takes_over_what_it_applied_by_itself() {
    let server = TestApiServer::real().await;
    let path = format!("{MAPS}/m");
    let map = |x: &str| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "m", "namespace": "default" }, "data": { "x": x, "y": "1" } })
    };
    let note = "kubectl.kubernetes.io/last-applied-configuration";
    let mut noted = map("1");
    noted["metadata"]["annotations"] = json!({ note: map("1").to_string() });
    let by_itself = format!("{MAPS}?fieldManager=kubectl-client-side-apply");
    assert_eq!(server.ask(Method::POST, &by_itself, &noted).await.0, 201);
    let (code, refusal) = apply(&server, &path, "fieldManager=other", &map("2")).await;
    assert_eq!(code, 409, "{refusal}");
    let (code, applied) = apply(&server, &path, "fieldManager=kubectl", &map("2")).await;
    assert_eq!((code, &applied["data"]["x"]), (200, &json!("2")), "{applied}");
    let reported: Value = serde_json::from_str(applied["metadata"]["annotations"][note].as_str().unwrap()).unwrap();
    assert_eq!(reported, map("2"));

    let edit = json!({ "data": { "x": "3" } });
    server.ask(Method::PATCH, &format!("{path}?fieldManager=kubectl-edit"), &edit).await;
    let (code, refusal) = apply(&server, &path, "fieldManager=kubectl", &map("4")).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (409, &json!(".data.x")), "{refusal}");
}
