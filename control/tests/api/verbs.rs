//! Create, replace, patch: what is stored, what is rejected, and the text of the rejection.

use http::Method;
use serde_json::{Value, json};
use sluicegate_control::store::{ObjectKey, StoreError, WriteOperation};

use crate::support::{GADGETS, MAPS, TestApiServer, WIDGETS};

/// SRV-API-01, APP-37: system metadata is filled in, defaults are visible, a second POST conflicts.
#[tokio::test]
async fn a_created_object_has_its_identity_and_its_defaults() {
    let server = TestApiServer::open().await;
    let body = json!({ "metadata": { "name": "one", "uid": "mine", "generation": 7, "managedFields": [],
        "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z" } });
    let (code, made) = server.ask(Method::POST, WIDGETS, &body).await;
    assert_eq!(code, 201, "{made}");
    let metadata = &made["metadata"];
    assert_ne!(metadata["uid"], "mine");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["namespace"], "default");
    assert_ne!(metadata["creationTimestamp"], "2001-01-01T00:00:00Z");
    assert!(metadata["resourceVersion"].is_string());
    assert!(metadata.get("deletionTimestamp").is_none());
    assert_eq!(metadata["managedFields"][0]["operation"], "Update");
    assert_eq!(made["spec"]["size"], 1);
    assert_eq!((&made["kind"], &made["apiVersion"]), (&json!("Widget"), &json!("test.sluicegate.dev/v1")));

    let (code, again) = server.ask(Method::POST, WIDGETS, &body).await;
    assert_eq!((code, &again["reason"]), (409, &json!("AlreadyExists")));
    assert_eq!(again["message"], r#"widgets.test.sluicegate.dev "one" already exists"#);
    assert_eq!(again["details"], json!({ "name": "one", "kind": "widgets", "group": "test.sluicegate.dev" }));
}

/// A manifest with `spec:` and nothing below it, and a client that writes what it does not set as null.
#[tokio::test]
async fn a_field_that_is_null_was_left_out() {
    let server = TestApiServer::real().await;
    let brokers = "/apis/eventing.knative.dev/v1/namespaces/default/brokers";
    let (code, made) =
        server.ask(Method::POST, brokers, &json!({ "metadata": { "name": "a", "labels": null }, "spec": null })).await;
    assert_eq!(code, 201, "{made}");
    let triggers = "/apis/eventing.knative.dev/v1/namespaces/default/triggers";
    let spec = json!({ "broker": "a", "filter": { "attributes": null }, "filters": null, "delivery": null,
                       "subscriber": { "uri": "http://a/" } });
    let (code, made) = server.ask(Method::POST, triggers, &json!({ "metadata": { "name": "t" }, "spec": spec })).await;
    assert_eq!((code, made["spec"].get("delivery")), (201, None), "{made}");
}

/// APP-32
#[tokio::test]
async fn generated_names_share_their_prefix_and_differ() {
    let server = TestApiServer::open().await;
    let body = json!({ "metadata": { "generateName": "gen-" } });
    let (_, one) = server.ask(Method::POST, WIDGETS, &body).await;
    let (_, other) = server.ask(Method::POST, WIDGETS, &body).await;
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name(&one).starts_with("gen-") && name(&one).len() == 9, "{one}");
    assert_ne!(name(&one), name(&other));
}

/// APP-32: what is kept as the beginning of a name is one.
#[tokio::test]
async fn what_a_name_is_generated_from_is_checked_like_a_name() {
    let server = TestApiServer::open().await;
    for (base, code) in [("gen-", 201), (&*"a".repeat(80), 201), (&*"a".repeat(300), 422), ("A", 422), ("a.", 422)] {
        let (found, answer) = server.ask(Method::POST, WIDGETS, &json!({ "metadata": { "generateName": base } })).await;
        assert_eq!(found, code, "{base}: {answer}");
        if code == 422 {
            assert_eq!(answer["details"]["causes"][0]["field"], "metadata.generateName", "{answer}");
        }
    }
}

/// APP-28, APP-37: clients in languages with one number type, and templates, write `3.0`: it is stored and returned
/// as 3, because Go's types read nothing else.
#[tokio::test]
async fn a_whole_number_is_whole_however_it_is_written() {
    let server = TestApiServer::real().await;
    let brokers = "/apis/eventing.knative.dev/v1/namespaces/default/brokers";
    let broker = json!({ "metadata": { "name": "b" }, "spec": { "delivery": { "retry": 3.0 } } });
    let (code, made) = server.ask(Method::POST, brokers, &broker).await;
    assert_eq!((code, made["spec"]["delivery"]["retry"].to_string().as_str()), (201, "3"), "{made}");
    let one = format!("{brokers}/b");
    let merge = r#"{ "spec": { "delivery": { "retry": 1e1 } } }"#;
    let operations = r#"[{ "op": "replace", "path": "/spec/delivery/retry", "value": 11.0 }]"#;
    let apply =
        "{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: b}, spec: {delivery: {retry: 12.0}}}";
    for (path, kind, patch, expected) in [
        (one.clone(), "merge-patch+json", merge, "10"),
        (one.clone(), "json-patch+json", operations, "11"),
        (format!("{one}?fieldManager=a&force=true"), "apply-patch+yaml", apply, "12"),
    ] {
        let (code, reported) = server.ask_as(Method::PATCH, &path, &format!("application/{kind}"), patch).await;
        let reported_retry = reported["spec"]["delivery"]["retry"].to_string();
        assert_eq!((code, reported_retry.as_str()), (200, expected), "{reported}");
    }
}

/// APP-20, SRV-API-03
#[tokio::test]
async fn a_put_with_an_old_version_conflicts_and_with_the_current_one_replaces() {
    let server = TestApiServer::open().await;
    let first = server.widget("one", &json!({})).await;
    let path = format!("{WIDGETS}/one");
    let mut changed = first.clone();
    changed["spec"]["size"] = 2.into();
    let (code, second) = server.ask(Method::PUT, &path, &changed).await;
    assert_eq!(code, 200);
    assert_eq!((&second["spec"]["size"], &second["metadata"]["generation"]), (&json!(2), &json!(2)));
    let (code, refusal) = server.ask(Method::PUT, &path, &changed).await;
    assert_eq!((code, &refusal["reason"]), (409, &json!("Conflict")));
    let (code, _) = server.ask(Method::PUT, &format!("{WIDGETS}/none"), &json!({})).await;
    assert_eq!(code, 404);
    changed["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (code, refusal) = server.ask(Method::PUT, &path, &changed).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("metadata.resourceVersion")));
}

/// APP-21
#[tokio::test]
async fn generation_counts_changes_of_the_spec_only() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let path = format!("{WIDGETS}/one");
    for (patch, generation) in [
        (json!({ "metadata": { "labels": { "a": "b" } } }), 1),
        (json!({ "spec": { "size": 3 } }), 2),
        (json!({ "metadata": { "generation": 99 } }), 2),
    ] {
        let (code, patched) = server.ask(Method::PATCH, &path, &patch).await;
        assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(generation)), "{patch}");
    }
    let status = json!({ "status": { "observedGeneration": 2 } });
    let (_, patched) = server.ask(Method::PATCH, &format!("{path}/status"), &status).await;
    assert_eq!(patched["metadata"]["generation"], 2);
}

/// APP-22, EV-API-11: a write of the object does not change its status, and a write of the status nothing else.
#[tokio::test]
async fn spec_and_status_updates_ignore_each_other() {
    let server = TestApiServer::open().await;
    let body = json!({ "metadata": { "name": "one" }, "status": { "observedGeneration": 9 } });
    let (_, made) = server.ask(Method::POST, WIDGETS, &body).await;
    assert!(made.get("status").is_none(), "{made}");
    let path = format!("{WIDGETS}/one");
    let both = json!({ "spec": { "size": 5 }, "status": { "observedGeneration": 1 },
        "metadata": { "labels": { "a": "b" } } });
    let (code, by_status) = server.ask(Method::PATCH, &format!("{path}/status"), &both).await;
    assert_eq!((code, &by_status["spec"]["size"]), (200, &json!(1)));
    assert_eq!(by_status["status"]["observedGeneration"], 1);
    assert!(by_status["metadata"].get("labels").is_none());
    let more = json!({ "spec": { "size": 6 }, "status": { "observedGeneration": 2 } });
    let (_, by_main) = server.ask(Method::PATCH, &path, &more).await;
    assert_eq!((&by_main["spec"]["size"], &by_main["status"]["observedGeneration"]), (&json!(6), &json!(1)));
    let mut put = by_main.clone();
    put["status"] = json!({ "observedGeneration": 3 });
    put["spec"]["size"] = 7.into();
    let (_, put_status) = server.ask(Method::PUT, &format!("{path}/status"), &put).await;
    assert_eq!((&put_status["spec"]["size"], &put_status["status"]["observedGeneration"]), (&json!(6), &json!(3)));
    let wrong = json!({ "status": { "conditions": "none" } });
    let (code, _) = server.ask(Method::PATCH, &format!("{path}/status"), &wrong).await;
    assert_eq!(code, 422, "a patch that makes a status of the wrong shape");
}

/// APP-28, SRV-API-35: merge patch, JSON patch, and 415 for the rest.
#[tokio::test]
async fn patches_are_merged_applied_or_refused_by_their_type() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({ "a": "1", "b": "2" })).await;
    let path = format!("{WIDGETS}/one");
    let merge = json!({ "metadata": { "labels": { "a": null } } });
    let (_, patched) = server.ask(Method::PATCH, &path, &merge).await;
    assert_eq!(patched["metadata"]["labels"], json!({ "b": "2" }));
    let json_patch =
        |operations: Value| server.ask_as(Method::PATCH, &path, "application/json-patch+json", operations.to_string());
    let (code, patched) = json_patch(json!([{ "op": "replace", "path": "/spec/size", "value": 4 }])).await;
    assert_eq!((code, &patched["spec"]["size"]), (200, &json!(4)));
    let (code, refusal) = json_patch(json!([{ "op": "test", "path": "/spec/size", "value": 5 }])).await;
    assert_eq!((code, &refusal["reason"]), (422, &json!("Invalid")));
    assert_eq!(json_patch(json!([{ "op": "jump" }])).await.0, 422);
    assert_eq!(json_patch(json!([{ "op": "replace", "path": "/metadata/name", "value": "two" }])).await.0, 400);
    for media in ["application/strategic-merge-patch+json", "application/json"] {
        let (code, refusal) = server.ask_as(Method::PATCH, &path, media, "{}").await;
        assert_eq!((code, &refusal["reason"]), (415, &json!("UnsupportedMediaType")), "{media}");
    }
}

/// APP-40, SRV-API-37: what changes nothing is not a change.
#[tokio::test]
async fn writes_that_change_nothing_leave_the_version_alone() {
    let server = TestApiServer::open().await;
    let made = server.widget("one", &json!({})).await;
    let path = format!("{WIDGETS}/one");
    for (method, path, body) in [
        (Method::PATCH, path.clone(), json!({ "spec": { "size": 1 } })),
        (Method::PATCH, format!("{path}/status"), json!({})),
        (Method::PUT, path.clone(), made.clone()),
        (Method::PUT, format!("{path}/status"), made.clone()),
    ] {
        let (code, answer) = server.ask(method, &path, &body).await;
        assert_eq!((code, answer), (200, made.clone()));
    }
    let newest = server.store.read().revision();
    assert_eq!(made["metadata"]["resourceVersion"], newest.to_string());
}

/// APP-33
#[tokio::test]
async fn a_dry_run_answers_as_if_and_stores_nothing() {
    let server = TestApiServer::open().await;
    let body = json!({ "metadata": { "name": "dry" } });
    let (code, made) = server.ask(Method::POST, &format!("{WIDGETS}?dryRun=All"), &body).await;
    assert_eq!((code, &made["spec"]["size"]), (201, &json!(1)));
    assert_eq!(server.get(&format!("{WIDGETS}/dry")).await.0, 404);
    let real = server.widget("real", &json!({})).await;
    let path = format!("{WIDGETS}/real?dryRun=All");
    let (code, patched) = server.ask(Method::PATCH, &path, &json!({ "spec": { "size": 9 } })).await;
    assert_eq!((code, &patched["spec"]["size"]), (200, &json!(9)));
    assert_eq!(server.delete(&path).await.0, 200);
    assert_eq!(server.get(&format!("{WIDGETS}/real")).await.1, real);
    assert_eq!(server.ask(Method::POST, &format!("{WIDGETS}?dryRun=Some"), &body).await.0, 422);
}

/// APP-19: 422 names every field.
#[tokio::test]
async fn an_invalid_object_is_refused_with_its_fields_as_causes() {
    let server = TestApiServer::open().await;
    let body = json!({ "metadata": { "name": "one" }, "spec": { "size": 101 } });
    let (code, refusal) = server.ask(Method::POST, WIDGETS, &body).await;
    assert_eq!(code, 422);
    assert_eq!(
        refusal,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 422,
            "reason": "Invalid",
            "message": "Widget.test.sluicegate.dev \"one\" is invalid: spec.size: expected at most 100",
            "details": {
                "name": "one", "group": "test.sluicegate.dev", "kind": "Widget",
                "causes": [{ "reason": "FieldValueInvalid", "message": "expected at most 100", "field": "spec.size" }],
            },
        })
    );
    assert_eq!(server.get(&format!("{WIDGETS}/one")).await.0, 404);
}

/// AMB-01: pruned or refused, as the kind says. AMB-62: some kinds are for controllers.
#[tokio::test]
async fn unknown_fields_and_kinds_for_controllers_are_treated_as_the_row_says() {
    let server = TestApiServer::open().await;
    let body = json!({ "metadata": { "name": "one" }, "spec": { "extra": true, "size": 2 } });
    let (code, made) = server.ask(Method::POST, WIDGETS, &body).await;
    assert_eq!((code, &made["spec"]), (201, &json!({ "size": 2 })));
    let (code, refusal) = server.ask(Method::POST, GADGETS, &body).await;
    assert_eq!((code, &refusal["reason"]), (403, &json!("Forbidden")));
    assert_eq!(server.get(GADGETS).await.1["items"], json!([]));
}

/// APP-34
#[tokio::test]
async fn core_kinds_hold_their_data() {
    let server = TestApiServer::open().await;
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "a": "b" } });
    let (code, made) = server.ask(Method::POST, "/api/v1/namespaces/default/secrets", &secret).await;
    assert_eq!((code, &made["data"], &made["type"]), (201, &json!({ "a": "Yg==" }), &json!("Opaque")));
    let service = json!({ "metadata": { "name": "s" }, "spec": { "type": "ExternalName" } });
    let (code, refusal) = server.ask(Method::POST, "/api/v1/namespaces/default/services", &service).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("spec.externalName")));
    let map = json!({ "metadata": { "name": "m" }, "data": { "a": "b" } });
    assert_eq!(server.ask(Method::POST, MAPS, &map).await.0, 201);
    let yaml = "metadata:\n  name: y\ndata:\n  a: b\n";
    let (code, made) = server.ask_as(Method::POST, MAPS, "application/yaml", yaml).await;
    assert_eq!((code, &made["data"]["a"]), (201, &json!("b")));
    let strategic = "application/strategic-merge-patch+json";
    let (code, patched) =
        server.ask_as(Method::PATCH, &format!("{MAPS}/m"), strategic, r#"{"data":{"a":null,"c":"d"}}"#).await;
    assert_eq!((code, &patched["data"]), (200, &json!({ "c": "d" })));
}

/// APP-28: kubectl shows the message of a refused patch only if the refusal names no object.
#[tokio::test]
async fn an_operation_that_does_not_fit_is_named() {
    let server = TestApiServer::open().await;
    server.widget("w", &json!({})).await;
    let path = format!("{WIDGETS}/w");
    let test = json!([{ "op": "test", "path": "/metadata/name", "value": "x" }]);
    let (code, refusal) = server.ask_as(Method::PATCH, &path, "application/json-patch+json", test.to_string()).await;
    assert_eq!((code, &refusal["reason"], &refusal["details"]), (422, &json!("Invalid"), &json!({})));
    let message = refusal["message"].as_str().unwrap();
    assert!(message.starts_with("the server rejected our request due to an error in our request"), "{message}");
    assert!(message.contains("/metadata/name"), "{message}");
}

/// No node exists that could serve them: the error names the alternative.
#[tokio::test]
async fn what_needs_a_node_is_refused_with_a_reason() {
    let server = TestApiServer::real().await;
    let pods = "/api/v1/namespaces/default/pods";
    for part in ["eviction", "exec?command=ls", "attach", "portforward"] {
        let (code, refusal) = server.get(&format!("{pods}/none/{part}")).await;
        assert_eq!((code, &refusal["message"]), (404, &json!("pods \"none\" not found")), "{part}");
    }
    let key = ObjectKey { resource: "/pods".into(), namespace: "default".into(), name: "one".into() };
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "one", "namespace": "default" } });
    server.store.write(move |_| Ok::<_, StoreError>(WriteOperation::Put(key, pod))).await.unwrap();
    for (method, part, word) in [
        (Method::POST, "ephemeralcontainers", "kubectl exec"),
        (Method::GET, "proxy/a/b", "port-forward"),
        (Method::POST, "eviction", "kubectl delete pod"),
    ] {
        let (code, refusal) = server.ask(method, &format!("{pods}/one/{part}"), &json!({})).await;
        assert_eq!((code, &refusal["reason"]), (405, &json!("MethodNotAllowed")), "{part}");
        let reported = refusal["message"].as_str().unwrap();
        assert!(reported.contains("is not supported: ") && reported.contains(word), "{part}: {reported}");
        assert_eq!(refusal["details"], json!({ "kind": "pods", "name": "one" }));
    }
    let (key, scale) = ("apps/deployments", "/apis/apps/v1/namespaces/default/deployments/one/scale");
    assert_eq!(server.get(scale).await.0, 404);
    let key = ObjectKey { resource: key.into(), namespace: "default".into(), name: "one".into() };
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "one", "namespace": "default", "ownerReferences": [{ "kind": "Revision", "name": "r",
            "apiVersion": "serving.knative.dev/v1", "controller": true, "uid": "u" }] } });
    server.store.write(move |_| Ok::<_, StoreError>(WriteOperation::Put(key, deployment))).await.unwrap();
    let (code, refusal) = server.get(scale).await;
    assert_eq!((code, &refusal["reason"]), (405, &json!("MethodNotAllowed")));
    assert!(refusal["message"].as_str().unwrap().contains("min-scale"), "{refusal}");
    // Nor is it anybody else's to write than its Revision's controller.
    let path = "/apis/apps/v1/namespaces/default/deployments/one";
    let (code, refusal) = server.ask(Method::PATCH, path, &json!({ "spec": { "replicas": 7 } })).await;
    assert_eq!((code, &refusal["reason"]), (403, &json!("Forbidden")), "{refusal}");
    assert!(refusal["message"].as_str().unwrap().contains("what its Revision runs"), "{refusal}");
    // Nor does a client make such an object, whatever the group of its owner.
    let owner =
        json!([{ "apiVersion": "example.com/v1", "kind": "Revision", "name": "r", "controller": true, "uid": "u" }]);
    let container = json!({ "name": "c", "image": "i", "securityContext": { "privileged": true } });
    let pod = json!({ "metadata": { "name": "two", "ownerReferences": owner }, "spec": { "containers": [container] } });
    let (code, refusal) = server.ask(Method::POST, pods, &pod).await;
    assert_eq!((code, &refusal["reason"]), (403, &json!("Forbidden")), "{refusal}");
    assert_eq!(
        server.get(&format!("{pods}/one/else")).await.1["message"],
        "the server could not find the requested resource"
    );
}

/// EV-API-09, APP-28: the error for a value of the wrong type names its field, in the form that Kubernetes has for
/// the kind.
#[tokio::test]
async fn value_of_wrong_type_is_reported_with_field() {
    let server = TestApiServer::real().await;
    let spec = json!({ "template": { "spec": { "containers": [{ "image": 1 }], "timeoutSeconds": "x" } } });
    let object = json!({ "metadata": { "name": "s" }, "spec": spec });
    let (code, refusal) =
        server.ask(Method::POST, "/apis/serving.knative.dev/v1/namespaces/default/services", &object).await;
    assert_eq!((code, &refusal["reason"]), (422, &json!("Invalid")), "{refusal}");
    let fields: Vec<_> = refusal["details"]["causes"].as_array().unwrap().iter().map(|one| &one["field"]).collect();
    assert_eq!(fields, ["spec.template.spec.containers[0].image", "spec.template.spec.timeoutSeconds"]);
    let why = &refusal["details"]["causes"][0]["message"];
    let wanted =
        r#"Invalid value: "integer": spec.template.spec.containers[0].image in body must be of type string: "integer""#;
    assert_eq!(why, wanted);

    let map = json!({ "metadata": { "name": "m" }, "data": { "a": 1 } });
    let (code, refusal) = server.ask(Method::POST, MAPS, &map).await;
    assert_eq!((code, &refusal["reason"]), (400, &json!("BadRequest")));
    let wanted = r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal integer into Go struct field ConfigMap.data.a of type string"#;
    assert_eq!(refusal["message"], wanted);
}

/// APP-28: templates write the core group as `- {{ .group }}`, which is `null` in YAML.
#[tokio::test]
async fn a_null_in_a_list_of_texts_is_an_empty_text() {
    let server = TestApiServer::real().await;
    let rules = |group: Value| json!([{ "apiGroups": [group], "resources": ["events"], "verbs": ["get"] }]);
    let role = json!({ "metadata": { "name": "r" }, "rules": rules(Value::Null) });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let (code, made) = server.ask(Method::POST, path, &role).await;
    assert_eq!((code, &made["rules"]), (201, &rules("".into())), "{made}");

    // Kinds that are judged by a schema have no such reader.
    let to = json!({ "from": [{ "sub": "*" }], "to": [null] });
    let policy = json!({ "metadata": { "name": "p" }, "spec": to });
    let path = "/apis/eventing.knative.dev/v1alpha1/namespaces/default/eventpolicies";
    assert_eq!(server.ask(Method::POST, path, &policy).await.0, 422);
}

/// EV-API-09: a status of the wrong type is refused too: clients could not decode a list that contains it.
#[tokio::test]
async fn a_status_of_the_wrong_type_is_refused() {
    let server = TestApiServer::real().await;
    let path = "/apis/messaging.knative.dev/v1/namespaces/default/channels";
    let made = server.ask(Method::POST, path, &json!({ "metadata": { "name": "c" } })).await;
    assert_eq!(made.0, 201, "{}", made.1);
    let wrong = json!({ "status": { "conditions": "x" } });
    let (code, refusal) = server.ask(Method::PATCH, &format!("{path}/c/status"), &wrong).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("status.conditions")), "{refusal}");
}

/// APP-17: a name that a client escaped, as Python's and JavaScript's do, is the same name; authorization sees it so.
#[tokio::test]
async fn an_escaped_name_is_the_same_name() {
    let server = TestApiServer::open().await;
    server.ask(Method::POST, MAPS, &json!({ "metadata": { "name": "a.b" } })).await;
    assert_eq!(server.get(&format!("{MAPS}/%61%2Eb")).await.1["metadata"]["name"], "a.b");
    assert_eq!(server.get("/api%2Fv1/namespaces/default/configmaps/a.b").await.0, 200);
    assert_eq!(server.get(&format!("{MAPS}/a.b%00")).await.0, 404);
}

/// APP-28: a duplicate field in a merge patch is warned of or refused as in a whole object.
#[tokio::test]
async fn a_field_that_stands_twice_in_a_patch_is_refused_by_who_wants_that() {
    let server = TestApiServer::open().await;
    server.ask(Method::POST, MAPS, &json!({ "metadata": { "name": "m" } })).await;
    let twice = r#"{"data":{"a":"1","a":"2"}}"#;
    let media = "application/merge-patch+json";
    let strict = format!("{MAPS}/m?fieldValidation=Strict");
    let (code, refusal) = server.ask_as(Method::PATCH, &strict, media, twice.to_owned()).await;
    assert_eq!(code, 422);
    assert!(refusal["message"].as_str().unwrap().contains(r#"duplicate field "data.a""#), "{refusal}");
    let (_, patched) = server.ask_as(Method::PATCH, &format!("{MAPS}/m"), media, twice.to_owned()).await;
    assert_eq!(patched["data"], json!({ "a": "2" }));
}

/// APP-28: when an object began to go, and how often it changed, is not for clients to say.
#[tokio::test]
async fn what_the_server_counts_cannot_be_set() {
    let server = TestApiServer::open().await;
    server.ask(Method::POST, MAPS, &json!({ "metadata": { "name": "m" } })).await;
    let leaving = json!({ "metadata": { "deletionTimestamp": "2001-01-01T00:00:00Z" } });
    let (code, refusal) = server.ask(Method::PATCH, &format!("{MAPS}/m"), &leaving).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("metadata.deletionTimestamp")));
    let counted = json!({ "metadata": { "name": "n", "generation": -7 } });
    let (code, refusal) = server.ask(Method::POST, MAPS, &counted).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("metadata.generation")));
}
