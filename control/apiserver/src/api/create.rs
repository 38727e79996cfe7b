//! POST: creates an object.

use axum::response::Response;
use http::StatusCode;

use crate::store::{StagedView, WriteOperation, event_retention, lifecycle};
use types::kind_registry::KindMeta;

use super::decide::prepared;
use super::errors::StatusError;
use super::prepare::{self, CreationContext};
use super::{ApiRequest, as_dry_run, body, crd_names, crd_registry, field_ownership, field_validation, get};

/// Attempts to generate a name for an object whose generated name was taken meanwhile.
const NAMES_TRIED_MAX: usize = 8;

pub(super) async fn create(call: &ApiRequest, bytes: &[u8]) -> Result<Response, StatusError> {
    let entry = call.target.entry;
    let meta = entry.meta;
    let namespace = call.target.namespace.clone();
    if meta.namespaced && namespace.is_none() {
        return Err(StatusError::method_not_allowed());
    }
    let requester = call.requester();
    if !meta.user_creatable && !requester.is_controller() {
        let why = format!("only controllers create {}", meta.plural);
        return Err(StatusError::forbidden(meta, "", &why));
    }
    let validation = call.field_validation();
    let (mut new, duplicates) = body::object_with_duplicates(&call.headers, meta.kind, bytes, validation)?;
    let warnings = field_validation::check(&entry, validation, &new, duplicates)?;
    let dry_run = call.parameters.dry_run;
    let writer = call.field_writer();
    let store = &call.server.store;
    let is_generated = new["metadata"]["name"].as_str().is_none_or(str::is_empty);
    let mut tried = 0;
    let written = loop {
        tried += 1;
        // Only a generated name can be another one next time.
        let mut new = if is_generated { new.clone() } else { new.take() };
        let birth = CreationContext::now();
        prepare::generate_name(&entry, &mut new, namespace.as_deref(), &birth, |key| store.read().get(key).is_some())?;
        let sent = writer.user_object(&entry, &new);
        let (key, object) = prepare::prepare_create(&entry, new, namespace.as_deref(), &requester, &birth)?;
        let change =
            field_ownership::track_update(WriteOperation::Put(key.clone(), object), None, &writer, sent.as_ref());
        call.server.crds.check_capacity(meta, &change)?;
        let change = prepared(change, dry_run)?;
        // If the client has disconnected, this future is not polled again, so nothing is written for it.
        tokio::task::yield_now().await;
        let (namespace, now) = (namespace.clone(), writer.now.clone());
        let written = store.write(move |view| {
            if let Some(namespace) = &namespace {
                check_namespace_exists(view, meta, &key.name, namespace)?;
            }
            crd_registry::check_still_defined(view, &entry, &key)?;
            if let Some(there) = view.get(&key) {
                return Err(StatusError::already_exists(meta, &key.name, there.head.deleting));
            }
            let change = crd_names::assign_names(view, change, &now);
            Ok(if dry_run { as_dry_run(change) } else { change })
        });
        match written.await {
            Err(taken) if taken.reason == "AlreadyExists" && is_generated && tried < NAMES_TRIED_MAX => {}
            written => break written?,
        }
    };
    let object = written.object();
    if event_retention::is_event(&object.key) {
        event_retention::trim_namespace(&call.server.store, &object.key.namespace).await?;
    }
    let response = get::object_response(call, StatusCode::CREATED, object);
    Ok(field_validation::with_warnings(response, &warnings))
}

/// The namespace must exist and must not be terminating.
pub(super) fn check_namespace_exists(
    view: &StagedView,
    meta: &KindMeta,
    name: &str,
    namespace: &str,
) -> Result<(), StatusError> {
    match view.get(&lifecycle::namespace_key(namespace)) {
        None => Err(StatusError::not_found(&types::core_kinds::NAMESPACE, namespace)),
        Some(home) if home.head.deleting => Err(StatusError::namespace_terminating(meta, name, namespace)),
        Some(_) => Ok(()),
    }
}
