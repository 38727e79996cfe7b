//! DELETE: now, or once nothing holds the object any more.

use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::kind::KindMeta;
use crate::kinds::core::NAMESPACE;
use crate::store::lifecycle::{self, Policy};
use crate::store::{Key, Opened, Written, gc};

use super::accept;
use super::errors::Refusal;
use super::selectors::Selector;
use super::{Call, SEED_NAMESPACES, body, customs, faces, get, list, object, rehearse};

const OPTIONS: &str = "DeleteOptions";
/// Objects of a collection that are deleted at a time, so that they share commits: ten thousand one after the other took 18 s.
const REMOVALS_AT_ONCE_MAX: usize = 64;
/// Kinds of which the answer to a deletion shows the object, as Kubernetes has it.
const SHOWN: [&str; 2] = ["services", "serviceaccounts"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Raw {
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
struct Options {
    policy: Policy,
    preconditions: Preconditions,
    dry_run: bool,
}

pub(super) async fn delete(call: &Call, bytes: &[u8]) -> Result<Response, Refusal> {
    let key = call.key()?;
    let meta = call.target.entry.meta;
    if lifecycle::is_namespace(&key) && SEED_NAMESPACES.contains(&&*key.name) {
        return Err(Refusal::forbidden(meta, &key.name, "this namespace may not be deleted"));
    }
    let options = parse(call, bytes)?;
    let dry_run = options.dry_run;
    let written = remove(call, key.clone(), options).await?;
    if customs::is_definition(meta) && !dry_run {
        gc::empty(&call.server.store, key).await?;
    }
    let object = written.object();
    let shown = meta.group.is_empty() && SHOWN.contains(&meta.plural);
    if shown || matches!(written, Written::Put(_)) || lifecycle::is_held(&object.key, &object.value()) {
        return Ok(get::one(call, StatusCode::OK, object));
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
    Ok(accept::json(StatusCode::OK, status.to_string()))
}

/// Whether all objects of a kind can be deleted at a time: not namespaces, nor kinds with all of their objects.
pub(super) fn has_collection(meta: &KindMeta) -> bool {
    meta.plural != NAMESPACE.plural && !customs::is_definition(meta)
}

/// Deletes what the selectors choose, and stops where one may not go; answers with what was chosen.
pub(super) async fn delete_collection(call: &Call, bytes: &[u8]) -> Result<Response, Refusal> {
    let meta = call.target.entry.meta;
    let across_namespaces = meta.namespaced && call.target.namespace.is_none();
    if across_namespaces || !has_collection(meta) {
        return Err(Refusal::method_not_allowed());
    }
    let selector = Selector::parse(
        &call.target.entry,
        &call.parameters.label_selector,
        &call.parameters.field_selector,
    )?;
    let options = parse(call, bytes)?;
    let listing = call.server.store.read().list(&call.resource(), call.target.namespace.as_deref());
    let items = listing.into_iter().map(|object| faces::shown(&call.target.entry, &object));
    let items: Vec<_> = items.filter(|object| selector.matches(object)).collect();
    let keys: Vec<Key> = items.iter().map(|object| object.key.clone()).collect();
    let removals = stream::iter(keys).map(|key| remove(call, key, options.clone()));
    let mut removals = std::pin::pin!(removals.buffered(REMOVALS_AT_ONCE_MAX));
    while let Some(removed) = removals.next().await {
        removed.map(drop).or_else(|why| if why.code == StatusCode::NOT_FOUND { Ok(()) } else { Err(why) })?;
    }
    let metadata = json!({ "resourceVersion": call.server.store.read().revision().to_string() });
    list::many(call, items.into_iter(), metadata)
}

async fn remove(call: &Call, key: Key, options: Options) -> Result<Written, Refusal> {
    let meta = call.target.entry.meta;
    let now = object::now();
    let write = call.server.store.write(move |view| {
        let before = view.get(&key).ok_or_else(|| Refusal::not_found(meta, &key.name))?.open();
        check_preconditions(meta, &before, &options.preconditions)?;
        let change = if customs::is_definition(meta) {
            let has_objects = !view.kind_is_empty(&lifecycle::resource_of_definition(&key.name));
            lifecycle::begin_undefine(&before, has_objects, options.policy, &now)
        } else {
            lifecycle::begin_delete(&before, options.policy, &now)
        };
        Ok::<_, Refusal>(if options.dry_run { rehearse(change) } else { change })
    });
    write.await
}

fn check_preconditions(meta: &KindMeta, before: &Opened, wanted: &Preconditions) -> Result<(), Refusal> {
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
            return Err(Refusal::conflict(meta, &before.key.name, &why));
        }
    }
    Ok(())
}

/// `DeleteOptions` may stand in the body, in the query, or be left out.
fn parse(call: &Call, bytes: &[u8]) -> Result<Options, Refusal> {
    let raw: Raw = if bytes.is_empty() {
        Raw::default()
    } else {
        let options = body::object(&call.headers, OPTIONS, bytes)?;
        if let Some(kind) = options["kind"].as_str().filter(|kind| ![OPTIONS, ""].contains(kind)) {
            return Err(Refusal::bad_request(format!("the body has to be {OPTIONS}, and is a {kind}")));
        }
        serde_json::from_value(options)
            .map_err(|why| Refusal::bad_request(format!("error decoding {OPTIONS}: {why}")))?
    };
    if raw.grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        return Err(Refusal::bad_request("gracePeriodSeconds must not be negative"));
    }
    let dry_run = match raw.dry_run.as_deref() {
        None | Some([]) => call.parameters.dry_run,
        Some([all]) if all == "All" => true,
        Some(other) => {
            let why = format!("Unsupported value: {}: supported values: \"All\"", json!(other));
            return Err(Refusal::invalid_option(OPTIONS, "dryRun", &why));
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
            return Err(Refusal::invalid_option(OPTIONS, "propagationPolicy", &why));
        }
        (None | Some("Background"), None | Some(false)) => Policy::Background,
        (Some("Foreground"), None) => Policy::Foreground,
        (Some("Orphan"), None) | (None, Some(true)) => Policy::Orphan,
        (Some(other), _) => {
            let why = format!(
                "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            return Err(Refusal::invalid_option(OPTIONS, "propagationPolicy", &why));
        }
    };
    Ok(Options { policy, preconditions: raw.preconditions.unwrap_or_default(), dry_run })
}
