//! DELETE: removes an object now, or once it has no finalizers.

use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::store::lifecycle::{self, PropagationPolicy};
use crate::store::{DecodedObject, ObjectKey, WriteOutcome, gc};
use types::core_kinds::NAMESPACE;
use types::kind_registry::KindMeta;

use super::content_negotiation;
use super::errors::StatusError;
use super::seed::SEED_NAMESPACES;
use super::selectors::RequestSelector;
use super::{ApiRequest, as_dry_run, body, conversion, crd_status, get, list, prepare};

const OPTIONS: &str = "DeleteOptions";
/// Objects of a collection that are deleted concurrently, so that they share commits: ten thousand one after the other took 18 s.
const CONCURRENT_DELETES_MAX: usize = 64;
/// Kinds for which the response to a deletion contains the object, as in Kubernetes.
const RETURNS_OBJECT: [&str; 2] = ["services", "serviceaccounts"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawDeleteOptions {
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
    grace_period_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Debug, Clone)]
struct DeleteOptions {
    policy: PropagationPolicy,
    preconditions: Preconditions,
    dry_run: bool,
    grace: Option<i64>,
}

pub(super) async fn delete(call: &ApiRequest, bytes: &[u8]) -> Result<Response, StatusError> {
    let key = call.key()?;
    let meta = call.target.entry.meta;
    if lifecycle::is_namespace(&key) && SEED_NAMESPACES.contains(&&*key.name) {
        return Err(StatusError::forbidden(meta, &key.name, "this namespace may not be deleted"));
    }
    let options = parse(call, bytes)?;
    let dry_run = options.dry_run;
    let written = remove(call, key.clone(), options).await?;
    if crd_status::is_definition(meta) && !dry_run {
        gc::delete_custom_objects(&call.server.store, key).await?;
    }
    let object = written.object();
    let shown = meta.group.is_empty() && RETURNS_OBJECT.contains(&meta.plural);
    if shown || matches!(written, WriteOutcome::Put(_)) || lifecycle::has_finalizers(&object.key, &object.value()) {
        return Ok(get::object_response(call, StatusCode::OK, object));
    }
    let mut details = json!({
        "name": &*object.key.name,
        "kind": meta.plural,
        "uid": object.head.uid(),
    });
    if !meta.group.is_empty() {
        details["group"] = meta.group.into();
    }
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    });
    Ok(content_negotiation::json(StatusCode::OK, status.to_string()))
}

/// Whether objects of a kind can be deleted concurrently: not namespaces, nor definitions of kinds.
pub(super) fn has_collection(meta: &KindMeta) -> bool {
    meta.plural != NAMESPACE.plural && !crd_status::is_definition(meta)
}

/// Deletes the selected objects, and stops at the first error; returns the selected ones.
pub(super) async fn delete_collection(call: &ApiRequest, bytes: &[u8]) -> Result<Response, StatusError> {
    let meta = call.target.entry.meta;
    let across_namespaces = meta.namespaced && call.target.namespace.is_none();
    if across_namespaces || !has_collection(meta) {
        return Err(StatusError::method_not_allowed());
    }
    let selector =
        RequestSelector::parse(&call.target.entry, &call.parameters.label_selector, &call.parameters.field_selector)?;
    let options = parse(call, bytes)?;
    let listing = call.server.store.read().list(&call.resource(), call.target.namespace.as_deref());
    let items = listing.into_iter().map(|object| conversion::convert_object(&call.target.entry, &object));
    let items: Vec<_> = items.filter(|object| selector.matches(object)).collect();
    let keys: Vec<ObjectKey> = items.iter().map(|object| object.key.clone()).collect();
    let removals = stream::iter(keys).map(|key| remove(call, key, options.clone()));
    let mut removals = std::pin::pin!(removals.buffered(CONCURRENT_DELETES_MAX));
    while let Some(removed) = removals.next().await {
        removed.map(drop).or_else(|why| if why.code == StatusCode::NOT_FOUND { Ok(()) } else { Err(why) })?;
    }
    let metadata = json!({ "resourceVersion": call.server.store.read().revision().to_string() });
    list::list_response(call, items.into_iter(), metadata)
}

async fn remove(call: &ApiRequest, key: ObjectKey, options: DeleteOptions) -> Result<WriteOutcome, StatusError> {
    let meta = call.target.entry.meta;
    let now = prepare::now();
    let write = call.server.store.write(move |view| {
        let before = view.get(&key).ok_or_else(|| StatusError::not_found(meta, &key.name))?.decode();
        check_preconditions(meta, &before, &options.preconditions)?;
        let change = if crd_status::is_definition(meta) {
            let has_objects = !view.kind_is_empty(&lifecycle::resource_of_definition(&key.name));
            lifecycle::start_definition_delete(&before, has_objects, options.policy, &now)
        } else {
            lifecycle::start_graceful_delete(&before, options.policy, options.grace, &now)
        };
        Ok::<_, StatusError>(if options.dry_run { as_dry_run(change) } else { change })
    });
    write.await
}

fn check_preconditions(meta: &KindMeta, before: &DecodedObject, wanted: &Preconditions) -> Result<(), StatusError> {
    let metadata = &before.value["metadata"];
    for (wanted, found, said, guess) in [
        (&wanted.uid, &metadata["uid"], "UID", "deleted and then recreated"),
        (&wanted.resource_version, &metadata["resourceVersion"], "ResourceVersion", "modified"),
    ] {
        if let Some(wanted) = wanted
            && found != wanted
        {
            let found = found.as_str().unwrap_or("");
            let why = format!(
                "the {said} in the precondition ({wanted}) does not match the {said} in record ({found}). The object \
                 might have been {guess}"
            );
            return Err(StatusError::conflict(meta, &before.key.name, &why));
        }
    }
    Ok(())
}

/// `DeleteOptions` may be in the body, in the query, or be left out.
fn parse(call: &ApiRequest, bytes: &[u8]) -> Result<DeleteOptions, StatusError> {
    let raw: RawDeleteOptions = if bytes.is_empty() {
        RawDeleteOptions::default()
    } else {
        let options = body::object(&call.headers, OPTIONS, bytes)?;
        if let Some(kind) = options["kind"].as_str().filter(|kind| ![OPTIONS, ""].contains(kind)) {
            return Err(StatusError::bad_request(format!("the body has to be {OPTIONS}, and is a {kind}")));
        }
        serde_json::from_value(options)
            .map_err(|why| StatusError::bad_request(format!("error decoding {OPTIONS}: {why}")))?
    };
    if raw.grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        return Err(StatusError::bad_request("gracePeriodSeconds must not be negative"));
    }
    let dry_run = match raw.dry_run.as_deref() {
        None | Some([]) => call.parameters.dry_run,
        Some([all]) if all == "All" => true,
        Some(other) => {
            let why = format!("Unsupported value: {}: supported values: \"All\"", json!(other));
            return Err(StatusError::invalid_option(OPTIONS, "dryRun", &why));
        }
    };
    let orphan = raw.orphan_dependents.or(call.parameters.orphan_dependents);
    let policy = raw.propagation_policy.or_else(|| call.parameters.propagation_policy.clone());
    let policy = match (policy.as_deref(), orphan) {
        (Some(_), Some(_)) => {
            let why = format!(
                "Invalid value: {:?}: orphanDependents and deletionPropagation cannot be both set",
                policy.unwrap_or_default()
            );
            return Err(StatusError::invalid_option(OPTIONS, "propagationPolicy", &why));
        }
        (None | Some("Background"), None | Some(false)) => PropagationPolicy::Background,
        (Some("Foreground"), None) => PropagationPolicy::Foreground,
        (Some("Orphan"), None) | (None, Some(true)) => PropagationPolicy::Orphan,
        (Some(other), _) => {
            let why = format!(
                "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            return Err(StatusError::invalid_option(OPTIONS, "propagationPolicy", &why));
        }
    };
    let grace = raw.grace_period_seconds.or(call.parameters.grace_period_seconds);
    Ok(DeleteOptions { policy, preconditions: raw.preconditions.unwrap_or_default(), dry_run, grace })
}
