//! Server-side apply: ownership, conflicts, and the removal of fields without an owner.

use http::Method;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use sluicegate_control::kinds::serving::configuration::Configuration;

use crate::support::{MAPS, TestApiServer};

const KSVCS: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
const MEDIA: &str = "application/apply-patch+yaml";

async fn apply(server: &TestApiServer, path: &str, query: &str, object: &Value) -> (u16, Value) {
    server.ask_as(Method::PATCH, &format!("{path}?{query}"), MEDIA, object.to_string()).await
}

fn map(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" }, "data": data })
}

fn owners(object: &Value) -> Vec<(&str, &str)> {
    let entries = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().map(|one| (one["manager"].as_str().unwrap(), one["operation"].as_str().unwrap())).collect()
}

/// APP-29: the first apply creates, a later one removes what its owner no longer sends, and only that.
#[tokio::test]
async fn what_an_applier_leaves_out_goes_and_what_others_set_stays() {
    let server = TestApiServer::open().await;
    let path = format!("{MAPS}/m");
    let (code, made) = apply(&server, &path, "fieldManager=a", &map(json!({ "x": "1", "y": "1" }))).await;
    assert_eq!((code, owners(&made)), (201, vec![("a", "Apply")]), "{made}");
    let (code, _) =
        server.ask(Method::PATCH, &format!("{path}?fieldManager=b"), &json!({ "data": { "z": "1" } })).await;
    assert_eq!(code, 200);
    let (code, left) = apply(&server, &path, "fieldManager=a", &map(json!({ "x": "1" }))).await;
    assert_eq!((code, &left["data"]), (200, &json!({ "x": "1", "z": "1" })), "{left}");
    assert_eq!(owners(&left), [("a", "Apply"), ("b", "Update")]);
    assert_eq!(left["metadata"]["managedFields"][1]["fieldsV1"], json!({ "f:data": { "f:z": {} } }));
}

/// APP-29: another's field is a conflict with cause, and by force it changes hands.
#[tokio::test]
async fn a_field_of_another_owner_is_a_conflict_until_it_is_taken_by_force() {
    let server = TestApiServer::open().await;
    let path = format!("{MAPS}/m");
    apply(&server, &path, "fieldManager=a", &map(json!({ "x": "1", "y": "1" }))).await;
    let (code, refusal) = apply(&server, &path, "fieldManager=b", &map(json!({ "x": "2" }))).await;
    assert_eq!((code, &refusal["reason"]), (409, &json!("Conflict")), "{refusal}");
    assert_eq!(refusal["message"], r#"Apply failed with 1 conflict: conflict with "a": .data.x"#);
    assert_eq!(
        refusal["details"]["causes"],
        json!([{ "reason": "FieldManagerConflict", "message": r#"conflict with "a""#, "field": ".data.x" }])
    );
    let (code, shared) = apply(&server, &path, "fieldManager=b", &map(json!({ "x": "1" }))).await;
    assert_eq!(code, 200, "the same value is no conflict: {shared}");

    let (code, taken) = apply(&server, &path, "fieldManager=b&force=true", &map(json!({ "x": "2" }))).await;
    assert_eq!((code, &taken["data"]["x"]), (200, &json!("2")));
    let (code, refusal) = apply(&server, &path, "fieldManager=a", &map(json!({ "x": "1", "y": "1" }))).await;
    assert_eq!(code, 409, "{refusal}");
    let (_, left) = apply(&server, &path, "fieldManager=a", &map(json!({ "y": "1" }))).await;
    assert_eq!(left["data"], json!({ "x": "2", "y": "1" }));
}

/// APP-40: applying the same again changes nothing; APP-33: a dry run stores nothing.
#[tokio::test]
async fn repeated_apply_and_dry_run_change_nothing() {
    let server = TestApiServer::real().await;
    let path = format!("{KSVCS}/hello");
    let service = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service",
        "metadata": { "name": "hello" },
        "spec": { "template": { "spec": { "containers": [{ "image": "a", "env": [{ "name": "A", "value": "1" }] }] } } } });
    let (code, seen) = apply(&server, &path, "fieldManager=a&dryRun=All", &service).await;
    assert_eq!(code, 201, "{seen}");
    assert_eq!(server.get(&path).await.0, 404);
    let (_, first) = apply(&server, &path, "fieldManager=a", &service).await;
    let (code, second) = apply(&server, &path, "fieldManager=a", &service).await;
    assert_eq!(
        (code, &second["metadata"]["resourceVersion"]),
        (200, &first["metadata"]["resourceVersion"]),
        "{second}"
    );
    assert_eq!(second["metadata"]["generation"], 1);
    assert_eq!(second["spec"]["traffic"][0]["percent"], 100, "defaults stay");
}

/// APP-33: errors about the Pod alone are reported as upstream's webhook does.
#[tokio::test]
async fn dry_run_of_invalid_pod_has_upstreams_message() {
    let server = TestApiServer::real().await;
    let service = json!({ "metadata": { "name": "hello" },
        "spec": { "template": { "spec": { "containers": [{ "name": "a", "image": "a" }] } } } });
    assert_eq!(server.ask(Method::POST, KSVCS, &service).await.0, 201);
    let rename =
        json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/name", "value": "&InvalidValue" }]);
    let patch = async |query: &str| {
        let (path, media) = (format!("{KSVCS}/hello{query}"), "application/json-patch+json");
        let (code, refusal) = server.ask_as(Method::PATCH, &path, media, rename.to_string()).await;
        assert_eq!(code, 422, "{refusal}");
        refusal["details"]["causes"][0].clone()
    };
    let reported = patch("?dryRun=All").await;
    assert_eq!(reported["field"], "spec.template");
    let words = "validation callback failed: dry run failed with Pod \"dry-run-validation\" is invalid: \
                 spec.containers[0].name: Invalid value: \"&InvalidValue\": a lowercase RFC 1123 label";
    assert!(reported["message"].as_str().unwrap().starts_with(words), "{reported}");
    assert_eq!(patch("").await["field"], "spec.template.spec.containers[0].name");
}

#[tokio::test]
async fn the_owner_of_an_edit_is_who_edited_and_no_longer_who_wrote_before() {
    let server = TestApiServer::open().await;
    let path = format!("{MAPS}/m");
    server.ask(Method::POST, &format!("{MAPS}?fieldManager=first"), &map(json!({ "x": "1", "y": "1" }))).await;
    let (_, edited) = server
        .ask(Method::PATCH, &format!("{path}?fieldManager=second"), &json!({ "data": { "x": "2", "y": null } }))
        .await;
    let fields = |manager: &str| {
        let entries = edited["metadata"]["managedFields"].as_array().unwrap();
        entries.iter().find(|one| one["manager"] == manager).map(|one| one["fieldsV1"].clone())
    };
    assert_eq!(fields("second"), Some(json!({ "f:data": { "f:x": {} } })));
    assert_eq!(fields("first"), Some(json!({ "f:data": {} })), "that there is data: {edited}");
    let (code, refusal) = apply(&server, &path, "fieldManager=third", &map(json!({ "x": "3" }))).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (409, &json!(".data.x")));
}

#[tokio::test]
async fn an_apply_names_its_manager_and_force_is_for_applies_only() {
    let server = TestApiServer::open().await;
    let path = format!("{MAPS}/m");
    let (code, refusal) = apply(&server, &path, "", &map(json!({}))).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("fieldManager")), "{refusal}");
    let (code, _) = apply(&server, &path, "fieldManager=a", &json!({ "data": {} })).await;
    assert_eq!(code, 400);
    for body in ["a: [", "[]", "data: {m: &a [*a]}", "5"] {
        let (code, _) = server.ask_as(Method::PATCH, &format!("{path}?fieldManager=a"), MEDIA, body.to_owned()).await;
        assert_eq!(code, 400, "{body}");
    }
    apply(&server, &path, "fieldManager=a", &map(json!({}))).await;
    let (code, _) = server.ask(Method::PATCH, &format!("{path}?force=true"), &json!({})).await;
    assert_eq!(code, 422);
}

fn configuration(image: &str) -> Value {
    json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Configuration", "metadata": { "name": "c" },
        "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } })
}

/// APP-29, APP-40: what controllers write is theirs, statuses under a subresource; an applier hears of it, and
/// what changes nothing moves no entry.
#[tokio::test]
async fn what_controllers_write_is_owned_by_them() {
    let server = TestApiServer::real().await;
    let path = "/apis/serving.knative.dev/v1/namespaces/default/configurations/c";
    let api: Api<Configuration> = Api::default_namespaced(server.client());
    let by = PostParams { field_manager: Some("controller".into()), ..PostParams::default() };
    api.create(&by, &serde_json::from_value(configuration("a/b")).unwrap()).await.unwrap();
    let mut reported: Value = server.get(path).await.1;
    reported["status"] = json!({ "observedGeneration": 1, "latestCreatedRevisionName": "c-00001",
        "conditions": [{ "type": "Ready", "status": "Unknown" }] });
    api.replace_status("c", &by, &serde_json::from_value(reported).unwrap()).await.unwrap();
    let (_, stored) = server.get(path).await;
    assert_eq!(owners(&stored), [("controller", "Update"), ("controller", "Update")], "{stored}");
    let of_status = &stored["metadata"]["managedFields"][1];
    assert_eq!(of_status["subresource"], "status");
    let fields = json!({ ".": {}, "f:conditions": {}, "f:latestCreatedRevisionName": {}, "f:observedGeneration": {} });
    assert_eq!(of_status["fieldsV1"], json!({ "f:status": fields }));

    let same: Configuration = api.get("c").await.unwrap();
    api.replace_status("c", &by, &same).await.unwrap();
    api.replace("c", &by, &same).await.unwrap();
    assert_eq!(server.get(path).await.1, stored, "the same again changes nothing");

    let (code, refusal) = apply(&server, path, "fieldManager=kubectl", &configuration("a/c")).await;
    assert_eq!((code, &refusal["reason"]), (409, &json!("Conflict")), "{refusal}");
    let cause = &refusal["details"]["causes"][0];
    assert_eq!(cause["message"], r#"conflict with "controller" using serving.knative.dev/v1"#);
    assert_eq!(cause["field"], ".spec.template.spec.containers", "one value, as in Knative's schema");
    let (code, taken) = apply(&server, path, "fieldManager=kubectl&force=true", &configuration("a/c")).await;
    assert_eq!(code, 200, "{taken}");
}

/// APP-29: a client can start over; kubectl moves an object to server-side apply by rewriting the list.
#[tokio::test]
async fn a_client_may_write_the_list_of_owners_itself() {
    let server = TestApiServer::open().await;
    let path = format!("{MAPS}/m");
    let (_, made) = server.ask(Method::POST, &format!("{MAPS}?fieldManager=old"), &map(json!({ "x": "1" }))).await;
    let mut list = made["metadata"]["managedFields"].clone();
    list[0]["manager"] = "new".into();
    list[0]["operation"] = "Apply".into();
    let operations = json!([
        { "op": "replace", "path": "/metadata/managedFields", "value": list },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"] },
    ]);
    let media = "application/json-patch+json";
    let (code, moved) = server.ask_as(Method::PATCH, &path, media, operations.to_string()).await;
    assert_eq!((code, owners(&moved)), (200, vec![("new", "Apply")]), "{moved}");
    let (_, left) = apply(&server, &path, "fieldManager=new", &map(json!({ "y": "1" }))).await;
    assert_eq!(left["data"], json!({ "y": "1" }), "what it owned and no longer sends is gone");

    for (sent, kept) in [
        (json!([{ "manager": "x", "operation": "Conquer" }]), vec![("new", "Apply")]),
        (json!([]), vec![]),
        (json!([{}]), vec![]),
    ] {
        apply(&server, &path, "fieldManager=new", &map(json!({ "y": "1" }))).await;
        let patch = json!({ "metadata": { "managedFields": sent } });
        let (code, after) = server.ask(Method::PATCH, &path, &patch).await;
        assert_eq!((code, owners(&after)), (200, kept), "{sent}");
    }
}

/// APP-30: a field that the kind does not know, and an element that stands twice, can have no owner. Whatever a client
/// wants warnings about such fields, the warning says that nothing was applied.
#[tokio::test]
async fn what_could_have_no_owner_is_refused_and_nothing_is_applied() {
    let server = TestApiServer::real().await;
    let service = |field: &str, ports: Value| {
        json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "s" }, "spec": { "clusterIP": "None", field: "a", "ports": ports } })
    };
    let ports = json!([{ "port": 90, "name": "a" }, { "port": 90, "name": "b" }]);
    for (object, why) in [
        (service("sessionAffinit", json!([])), ".spec.sessionAffinit: field not declared in schema"),
        (service("externalName", ports), r#".spec.ports: duplicate entries for key [port=90,protocol="TCP"]"#),
    ] {
        for query in ["fieldManager=a", "fieldManager=a&force=true&fieldValidation=Ignore"] {
            let path = "/api/v1/namespaces/default/services/s";
            let (code, refusal) = apply(&server, path, query, &object).await;
            let said = format!("failed to create typed patch object (/s; /v1, Kind=Service): {why}");
            assert_eq!((code, &refusal["message"]), (400, &json!(said)));
            assert_eq!(server.get(path).await.0, 404);
        }
    }
}

/// APP-30: what is one value for Kubernetes has one owner: a Service's selector, the containers of Knative's kinds.
#[tokio::test]
async fn what_is_one_value_is_a_conflict_as_a_whole() {
    let server = TestApiServer::real().await;
    let service = |selector: Value| {
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
        "spec": { "ports": [{ "port": 80 }], "selector": selector } })
    };
    let knative = |container: Value| {
        json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service",
        "metadata": { "name": "s" }, "spec": { "template": { "spec": { "containers": [container] } } } })
    };
    for (path, first, second, field) in [
        (
            "/api/v1/namespaces/default/services/s".to_owned(),
            service(json!({ "a": "1" })),
            service(json!({ "b": "1" })),
            ".spec.selector",
        ),
        (
            format!("{KSVCS}/s"),
            knative(json!({ "name": "c", "image": "a" })),
            knative(json!({ "name": "c", "image": "a", "env": [{ "name": "A", "value": "1" }] })),
            ".spec.template.spec.containers",
        ),
    ] {
        let (code, made) = apply(&server, &path, "fieldManager=a", &first).await;
        assert_eq!(code, 201, "{made}");
        let (code, refusal) = apply(&server, &path, "fieldManager=b", &second).await;
        assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (409, &json!(field)), "{refusal}");
    }
}

/// APP-30: an apply of an object with a uid means that one, and not another of its name.
#[tokio::test]
async fn an_object_that_is_gone_is_not_made_again_by_its_uid() {
    let server = TestApiServer::real().await;
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "uid": "old" } });
    let path = "/api/v1/namespaces/default/configmaps/a";
    let (code, refusal) = apply(&server, path, "fieldManager=a", &object).await;
    let why = "uid mismatch: the provided object specified uid old, and no existing object was found";
    let said = format!("Operation cannot be fulfilled on configmaps \"a\": {why}");
    assert_eq!((code, &refusal["message"]), (409, &json!(said)));
    assert_eq!(server.get(path).await.0, 404);
}

/// APP-29: an apply of a label does not specify the spec, in whatever version the object was written and the label is
/// applied; kubectl does so when it moves an object over from applying by itself.
#[tokio::test]
async fn an_applied_label_leaves_an_event_type_as_it_is_in_all_versions() {
    let server = TestApiServer::real().await;
    let path = |version: &str| format!("/apis/eventing.knative.dev/{version}/namespaces/default/eventtypes");
    let object = |version: &str, name: &str, spec: Value| {
        json!({ "apiVersion": format!("eventing.knative.dev/{version}"), "kind": "EventType",
                "metadata": { "name": name }, "spec": spec })
    };
    let attribute = |name: &str| json!({ "name": name, "required": true, "value": name });
    let attributes = ["type", "source", "specversion", "id"].map(attribute);
    for (written, spec) in
        [("v1beta2", json!({ "type": "t", "source": "/s" })), ("v1beta3", json!({ "attributes": attributes }))]
    {
        let made = object(written, written, spec);
        assert_eq!(server.ask(Method::POST, &path(written), &made).await.0, 201);
        for applied in ["v1beta1", "v1beta2", "v1beta3"] {
            let mut label = object(applied, written, Value::Null);
            label.as_object_mut().unwrap().remove("spec");
            label["metadata"]["labels"] = json!({ "by": applied });
            let at = format!("{}/{written}", path(applied));
            let (code, labelled) = apply(&server, &at, "fieldManager=a", &label).await;
            assert_eq!((code, &labelled["metadata"]["labels"]["by"]), (200, &json!(applied)), "{labelled}");
            assert_eq!(labelled["metadata"]["generation"], 1);
        }
    }
    let short = object("v1beta3", "short", json!({ "description": "d" }));
    let (code, refused) = apply(&server, &format!("{}/short", path("v1beta3")), "fieldManager=a", &short).await;
    assert_eq!((code, refused["message"].to_string().contains("spec.attributes")), (422, true), "{refused}");
}
