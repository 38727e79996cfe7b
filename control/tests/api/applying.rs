//! Server-side apply: who owns what, what is a conflict, and what goes when nobody wants it any more.

use http::Method;
use serde_json::{Value, json};

use crate::support::{House, MAPS};

const KSVCS: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
const MEDIA: &str = "application/apply-patch+yaml";

async fn apply(house: &House, path: &str, query: &str, object: &Value) -> (u16, Value) {
    house.ask_as(Method::PATCH, &format!("{path}?{query}"), MEDIA, object.to_string()).await
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
    let house = House::open().await;
    let path = format!("{MAPS}/m");
    let (code, made) = apply(&house, &path, "fieldManager=a", &map(json!({ "x": "1", "y": "1" }))).await;
    assert_eq!((code, owners(&made)), (201, vec![("a", "Apply")]), "{made}");
    let (code, _) =
        house.ask(Method::PATCH, &format!("{path}?fieldManager=b"), &json!({ "data": { "z": "1" } })).await;
    assert_eq!(code, 200);
    let (code, left) = apply(&house, &path, "fieldManager=a", &map(json!({ "x": "1" }))).await;
    assert_eq!((code, &left["data"]), (200, &json!({ "x": "1", "z": "1" })), "{left}");
    assert_eq!(owners(&left), [("a", "Apply"), ("b", "Update")]);
    assert_eq!(left["metadata"]["managedFields"][1]["fieldsV1"], json!({ "f:data": { "f:z": {} } }));
}

/// APP-29: another's field is a conflict with cause, and by force it changes hands.
#[tokio::test]
async fn a_field_of_another_owner_is_a_conflict_until_it_is_taken_by_force() {
    let house = House::open().await;
    let path = format!("{MAPS}/m");
    apply(&house, &path, "fieldManager=a", &map(json!({ "x": "1", "y": "1" }))).await;
    let (code, refusal) = apply(&house, &path, "fieldManager=b", &map(json!({ "x": "2" }))).await;
    assert_eq!((code, &refusal["reason"]), (409, &json!("Conflict")), "{refusal}");
    assert_eq!(refusal["message"], r#"Apply failed with 1 conflict: conflict with "a" using v1: .data.x"#);
    assert_eq!(
        refusal["details"]["causes"],
        json!([{ "reason": "FieldManagerConflict", "message": r#"conflict with "a" using v1"#, "field": ".data.x" }])
    );
    let (code, shared) = apply(&house, &path, "fieldManager=b", &map(json!({ "x": "1" }))).await;
    assert_eq!(code, 200, "the same value is no conflict: {shared}");

    let (code, taken) = apply(&house, &path, "fieldManager=b&force=true", &map(json!({ "x": "2" }))).await;
    assert_eq!((code, &taken["data"]["x"]), (200, &json!("2")));
    let (code, refusal) = apply(&house, &path, "fieldManager=a", &map(json!({ "x": "1", "y": "1" }))).await;
    assert_eq!(code, 409, "{refusal}");
    let (_, left) = apply(&house, &path, "fieldManager=a", &map(json!({ "y": "1" }))).await;
    assert_eq!(left["data"], json!({ "x": "2", "y": "1" }));
}

/// APP-40: applying the same again changes nothing; APP-33: a dry run stores nothing.
#[tokio::test]
async fn applying_the_same_again_changes_nothing_and_a_rehearsal_stores_nothing() {
    let house = House::real().await;
    let path = format!("{KSVCS}/hello");
    let service = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service",
        "metadata": { "name": "hello" },
        "spec": { "template": { "spec": { "containers": [{ "image": "a", "env": [{ "name": "A", "value": "1" }] }] } } } });
    let (code, seen) = apply(&house, &path, "fieldManager=a&dryRun=All", &service).await;
    assert_eq!(code, 201, "{seen}");
    assert_eq!(house.get(&path).await.0, 404);
    let (_, first) = apply(&house, &path, "fieldManager=a", &service).await;
    let (code, second) = apply(&house, &path, "fieldManager=a", &service).await;
    assert_eq!(
        (code, &second["metadata"]["resourceVersion"]),
        (200, &first["metadata"]["resourceVersion"]),
        "{second}"
    );
    assert_eq!(second["metadata"]["generation"], 1);
    assert_eq!(second["spec"]["traffic"][0]["percent"], 100, "defaults stay");
}

#[tokio::test]
async fn the_owner_of_an_edit_is_who_edited_and_no_longer_who_wrote_before() {
    let house = House::open().await;
    let path = format!("{MAPS}/m");
    house.ask(Method::POST, &format!("{MAPS}?fieldManager=first"), &map(json!({ "x": "1", "y": "1" }))).await;
    let (_, edited) = house
        .ask(
            Method::PATCH,
            &format!("{path}?fieldManager=second"),
            &json!({ "data": { "x": "2", "y": null } }),
        )
        .await;
    let fields = |manager: &str| {
        let entries = edited["metadata"]["managedFields"].as_array().unwrap();
        entries.iter().find(|one| one["manager"] == manager).map(|one| one["fieldsV1"].clone())
    };
    assert_eq!(fields("second"), Some(json!({ "f:data": { "f:x": {} } })));
    assert_eq!(fields("first"), None, "{edited}");
    let (code, refusal) = apply(&house, &path, "fieldManager=third", &map(json!({ "x": "3" }))).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (409, &json!(".data.x")));
}

#[tokio::test]
async fn an_apply_names_its_manager_and_force_is_for_applies_only() {
    let house = House::open().await;
    let path = format!("{MAPS}/m");
    let (code, refusal) = apply(&house, &path, "", &map(json!({}))).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("fieldManager")), "{refusal}");
    let (code, _) = apply(&house, &path, "fieldManager=a", &json!({ "data": {} })).await;
    assert_eq!(code, 400);
    for body in ["a: [", "[]", "data: {m: &a [*a]}", "5"] {
        let (code, _) =
            house.ask_as(Method::PATCH, &format!("{path}?fieldManager=a"), MEDIA, body.to_owned()).await;
        assert_eq!(code, 400, "{body}");
    }
    apply(&house, &path, "fieldManager=a", &map(json!({}))).await;
    let (code, _) = house.ask(Method::PATCH, &format!("{path}?force=true"), &json!({})).await;
    assert_eq!(code, 422);
}
