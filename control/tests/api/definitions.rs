//! Definitions of custom kinds that change, and are deleted.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use sluicegate_control::api;

use crate::custom::{CRONS, DEFINITIONS, cron, definition};
use crate::support::TestApiServer;

/// A definition with the versions `v1alpha1` and `v1`, of which the one is stored.
fn versioned(stored: &str, changes: &[(&str, Value)]) -> Value {
    let mut definition = definition();
    let versions = ["v1alpha1", "v1"].map(|name| {
        let mut version = definition["spec"]["versions"][0].clone();
        version["name"] = name.into();
        version["storage"] = (name == stored).into();
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][name] = json!({ "type": "string" });
        version
    });
    definition["spec"]["versions"] = json!(versions);
    for (at, value) in changes {
        *definition.pointer_mut(at).unwrap() = value.clone();
    }
    definition
}

/// APP-36: each served version of a kind is read, written and watched, whichever is stored, and what was stored before
/// the definition named another one is still there: an operator brings its new version that way.
#[tokio::test]
async fn a_kind_is_served_in_all_its_versions_and_moves_from_one_to_the_next() {
    let server = TestApiServer::real().await;
    let olds = CRONS.replace("/v1/", "/v1alpha1/");
    let deprecated = json!({ "name": "v1alpha1", "served": true, "storage": true, "deprecated": true,
        "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } });
    let first = versioned("v1alpha1", &[("/spec/versions/0", deprecated)]);
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &first).await.0, 201);
    let (_, group) = server.get("/apis/example.com").await;
    assert_eq!(group["preferredVersion"]["version"], "v1", "a release goes before an alpha: {group}");
    let mut old = cron("a", json!({ "cron": "x", "v1alpha1": "o", "v1": "n" }));
    old["apiVersion"] = "example.com/v1alpha1".into();
    let request = http::Request::post(&olds).header("content-type", "application/json");
    let response = server.send(request.body(old.to_string().into()).unwrap()).await;
    let warning = response.headers()["warning"].to_str().unwrap();
    assert_eq!((response.status().as_u16(), warning), (201, r#"299 - "example.com/v1alpha1 Cron is deprecated""#));
    let (_, new) = server.get(&format!("{CRONS}/a")).await;
    assert_eq!(
        (&new["apiVersion"], &new["spec"]),
        (&json!("example.com/v1"), &json!({ "cron": "x", "v1": "n" })),
        "without what this version does not know: {new}"
    );

    let path = format!("{DEFINITIONS}/crons.example.com");
    let moved = versioned("v1", &[]);
    let (code, reported) = server.ask(Method::PATCH, &path, &json!({ "spec": moved["spec"] })).await;
    assert_eq!((code, &reported["status"]["storedVersions"]), (200, &json!(["v1alpha1", "v1"])), "{reported}");
    let (_, list) = server.get(CRONS).await;
    assert_eq!(
        (&list["items"][0]["apiVersion"], &list["items"][0]["metadata"]["generation"]),
        (&json!("example.com/v1"), &json!(1)),
        "{list}"
    );
    let mut lines = server.watch(&format!("{CRONS}?watch=1&timeoutSeconds=30")).await;
    assert_eq!(lines.until("ADDED", "a").await["apiVersion"], "example.com/v1");
    let one = format!("{CRONS}/a");
    let media = "application/apply-patch+yaml";
    for (path, version) in [(&one, "v1"), (&format!("{olds}/a"), "v1alpha1")] {
        let mut wanted = cron("a", json!({ "cron": version }));
        wanted["apiVersion"] = format!("example.com/{version}").into();
        let path = format!("{path}?fieldManager=m&force=true");
        let (code, applied) = server.ask_as(Method::PATCH, &path, media, wanted.to_string()).await;
        assert_eq!((code, &applied["apiVersion"]), (200, &wanted["apiVersion"]), "{applied}");
        let seen = lines.until("MODIFIED", "a").await;
        assert_eq!((&seen["apiVersion"], &seen["spec"]["cron"]), (&json!("example.com/v1"), &json!(version)));
    }
    let (code, changed) = server.ask(Method::PATCH, &one, &json!({ "spec": { "cron": "y" } })).await;
    assert_eq!((code, &changed["apiVersion"]), (200, &json!("example.com/v1")), "{changed}");

    let alone = json!({ "spec": { "versions": [moved["spec"]["versions"][1]] } });
    let (code, refusal) = server.ask(Method::PATCH, &path, &alone).await;
    let cause = &refusal["details"]["causes"][0];
    assert_eq!((code, &cause["field"]), (422, &json!("status.storedVersions[0]")), "{refusal}");
    for (versions, field) in [
        (json!([]), "status.storedVersions"),
        (json!(["v1alpha1"]), "status.storedVersions"),
        (json!(["v1", "v2"]), "status.storedVersions[1]"),
    ] {
        let wrong = json!({ "status": { "storedVersions": versions } });
        let (code, refusal) = server.ask(Method::PATCH, &format!("{path}/status"), &wrong).await;
        assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!(field)), "{refusal}");
    }
    let migrated = json!({ "status": { "storedVersions": ["v1"] } });
    assert_eq!(server.ask(Method::PATCH, &format!("{path}/status"), &migrated).await.0, 200);
    assert_eq!(server.ask(Method::PATCH, &path, &alone).await.0, 200);
    assert_eq!((server.get(&olds).await.0, server.get(&one).await.0), (404, 200));
}

/// APP-36: what Helm's charts leave empty (`replicas:`) counts as left out; a default that a definition gets later is
/// seen in what was there before; and what is forbidden later stays until it is changed.
#[tokio::test]
async fn a_definition_that_changes_leaves_what_is_there_usable() {
    let server = TestApiServer::real().await;
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &definition()).await.0, 201);
    let object = cron("a", json!({ "cron": "long enough", "replicas": null, "typo": null }));
    let (code, made) = server.ask(Method::POST, CRONS, &object).await;
    assert_eq!((code, &made["spec"]), (201, &json!({ "cron": "long enough", "replicas": 1 })), "{made}");
    let mut later = definition();
    let fields = &mut later["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    fields["zone"] = json!({ "type": "string", "default": "utc" });
    fields["cron"]["maxLength"] = 3.into();
    let path = format!("{DEFINITIONS}/crons.example.com");
    assert_eq!(server.ask(Method::PATCH, &path, &json!({ "spec": later["spec"] })).await.0, 200);
    let one = format!("{CRONS}/a");
    let (_, shown) = server.get(&one).await;
    assert_eq!(shown["spec"], json!({ "cron": "long enough", "replicas": 1, "zone": "utc" }));
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    let (code, labelled) = server.ask(Method::PATCH, &one, &label).await;
    assert_eq!((code, &labelled["metadata"]["generation"]), (200, &json!(1)), "{labelled}");
    let (code, refusal) = server.ask(Method::PATCH, &one, &json!({ "spec": { "cron": "other" } })).await;
    let reported = "spec.cron: Too long: may not be more than 3 bytes";
    assert!(code == 422 && refusal["message"].as_str().unwrap().contains(reported), "{refusal}");
}

/// A definition whose objects have finalizers waits for them: they can still be read and changed, and none can be created.
#[tokio::test]
async fn a_definition_waits_for_what_holds_its_objects() {
    let server = TestApiServer::real().await;
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &definition()).await.0, 201);
    for (name, finalizers) in [("free", json!([])), ("held", json!(["example.com/a"]))] {
        let mut object = cron(name, json!({ "cron": "x" }));
        object["metadata"]["finalizers"] = finalizers;
        assert_eq!(server.ask(Method::POST, CRONS, &object).await.0, 201);
    }
    let path = format!("{DEFINITIONS}/crons.example.com");
    let mut definitions =
        server.watch(&format!("{DEFINITIONS}?watch=1&fieldSelector=metadata.name%3Dcrons.example.com")).await;
    let (code, marked) = server.delete(&path).await;
    assert_eq!(
        (code, &marked["metadata"]["finalizers"][0]),
        (200, &json!("customresourcecleanup.apiextensions.k8s.io"))
    );
    assert_eq!(marked["status"]["conditions"][2]["type"], "Terminating", "{marked}");
    let (_, left) = server.get(CRONS).await;
    let names: Vec<_> = left["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["held"]);
    let (code, refusal) = server.ask(Method::POST, CRONS, &cron("new", json!({ "cron": "x" }))).await;
    let why = "create not allowed while custom resource definition is terminating";
    assert!(code == 403 && refusal["message"].as_str().unwrap().contains(why), "{refusal}");

    tokio::spawn(api::run_garbage_collector(Arc::clone(&server.store), Arc::clone(&server.registry)));
    let free = json!({ "metadata": { "finalizers": null } });
    assert_eq!(server.ask(Method::PATCH, &format!("{CRONS}/held"), &free).await.0, 200);
    definitions.until("DELETED", "crons.example.com").await;
    assert_eq!(server.get(CRONS).await.0, 404);
}

/// APP-36: a watch ends with the definition as it was when it began, after all changes were sent. The same kind
/// defined again is another, and a version that is served no more has nothing to tell.
#[tokio::test]
async fn a_watch_ends_with_its_definition() {
    let server = TestApiServer::real().await;
    let (path, watch) = (format!("{DEFINITIONS}/crons.example.com"), format!("{CRONS}?watch=1"));
    let wanted = versioned("v1", &[]);
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &wanted).await.0, 201);
    let mut old = server.watch(&watch.replace("/v1/", "/v1alpha1/")).await;
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    assert_eq!(server.ask(Method::PATCH, &path, &labels).await.0, 200);
    assert_eq!(server.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x" }))).await.0, 201);
    assert_eq!(old.next_change().await, ("ADDED".to_owned(), "a".to_owned()), "a label changes no kind");
    let mut unserved = json!({ "spec": wanted["spec"] });
    unserved["spec"]["versions"][0]["served"] = false.into();
    assert_eq!(server.ask(Method::PATCH, &path, &unserved).await.0, 200);
    assert_eq!(old.next().await, None);

    let mut watched = server.watch(&watch).await;
    assert_eq!(watched.next_change().await, ("ADDED".to_owned(), "a".to_owned()));
    assert_eq!(server.delete(&path).await.0, 200);
    assert_eq!(watched.next_change().await, ("DELETED".to_owned(), "a".to_owned()));
    tokio::spawn(api::run_garbage_collector(Arc::clone(&server.store), Arc::clone(&server.registry)));
    assert_eq!(watched.next().await, None);
}

/// APP-21, APP-29: groups of the Kubernetes project are used by custom kinds, as those of the Gateway API and of
/// Cluster API are: such a kind is a client's own anyway.
#[tokio::test]
async fn a_clients_kind_in_a_group_of_kubernetes_is_a_clients_kind() {
    let server = TestApiServer::real().await;
    let group = "snapshot.storage.k8s.io";
    let mut snapshots = definition();
    snapshots["metadata"]["name"] = format!("volumesnapshots.{group}").into();
    snapshots["spec"]["group"] = group.into();
    snapshots["spec"]["names"] = json!({ "plural": "volumesnapshots", "kind": "VolumeSnapshot" });
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &snapshots).await.0, 201);
    let all = format!("/apis/{group}/v1/namespaces/default/volumesnapshots");
    let snapshot = json!({ "metadata": { "name": "a" }, "spec": { "cron": "x" } });
    let (_, made) = server.ask(Method::POST, &all, &snapshot).await;
    let patch = json!({ "spec": { "cron": "y" } });
    let (_, changed) = server.ask(Method::PATCH, &format!("{all}/a"), &patch).await;
    assert_eq!((&made["metadata"]["generation"], &changed["metadata"]["generation"]), (&json!(1), &json!(2)));
    let strategic = "application/strategic-merge-patch+json";
    let (code, _) = server.ask_as(Method::PATCH, &format!("{all}/a"), strategic, patch.to_string()).await;
    assert_eq!(code, 415);
}

/// APP-21: where the status is no subresource it is a field like any other.
#[tokio::test]
async fn a_status_that_is_a_plain_field_counts_as_one() {
    let server = TestApiServer::real().await;
    let mut plain = definition();
    plain["spec"]["versions"][0]["subresources"] = Value::Null;
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &plain).await.0, 201);
    assert_eq!(server.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x" }))).await.0, 201);
    let path = format!("{CRONS}/a");
    for (patch, generation) in
        [(json!({ "status": { "done": true } }), 2), (json!({ "metadata": { "labels": { "a": "b" } } }), 2)]
    {
        let (_, changed) = server.ask(Method::PATCH, &path, &patch).await;
        assert_eq!(changed["metadata"]["generation"], generation, "{changed}");
    }
}

/// APP-17: of two kinds that would be one to every client, the second waits until the first is gone.
#[tokio::test]
async fn a_kind_whose_name_another_has_is_not_served_before_it_is_free() {
    let server = TestApiServer::real().await;
    tokio::spawn(api::run_crd_names(Arc::clone(&server.store)));
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &definition()).await.0, 201);
    let mut second = definition();
    second["metadata"]["name"] = "cronz.example.com".into();
    second["spec"]["names"] = json!({ "plural": "cronz", "singular": "cronze", "kind": "Cron", "listKind": "Crons" });
    let (code, made) = server.ask(Method::POST, DEFINITIONS, &second).await;
    let conditions = &made["status"]["conditions"];
    assert_eq!((code, &conditions[0]["reason"]), (201, &json!("KindConflict")), "{made}");
    assert_eq!((&conditions[1]["type"], &conditions[1]["status"]), (&json!("Established"), &json!("False")));
    let (theirs, ours) = (CRONS.replace("crons", "cronz"), "/apis/serving.knative.dev/v1/servicez");
    assert_eq!(server.get(&theirs).await.0, 404);

    let path = format!("{DEFINITIONS}?watch=1&fieldSelector=metadata.name%3Dcronz.example.com");
    let mut definitions = server.watch(&path).await;
    assert_eq!(server.delete(&format!("{DEFINITIONS}/crons.example.com")).await.0, 200);
    let named = definitions.until("MODIFIED", "cronz.example.com").await;
    assert_eq!(named["status"]["acceptedNames"]["kind"], "Cron", "{named}");
    assert_eq!(server.get(&theirs).await.0, 200);

    second["metadata"]["name"] = "servicez.serving.knative.dev".into();
    second["spec"]["group"] = "serving.knative.dev".into();
    second["spec"]["names"] = json!({ "plural": "servicez", "kind": "Service" });
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &second).await.0, 201);
    assert_eq!(server.get(ours).await.0, 404, "the appliance has that name");
}
