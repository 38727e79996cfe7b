//! The cost of a request of 100 KB, whatever it fills: every list and every map in the schemas, of every kind, by
//! every verb.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Map, Value, json};
use sluicegate_control::kind_registry::{AllowedVerbs, KindEntry};

use crate::meter::{BODY_BYTES, MeteredApi};
use crate::verb_matrix_kinds;

const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// Ways to change an object. Each list and map is written by some of them in turn, so that all of a kind's are.
const CHANGES: [(&str, &str, bool); 8] = [
    ("PUT", JSON, false),
    ("PATCH", JSON_PATCH, false),
    ("PATCH", MERGE_PATCH, false),
    ("PATCH", STRATEGIC_PATCH, false),
    ("PATCH", APPLY, false),
    ("PUT", JSON, true),
    ("PATCH", MERGE_PATCH, true),
    ("PATCH", JSON_PATCH, true),
];
/// ... so many for each.
const CHANGES_A_PLACE: usize = 2;

/// Fields on the way from an object to a list or map, each with the shortest value that may be in it.
type Place = (Vec<String>, Value);

/// Every list and map below `schema`, once for each shape of its items.
fn places(schema: &Value, at: &[String], seen: &mut BTreeSet<String>, found: &mut Vec<Place>) {
    let shape = || format!("{:?} {}", at.last(), schema.to_string().len());
    let is_list = schema["type"] == "array";
    let inner = &schema[if is_list { "items" } else { "additionalProperties" }];
    if (is_list || inner.is_object()) && seen.insert(shape()) {
        let item = match inner["type"].as_str() {
            Some("string") => json!(""),
            Some("integer" | "number") => json!(1),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            _ => json!({}),
        };
        found.push((at.to_vec(), if is_list { json!([item]) } else { json!({ "k": item }) }));
    }
    let below = |name: &str| [at, &[name.to_owned()]].concat();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        if at.len() < 12 {
            places(inner, &below(name), seen, found);
        }
    }
    if is_list && inner.is_object() && at.len() < 12 {
        places(inner, &below("[]"), seen, found);
    }
}

/// An object whose list or map at `place` fills the body.
fn filled(entry: &KindEntry, (path, shape): &Place) -> Value {
    let mut value = match shape {
        Value::Array(items) => {
            let item_bytes = items[0].to_string().len() + 1;
            Value::Array(vec![items[0].clone(); BODY_BYTES / item_bytes])
        }
        map => {
            let item = &map["k"];
            let count = BODY_BYTES / (item.to_string().len() + 12);
            Value::Object((0..count).map(|n| (format!("k{n:06}"), item.clone())).collect::<Map<_, _>>())
        }
    };
    for name in path.iter().rev() {
        value = if name == "[]" { json!([value]) } else { json!({ name: value }) };
    }
    value["apiVersion"] = entry.meta.api_version().into();
    value["kind"] = entry.meta.kind.into();
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    value["metadata"]["name"] = "costly".into();
    value
}

fn collection(entry: &KindEntry) -> String {
    let meta = entry.meta;
    let group = if meta.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", meta.group) };
    let home = if meta.namespaced { "/namespaces/default" } else { "" };
    format!("{group}/{}{home}/{}", meta.version, meta.plural)
}

/// An object that is stored, for changes.
fn stored(entry: &KindEntry) -> Value {
    let row = verb_matrix_kinds::rows().into_iter().find(|row| row.kind == entry.meta.kind);
    let mut object = row.map_or_else(|| json!({}), |row| row.object);
    object["apiVersion"] = entry.meta.api_version().into();
    object["kind"] = entry.meta.kind.into();
    object["metadata"] = json!({ "name": "stored" });
    object
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (name, value) in patch {
                merge(fields.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// A change of `object` to what `filled` says, as a body of `media`.
fn change(media: &str, object: &Value, mut filled: Value) -> String {
    filled["metadata"]["name"] = "stored".into();
    match media {
        JSON => {
            let mut object = object.clone();
            merge(&mut object, &filled);
            object.to_string()
        }
        JSON_PATCH => {
            let fields = filled.as_object().unwrap().iter();
            let operations =
                fields.map(|(name, value)| json!({ "op": "add", "path": format!("/{name}"), "value": value }));
            Value::from_iter(operations).to_string()
        }
        _ => filled.to_string(),
    }
}

/// Every kind, with 100 KB in each of its lists and maps: new by POST and by server-side apply, and over an object that is
/// stored.
#[tokio::test]
async fn request_of_any_kind_costs_in_proportion_to_its_body() {
    let api = MeteredApi::start().await;
    let (mut seen, mut count, mut stored_kinds) = (BTreeSet::new(), 0, 0);
    for entry in api.registry.entries.iter().filter(|entry| entry.access == AllowedVerbs::Full) {
        let (kind, collection, object) = (entry.meta.kind, collection(entry), stored(entry));
        let made = api.ask((Method::POST, &collection), JSON, object.to_string(), kind).await;
        stored_kinds += usize::from(made.0 == 201);
        let mut found = Vec::new();
        places(&(entry.schema)(), &[], &mut seen, &mut found);
        for place in &found {
            let filled = filled(entry, place);
            let about = format!("{kind} {}", place.0.join("."));
            let new = format!("{collection}?dryRun=All");
            api.ask((Method::POST, &new), JSON, filled.to_string(), &about).await;
            let new = format!("{collection}/costly?dryRun=All&fieldManager=test");
            api.ask((Method::PATCH, &new), APPLY, filled.to_string(), &about).await;
            for step in 0..CHANGES_A_PLACE {
                let (method, media, of_status) = CHANGES[(count * CHANGES_A_PLACE + step) % CHANGES.len()];
                let below = if of_status && entry.meta.has_status { "/status" } else { "" };
                let force = if media == APPLY { "&force=true" } else { "" };
                let path = format!("{collection}/stored{below}?dryRun=All&fieldManager=test{force}");
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                api.ask((method, &path), media, change(media, &object, filled.clone()), &format!("{path} {about}"))
                    .await;
            }
            count += 1;
        }
    }
    assert!(count > 100, "only {count} lists and maps were found");
    assert!(stored_kinds > 30, "only {stored_kinds} kinds have an object that changes were made to");
}

fn items(item: &Value) -> Value {
    vec![item.clone(); BODY_BYTES / (item.to_string().len() + 1)].into()
}

/// Patches of many small parts, and the options of a deletion.
#[tokio::test]
async fn patch_or_deletion_costs_in_proportion_to_its_body() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let api = MeteredApi::start().await;
    let numbers = 0..BODY_BYTES / 40;
    let data: Map<String, Value> = numbers.map(|n| (format!("key-{n:06}"), "some text of the map".into())).collect();
    let map = json!({ "metadata": { "name": "stored", "finalizers": ["a.io/b"] }, "data": data });
    assert_eq!(api.ask((Method::POST, MAPS), JSON, map.to_string(), "map").await.0, 201);
    let one = format!("{MAPS}/stored?dryRun=All");
    let order: Vec<String> = (0..5_000).map(|n| format!("a.io/{n}")).collect();
    for (media, body) in [
        (JSON_PATCH, items(&json!({ "op": "test", "path": "/data/key-000001", "value": "some text of the map" }))),
        (JSON_PATCH, items(&json!({ "op": "copy", "from": "/data/key-000001", "path": "/data/b" }))),
        (JSON_PATCH, items(&json!({ "op": "copy", "from": "/data", "path": "/metadata/annotations" }))),
        (JSON_PATCH, items(&json!({ "op": "move", "from": "/data", "path": "/data" }))),
        (JSON_PATCH, items(&json!({ "op": "add", "path": "/metadata/finalizers/0", "value": "a/b" }))),
        (JSON_PATCH, json!([{ "op": "add", "path": format!("/data{}", "/a".repeat(BODY_BYTES / 2)), "value": 1 }])),
        (STRATEGIC_PATCH, json!({ "metadata": { "finalizers": order, "$setElementOrder/finalizers": order } })),
        (STRATEGIC_PATCH, json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": order } })),
        (STRATEGIC_PATCH, json!({ "data": { "$retainKeys": order } })),
        (MERGE_PATCH, json!({ "metadata": { "ownerReferences": items(&json!({})) } })),
        (MERGE_PATCH, json!({ "metadata": { "managedFields": items(&json!({})) } })),
    ] {
        let words = body.to_string();
        api.ask((Method::PATCH, &one), media, words.clone(), &words[..words.len().min(100)]).await;
    }
    for options in [
        json!({ "dryRun": items(&json!("All")) }),
        json!({ "dryRun": ["All"], "preconditions": { "uid": "u".repeat(BODY_BYTES) } }),
        json!({ "dryRun": ["All"], "ignored": items(&json!({ "a": 1 })) }),
        items(&json!({})),
    ] {
        let selected = format!("{MAPS}?dryRun=All&labelSelector={}", vec!["!a"; 200].join(","));
        for path in [one.as_str(), &format!("{MAPS}?dryRun=All"), &selected] {
            let words = options.to_string();
            api.ask((Method::DELETE, path), JSON, words.clone(), &words[..words.len().min(100)]).await;
        }
    }
}
