//! GET of one object.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;

use crate::store::StoredObject;

use super::content_negotiation::{self, ResponseFormat};
use super::errors::StatusError;
use super::{ApiRequest, conversion, table};

pub(super) fn get(call: &ApiRequest) -> Result<Response, StatusError> {
    let key = call.key()?;
    let memory = call.server.store.read();
    if let Some(asked) = call.parameters.resource_version
        && asked > memory.revision()
    {
        return Err(StatusError::resource_version_too_large(asked, memory.revision()));
    }
    let object = memory.get(&key);
    drop(memory);
    let object = object.ok_or_else(|| StatusError::not_found(call.target.entry.meta, &key.name))?;
    Ok(object_response(call, StatusCode::OK, &object))
}

/// Returns one object in the requested representation.
pub(super) fn object_response(call: &ApiRequest, status: StatusCode, object: &Arc<StoredObject>) -> Response {
    let object = &*conversion::convert_object(&call.target.entry, object);
    match call.format {
        ResponseFormat::Object => content_negotiation::json(status, object.json()),
        ResponseFormat::Metadata => {
            content_negotiation::json(status, content_negotiation::metadata_only(object).to_string())
        }
        ResponseFormat::Table => {
            let version = object.resource_version.to_string();
            let include = call.parameters.include_object;
            let table = table::render(call.target.entry.meta, &[object], &version, include, jiff::Timestamp::now());
            content_negotiation::json(status, table.to_string())
        }
    }
}
