//! PUT: replace an object, its status alone, or what a namespace waits for.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;

use crate::store::{Opened, View};

use super::decide::Write;
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
    let judge = {
        let (name, writer, customs) = (key.name.clone(), writer.clone(), Arc::clone(&call.server.customs));
        move |before: Option<&Opened>| {
            let before = before.ok_or_else(|| Refusal::not_found(entry.meta, &name))?;
            let sent = writer.sent(&entry, &new);
            let change = if finalize {
                object::prepare_finalize(&entry, before, new.clone(), &requester)?
            } else if status {
                object::prepare_status(&entry, before, new.clone(), &requester)?
            } else {
                object::prepare_update(&entry, before, new.clone(), &requester)?
            };
            customs.check_room(entry.meta, &change)?;
            Ok(apply::track(change, Some(before), &writer, sent.as_ref()))
        }
    };
    let settle = move |view: &View, change, _| {
        let change = naming::settle(view, change, &writer.now);
        Ok(if dry_run { rehearse(change) } else { change })
    };
    let written = Write { key, bytes: bytes.len(), dry_run, judge, settle }.run(&call.server.store);
    let response = get::one(call, StatusCode::OK, written.await?.object());
    Ok(fields::warn(response, &warnings))
}
