//! Request bodies: bounded, and parsed without trusting their shape.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::Value;

use super::errors::Refusal;
use super::fields::{self, FieldValidation};
use super::numbers;
use super::protobuf::{self, Wrong};

/// Largest request body, in bytes; the figure that Kubernetes documents.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// How long a request's body may take; the time that Kubernetes gives a request.
pub const BODY_MAX: Duration = Duration::from_secs(60);

const ACCEPTED: &str = "application/json, application/yaml";

/// Reads the whole body.
pub(super) async fn read(body: Body) -> Result<Bytes, Refusal> {
    let read = tokio::time::timeout(BODY_MAX, to_bytes(body, BODY_BYTES_MAX)).await;
    read.map_err(|_| Refusal::too_slow(BODY_MAX))?.map_err(|why| {
        let mut cause: Option<&dyn std::error::Error> = Some(&why);
        while let Some(error) = cause {
            // The limit's error type is private to a crate below axum; its text is all there is.
            if error.to_string() == "length limit exceeded" {
                return Refusal::too_large(BODY_BYTES_MAX);
            }
            cause = error.source();
        }
        Refusal::bad_request(format!("the body could not be read: {why}"))
    })
}

/// The media type without its parameters, in lower case; `None` when there is none.
pub(super) fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or("").trim().to_ascii_lowercase())
}

/// A body that has to be one object of kind `kind`. Both parsers stop at 128 levels of nesting, and the YAML one
/// at aliases that repeat too much.
pub(super) fn object(headers: &HeaderMap, kind: &str, body: &[u8]) -> Result<Value, Refusal> {
    let value = match content_type(headers).as_deref() {
        None | Some("" | "application/json") => json(body)?,
        Some("application/yaml" | "application/x-yaml" | "text/yaml") => {
            yaml(body).map_err(|why| Refusal::bad_request(format!("error converting YAML to JSON: {why}")))?
        }
        Some("application/vnd.kubernetes.protobuf") => {
            protobuf::decode(kind, body).map_err(|why| match why {
                Wrong::UnknownKind => Refusal::unsupported_media_type(ACCEPTED),
                Wrong::Malformed => Refusal::bad_request("the body is not a valid protobuf message"),
                Wrong::TooDeep => Refusal::bad_request(format!(
                    "schemas nest more than {} levels",
                    protobuf::SCHEMA_DEPTH_MAX
                )),
            })?
        }
        Some(_) => return Err(Refusal::unsupported_media_type(ACCEPTED)),
    };
    if value.is_object() { Ok(value) } else { Err(Refusal::bad_request("the body has to be one object")) }
}

/// The same for a write: `validation` says whether fields that stand twice are looked for.
pub(super) fn written(
    headers: &HeaderMap,
    kind: &str,
    body: &[u8],
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), Refusal> {
    let value = object(headers, kind, body)?;
    let duplicates = match content_type(headers).as_deref() {
        _ if validation == FieldValidation::Ignore => Vec::new(),
        None | Some("" | "application/json") => {
            fields::duplicates(&mut serde_json::Deserializer::from_slice(body))
        }
        Some("application/vnd.kubernetes.protobuf") => Vec::new(),
        Some(_) => fields::duplicates(serde_norway::Deserializer::from_slice(body)),
    };
    Ok((value, duplicates))
}

pub(super) fn json(body: &[u8]) -> Result<Value, Refusal> {
    let mut value = serde_json::from_slice(body)
        .map_err(|why| Refusal::bad_request(format!("the body is not valid JSON: {why}")))?;
    numbers::settle(&mut value);
    Ok(value)
}

pub(super) fn yaml(body: &[u8]) -> Result<Value, serde_norway::Error> {
    let mut value = serde_norway::from_slice(body)?;
    numbers::settle(&mut value);
    Ok(value)
}
