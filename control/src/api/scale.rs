//! `NAME/scale` of kinds whose definitions say where they keep how many they are to be: read, written and patched as a
//! `Scale`, whatever the object itself looks like.

use std::sync::Arc;

use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::kind::{Column, KindMeta, UnknownFields};
use crate::kinds::core::AGE;
use crate::kinds::custom::Scale;
use crate::store::{Key, Opened, Stored, View};

use super::accept::{self, Format};
use super::decide::Write;
use super::errors::Refusal;
use super::{Call, apply, body, object, patch, rehearse, rules, table};

const COLUMNS: [Column; 3] = [
    Column { format: "integer", ..crate::kinds::column("Desired", ".spec.replicas") },
    Column { format: "integer", ..crate::kinds::column("Available", ".status.replicas") },
    AGE,
];

static SCALE: KindMeta = KindMeta {
    group: "autoscaling",
    version: "v1",
    kind: "Scale",
    plural: "scales",
    singular: "scale",
    short_names: &[],
    categories: &[],
    namespaced: true,
    has_status: false,
    unknown_fields: UnknownFields::Prune,
    developers_create: false,
    columns: &COLUMNS,
};

pub(super) async fn answer(
    call: &Call,
    method: &Method,
    scale: &'static Scale,
    bytes: &[u8],
) -> Result<Response, Refusal> {
    let key = call.key()?;
    match *method {
        Method::GET => {
            let stored = call.server.store.read().get(&key);
            let stored = stored.ok_or_else(|| Refusal::not_found(call.target.entry.meta, &key.name))?;
            shown(call, scale, &stored)
        }
        Method::PUT => {
            let new = body::object(&call.headers, SCALE.kind, bytes)?;
            write(call, scale, move |_| Ok(new.clone())).await
        }
        Method::PATCH => {
            let media = body::content_type(&call.headers).unwrap_or_default();
            let patch = patch::parse_of_scale(&call.target.entry, &media, bytes)?;
            write(call, scale, move |before| patch::lay(&patch, before)).await
        }
        _ => Err(Refusal::method_not_allowed()),
    }
}

/// Changes the number in an object to what `change` makes of its scale.
async fn write(
    call: &Call,
    scale: &'static Scale,
    change: impl Fn(Value) -> Result<Value, Refusal> + Send + Sync + 'static,
) -> Result<Response, Refusal> {
    let key = call.key()?;
    let entry = call.target.entry;
    let (requester, writer, dry_run) = (call.requester(), call.writer(), call.parameters.dry_run);
    let judge = {
        let name = key.name.clone();
        move |before: Option<&Opened>| {
            let before = before.ok_or_else(|| Refusal::not_found(entry.meta, &name))?;
            let new = wanted(entry.show(before.value.clone()), change(of(&before.value, scale))?, scale)?;
            let change = object::prepare_update(&entry, before, new, &requester)?;
            Ok(apply::track(change, Some(before), &writer, None))
        }
    };
    let settle = move |_: &View, change, _| Ok(if dry_run { rehearse(change) } else { change });
    let written = Write { key, bytes: 0, dry_run, judge, settle }.run(&call.server.store).await?;
    shown(call, scale, written.object())
}

/// The object with the number that a scale names.
fn wanted(mut object: Value, mut new: Value, scale: &Scale) -> Result<Value, Refusal> {
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    let metadata = rules::check_shape(&SCALE, &mut new)?;
    if let Some(found) = rules::text(metadata, "name")?.filter(|found| *found != name) {
        let why = format!("the name of the object ({found}) does not match the name on the URL ({name})");
        return Err(Refusal::bad_request(why));
    }
    let version = rules::text(metadata, "resourceVersion")?.filter(|version| !version.is_empty());
    let version = version.map(str::to_owned);
    let number = match &new["spec"]["replicas"] {
        Value::Null => 0,
        number => number.as_i64().and_then(|number| i32::try_from(number).ok()).ok_or_else(|| {
            Refusal::bad_request(format!("spec.replicas has to be a number, and is {number}"))
        })?,
    };
    if number < 0 {
        let why = format!("Invalid value: {number}: must be greater than or equal to 0");
        return Err(Refusal::invalid_field(&SCALE, name, "spec.replicas", why));
    }
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version.into();
    }
    let mut at = &mut object;
    for step in &scale.wanted {
        if !at.is_object() {
            *at = Map::new().into();
        }
        at = &mut at[step.as_str()];
    }
    *at = number.into();
    Ok(object)
}

fn at<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |at, step| &at[step.as_str()])
}

/// What an object says, as a `Scale`; without a number where it says none.
fn of(object: &Value, scale: &Scale) -> Value {
    let metadata = &object["metadata"];
    let names = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let known: Map<String, Value> =
        names.iter().filter_map(|name| Some(((*name).to_owned(), metadata.get(name)?.clone()))).collect();
    let mut status = json!({ "replicas": at(object, &scale.found).as_i64().unwrap_or(0) });
    if let Some(selector) = scale.selector.as_ref().and_then(|path| at(object, path).as_str()) {
        status["selector"] = selector.into();
    }
    let spec = match at(object, &scale.wanted).as_i64() {
        Some(number) => json!({ "replicas": number }),
        None => json!({}),
    };
    json!({ "kind": SCALE.kind, "apiVersion": SCALE.api_version(), "metadata": known, "spec": spec, "status": status })
}

fn shown(call: &Call, scale: &Scale, stored: &Arc<Stored>) -> Result<Response, Refusal> {
    let value = of(&stored.value(), scale);
    if !value["spec"]["replicas"].is_number() {
        let path = scale.wanted.join(".");
        return Err(Refusal::internal(&format!("the spec replicas field \".{path}\" does not exist")));
    }
    let key: Key = stored.key.clone();
    let shown = Stored::new(key, stored.resource_version, &value);
    Ok(match call.format {
        Format::Object => accept::json(StatusCode::OK, value.to_string()),
        Format::Metadata => accept::json(StatusCode::OK, accept::metadata_only(&shown).to_string()),
        Format::Table => {
            let version = shown.resource_version.to_string();
            let include = call.parameters.include_object;
            let table = table::of(&SCALE, &[&shown], &version, include, jiff::Timestamp::now());
            accept::json(StatusCode::OK, table.to_string())
        }
    })
}
