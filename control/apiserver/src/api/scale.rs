//! `NAME/scale` of kinds whose definitions specify a scale subresource: read, replaced and patched as a
//! `Scale`, whatever the schema of the object is.

use std::sync::Arc;

use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::store::{DecodedObject, ObjectKey, StagedView, StoredObject};
use types::custom_kinds::ScaleSubresource;
use types::kind_registry::{CORE, KindMeta, UnknownFieldPolicy};
use types::printer_column::{AGE, PrinterColumn};

use super::content_negotiation::{self, ResponseFormat};
use super::decide::Write;
use super::errors::StatusError;
use super::{ApiRequest, as_dry_run, body, field_ownership, metadata_validation, patch, prepare, table};

const COLUMNS: [PrinterColumn; 3] = [
    PrinterColumn { format: "integer", ..types::printer_column::column("Desired", ".spec.replicas") },
    PrinterColumn { format: "integer", ..types::printer_column::column("Available", ".status.replicas") },
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
    unknown_fields: UnknownFieldPolicy::Prune,
    user_creatable: false,
    columns: &COLUMNS,
    ..CORE
};

pub(super) async fn handle(
    call: &ApiRequest,
    method: &Method,
    scale: &'static ScaleSubresource,
    bytes: &[u8],
) -> Result<Response, StatusError> {
    let key = call.key()?;
    match *method {
        Method::GET => {
            let stored = call.server.store.read().get(&key);
            let stored = stored.ok_or_else(|| StatusError::not_found(call.target.entry.meta, &key.name))?;
            scale_response(call, scale, &stored)
        }
        Method::PUT => {
            let new = body::object(&call.headers, SCALE.kind, bytes)?;
            write(call, scale, move |_| Ok(new.clone())).await
        }
        Method::PATCH => {
            let media = body::content_type(&call.headers).unwrap_or_default();
            let patch = patch::parse_of_scale(&call.target.entry, &media, bytes)?;
            write(call, scale, move |before| patch::apply_patch(&patch, before)).await
        }
        _ => Err(StatusError::method_not_allowed()),
    }
}

/// Changes the number in an object to what `change` makes of its scale.
async fn write(
    call: &ApiRequest,
    scale: &'static ScaleSubresource,
    change: impl Fn(Value) -> Result<Value, StatusError> + Send + Sync + 'static,
) -> Result<Response, StatusError> {
    let key = call.key()?;
    let entry = call.target.entry;
    let (requester, writer, dry_run) = (call.requester(), call.field_writer(), call.parameters.dry_run);
    let judge = {
        let name = key.name.clone();
        move |before: Option<&DecodedObject>| {
            let before = before.ok_or_else(|| StatusError::not_found(entry.meta, &name))?;
            let new =
                with_replicas(entry.from_stored(before.value.clone()), change(scale_of(&before.value, scale))?, scale)?;
            let change = prepare::prepare_update(&entry, before, new, &requester)?;
            Ok(field_ownership::track_update(change, Some(before), &writer, None))
        }
    };
    let settle = move |_: &StagedView, change, _| Ok(if dry_run { as_dry_run(change) } else { change });
    let written = Write { key, bytes: 0, dry_run, judge, settle }.run(&call.server.store).await?;
    scale_response(call, scale, written.object())
}

/// The object with the number that a scale names.
fn with_replicas(mut object: Value, mut new: Value, scale: &ScaleSubresource) -> Result<Value, StatusError> {
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    let metadata = metadata_validation::check_shape(&SCALE, &mut new)?;
    if let Some(found) = metadata_validation::text(metadata, "name")?.filter(|found| *found != name) {
        let why = format!("the name of the object ({found}) does not match the name on the URL ({name})");
        return Err(StatusError::bad_request(why));
    }
    let version = metadata_validation::text(metadata, "resourceVersion")?.filter(|version| !version.is_empty());
    let version = version.map(str::to_owned);
    let number = match &new["spec"]["replicas"] {
        Value::Null => 0,
        number => number
            .as_i64()
            .and_then(|number| i32::try_from(number).ok())
            .ok_or_else(|| StatusError::bad_request(format!("spec.replicas has to be a number, and is {number}")))?,
    };
    if number < 0 {
        let why = format!("Invalid value: {number}: must be greater than or equal to 0");
        return Err(StatusError::invalid_field(&SCALE, name, "spec.replicas", why));
    }
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version.into();
    }
    let mut at = &mut object;
    for step in &scale.spec_replicas_path {
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

/// The `Scale` of an object; without a number if the object has none.
fn scale_of(object: &Value, scale: &ScaleSubresource) -> Value {
    let metadata = &object["metadata"];
    let names = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let known: Map<String, Value> =
        names.iter().filter_map(|name| Some(((*name).to_owned(), metadata.get(name)?.clone()))).collect();
    let mut status = json!({ "replicas": at(object, &scale.status_replicas_path).as_i64().unwrap_or(0) });
    if let Some(selector) = scale.selector_path.as_ref().map(|path| at(object, path)) {
        match selector {
            Value::String(text) => status["selector"] = text.as_str().into(),
            Value::Object(_) => status["selector"] = selector_text(selector).into(),
            _ => {}
        }
    }
    let spec = match at(object, &scale.spec_replicas_path).as_i64() {
        Some(number) => json!({ "replicas": number }),
        None => json!({}),
    };
    json!({ "kind": SCALE.kind, "apiVersion": SCALE.api_version(), "metadata": known, "spec": spec, "status": status })
}

/// A selector of Kubernetes' own kinds as text: `app=web,tier in (a,b)`.
fn selector_text(selector: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", text(value)));
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten().map(|one| {
        let key = text(&one["key"]);
        let values: Vec<String> = one["values"].as_array().into_iter().flatten().map(text).collect();
        match one["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key,
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

fn scale_response(
    call: &ApiRequest,
    scale: &ScaleSubresource,
    stored: &Arc<StoredObject>,
) -> Result<Response, StatusError> {
    let value = scale_of(&stored.value(), scale);
    if !value["spec"]["replicas"].is_number() {
        let path = scale.spec_replicas_path.join(".");
        return Err(StatusError::internal(&format!("the spec replicas field \".{path}\" does not exist")));
    }
    let key: ObjectKey = stored.key.clone();
    let shown = StoredObject::new(key, stored.resource_version, &value);
    Ok(match call.format {
        ResponseFormat::Object => content_negotiation::json(StatusCode::OK, value.to_string()),
        ResponseFormat::Metadata => {
            content_negotiation::json(StatusCode::OK, content_negotiation::metadata_only(&shown).to_string())
        }
        ResponseFormat::Table => {
            let version = shown.resource_version.to_string();
            let include = call.parameters.include_object;
            let table = table::render(&SCALE, &[&shown], &version, include, jiff::Timestamp::now());
            content_negotiation::json(StatusCode::OK, table.to_string())
        }
    })
}
