//! POST: a new object.

use axum::response::Response;
use http::StatusCode;

use crate::kind::KindMeta;
use crate::store::{Change, View, events, lifecycle};

use super::errors::Refusal;
use super::object::{self, Birth};
use super::{Call, apply, body, customs, fields, get, naming, rehearse};

pub(super) async fn create(call: &Call, bytes: &[u8]) -> Result<Response, Refusal> {
    let entry = call.target.entry;
    let meta = entry.meta;
    let namespace = call.target.namespace.clone();
    if meta.namespaced && namespace.is_none() {
        return Err(Refusal::method_not_allowed());
    }
    let requester = call.requester();
    if !meta.developers_create && !requester.is_controller() {
        let why = format!("only controllers create {}", meta.plural);
        return Err(Refusal::forbidden(meta, "", &why));
    }
    let validation = call.validation();
    let (new, duplicates) = body::written(&call.headers, meta.kind, bytes, validation)?;
    let warnings = fields::check(&entry, validation, &new, duplicates)?;
    let dry_run = call.parameters.dry_run;
    let birth = Birth::here_and_now();
    let writer = call.writer();
    let written = call.server.store.write(move |view| {
        let mut new = new;
        object::name_it(&entry, &mut new, namespace.as_deref(), &birth, |key| view.get(key).is_some())?;
        let sent = writer.sent(&entry, &new);
        let (key, object) = object::prepare_new(&entry, new, namespace.as_deref(), &requester, &birth)?;
        if let Some(namespace) = &namespace {
            check_home(view, meta, &key.name, namespace)?;
        }
        customs::check_stays(view, &entry, &key)?;
        if let Some(there) = view.get(&key) {
            return Err(Refusal::already_exists(meta, &key.name, there.head.deleting));
        }
        let change = apply::track(Change::Put(key, object), None, &writer, sent.as_ref());
        let change = naming::settle(view, change, &writer.now);
        Ok(if dry_run { rehearse(change) } else { change })
    });
    let written = written.await?;
    let object = written.object();
    if events::is_event(&object.key) {
        events::make_room(&call.server.store, &object.key.namespace).await?;
    }
    let response = get::one(call, StatusCode::CREATED, object);
    Ok(fields::warn(response, &warnings))
}

/// The namespace must exist and not be on its way out.
pub(super) fn check_home(view: &View, meta: &KindMeta, name: &str, namespace: &str) -> Result<(), Refusal> {
    match view.get(&lifecycle::namespace_key(namespace)) {
        None => Err(Refusal::not_found(&crate::kinds::core::NAMESPACE, namespace)),
        Some(home) if home.head.deleting => Err(Refusal::namespace_terminating(meta, name, namespace)),
        Some(_) => Ok(()),
    }
}
