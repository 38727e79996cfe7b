//! All objects as one document, out and in, while everything runs.
//!
//! ```text
//! {"sluicegate":"backup","format":1,"revision":N}      the first line
//! {"resource":R,"namespace":S,"name":N,"object":{…}}   a line for each object, in the store's order
//! {"objects":COUNT}                                    the last line: without it the backup is cut short
//! ```
//! It shows one moment. Coming back, all of it is looked at before anything is changed ([`super::returning`]). An object
//! keeps its uid and gets a new resourceVersion: versions never go back, so watchers see a restore as the changes that it
//! is. What is not in the backup goes. Owners come back before what they own: a child without its owner would be cleared
//! away at once.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use http::request::Parts;
use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::store::upkeep::Skip;
use crate::store::{Change, Key, Store, View};

use super::body::BODY_MAX;
use super::errors::Refusal;
use super::parameters::Parameters;
use super::returning::{FORMAT, Foot, Head, Reader, Returning, generations};
use super::{Server, accept};

/// Where it is asked for and sent to.
pub const PATH: &str = "/sluicegate/backup";
/// How long the next piece of a backup that is sent may take; the whole body of another request has as long.
const PIECE_MAX: Duration = BODY_MAX;
/// Writes under way at a time, so that they share commits.
const WRITES_AT_ONCE_MAX: usize = 256;

pub(super) async fn answer(server: &Server, head: &Parts, body: Body) -> Result<Response, Refusal> {
    match head.method {
        Method::GET => Ok(backup(&server.store)),
        Method::PUT => {
            let is_dry_run = Parameters::parse(&head.uri, &head.method)?.dry_run;
            restore(&server.store, body, is_dry_run).await
        }
        _ => Err(Refusal::method_not_allowed()),
    }
}

fn backup(store: &Store) -> Response {
    let (revision, objects) = {
        let memory = store.read();
        (memory.revision(), memory.all())
    };
    let head = json!(Head { sluicegate: "backup".into(), format: FORMAT, revision });
    let foot = json!(Foot { objects: objects.iter().count() });
    let rows = objects.into_iter().map(|object| {
        let key = &object.key;
        let (resource, namespace, name) = (json!(&*key.resource), json!(&*key.namespace), json!(&*key.name));
        // The object is written out already.
        let json = object.json();
        let json = String::from_utf8_lossy(&json);
        format!("{{\"resource\":{resource},\"namespace\":{namespace},\"name\":{name},\"object\":{json}}}\n")
    });
    let lines = std::iter::once(format!("{head}\n")).chain(rows).chain([format!("{foot}\n")]);
    let body = Body::from_stream(stream::iter(lines.map(Ok::<_, std::convert::Infallible>)));
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/jsonl")], body).into_response()
}

/// In a dry run the backup is read and checked, and nothing is written.
async fn restore(store: &Store, body: Body, is_dry_run: bool) -> Result<Response, Refusal> {
    let rows = take_in(body).await?;
    let count = rows.len();
    if is_dry_run {
        return Ok(accept::json(StatusCode::OK, json!(Foot { objects: count }).to_string()));
    }
    let kept: BTreeSet<Key> = rows.iter().map(|row| row.key.clone()).collect();
    let gone: Vec<Key> = {
        let memory = store.read();
        memory.all().into_iter().map(|object| object.key.clone()).filter(|key| !kept.contains(key)).collect()
    };
    for generation in generations(rows) {
        let puts = generation.into_iter().filter_map(|row| row.value().map(|object| (row.key, Some(object))));
        write_all(store, puts).await?;
    }
    write_all(store, gone.into_iter().map(|key| (key, None))).await?;
    Ok(accept::json(StatusCode::OK, json!(Foot { objects: count }).to_string()))
}

/// All of a backup. What is wrong with it is answered when all was sent: who sends does not listen before.
async fn take_in(body: Body) -> Result<Vec<Returning>, Refusal> {
    let mut pieces = body.into_data_stream();
    let mut reader = Reader::default();
    let mut looked_at = Ok(());
    loop {
        let piece = tokio::time::timeout(PIECE_MAX, pieces.next()).await;
        let Some(piece) = piece.map_err(|_| Refusal::too_slow(PIECE_MAX))? else { break };
        let piece =
            piece.map_err(|why| Refusal::bad_request(format!("the backup could not be read: {why}")))?;
        if looked_at.is_ok() {
            looked_at = reader.take(&piece);
            tokio::task::yield_now().await; // a long one has many pieces, and others ask too
        }
    }
    let rows = looked_at.and_then(|()| reader.finish());
    rows.map_err(|why| Refusal::bad_request(format!("this is no backup: {why}")))
}

async fn write_all(store: &Store, all: impl Iterator<Item = (Key, Option<Value>)>) -> Result<(), Refusal> {
    let writes = stream::iter(all).map(|(key, object)| store.write(move |view| put(view, key, object)));
    let mut writes = std::pin::pin!(writes.buffer_unordered(WRITES_AT_ONCE_MAX));
    while let Some(written) = writes.next().await {
        if let Err(Skip::Store(why)) = written {
            return Err(why.into());
        }
    }
    Ok(())
}

/// Puts one object back, or takes one away; what already is as it was then stays untouched.
fn put(view: &View, key: Key, object: Option<Value>) -> Result<Change, Skip> {
    let there = view.get(&key);
    Ok(match (object, there) {
        (None, Some(there)) => Change::Delete(key, there.value()),
        (None, None) => return Err(Skip::Fine),
        (Some(object), Some(there)) if object == there.value() => Change::Keep(there),
        (Some(object), _) => Change::Put(key, object),
    })
}
