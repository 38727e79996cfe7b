//! Backup and restore of all objects as one document, while the server runs.
//!
//! ```text
//! {"sluicegate":"backup","format":1,"revision":N}      the first line
//! {"resource":R,"namespace":S,"name":N,"object":{…}}   a line for each object, in the store's order
//! {"objects":COUNT}                                    the last line: without it the backup is cut short
//! ```
//! A backup is a consistent snapshot. A restore validates all of it before anything is changed ([`super::returning`]). An object
//! keeps its uid and gets a new resourceVersion: versions never decrease, so watchers see a restore as the changes that it
//! makes. Objects that are not in the backup are deleted. Owners are restored before their dependents: a dependent without its
//! owner would be garbage-collected at once.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use http::request::Parts;
use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::store::maintenance::SkipReason;
use crate::store::{ObjectKey, ObjectStore, StagedView, WriteOperation};

use super::body::BODY_TIMEOUT;
use super::errors::StatusError;
use super::query_parameters::QueryParameters;
use super::restore::{BackupHeader, BackupReader, BackupTrailer, FORMAT, RestoreObject, generations};
use super::{ApiServer, content_negotiation};

/// The path of backup and restore.
pub const PATH: &str = "/sluicegate/backup";
/// The timeout for the next chunk of a restore; the whole body of another request has as long.
const CHUNK_TIMEOUT: Duration = BODY_TIMEOUT;
/// Writes in progress at a time, so that they share commits.
const WRITES_AT_ONCE_MAX: usize = 256;

pub(super) async fn handle(server: &ApiServer, head: &Parts, body: Body) -> Result<Response, StatusError> {
    match head.method {
        Method::GET => Ok(backup(&server.store)),
        Method::PUT => {
            let is_dry_run = QueryParameters::parse(&head.uri, &head.method)?.dry_run;
            restore(&server.store, body, is_dry_run).await
        }
        _ => Err(StatusError::method_not_allowed()),
    }
}

fn backup(store: &ObjectStore) -> Response {
    let (revision, objects) = {
        let memory = store.read();
        (memory.revision(), memory.all())
    };
    let head = json!(BackupHeader { sluicegate: "backup".into(), format: FORMAT, revision });
    let foot = json!(BackupTrailer { objects: objects.iter().count() });
    let rows = objects.into_iter().map(|object| {
        let key = &object.key;
        let (resource, namespace, name) = (json!(&*key.resource), json!(&*key.namespace), json!(&*key.name));
        // The object is serialized already.
        let json = object.json();
        let json = String::from_utf8_lossy(&json);
        format!("{{\"resource\":{resource},\"namespace\":{namespace},\"name\":{name},\"object\":{json}}}\n")
    });
    let lines = std::iter::once(format!("{head}\n")).chain(rows).chain([format!("{foot}\n")]);
    let body = Body::from_stream(stream::iter(lines.map(Ok::<_, std::convert::Infallible>)));
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/jsonl")], body).into_response()
}

/// In a dry run the backup is read and checked, and nothing is written.
async fn restore(store: &ObjectStore, body: Body, is_dry_run: bool) -> Result<Response, StatusError> {
    let rows = read_backup(body).await?;
    let count = rows.len();
    if is_dry_run {
        return Ok(content_negotiation::json(StatusCode::OK, json!(BackupTrailer { objects: count }).to_string()));
    }
    let kept: BTreeSet<ObjectKey> = rows.iter().map(|row| row.key.clone()).collect();
    let gone: Vec<ObjectKey> = {
        let memory = store.read();
        memory.all().into_iter().map(|object| object.key.clone()).filter(|key| !kept.contains(key)).collect()
    };
    for generation in generations(rows) {
        let puts = generation.into_iter().filter_map(|row| row.value().map(|object| (row.key, Some(object))));
        write_all(store, puts).await?;
    }
    write_all(store, gone.into_iter().map(|key| (key, None))).await?;
    Ok(content_negotiation::json(StatusCode::OK, json!(BackupTrailer { objects: count }).to_string()))
}

/// Validates a whole backup. Errors are sent after the last line: clients read no response before.
async fn read_backup(body: Body) -> Result<Vec<RestoreObject>, StatusError> {
    let mut pieces = body.into_data_stream();
    let mut reader = BackupReader::default();
    let mut looked_at = Ok(());
    loop {
        let piece = tokio::time::timeout(CHUNK_TIMEOUT, pieces.next()).await;
        let Some(piece) = piece.map_err(|_| StatusError::request_timeout(CHUNK_TIMEOUT))? else { break };
        let piece = piece.map_err(|why| StatusError::bad_request(format!("the backup could not be read: {why}")))?;
        if looked_at.is_ok() {
            looked_at = reader.push(&piece);
            tokio::task::yield_now().await; // a long backup has many chunks, and other requests wait too
        }
    }
    let rows = looked_at.and_then(|()| reader.finish());
    rows.map_err(|why| StatusError::bad_request(format!("this is not a backup: {why}")))
}

async fn write_all(
    store: &ObjectStore,
    all: impl Iterator<Item = (ObjectKey, Option<Value>)>,
) -> Result<(), StatusError> {
    let writes = stream::iter(all).map(|(key, object)| store.write(move |view| restore_object(view, key, object)));
    let mut writes = std::pin::pin!(writes.buffer_unordered(WRITES_AT_ONCE_MAX));
    while let Some(written) = writes.next().await {
        if let Err(SkipReason::Store(why)) = written {
            return Err(why.into());
        }
    }
    Ok(())
}

/// Restores or deletes one object; an unchanged one is not written.
fn restore_object(view: &StagedView, key: ObjectKey, object: Option<Value>) -> Result<WriteOperation, SkipReason> {
    let there = view.get(&key);
    Ok(match (object, there) {
        (None, Some(there)) => WriteOperation::Delete(key, there.value()),
        (None, None) => return Err(SkipReason::UpToDate),
        (Some(object), Some(there)) if object == there.value() => WriteOperation::NoOp(there),
        (Some(object), _) => WriteOperation::Put(key, object),
    })
}
