//! GET of one object.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;

use crate::store::Stored;

use super::accept::{self, Format};
use super::errors::Refusal;
use super::{Call, faces, table};

pub(super) fn get(call: &Call) -> Result<Response, Refusal> {
    let key = call.key()?;
    let memory = call.server.store.read();
    if let Some(asked) = call.parameters.resource_version
        && asked > memory.revision()
    {
        return Err(Refusal::from_the_future(asked, memory.revision()));
    }
    let object = memory.get(&key);
    drop(memory);
    let object = object.ok_or_else(|| Refusal::not_found(call.target.entry.meta, &key.name))?;
    Ok(one(call, StatusCode::OK, &object))
}

/// Answers with one object in the form asked for.
pub(super) fn one(call: &Call, status: StatusCode, object: &Arc<Stored>) -> Response {
    let object = &*faces::shown(&call.target.entry, object);
    match call.format {
        Format::Object => accept::json(status, object.json()),
        Format::Metadata => accept::json(status, accept::metadata_only(object).to_string()),
        Format::Table => {
            let version = object.resource_version.to_string();
            let include = call.parameters.include_object;
            let table =
                table::of(call.target.entry.meta, &[object], &version, include, jiff::Timestamp::now());
            accept::json(status, table.to_string())
        }
    }
}
