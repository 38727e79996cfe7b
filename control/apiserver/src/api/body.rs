//! Request bodies: bounded, and parsed without trusting their shape.

use std::ops::Deref;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, header};
use serde_json::Value;
use tokio::time::Instant;

use super::ApiRequest;
use super::budget::{BODY_FREE_BYTES, BodyShare, Budget};
use super::document_tree;
use super::errors::StatusError;
use super::field_validation::FieldValidation;
use super::protobuf::{self, ProtobufError};
use super::weight::{self, Weight};

/// Largest request body, in bytes; the figure that Kubernetes documents.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// How long a request's body may take; the time that Kubernetes gives a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);

const ACCEPTED_MEDIA_TYPES: &str = "application/json, application/yaml";

/// How long a body may pause, and how often it is checked whether it still comes.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Bytes that have to come in [`PAUSE_MAX`] while there are more than the free ones: a sender that is slower holds
/// memory that others need.
const BYTES_IN_PAUSE_MIN: usize = 16 * 1024;

/// A whole body, and its share of the memory for bodies.
#[derive(Debug)]
pub(super) struct Received {
    bytes: Bytes,
    share: BodyShare,
}

impl Received {
    pub(super) fn into_parts(self) -> (Bytes, BodyShare) {
        (self.bytes, self.share)
    }
}

impl Deref for Received {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// Reads the whole body.
pub(super) async fn read(budget: &Budget, body: Body) -> Result<Received, StatusError> {
    let read = tokio::time::timeout(BODY_TIMEOUT, collect(budget.body(), body)).await;
    read.map_err(|_| StatusError::request_timeout(BODY_TIMEOUT))?
}

async fn collect(mut share: BodyShare, body: Body) -> Result<Received, StatusError> {
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    let (mut until, mut came) = (Instant::now() + PAUSE_MAX, 0);
    loop {
        let next = if bytes.len() > BODY_FREE_BYTES {
            let next = tokio::time::timeout_at(until, pieces.next()).await;
            next.map_err(|_| StatusError::request_timeout(PAUSE_MAX))?
        } else {
            pieces.next().await
        };
        let Some(piece) = next else { return Ok(Received { bytes: bytes.into(), share }) };
        let piece = piece.map_err(|why| StatusError::bad_request(format!("the body could not be read: {why}")))?;
        if bytes.len() + piece.len() > BODY_BYTES_MAX {
            return Err(StatusError::too_large(BODY_BYTES_MAX));
        }
        share.grow(piece.len())?;
        bytes.extend_from_slice(&piece);
        came += piece.len();
        if came >= BYTES_IN_PAUSE_MIN {
            (until, came) = (Instant::now() + PAUSE_MAX, 0);
        }
    }
}

/// A body, with its estimated size in memory.
pub(super) async fn receive(call: &ApiRequest, body: Body) -> Result<(Received, Weight), StatusError> {
    let received = read(&call.server.budget, body).await?;
    if call.server.default_requester.internal {
        return Ok((received, Weight::default())); // our own controllers do not attack us
    }
    let weight = Weight::of(content_type(&call.headers).as_deref(), &received)?;
    weight.check_items(&call.target.entry, call.target.name.as_deref())?;
    // A short patch of a long object costs as much as the object.
    let stored = call.key().ok().and_then(|key| call.server.store.read().get(&key));
    Ok((received, stored.map_or(weight, |stored| weight.with_stored(stored.json_bytes()))))
}

/// The media type without its parameters, in lower case; `None` if absent.
pub(super) fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or("").trim().to_ascii_lowercase())
}

/// A body that has to be one object of kind `kind`. Both parsers stop at 128 levels of nesting, and the YAML one
/// at aliases that make the document too large.
pub(super) fn object(headers: &HeaderMap, kind: &str, body: &[u8]) -> Result<Value, StatusError> {
    object_with_duplicates(headers, kind, body, FieldValidation::Ignore).map(|(value, _)| value)
}

/// The same for a write: `validation` says whether fields that stand twice are looked for.
pub(super) fn object_with_duplicates(
    headers: &HeaderMap,
    kind: &str,
    body: &[u8],
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), StatusError> {
    let is_ignored = validation == FieldValidation::Ignore;
    let (value, duplicates) = match content_type(headers).as_deref() {
        None | Some("" | "application/json") => json(body)?,
        Some("application/yaml" | "application/x-yaml" | "text/yaml") => {
            yaml(body).map_err(|why| StatusError::bad_request(format!("error converting YAML to JSON: {why}")))?
        }
        Some("application/vnd.kubernetes.protobuf") => {
            let value = protobuf::decode(kind, body).map_err(|why| match why {
                ProtobufError::UnknownKind => StatusError::unsupported_media_type(ACCEPTED_MEDIA_TYPES),
                ProtobufError::Malformed => StatusError::bad_request("the body is not a valid protobuf message"),
                ProtobufError::TooMany => {
                    let most = protobuf::MESSAGES_MAX;
                    let message = format!("Request entity too large: it has more than {most} messages");
                    StatusError { message, ..StatusError::too_large(most) }
                }
                ProtobufError::TooDeep => {
                    StatusError::bad_request(format!("schemas nest more than {} levels", protobuf::SCHEMA_DEPTH_MAX))
                }
            })?;
            (value, Vec::new())
        }
        Some(_) => return Err(StatusError::unsupported_media_type(ACCEPTED_MEDIA_TYPES)),
    };
    if !value.is_object() {
        return Err(StatusError::bad_request("the body has to be one object"));
    }
    Ok((value, if is_ignored { Vec::new() } else { duplicates }))
}

/// A document in JSON, and the fields that stand twice in it, as warnings.
pub(super) fn json(body: &[u8]) -> Result<(Value, Vec<String>), StatusError> {
    document_tree::read_json(body).map_err(|why| StatusError::bad_request(format!("the body is not valid JSON: {why}")))
}

/// The same in YAML. Clients send JSON as YAML, too: the parser for JSON takes a twentieth of the time and memory.
pub(super) fn yaml(body: &[u8]) -> Result<(Value, Vec<String>), serde_norway::Error> {
    let json = if weight::begins_as_json(body) { document_tree::read_json(body).ok() } else { None };
    json.map_or_else(|| document_tree::read_yaml(body), Ok)
}
