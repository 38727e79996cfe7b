//! PUT: replace an object, its status alone, or what a namespace waits for.

use axum::response::Response;
use http::StatusCode;

use super::errors::Refusal;
use super::{Call, apply, body, fields, get, naming, object, rehearse};

pub(super) async fn update(call: &Call, bytes: &[u8]) -> Result<Response, Refusal> {
    let key = call.key()?;
    let entry = call.target.entry;
    let (status, finalize) = (call.target.status, call.target.finalize);
    let requester = call.requester();
    let dry_run = call.parameters.dry_run;
    let writer = call.writer();
    let validation = call.validation();
    let (new, duplicates) = body::written(&call.headers, entry.meta.kind, bytes, validation)?;
    let warnings = fields::check(&entry, validation, &new, duplicates)?;
    let written = call.server.store.write(move |view| {
        let before = view.get(&key).ok_or_else(|| Refusal::not_found(entry.meta, &key.name))?.open();
        let sent = writer.sent(&entry, &new);
        let change = if finalize {
            object::prepare_finalize(&entry, &before, new, &requester)?
        } else if status {
            object::prepare_status(&entry, &before, new, &requester)?
        } else {
            object::prepare_update(&entry, &before, new, &requester)?
        };
        let change = apply::track(change, Some(&before), &writer, sent.as_ref());
        let change = naming::settle(view, change, &writer.now);
        Ok::<_, Refusal>(if dry_run { rehearse(change) } else { change })
    });
    let response = get::one(call, StatusCode::OK, written.await?.object());
    Ok(fields::warn(response, &warnings))
}
