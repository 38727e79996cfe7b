//! GET of a collection: with selectors, and in pages that all show the same revision.

use std::sync::Arc;

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::store::{ObjectList, StoredObject};

use super::budget::AnswerShare;
use super::content_negotiation::{self, ResponseFormat};
use super::errors::StatusError;
use super::query_parameters::{QueryParameters, ResourceVersionMatch};
use super::selectors::RequestSelector;
use super::{ApiRequest, conversion, table};

/// The start of the next page, and its revision. Opaque to clients.
#[derive(Debug, Serialize, Deserialize)]
struct ContinueToken {
    revision: u64,
    /// Namespace and name of the last returned object.
    after: (String, String),
}

pub(super) fn list(call: &ApiRequest) -> Result<Response, StatusError> {
    if call.parameters.send_initial_events.is_some() {
        let why = "Forbidden: sendInitialEvents is forbidden for list";
        return Err(StatusError::invalid_option("ListOptions", "sendInitialEvents", why));
    }
    let selector =
        RequestSelector::parse(&call.target.entry, &call.parameters.label_selector, &call.parameters.field_selector)?;
    let (listing, after) = snapshot(call)?;
    let (entry, revision, limit) = (&call.target.entry, listing.revision, call.parameters.limit);
    let mut metadata = json!({ "resourceVersion": revision.to_string() });
    let is_whole = limit == 0 && after.is_none() && entry.translation.is_none() && selector.is_empty();
    if is_whole {
        return list_response(call, listing.into_iter(), metadata);
    }
    let mut items: Vec<Arc<StoredObject>> = listing
        .into_iter()
        .filter(|one| {
            after.as_ref().is_none_or(|(namespace, name)| {
                (&*one.key.namespace, &*one.key.name) > (namespace.as_str(), name.as_str())
            })
        })
        .map(|object| conversion::convert_object(entry, &object))
        .filter(|object| selector.matches(object))
        .collect();

    if limit > 0 && items.len() > limit {
        let last = &items[limit - 1].key;
        let token = ContinueToken { revision, after: (last.namespace.to_string(), last.name.to_string()) };
        metadata["continue"] = URL_SAFE_NO_PAD.encode(json!(token).to_string()).into();
        // With a selector the count is not needed, and Kubernetes does not report it.
        if call.parameters.label_selector.is_empty() && call.parameters.field_selector.is_empty() {
            metadata["remainingItemCount"] = (items.len() - limit).into();
        }
        items.truncate(limit);
    }
    list_response(call, items.into_iter(), metadata)
}

/// Answers with several objects, which are in the kind's form, as what was asked for. Compressed ones are decompressed twice, for their length and
/// their text: with all of them decompressed a list would take twice what it says.
pub(super) fn list_response(
    call: &ApiRequest,
    items: impl Iterator<Item = Arc<StoredObject>> + Clone,
    metadata: Value,
) -> Result<Response, StatusError> {
    let meta = call.target.entry.meta;
    let bytes = items.clone().map(|object| object.json_bytes() + 1).sum();
    let internal = call.server.default_requester.internal;
    let share = if internal { None } else { Some(call.server.budget.answer(bytes)?) };
    let answer =
        |body: Vec<u8>| content_negotiation::json(StatusCode::OK, Bytes::from_owner(ListBody { body, _share: share }));
    Ok(match call.format {
        ResponseFormat::Object => {
            let head = json!({
                "apiVersion": meta.api_version(),
                "kind": format!("{}List", meta.kind),
                "metadata": metadata,
            });
            answer(join_items(&head, bytes, items.map(|object| object.json())))
        }
        ResponseFormat::Metadata => {
            let head = json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadataList",
                "metadata": metadata,
            });
            let items: Vec<String> =
                items.map(|object| content_negotiation::metadata_only(&object).to_string()).collect();
            let bytes = items.iter().map(|item| item.len() + 1).sum();
            answer(join_items(&head, bytes, items.iter()))
        }
        ResponseFormat::Table => {
            let items: Vec<Arc<StoredObject>> = items.collect();
            let items: Vec<&StoredObject> = items.iter().map(|object| &**object).collect();
            let include = call.parameters.include_object;
            let mut table = table::render(meta, &items, "", include, jiff::Timestamp::now());
            table["metadata"] = metadata;
            answer(table.to_string().into_bytes())
        }
    })
}

/// A list being sent to a client, with its share of the memory for responses.
struct ListBody {
    body: Vec<u8>,
    _share: Option<AnswerShare>,
}

impl AsRef<[u8]> for ListBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Puts items that are already serialized into a list's `items`: so many bytes, for which there is room from the
/// beginning, because a list of megabytes that grows leaves holes of its own size in the heap.
fn join_items(head: &Value, bytes: usize, items: impl Iterator<Item = impl AsRef<[u8]>>) -> Vec<u8> {
    let mut body = head.to_string().into_bytes();
    body.pop();
    body.extend_from_slice(b",\"items\":[");
    body.reserve_exact(bytes + b"]}".len());
    for (index, item) in items.enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(item.as_ref());
    }
    body.extend_from_slice(b"]}");
    body
}

/// The revision of the request, and the position to start from.
fn snapshot(call: &ApiRequest) -> Result<(ObjectList, Option<(String, String)>), StatusError> {
    let QueryParameters { resource_version, resource_version_match, continue_token, .. } = &call.parameters;
    let resource = call.resource();
    let namespace = call.target.namespace.as_deref();
    let memory = call.server.store.read();
    if let Some(token) = continue_token {
        if resource_version_match.is_some() {
            let why = "Forbidden: resourceVersionMatch is forbidden when continue is provided";
            return Err(StatusError::invalid_option("ListOptions", "resourceVersionMatch", why));
        }
        let token = parse_token(token)?;
        if resource_version.is_some_and(|version| version != 0) {
            return Err(StatusError::bad_request("specifying resource version is not allowed when using continue"));
        }
        let listing = memory.list_at(&resource, namespace, token.revision).map_err(|_| {
            StatusError::expired(
                "The provided continue parameter is too old to display a consistent list result. \
                 You must start a new list without the continue parameter.",
            )
        })?;
        return Ok((listing, Some(token.after)));
    }
    let unfit = match (resource_version_match, resource_version) {
        (Some(_), None) => Some("resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (Some(ResourceVersionMatch::Exact), Some(0)) => {
            Some("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        _ => None,
    };
    if let Some(why) = unfit {
        let why = format!("Forbidden: {why}");
        return Err(StatusError::invalid_option("ListOptions", "resourceVersionMatch", &why));
    }
    let asked = resource_version.unwrap_or(0);
    if asked > memory.revision() {
        return Err(StatusError::resource_version_too_large(asked, memory.revision()));
    }
    let listing = if *resource_version_match == Some(ResourceVersionMatch::Exact) {
        memory.list_at(&resource, namespace, asked)?
    } else {
        memory.list(&resource, namespace)
    };
    Ok((listing, None))
}

fn parse_token(token: &str) -> Result<ContinueToken, StatusError> {
    let decoded = URL_SAFE_NO_PAD.decode(token).ok();
    decoded
        .and_then(|json| serde_json::from_slice(&json).ok())
        .ok_or_else(|| StatusError::bad_request("continue key is not valid"))
}
