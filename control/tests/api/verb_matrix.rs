//! Every verb with every kind, over a socket: codes, shapes and messages as in Kubernetes.
//!
//! The kinds are in [`super::golden_kinds`]; the checks that apply to all of them are here.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use sluicegate_control::kind_registry::{AllowedVerbs, KindMeta};
use sluicegate_control::kinds;

use crate::support::TestApiServer;
use crate::verb_matrix_bench::{KindBench, api_version, collection, names, served, version};
use crate::verb_matrix_kinds::{KindRow, rows};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// SRV-API-01, APP-19, APP-37: made once, with identity and defaults; a dry run leaves no trace.
async fn makes(bench: &KindBench) -> Value {
    let (collection, object) = (&bench.collection, bench.object(&json!({})));
    let before = bench.revision();
    bench.expect(201, Method::POST, &format!("{collection}?dryRun=All"), &object).await;
    assert_eq!(bench.revision(), before, "{}", bench.meta().kind);
    let missing = format!("{} {:?} not found", bench.qualified(), bench.name);
    let refusal = bench.refused((404, "NotFound", &missing), Method::GET, &bench.one(), &Value::Null).await;
    assert_eq!(refusal["details"], bench.details());

    let made = bench.expect(201, Method::POST, &format!("{collection}?fieldManager=golden"), &object).await;
    let metadata = &made["metadata"];
    assert_eq!((&made["apiVersion"], &made["kind"]), (&object["apiVersion"], &object["kind"]));
    assert!(metadata["uid"].as_str().is_some_and(|uid| uid.len() == 36), "{made}");
    assert!(metadata["creationTimestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{made}");
    assert_eq!(metadata["namespace"].is_string(), bench.meta().namespaced, "{made}");
    let generation = if bench.has_generation() { json!(1) } else { Value::Null };
    assert_eq!(metadata["generation"], generation, "{made}");
    let owner = &metadata["managedFields"][0];
    assert_eq!(
        (&owner["manager"], &owner["operation"], &owner["apiVersion"], &owner["fieldsType"]),
        (&json!("golden"), &json!("Update"), &object["apiVersion"], &json!("FieldsV1")),
        "{made}"
    );
    let exists = format!("{} {:?} already exists", bench.qualified(), bench.name);
    let refusal = bench.refused((409, "AlreadyExists", &exists), Method::POST, collection, &object).await;
    assert_eq!(refusal["details"], bench.details());
    made
}

/// APP-23, APP-36: read alone, in lists, as a table, and as metadata.
async fn reads(bench: &KindBench, made: &Value) {
    let meta = bench.meta();
    assert_eq!(&bench.expect(200, Method::GET, &bench.one(), &Value::Null).await, made);
    let mut places = vec![bench.collection.clone()];
    if meta.namespaced {
        places.push(collection(meta, None));
    }
    for place in &places {
        let chosen = format!("{place}?labelSelector=golden%3Dyes");
        let list = bench.expect(200, Method::GET, &chosen, &Value::Null).await;
        let expected = (json!(format!("{}List", meta.kind)), json!(api_version(meta)), json!([made]));
        assert_eq!((&list["kind"], &list["apiVersion"], &list["items"]), (&expected.0, &expected.1, &expected.2));
        assert!(version(&list) >= version(made));
        let table = bench.ask_as(Method::GET, &chosen, "application/json", TABLE, &Value::Null).await.body;
        assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
        assert_eq!(names(&table), bench.row.columns, "{}", meta.kind);
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(cells.len(), bench.row.columns.len(), "{table}");
        let place = bench.row.columns.iter().position(|name| name.trim_start_matches('*') == "Name").unwrap();
        assert_eq!(cells[place], bench.name);
        let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        let partial = bench.ask_as(Method::GET, &chosen, "application/json", partial, &Value::Null).await.body;
        assert_eq!(partial["kind"], "PartialObjectMetadataList");
        assert_eq!(partial["items"][0]["metadata"], made["metadata"]);
    }
    let table = bench.ask_as(Method::GET, &bench.one(), "application/json", TABLE, &Value::Null).await.body;
    assert_eq!(names(&table), bench.row.columns);
}

/// APP-20, APP-21, APP-40: a replace needs the newest version, and the object changes only by a change.
async fn replaces(bench: &KindBench, made: &Value) -> Value {
    let one = bench.one();
    let same = bench.expect(200, Method::PUT, &one, made).await;
    assert_eq!(&same, made, "a write that changes nothing changes nothing");
    let mut labelled = made.clone();
    labelled["metadata"]["labels"]["more"] = "x".into();
    let before = bench.revision();
    bench.expect(200, Method::PUT, &format!("{one}?dryRun=All"), &labelled).await;
    assert_eq!(bench.revision(), before);
    let second = bench.expect(200, Method::PUT, &one, &labelled).await;
    assert!(version(&second) > version(made));
    for kept in ["uid", "creationTimestamp", "generation"] {
        assert_eq!(second["metadata"][kept], made["metadata"][kept], "{kept}");
    }
    let stale = format!(
        "Operation cannot be fulfilled on {} {:?}: the object has been modified; \
         please apply your changes to the latest version and try again",
        bench.qualified(),
        bench.name
    );
    labelled["metadata"]["labels"]["more"] = "y".into();
    let refusal = bench.refused((409, "Conflict", &stale), Method::PUT, &one, &labelled).await;
    assert_eq!(refusal["details"], bench.details());
    labelled["metadata"]["name"] = "another".into();
    let renamed = format!("the name of the object (another) does not match the name on the URL ({})", bench.name);
    bench.refused((400, "BadRequest", &renamed), Method::PUT, &one, &labelled).await;
    let mut unversioned = second.clone();
    unversioned["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let knows_its_version = matches!(bench.meta().kind, "CustomResourceDefinition" | "Lease" | "ServiceAccount");
    if bench.is_core() && !knows_its_version {
        assert_eq!(bench.expect(200, Method::PUT, &one, &unversioned).await, second);
    } else {
        let refusal = bench.expect(422, Method::PUT, &one, &unversioned).await;
        assert_eq!(
            refusal["details"]["causes"],
            json!([{ "reason": "FieldValueInvalid", "field": "metadata.resourceVersion",
                "message": "Invalid value: 0: must be specified for an update" }])
        );
    }
    second
}

/// APP-21, APP-28, APP-29, APP-33: patched in each way that there is.
async fn patches(bench: &KindBench) {
    let one = bench.one();
    let before = bench.expect(200, Method::GET, &one, &Value::Null).await;
    let dry = bench.expect(200, Method::PATCH, &format!("{one}?dryRun=All"), &bench.row.change).await;
    assert_eq!(bench.expect(200, Method::GET, &one, &Value::Null).await, before, "a rehearsal");
    let after = bench.expect(200, Method::PATCH, &one, &bench.row.change).await;
    assert!(version(&after) > version(&before), "{after}");
    assert_eq!(dry["metadata"]["generation"], after["metadata"]["generation"]);
    // An EndpointSlice has no spec: all of it counts.
    let counted = bench.row.change.get("spec").is_some() || bench.meta().group == "discovery.k8s.io";
    let counts = bench.has_generation() && counted;
    let step = i64::from(counts);
    if let Some(generation) = before["metadata"]["generation"].as_i64() {
        assert_eq!(after["metadata"]["generation"], generation + step, "{}", bench.meta().kind);
    }
    let patch = |media: &'static str, patch: Value| {
        let one = one.clone();
        async move { bench.ask_as(Method::PATCH, &one, media, "application/json", &patch).await }
    };
    let failing = json!([{ "op": "test", "path": "/metadata/name", "value": "other" }]);
    let refused = patch("application/json-patch+json", failing).await;
    assert_eq!((refused.code, &refused.body["reason"]), (422, &json!("Invalid")));
    let label = json!([{ "op": "add", "path": "/metadata/labels/by", "value": "json" }]);
    let labelled = patch("application/json-patch+json", label).await;
    assert_eq!((labelled.code, &labelled.body["metadata"]["labels"]["by"]), (200, &json!("json")));
    let strategic = patch("application/strategic-merge-patch+json", json!({})).await;
    let is_native = bench.is_core() || ["apps", "batch"].contains(&bench.meta().group);
    assert_eq!(strategic.code, if is_native { 200 } else { 415 }, "{}", strategic.body);
    let unknown = patch("text/plain", json!({})).await;
    assert_eq!(unknown.code, 415);

    // Only what is to change: what is left out belongs to others.
    let mut apply = bench.row.change.clone();
    let identity = json!({ "apiVersion": api_version(bench.meta()), "kind": bench.meta().kind,
        "metadata": { "name": bench.name, "labels": { "by": "apply" } } });
    json_patch::merge(&mut apply, &identity);
    let one = format!("{one}?fieldManager=applier&force=true");
    let applied = bench.ask_as(Method::PATCH, &one, "application/apply-patch+yaml", "application/json", &apply).await;
    assert_eq!(applied.code, 200, "{}", applied.body);
    let owner = &applied.body["metadata"]["managedFields"][0];
    assert_eq!((&owner["manager"], &owner["operation"]), (&json!("applier"), &json!("Apply")));
}

/// APP-19, and field validation: what is wrong is named by field, and what is unknown as the client wants it.
async fn judges(bench: &KindBench) {
    let (meta, collection) = (bench.meta(), &bench.collection);
    let bad = json!({ "metadata": { "name": "Not_A_Name" } });
    let wrong = bench.object(&bad);
    let is_core_event = meta.group.is_empty() && meta.kind == "Event";
    if is_core_event || meta.group == "rbac.authorization.k8s.io" {
        bench.expect(201, Method::POST, &format!("{collection}?dryRun=All"), &wrong).await;
    } else {
        let refusal = bench.expect(422, Method::POST, collection, &wrong).await;
        assert_eq!((&refusal["reason"], &refusal["details"]["kind"]), (&json!("Invalid"), &json!(meta.kind)));
        assert_eq!(refusal["details"]["causes"][0]["field"], "metadata.name", "{refusal}");
    }
    if let Some((patch, field, reason)) = &bench.row.wrong {
        let before = bench.revision();
        let refusal = bench.expect(422, Method::PATCH, &bench.one(), patch).await;
        assert_eq!(bench.revision(), before);
        let cause = &refusal["details"]["causes"][0];
        assert_eq!((cause["field"].as_str(), cause["reason"].as_str()), (Some(*field), Some(*reason)), "{refusal}");
        let kind = if meta.group.is_empty() { meta.kind.into() } else { format!("{}.{}", meta.kind, meta.group) };
        let reported = refusal["message"].as_str().unwrap().replacen("invalid: [", "invalid: ", 1);
        let start = format!("{kind} {:?} is invalid: {field}: ", bench.name);
        assert!(reported.starts_with(&start), "{refusal}");
    }
    let mut odd = bench.object(&json!({ "metadata": { "name": odd_name(bench) } }));
    if meta.kind == "CustomResourceDefinition" {
        odd["spec"]["names"] = json!({ "kind": "Odd", "plural": "odds" });
    }
    odd["nonsense"] = 1.into();
    let post = async |mode: &str| {
        let path = format!("{collection}?dryRun=All&fieldValidation={mode}");
        bench.ask(Method::POST, &path, &odd).await
    };
    let strict = post("Strict").await;
    let message = format!(
        "{0} in version {1:?} cannot be handled as a {0}: strict decoding error: unknown field \"nonsense\"",
        meta.kind, meta.version
    );
    assert_eq!((strict.code, &strict.body["message"]), (400, &json!(message)), "{}", strict.body);
    // Some kinds have something to say of every object.
    let of_fields = |mut warnings: Vec<String>| {
        warnings.retain(|warning| warning.contains("unknown field"));
        warnings
    };
    let warned = post("Warn").await;
    assert_eq!(
        (warned.code, of_fields(warned.warnings)),
        (201, vec![r#"299 - "unknown field \"nonsense\"""#.to_owned()])
    );
    let ignored = post("Ignore").await;
    assert_eq!((ignored.code, of_fields(ignored.warnings).len()), (201, 0));
    assert_eq!(ignored.body.get("nonsense"), None);
}

/// The definition's name follows from what it defines.
fn odd_name(bench: &KindBench) -> &'static str {
    match bench.meta().kind {
        "CustomResourceDefinition" => "odds.example.com",
        "DomainMapping" | "ClusterDomainClaim" => "odd.example.com",
        _ => "odd",
    }
}

/// APP-22: the status is a subresource, if the kind has a status.
async fn tells_status(bench: &KindBench) {
    let path = format!("{}/status", bench.one());
    let patch = json!({ "status": bench.row.status, "metadata": { "labels": { "sneaked": "in" } } });
    if !bench.meta().has_status {
        for method in [Method::GET, Method::PUT, Method::PATCH] {
            bench.expect(404, method, &path, &patch).await;
        }
        return;
    }
    let before = bench.expect(200, Method::GET, &path, &Value::Null).await;
    let after = bench.expect(200, Method::PATCH, &format!("{path}?fieldManager=teller"), &patch).await;
    for (field, value) in bench.row.status.as_object().unwrap() {
        assert_eq!(&after["status"][field], value, "{after}");
    }
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(after["metadata"]["labels"].get("sneaked"), None);
    if before["status"] != after["status"] {
        let owners = after["metadata"]["managedFields"].as_array().unwrap();
        let teller = owners.iter().find(|owner| owner["manager"] == "teller").unwrap();
        assert_eq!(teller["subresource"], "status");
    }
    assert_eq!(bench.expect(200, Method::PUT, &path, &after).await, after);
    let through_main = json!({ "status": { "sneaked": "in" } });
    let same = bench.expect(200, Method::PATCH, &bench.one(), &through_main).await;
    assert_eq!(same["status"], after["status"]);
}

/// APP-19: methods that make no sense at a path.
async fn refuses_methods(bench: &KindBench) {
    let about = |verb: &str| format!("{verb} is not supported on resources of kind {:?}", bench.qualified());
    for (method, path, verb) in [
        (Method::POST, bench.one(), "create"),
        (Method::PUT, bench.collection.clone(), "update"),
        (Method::PATCH, bench.collection.clone(), "patch"),
    ] {
        let refusal =
            bench.refused((405, "MethodNotAllowed", &about(verb)), method, &path, &bench.object(&json!({}))).await;
        assert_eq!(refusal["details"]["kind"], bench.meta().plural);
    }
}

/// APP-30, APP-25: deleted by name under conditions, and by selection; what is gone is not found.
async fn deletes(bench: &KindBench) {
    let one = bench.one();
    let before = bench.expect(200, Method::GET, &one, &Value::Null).await;
    bench.expect(200, Method::DELETE, &format!("{one}?dryRun=All"), &Value::Null).await;
    assert_eq!(bench.expect(200, Method::GET, &one, &Value::Null).await, before);
    let uid = before["metadata"]["uid"].as_str().unwrap();
    let unmet = format!(
        "Operation cannot be fulfilled on {} {:?}: the UID in the precondition (other) does not match the UID in record ({uid}). The object might have been deleted and then recreated",
        bench.qualified(),
        bench.name
    );
    let condition = json!({ "preconditions": { "uid": "other" } });
    bench.refused((409, "Conflict", &unmet), Method::DELETE, &one, &condition).await;
    let gone = bench.expect(200, Method::DELETE, &one, &Value::Null).await;
    if bench.meta().kind == "Namespace" {
        assert_eq!(gone["status"]["phase"], "Terminating");
        return;
    }
    let mut details = bench.details();
    details["uid"] = uid.into();
    let expected =
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
    if bench.meta().group.is_empty() && ["Service", "ServiceAccount"].contains(&bench.meta().kind) {
        // Of these the answer is the object, as Kubernetes has it.
        assert_eq!((&gone["kind"], &gone["metadata"]["uid"]), (&json!(bench.meta().kind), &json!(uid)));
    } else {
        assert_eq!(gone, expected);
    }
    let missing = format!("{} {:?} not found", bench.qualified(), bench.name);
    bench.refused((404, "NotFound", &missing), Method::DELETE, &one, &Value::Null).await;
    bench.refused((404, "NotFound", &missing), Method::PATCH, &one, &bench.row.change).await;

    let made = bench.expect(201, Method::POST, &bench.collection, &bench.object(&json!({}))).await;
    let chosen = format!("{}?labelSelector=golden%3Dyes", bench.collection);
    if bench.meta().kind != "CustomResourceDefinition" {
        let list = bench.expect(200, Method::DELETE, &chosen, &Value::Null).await;
        assert_eq!(list["kind"], format!("{}List", bench.meta().kind));
        assert_eq!(list["items"][0]["metadata"]["uid"], made["metadata"]["uid"]);
        assert_eq!(bench.expect(404, Method::GET, &one, &Value::Null).await["reason"], "NotFound");
    }
    if bench.meta().namespaced {
        bench.expect(405, Method::DELETE, &collection(bench.meta(), None), &Value::Null).await;
    }
}

/// APP-23: what happened since, in order and once.
async fn watches(bench: &KindBench, since: u64) {
    let path = format!(
        "{}?watch=1&resourceVersion={since}&timeoutSeconds=1&fieldSelector=metadata.name%3D{}",
        bench.collection, bench.name
    );
    let body = bench.ask(Method::GET, &path, &Value::Null).await.body;
    let lines = body.as_str().unwrap_or_default().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<Value> = lines.collect();
    assert!(events.len() >= 4, "{} {body}", bench.meta().kind);
    assert_eq!(events[0]["type"], "ADDED");
    let versions: Vec<u64> = events.iter().map(|event| version(&event["object"])).collect();
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    assert!(events.iter().all(|event| event["object"]["kind"] == bench.meta().kind));
    let ends = if bench.meta().kind == "Namespace" { "MODIFIED" } else { "DELETED" };
    assert_eq!(events.iter().rfind(|event| event["type"] != "ADDED").unwrap()["type"], ends);
}

async fn walk(bench: KindBench) {
    let since = bench.revision();
    let made = makes(&bench).await;
    reads(&bench, &made).await;
    replaces(&bench, &made).await;
    patches(&bench).await;
    judges(&bench).await;
    tells_status(&bench).await;
    refuses_methods(&bench).await;
    deletes(&bench).await;
    watches(&bench, since).await;
}

/// Distinguishes our own kinds from Kubernetes' two kinds of the same name by their groups.
fn is_row_of(row: &KindRow, meta: &KindMeta) -> bool {
    let knative = row.columns.contains(&"LatestReady");
    row.kind == meta.kind && (meta.kind != "Service" || knative != meta.group.is_empty())
}

/// EventPolicies apply only while senders must authenticate.
async fn authenticate(server: &TestApiServer) {
    let map = "/api/v1/namespaces/knative-eventing/configmaps/config-features";
    let word = json!({ "data": { "authentication-oidc": "enabled" } });
    assert_eq!(server.ask(Method::PATCH, map, &word).await.0, 200);
}

/// APP-17 to APP-37: each verb with each kind.
#[tokio::test]
async fn every_kind_answers_every_verb_as_kubernetes_does() {
    let mut walks = Vec::new();
    for row in rows() {
        // Each kind has an API to itself, so that what the store counts is its own.
        let server = Arc::new(TestApiServer::real().await);
        if row.kind == "EventPolicy" {
            authenticate(&server).await;
        }
        let client = served(&server).await;
        let entry = *server.registry.entries.iter().find(|entry| is_row_of(&row, entry.meta)).unwrap();
        let name = match entry.meta.kind {
            "CustomResourceDefinition" => "golds.example.com",
            "DomainMapping" | "ClusterDomainClaim" => "golden.example.com",
            _ => "golden",
        };
        let collection = collection(entry.meta, Some("default"));
        let bench = KindBench { server, client, entry, row, collection, name };
        walks.push((entry.meta.kind, tokio::spawn(walk(bench))));
    }
    let mut failed = Vec::new();
    for (kind, walk) in walks {
        if walk.await.is_err() {
            failed.push(kind); // the failure was printed above
        }
    }
    assert_eq!(failed, [""; 0]);
}

#[test]
fn no_kind_is_left_out_of_the_table() {
    let rows = rows();
    // A claim has a finalizer from the start, which only its controller removes: `tests/serving/claims.rs` has its verbs.
    let registry = kinds::registry();
    let full = registry.entries.iter().filter(|entry| entry.access == AllowedVerbs::Full);
    for entry in full.filter(|entry| entry.meta.kind != "PersistentVolumeClaim") {
        assert!(rows.iter().any(|row| is_row_of(row, entry.meta)), "{} has no row", entry.meta.kind);
    }
}

/// Kinds that are asked, and kinds that only our controllers write.
#[tokio::test]
async fn kinds_without_all_verbs_say_so() {
    let server = TestApiServer::real().await;
    for entry in &server.registry.entries {
        let meta = entry.meta;
        let path = collection(meta, Some("default"));
        let one = format!("{path}/x");
        let object = json!({ "metadata": { "name": "x" }, "spec": { "user": "a", "namespace": "default", "token": "t",
            "resourceAttributes": { "verb": "get", "resource": "pods", "namespace": "default" } } });
        match entry.access {
            AllowedVerbs::Full => {}
            AllowedVerbs::CreateOnly => {
                let (code, answer) = server.ask(Method::POST, &path, &object).await;
                assert_eq!((code, &answer["kind"]), (201, &json!(meta.kind)), "{answer}");
                for (method, path) in [(Method::GET, &path), (Method::GET, &one), (Method::DELETE, &one)] {
                    assert_eq!(server.ask(method, path, &Value::Null).await.0, 405, "{path}");
                }
            }
            AllowedVerbs::Derived | AllowedVerbs::ReadOnly => {
                assert_eq!(server.get(&path).await.1["kind"], format!("{}List", meta.kind));
                assert_eq!(server.get(&one).await.0, 404);
                for (method, path) in [(Method::POST, &path), (Method::PUT, &one), (Method::PATCH, &one)] {
                    let (code, refusal) = server.ask(method, path, &object).await;
                    assert_eq!((code, &refusal["reason"]), (405, &json!("MethodNotAllowed")), "{path}");
                }
            }
        }
    }
}
