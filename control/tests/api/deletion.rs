//! Deletion: finalizers, preconditions, dependents, namespaces.

use std::sync::Arc;
use std::time::Instant;

use http::Method;
use serde_json::{Value, json};
use sluicegate_control::api;
use sluicegate_control::store::{ObjectKey, StoreError, WriteOperation};

use crate::support::{MAPS, TestApiServer, WIDGETS};

/// A ConfigMap that names `owners` as its own.
async fn child(server: &TestApiServer, name: &str, owners: &[&Value], blocks: bool) -> (u16, Value) {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| {
            json!({ "apiVersion": owner["apiVersion"], "kind": owner["kind"],
                "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": blocks })
        })
        .collect();
    let body = json!({ "metadata": { "name": name, "ownerReferences": references } });
    server.ask(Method::POST, MAPS, &body).await
}

fn collect(server: &TestApiServer) {
    tokio::spawn(api::run_garbage_collector(Arc::clone(&server.store), Arc::clone(&server.registry)));
}

/// SRV-API-04
#[tokio::test]
async fn a_deletion_answers_success_with_the_uid_and_the_object_is_gone() {
    let server = TestApiServer::open().await;
    let made = server.widget("one", &json!({})).await;
    let path = format!("{WIDGETS}/one");
    let (code, status) = server.delete(&path).await;
    assert_eq!((code, &status["status"]), (200, &json!("Success")));
    assert_eq!(status["details"]["uid"], made["metadata"]["uid"]);
    assert_eq!(server.get(&path).await.0, 404);
    assert_eq!(server.delete(&path).await.0, 404);
}

/// APP-31
#[tokio::test]
async fn a_finalizer_holds_its_object_until_it_is_taken_away() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let path = format!("{WIDGETS}/one");
    let finalizers = |list: Value| json!({ "metadata": { "finalizers": list } });
    server.ask(Method::PATCH, &path, &finalizers(json!(["example.com/a"]))).await;
    let (code, marked) = server.delete(&path).await;
    assert_eq!(code, 200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(server.delete(&path).await.1, marked, "asking again changes nothing");
    let more = finalizers(json!(["example.com/a", "example.com/b"]));
    assert_eq!(server.ask(Method::PATCH, &path, &more).await.0, 422);
    let revive = json!({ "metadata": { "deletionTimestamp": null } });
    let (_, still) = server.ask(Method::PATCH, &path, &revive).await;
    assert_eq!(still["metadata"]["deletionTimestamp"], marked["metadata"]["deletionTimestamp"]);
    assert_eq!(server.ask(Method::PATCH, &path, &finalizers(json!(null))).await.0, 200);
    assert_eq!(server.get(&path).await.0, 404);
}

/// APP-30
#[tokio::test]
async fn a_deletion_with_a_precondition_that_fails_conflicts() {
    let server = TestApiServer::open().await;
    let made = server.widget("one", &json!({})).await;
    let path = format!("{WIDGETS}/one");
    for wrong in [json!({ "uid": "other" }), json!({ "resourceVersion": "1" })] {
        let (code, refusal) = server.ask(Method::DELETE, &path, &json!({ "preconditions": wrong })).await;
        assert_eq!((code, &refusal["reason"]), (409, &json!("Conflict")));
    }
    for (wrong, refused) in [
        (json!({ "propagationPolicy": "Sideways" }), 422),
        (json!({ "dryRun": ["Some"] }), 422),
        (json!({ "gracePeriodSeconds": "x" }), 400),
        (json!({ "kind": "Widget" }), 400),
    ] {
        assert_eq!(server.ask(Method::DELETE, &path, &wrong).await.0, refused, "{wrong}");
    }
    let right = json!({ "preconditions": { "uid": made["metadata"]["uid"] } });
    assert_eq!(server.ask(Method::DELETE, &path, &right).await.0, 200);
}

/// SRV-API-08
#[tokio::test]
async fn a_collection_is_deleted_as_far_as_the_selector_goes() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({ "a": "x" })).await;
    server.widget("two", &json!({ "a": "y" })).await;
    let (code, list) = server.delete(&format!("{WIDGETS}?labelSelector=a%3Dx")).await;
    assert_eq!((code, &list["items"][0]["metadata"]["name"]), (200, &json!("one")));
    let (_, rest) = server.get(WIDGETS).await;
    assert_eq!(rest["items"].as_array().unwrap().len(), 1);
    assert_eq!(server.delete("/apis/test.sluicegate.dev/v1/widgets").await.0, 405);
}

/// APP-30, Background: the children go after their last owner.
#[tokio::test]
async fn a_child_goes_with_its_last_owner_only() {
    let server = TestApiServer::open().await;
    let (one, two) = (server.widget("one", &json!({})).await, server.widget("two", &json!({})).await);
    child(&server, "both", &[&one, &two], true).await;
    child(&server, "only", &[&one], true).await;
    let mut watch = server.watch(&format!("{MAPS}?watch=1")).await;
    collect(&server);
    assert_eq!(server.delete(&format!("{WIDGETS}/one")).await.1["status"], "Success");
    watch.until("DELETED", "only").await;
    let mut all = server.watch(&format!("{MAPS}?watch=1")).await;
    let left = all.until("ADDED", "both").await;
    if left["metadata"]["ownerReferences"].as_array().unwrap().len() == 2 {
        let left = all.until("MODIFIED", "both").await;
        assert_eq!(left["metadata"]["ownerReferences"][0]["uid"], two["metadata"]["uid"]);
    }
    server.delete(&format!("{WIDGETS}/two")).await;
    watch.until("DELETED", "both").await;
}

/// APP-30, Foreground: the owner remains, marked, until the children are gone.
#[tokio::test]
async fn an_owner_deleted_in_the_foreground_outlives_its_children() {
    let server = TestApiServer::open().await;
    let owner = server.widget("one", &json!({})).await;
    child(&server, "held", &[&owner], true).await;
    let held = json!({ "metadata": { "finalizers": ["example.com/a"] } });
    server.ask(Method::PATCH, &format!("{MAPS}/held"), &held).await;
    let mut maps = server.watch(&format!("{MAPS}?watch=1")).await;
    let mut widgets = server.watch(&format!("{WIDGETS}?watch=1")).await;
    collect(&server);
    let path = format!("{WIDGETS}/one?propagationPolicy=Foreground");
    let (_, marked) = server.delete(&path).await;
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let child = maps.until("MODIFIED", "held").await;
    assert!(child["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(server.get(&format!("{WIDGETS}/one")).await.0, 200, "the child is still there");
    server.ask(Method::PATCH, &format!("{MAPS}/held"), &json!({ "metadata": { "finalizers": null } })).await;
    widgets.until("DELETED", "one").await;
    assert_eq!(server.get(&format!("{MAPS}/held")).await.0, 404);
}

/// APP-30, Orphan: the children stay and forget.
#[tokio::test]
async fn children_of_an_owner_that_orphans_stay_without_it() {
    let server = TestApiServer::open().await;
    let owner = server.widget("one", &json!({})).await;
    child(&server, "kept", &[&owner], true).await;
    let mut widgets = server.watch(&format!("{WIDGETS}?watch=1")).await;
    collect(&server);
    server.delete(&format!("{WIDGETS}/one?propagationPolicy=Orphan")).await;
    widgets.until("DELETED", "one").await;
    let (code, kept) = server.get(&format!("{MAPS}/kept")).await;
    assert_eq!(code, 200);
    assert!(kept["metadata"].get("ownerReferences").is_none());
}

#[tokio::test]
async fn what_lost_its_owner_while_nobody_collected_goes_at_the_next_start() {
    let server = TestApiServer::open().await;
    let owner = server.widget("one", &json!({})).await;
    child(&server, "late", &[&owner], false).await;
    server.delete(&format!("{WIDGETS}/one")).await;
    let mut maps = server.watch(&format!("{MAPS}?watch=1")).await;
    collect(&server);
    maps.until("DELETED", "late").await;
}

#[tokio::test]
async fn an_owner_reference_without_a_uid_is_refused() {
    let server = TestApiServer::open().await;
    let (code, refusal) = child(&server, "odd", &[&json!({ "metadata": {} })], false).await;
    assert_eq!(code, 422, "{refusal}");
    let owner = json!({ "apiVersion": "v1", "kind": "K", "metadata": { "name": "n", "uid": "" } });
    let (code, refusal) = child(&server, "odd", &[&owner], false).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("metadata.ownerReferences.uid")));
}

/// APP-31: it takes nothing new, says in Kubernetes' words what is left and what that waits for, and goes when it is empty.
#[tokio::test]
async fn a_deleted_namespace_takes_nothing_new_and_goes_when_it_is_empty() {
    let server = TestApiServer::open().await;
    let space = json!({ "metadata": { "name": "team" } });
    let maps = "/api/v1/namespaces/team/configmaps";
    let map = json!({ "metadata": { "name": "m", "finalizers": ["example.com/a"] } });
    let (code, refusal) = server.ask(Method::POST, maps, &map).await;
    assert_eq!((code, &refusal["message"]), (404, &json!("namespaces \"team\" not found")));
    server.ask(Method::POST, "/api/v1/namespaces", &space).await;
    assert_eq!(server.ask(Method::POST, maps, &map).await.0, 201);
    let mut spaces = server.watch("/api/v1/namespaces?watch=1").await;
    let mut inside = server.watch(&format!("{maps}?watch=1")).await;
    collect(&server);
    let (code, marked) = server.delete("/api/v1/namespaces/team").await;
    assert_eq!((code, &marked["status"]["phase"]), (200, &json!("Terminating")));
    assert!(marked["metadata"].get("deletionGracePeriodSeconds").is_none(), "a namespace has no grace period");
    let (code, refusal) = server.ask(Method::POST, maps, &json!({ "metadata": { "name": "n" } })).await;
    assert_eq!(code, 403);
    assert_eq!(refusal["details"]["causes"][0]["reason"], "NamespaceTerminating");
    inside.until("MODIFIED", "m").await;
    assert_eq!(server.get("/api/v1/namespaces/team").await.0, 200, "it is not empty yet");
    let conditions = |space: &Value| -> Vec<(Value, Value)> {
        let list = space["status"]["conditions"].as_array().cloned().unwrap_or_default();
        list.iter().map(|one| (one["reason"].clone(), one["message"].clone())).collect()
    };
    let mut reported = conditions(&spaces.until("MODIFIED", "team").await);
    while reported.is_empty() {
        reported = conditions(&spaces.until("MODIFIED", "team").await);
    }
    assert_eq!(reported[0].0, "ResourcesDiscovered");
    assert_eq!(reported[2].0, "ContentDeleted");
    let remaining = "Some resources are remaining: configmaps. has 1 resource instances";
    assert_eq!(reported[3], (json!("SomeResourcesRemain"), json!(remaining)));
    let waiting = "Some content in the namespace has finalizers remaining: example.com/a in 1 resource instances";
    assert_eq!(reported[4], (json!("SomeFinalizersRemain"), json!(waiting)));
    server.ask(Method::PATCH, &format!("{maps}/m"), &json!({ "metadata": { "finalizers": [] } })).await;
    let gone = spaces.until("DELETED", "team").await;
    assert_eq!(conditions(&gone)[4].1, "All content-preserving finalizers finished");
    assert_eq!(server.get(maps).await.1["items"], json!([]));
}

/// APP-30, APP-31: what a namespace says while it goes is whose it is in Kubernetes.
#[tokio::test]
async fn what_a_namespace_says_while_it_goes_has_an_owner() {
    let server = TestApiServer::open().await;
    let space = json!({ "metadata": { "name": "team" } });
    server.ask(Method::POST, "/api/v1/namespaces?fieldManager=maker", &space).await;
    let map = json!({ "metadata": { "name": "m", "finalizers": ["example.com/a"] } });
    server.ask(Method::POST, "/api/v1/namespaces/team/configmaps", &map).await;
    let mut spaces = server.watch("/api/v1/namespaces?watch=1").await;
    collect(&server);
    server.delete("/api/v1/namespaces/team").await;
    let mut space = spaces.until("MODIFIED", "team").await;
    while space["status"]["conditions"].is_null() {
        space = spaces.until("MODIFIED", "team").await;
    }
    let owners = space["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(owners.len(), 2, "who made it, and who empties it");
    let owner = owners.iter().find(|owner| owner["manager"] == "kube-controller-manager").unwrap();
    assert_eq!((&owner["operation"], &owner["subresource"]), (&json!("Update"), &json!("status")));
    let said = owner["fieldsV1"]["f:status"].as_object().unwrap();
    assert_eq!(said.keys().collect::<Vec<_>>(), ["f:conditions"], "the phase is the server's");
    let one =
        json!({ ".": {}, "f:lastTransitionTime": {}, "f:message": {}, "f:reason": {}, "f:status": {}, "f:type": {} });
    assert_eq!(said["f:conditions"][r#"k:{"type":"NamespaceContentRemaining"}"#], one);
}

/// APP-31: deleting one by one costs a status now and then, and the last remaining count is reported. It was a write for each.
#[tokio::test]
async fn a_namespace_tells_now_and_then_how_much_is_left() {
    const OBJECTS: usize = 200;
    let server = TestApiServer::open().await;
    server.ask(Method::POST, "/api/v1/namespaces", &json!({ "metadata": { "name": "team" } })).await;
    let maps = "/api/v1/namespaces/team/configmaps";
    for number in 0..OBJECTS {
        let held = json!({ "metadata": { "name": format!("m{number}"), "finalizers": ["example.com/a"] } });
        assert_eq!(server.ask(Method::POST, maps, &held).await.0, 201);
    }
    let left = |space: &Value| space["status"]["conditions"][3]["message"].as_str().map(str::to_owned);
    let remaining = |count: usize| format!("Some resources are remaining: configmaps. has {count} resource instances");
    let mut spaces = server.watch("/api/v1/namespaces?watch=1").await;
    collect(&server);
    server.delete("/api/v1/namespaces/team").await;
    while left(&spaces.until("MODIFIED", "team").await) != Some(remaining(OBJECTS)) {}

    let (begun, before) = (Instant::now(), server.store.read().revision());
    for number in 1..OBJECTS {
        let free = json!({ "metadata": { "finalizers": null } });
        assert_eq!(server.ask(Method::PATCH, &format!("{maps}/m{number}"), &free).await.0, 200);
    }
    while left(&spaces.until("MODIFIED", "team").await) != Some(remaining(1)) {}
    let (changes, _) = server.store.read().changes(None, None, before, usize::MAX).unwrap();
    let written = changes.iter().filter(|change| &*change.object.key.resource == "/namespaces").count();
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    assert!(written <= seconds + 2, "{written} statuses in {seconds} seconds");

    server.ask(Method::PATCH, &format!("{maps}/m0"), &json!({ "metadata": { "finalizers": null } })).await;
    spaces.until("DELETED", "team").await;
}

/// A restore may bring a namespace back that was going, and then what was in it.
#[tokio::test]
async fn what_a_restore_brings_into_a_namespace_that_goes_goes_with_it() {
    let server = TestApiServer::open().await;
    let space = json!({ "metadata": { "name": "team", "finalizers": ["example.com/a"] } });
    server.ask(Method::POST, "/api/v1/namespaces", &space).await;
    collect(&server);
    let mut spaces = server.watch("/api/v1/namespaces?watch=1").await;
    server.delete("/api/v1/namespaces/team").await;
    while spaces.until("MODIFIED", "team").await["spec"].get("finalizers").is_some() {}
    let maps = "/api/v1/namespaces/team/configmaps";
    let mut inside = server.watch(&format!("{maps}?watch=1")).await;
    let key = ObjectKey { resource: "/configmaps".into(), namespace: "team".into(), name: "m".into() };
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m", "namespace": "team", "uid": "u" } });
    server.store.write(move |_| Ok::<_, StoreError>(WriteOperation::Put(key, map))).await.unwrap();
    inside.until("DELETED", "m").await;
}

#[tokio::test]
async fn default_namespaces_cannot_be_deleted() {
    let server = TestApiServer::open().await;
    let (code, refusal) = server.delete("/api/v1/namespaces/default").await;
    assert_eq!((code, &refusal["reason"]), (403, &json!("Forbidden")));
    assert_eq!(server.delete("/api/v1/namespaces").await.0, 405);
    let (_, spaces) = server.get("/api/v1/namespaces").await;
    assert_eq!(spaces["items"].as_array().unwrap().len(), 4);
}

/// It is empty at once, and the finalizers of others are waited for.
#[tokio::test]
async fn a_namespace_that_others_hold_is_left_to_them() {
    let server = TestApiServer::open().await;
    let space = |finalizers: Value| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" }, "spec": { "finalizers": finalizers } });
    server.ask(Method::POST, "/api/v1/namespaces", &space(json!(null))).await;
    let (path, both) = ("/api/v1/namespaces/team/finalize", json!(["kubernetes", "example.com/mine"]));
    assert_eq!(server.ask(Method::PUT, path, &space(both)).await.0, 200);
    let mut spaces = server.watch("/api/v1/namespaces?watch=1").await;
    collect(&server);
    server.delete("/api/v1/namespaces/team").await;
    while spaces.until("MODIFIED", "team").await["spec"]["finalizers"] != json!(["example.com/mine"]) {}
    assert_eq!(server.get("/api/v1/namespaces/team").await.1["status"]["phase"], "Terminating");
    assert_eq!(server.ask(Method::PUT, path, &space(json!([]))).await.0, 200);
    spaces.until("DELETED", "team").await;
}

/// What a namespace waits for is a list of its own, which `PUT …/finalize` writes: so users free one that hangs.
#[tokio::test]
async fn what_a_namespace_waits_for_is_written_apart() {
    let server = TestApiServer::open().await;
    let (path, spaces) = ("/api/v1/namespaces/team/finalize", "/api/v1/namespaces");
    let space = |finalizers: Value| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" }, "spec": { "finalizers": finalizers } });
    assert_eq!(server.ask(Method::PUT, path, &space(json!([]))).await.0, 404);
    server.ask(Method::POST, spaces, &space(json!(["example.com/mine"]))).await;
    let (code, made) = server.get("/api/v1/namespaces/team").await;
    assert_eq!((code, &made["spec"]["finalizers"]), (200, &json!(["kubernetes"])));
    assert_eq!(server.get(path).await.0, 405);
    assert_eq!(server.ask(Method::PUT, path, &space(json!("x"))).await.0, 400);
    let (code, refusal) = server.ask(Method::PUT, path, &space(json!(["a"]))).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("spec.finalizers[0]")));
    let both = json!(["kubernetes", "example.com/mine"]);
    let (code, held) = server.ask(Method::PUT, path, &space(both.clone())).await;
    assert_eq!((code, &held["spec"]["finalizers"]), (200, &both));
    assert_eq!(held["status"]["phase"], "Active");
    server.ask(Method::PUT, "/api/v1/namespaces/team", &space(json!([]))).await;
    assert_eq!(server.get("/api/v1/namespaces/team").await.1["spec"]["finalizers"], both, "not by an update");

    assert_eq!(server.delete("/api/v1/namespaces/team").await.1["status"]["phase"], "Terminating");
    assert_eq!(server.ask(Method::PUT, path, &space(json!(["kubernetes"]))).await.0, 200);
    assert_eq!(server.get("/api/v1/namespaces/team").await.0, 200, "something is waited for");
    assert_eq!(server.ask(Method::PUT, path, &space(json!(null))).await.0, 200);
    assert_eq!(server.get("/api/v1/namespaces/team").await.0, 404);
    assert_eq!(server.ask(Method::PUT, "/api/v1/namespaces/default/configmaps/finalize", &json!({})).await.0, 404);
    let (_, listed) = server.get("/api/v1").await;
    let names: Vec<_> = listed["resources"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert!(names.contains(&&json!("namespaces/finalize")));
}

/// An owner of a kind that is not served may well be there, in the cluster that the object came from: nothing is lost for
/// it, until its definition comes and it was not created.
#[tokio::test]
async fn an_owner_of_an_unknown_kind_is_no_reason_to_go() {
    let server = TestApiServer::real().await;
    collect(&server);
    let mut maps = server.watch(&format!("{MAPS}?watch=1")).await;
    for (name, version, kind) in [("kept", "example.com/v1", "Cron"), ("gone", "v1", "Secret")] {
        let owner = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "o", "uid": kind } });
        assert_eq!(child(&server, name, &[&owner], false).await.0, 201);
    }
    maps.until("DELETED", "gone").await;
    assert_eq!(server.get(&format!("{MAPS}/kept")).await.0, 200);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({ "metadata": { "name": "crons.example.com" }, "spec": { "group": "example.com",
        "scope": "Namespaced", "names": { "plural": "crons", "kind": "Cron" }, "versions": [{ "name": "v1",
        "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } }] } });
    assert_eq!(server.ask(Method::POST, definitions, &definition).await.0, 201);
    maps.until("DELETED", "kept").await;
}

/// APP-30: an owner is looked for where its child lives. One in another namespace counts as gone, one in none may own
/// anything, and what is in no namespace itself is left alone, because its owner is ambiguous.
#[tokio::test]
async fn an_owner_in_another_namespace_owns_nothing() {
    let server = TestApiServer::real().await;
    let map = |name: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
    let (_, near) = server.ask(Method::POST, MAPS, &map("near")).await;
    let (_, far) = server.ask(Method::POST, &MAPS.replace("default", "kube-system"), &map("far")).await;
    let (_, home) = server.get("/api/v1/namespaces/kube-system").await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let of = |owner: &Value| json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "near", "uid": owner["metadata"]["uid"] }]);
    let role = json!({ "metadata": { "name": "nowhere", "ownerReferences": of(&near) } });
    assert_eq!(server.ask(Method::POST, roles, &role).await.0, 201);
    for (name, owners) in [("stray", vec![&far]), ("both", vec![&near, &far]), ("housed", vec![&home])] {
        assert_eq!(child(&server, name, &owners, true).await.0, 201);
    }
    let mut maps = server.watch(&format!("{MAPS}?watch=1")).await;
    collect(&server);
    maps.until("DELETED", "stray").await;
    let reported = "/api/v1/namespaces/default/events?fieldSelector=reason%3DOwnerRefInvalidNamespace";
    let (_, reported) = server.get(reported).await;
    let about = |name: &str| {
        let mut events = reported["items"].as_array().unwrap().iter();
        events.any(|event| event["involvedObject"]["name"] == name)
    };
    assert!(about("stray") && !about("housed"), "{reported}");
    assert_eq!(server.delete(&format!("{MAPS}/near")).await.0, 200);
    maps.until("DELETED", "both").await;
    assert_eq!(server.get(&format!("{MAPS}/housed")).await.0, 200);
    assert_eq!(server.get(&format!("{roles}/nowhere")).await.0, 200);
}

/// APP-30, Foreground: an object that owns itself, or its owner's owner, would wait forever, and its namespace with it.
#[tokio::test]
async fn a_circle_of_owners_does_not_wait_for_itself() {
    let server = TestApiServer::real().await;
    let mut maps = server.watch(&format!("{MAPS}?watch=1")).await;
    collect(&server);
    for circle in [&["alone"][..], &["one", "two"], &["a", "b", "c"]] {
        let mut made = Vec::new();
        for name in circle {
            made.push(child(&server, name, &[], true).await.1);
        }
        for (place, name) in circle.iter().enumerate() {
            let owner = &made[(place + 1) % made.len()]["metadata"];
            let owner = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": owner["name"], "uid": owner["uid"],
                "blockOwnerDeletion": true }]);
            let owned = json!({ "metadata": { "ownerReferences": owner } });
            assert_eq!(server.ask(Method::PATCH, &format!("{MAPS}/{name}"), &owned).await.0, 200);
        }
        let first = format!("{MAPS}/{}?propagationPolicy=Foreground", circle[0]);
        assert_eq!(server.delete(&first).await.0, 200);
        let mut left = circle.len();
        while left > 0 {
            let (what, name) = maps.next_change().await;
            left -= usize::from(what == "DELETED" && circle.contains(&name.as_str()));
        }
    }
}
