//! POST: a new object.

use axum::response::Response;
use http::StatusCode;

use crate::kind::KindMeta;
use crate::store::{Change, View, events, lifecycle};

use super::decide::prepared;
use super::errors::Refusal;
use super::object::{self, Birth};
use super::{Call, apply, body, customs, fields, get, naming, rehearse};

/// Times that a name is made for an object whose name another one took meanwhile.
const NAMES_TRIED_MAX: usize = 8;

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
    let (mut new, duplicates) = body::written(&call.headers, meta.kind, bytes, validation)?;
    let warnings = fields::check(&entry, validation, &new, duplicates)?;
    let dry_run = call.parameters.dry_run;
    let writer = call.writer();
    let store = &call.server.store;
    let is_generated = new["metadata"]["name"].as_str().is_none_or(str::is_empty);
    let mut tried = 0;
    let written = loop {
        tried += 1;
        // Only a name that is made here can be another one next time.
        let mut new = if is_generated { new.clone() } else { new.take() };
        let birth = Birth::here_and_now();
        object::name_it(&entry, &mut new, namespace.as_deref(), &birth, |key| {
            store.read().get(key).is_some()
        })?;
        let sent = writer.sent(&entry, &new);
        let (key, object) = object::prepare_new(&entry, new, namespace.as_deref(), &requester, &birth)?;
        let change = apply::track(Change::Put(key.clone(), object), None, &writer, sent.as_ref());
        call.server.customs.check_room(meta, &change)?;
        let change = prepared(change, dry_run)?;
        // A client that has gone meanwhile is not written for: nobody polls this any more.
        tokio::task::yield_now().await;
        let (namespace, now) = (namespace.clone(), writer.now.clone());
        let written = store.write(move |view| {
            if let Some(namespace) = &namespace {
                check_home(view, meta, &key.name, namespace)?;
            }
            customs::check_stays(view, &entry, &key)?;
            if let Some(there) = view.get(&key) {
                return Err(Refusal::already_exists(meta, &key.name, there.head.deleting));
            }
            let change = naming::settle(view, change, &now);
            Ok(if dry_run { rehearse(change) } else { change })
        });
        match written.await {
            Err(taken) if taken.reason == "AlreadyExists" && is_generated && tried < NAMES_TRIED_MAX => {}
            written => break written?,
        }
    };
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
