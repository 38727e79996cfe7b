//! PUT: replaces an object, its status, or the finalizers of a namespace.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;

use crate::store::{DecodedObject, StagedView};

use super::decide::Write;
use super::errors::StatusError;
use super::{ApiRequest, as_dry_run, body, crd_names, field_ownership, field_validation, get, prepare};

pub(super) async fn update(call: &ApiRequest, bytes: &[u8]) -> Result<Response, StatusError> {
    let key = call.key()?;
    let entry = call.target.entry;
    let (status, finalize) = (call.target.status, call.target.finalize);
    let requester = call.requester();
    let dry_run = call.parameters.dry_run;
    let writer = call.field_writer();
    let validation = call.field_validation();
    let (new, duplicates) = body::object_with_duplicates(&call.headers, entry.meta.kind, bytes, validation)?;
    let warnings = field_validation::check(&entry, validation, &new, duplicates)?;
    let judge = {
        let (name, writer, crds) = (key.name.clone(), writer.clone(), Arc::clone(&call.server.crds));
        move |before: Option<&DecodedObject>| {
            let before = before.ok_or_else(|| StatusError::not_found(entry.meta, &name))?;
            let sent = writer.user_object(&entry, &new);
            let change = if finalize {
                prepare::prepare_finalize(&entry, before, new.clone(), &requester)?
            } else if status {
                prepare::prepare_status(&entry, before, new.clone(), &requester)?
            } else {
                prepare::prepare_update(&entry, before, new.clone(), &requester)?
            };
            crds.check_capacity(entry.meta, &change)?;
            Ok(field_ownership::track_update(change, Some(before), &writer, sent.as_ref()))
        }
    };
    let settle = move |view: &StagedView, change, _| {
        let change = crd_names::assign_names(view, change, &writer.now);
        Ok(if dry_run { as_dry_run(change) } else { change })
    };
    let written = Write { key, bytes: bytes.len(), dry_run, judge, settle }.run(&call.server.store);
    let response = get::object_response(call, StatusCode::OK, written.await?.object());
    Ok(field_validation::with_warnings(response, &warnings))
}
