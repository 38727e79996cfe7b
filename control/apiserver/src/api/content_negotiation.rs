//! The representation that a client accepts: the object itself, a table, or its metadata.

use axum::body::{HttpBody as _, to_bytes};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::store::StoredObject;

use super::errors::StatusError;
use super::yaml;

/// Size limit of a response that is indented, in bytes. People do not read longer ones, and a tree of values takes
/// several times their memory.
const PRETTY_BYTES_MAX: u64 = 1 << 20;
const ACCEPTED_MEDIA_TYPES: &str = "application/json, application/yaml";

/// Form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseFormat {
    Object,
    Table,
    /// `PartialObjectMetadata`
    Metadata,
}

/// Takes the first type of the Accept header that we have.
pub(super) fn negotiate(headers: &HeaderMap) -> Result<ResponseFormat, StatusError> {
    let Some(accept) = headers.get(header::ACCEPT) else { return Ok(ResponseFormat::Object) };
    let accept = accept.to_str().map_err(|_| StatusError::not_acceptable(ACCEPTED_MEDIA_TYPES))?;
    if accept.trim().is_empty() {
        return Ok(ResponseFormat::Object);
    }
    accept.split(',').find_map(format_of).ok_or_else(|| StatusError::not_acceptable(ACCEPTED_MEDIA_TYPES))
}

fn format_of(wanted: &str) -> Option<ResponseFormat> {
    let mut parts = wanted.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    if !matches!(media.as_str(), "application/json" | "application/yaml" | "application/*" | "*/*") {
        return None;
    }
    let (mut shape, mut group, mut version) = (None, None, None);
    for part in parts {
        match part.split_once('=') {
            Some(("as", value)) => shape = Some(value),
            Some(("g", value)) => group = Some(value),
            Some(("v", value)) => version = Some(value),
            _ => {}
        }
    }
    match (shape, group, version) {
        (None, _, _) => Some(ResponseFormat::Object),
        (Some("Table"), Some("meta.k8s.io"), Some("v1")) => Some(ResponseFormat::Table),
        (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) => {
            Some(ResponseFormat::Metadata)
        }
        _ => None,
    }
}

/// Whether the type that [`negotiate`] took is YAML.
pub(super) fn is_yaml(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let taken = accept.split(',').find(|wanted| format_of(wanted).is_some());
    taken.is_some_and(|taken| taken.trim_start().to_ascii_lowercase().starts_with("application/yaml"))
}

/// The same answer in YAML, unless it is no JSON. Not for watches, which have no end.
pub(super) async fn to_yaml(response: Response) -> Response {
    let (mut head, value) = match parse_response(response).await {
        Ok(opened) => opened,
        Err(as_it_is) => return as_it_is,
    };
    head.headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/yaml"));
    Response::from_parts(head, yaml::write(&value).into())
}

/// The JSON value of a response; or the response itself if it is not JSON or cannot be parsed: a list is nested
/// deeper than its items, and these may have the maximum depth already.
async fn parse_response(response: Response) -> Result<(http::response::Parts, Value), Response> {
    let (mut head, body) = response.into_parts();
    if head.headers.get(header::CONTENT_TYPE).is_none_or(|media| media != "application/json") {
        return Err(Response::from_parts(head, body));
    }
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default(); // serialized by now
    match serde_json::from_slice(&bytes) {
        Ok(value) => {
            head.headers.remove(header::CONTENT_LENGTH);
            Ok((head, value))
        }
        Err(_) => Err(Response::from_parts(head, bytes.into())),
    }
}

/// Whether the response is indented for a person: the query says so, or, as in Kubernetes, the client is a browser or
/// a similar tool and the query does not say.
pub(super) fn is_pretty(head: &Parts) -> bool {
    let said = head.uri.query().unwrap_or("").split('&').find_map(|pair| pair.strip_prefix("pretty="));
    let agent = super::user_agent(&head.headers);
    said.filter(|said| !said.is_empty()).map_or_else(
        || ["curl", "Wget", "Mozilla/5.0"].iter().any(|one| agent.starts_with(one)),
        |said| ["1", "t", "T", "true", "True", "TRUE"].contains(&said),
    )
}

/// The same answer with a line for each field, unless it is no JSON, has no end, or is too long to be read so.
pub(super) async fn to_pretty_json(response: Response) -> Response {
    let is_short = response.body().size_hint().exact().is_some_and(|bytes| bytes <= PRETTY_BYTES_MAX);
    if !is_short {
        return response;
    }
    match parse_response(response).await {
        Ok((head, value)) => Response::from_parts(head, format!("{value:#}\n").into()),
        Err(as_it_is) => as_it_is,
    }
}

/// Answers with JSON that is already serialized.
pub(super) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.into()).into_response()
}

/// The object without anything but its metadata.
pub(super) fn metadata_only(object: &StoredObject) -> Value {
    #[derive(Deserialize)]
    struct MetadataOnly {
        metadata: Value,
    }
    let only: Option<MetadataOnly> = serde_json::from_slice(&object.json()).ok(); // we wrote it
    partial(only.map_or(Value::Null, |only| only.metadata))
}

pub(super) fn partial(metadata: Value) -> Value {
    let mut partial = json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1" });
    partial["metadata"] = metadata; // moved: the macro would copy it
    partial
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_too_deep_or_too_long_to_be_set_out_stays_as_it_is() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let long = format!("\"{}\"", "x".repeat(1 << 20));
        for text in [deep.clone(), long] {
            let answer = to_pretty_json(json(StatusCode::OK, text.clone())).await;
            assert_eq!(to_bytes(answer.into_body(), usize::MAX).await.unwrap(), text);
        }
        let answer = to_yaml(json(StatusCode::OK, deep.clone())).await;
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
        assert_eq!(to_bytes(answer.into_body(), usize::MAX).await.unwrap(), deep);
    }
}
