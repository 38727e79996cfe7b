//! All objects as one document, out and in, while everything runs.
//!
//! ```text
//! {"sluicegate":"backup","format":1,"revision":N}      the first line
//! {"resource":R,"namespace":S,"name":N,"object":{…}}   a line for each object, in the store's order
//! {"objects":COUNT}                                    the last line: without it the backup is cut short
//! ```
//! It shows one moment. Coming back, an object keeps its uid and gets a new resourceVersion: versions
//! never go back, so watchers see a restore as the changes that it is. What is not in the backup goes.
//! Owners come back before what they own: a child without its owner would be cleared away at once.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use http::{Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::store::upkeep::Skip;
use crate::store::{Change, Key, Store, View};

use super::errors::Refusal;
use super::{Server, accept};

/// Where it is asked for and sent to.
pub const PATH: &str = "/sluicegate/backup";
const FORMAT: u64 = 1;
/// Bytes of a backup that is taken in; all of it is looked at before anything is changed.
pub const BACKUP_BYTES_MAX: usize = 1 << 30;
/// How long sending it may take: all of its bytes at 2 MiB a second.
const BACKUP_MAX: Duration = Duration::from_secs(512);
/// Owners above an object that a restore puts back one after the other; ours have four (a Service's Pod), and each
/// step looks at all that are left.
const GENERATIONS_MAX: usize = 16;
/// Writes under way at a time, so that they share commits.
const WRITES_AT_ONCE_MAX: usize = 256;

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    sluicegate: String,
    format: u64,
    revision: u64,
}

#[derive(Debug, Deserialize)]
struct Row<'a> {
    resource: String,
    namespace: String,
    name: String,
    /// Stays text until it is written: a tree of values takes several times the room.
    #[serde(borrow)]
    object: &'a RawValue,
}

/// An object on its way back.
#[derive(Debug)]
struct Returning<'a> {
    key: Key,
    object: &'a RawValue,
    uid: String,
    owners: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Foot {
    objects: usize,
}

pub(super) async fn answer(server: &Server, method: &Method, body: Body) -> Result<Response, Refusal> {
    match *method {
        Method::GET => Ok(backup(&server.store)),
        Method::PUT => restore(&server.store, body).await,
        _ => Err(Refusal::method_not_allowed()),
    }
}

fn backup(store: &Store) -> Response {
    let (revision, objects) = {
        let memory = store.read();
        (memory.revision(), memory.all().cloned().collect::<Vec<_>>())
    };
    let head = json!(Head { sluicegate: "backup".into(), format: FORMAT, revision });
    let foot = json!(Foot { objects: objects.len() });
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

async fn restore(store: &Store, body: Body) -> Result<Response, Refusal> {
    let read = tokio::time::timeout(BACKUP_MAX, axum::body::to_bytes(body, BACKUP_BYTES_MAX)).await;
    let bytes = read
        .map_err(|_| Refusal::too_slow(BACKUP_MAX))?
        .map_err(|why| Refusal::bad_request(format!("the backup could not be read: {why}")))?;
    let rows = check(&bytes).map_err(|why| Refusal::bad_request(format!("this is no backup: {why}")))?;
    let count = rows.len();
    let kept: BTreeSet<Key> = rows.iter().map(|row| row.key.clone()).collect();
    let gone: Vec<Key> = {
        let memory = store.read();
        memory.all().map(|object| object.key.clone()).filter(|key| !kept.contains(key)).collect()
    };
    for generation in generations(rows) {
        // All could be read a moment ago.
        let put = |row: Returning<'_>| Some((row.key, Some(serde_json::from_str(row.object.get()).ok()?)));
        let puts = generation.into_iter().filter_map(put);
        write_all(store, puts).await?;
    }
    write_all(store, gone.into_iter().map(|key| (key, None))).await?;
    Ok(accept::json(StatusCode::OK, json!(Foot { objects: count }).to_string()))
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

/// The same objects by how many owners stand above them, most at [`GENERATIONS_MAX`]; those of a circle come last.
fn generations(mut rows: Vec<Returning<'_>>) -> Vec<Vec<Returning<'_>>> {
    let mut back = BTreeSet::new();
    let mut generations = Vec::new();
    let known: BTreeSet<String> = rows.iter().map(|row| row.uid.clone()).collect();
    while !rows.is_empty() && generations.len() < GENERATIONS_MAX {
        let is_free = |row: &Returning<'_>| {
            row.owners.iter().all(|owner| back.contains(owner) || !known.contains(owner))
        };
        let (free, bound): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_free);
        rows = bound;
        if free.is_empty() {
            break;
        }
        back.extend(free.iter().map(|row| row.uid.clone()));
        generations.push(free);
    }
    generations.push(rows);
    generations
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

/// All objects of a backup, or what is wrong with it and in which line.
fn check(bytes: &[u8]) -> Result<Vec<Returning<'_>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|why| why.to_string())?;
    let mut lines = text.lines().enumerate();
    let head: Head = match lines.next() {
        Some((_, line)) => serde_json::from_str(line).map_err(|why| format!("line 1: {why}"))?,
        None => return Err("it is empty".into()),
    };
    if head.format != FORMAT {
        return Err(format!("it has format {}, this program reads {FORMAT}", head.format));
    }
    let mut rows = Vec::new();
    for (index, line) in lines {
        if let Ok(foot) = serde_json::from_str::<Foot>(line) {
            return if foot.objects == rows.len() {
                Ok(rows)
            } else {
                Err(format!("it has {} objects and says {}", rows.len(), foot.objects))
            };
        }
        rows.push(returning(line).map_err(|why| format!("line {}: {why}", index + 1))?);
    }
    Err("it is cut short: its last line is missing".into())
}

/// What a line brings back. The name stands in it twice, and has to be the same.
fn returning(line: &str) -> Result<Returning<'_>, String> {
    let row: Row<'_> = serde_json::from_str(line).map_err(|why| why.to_string())?;
    let object: Value = serde_json::from_str(row.object.get()).map_err(|why| why.to_string())?;
    let metadata = &object["metadata"];
    let text = |name: &str| metadata[name].as_str().unwrap_or("");
    if (text("name"), text("namespace")) != (&row.name, &row.namespace) || row.name.is_empty() {
        return Err(format!("the object is named {:?} in {:?}", text("name"), text("namespace")));
    }
    if [&row.resource, &row.namespace, &row.name].iter().any(|part| part.contains('\0')) {
        return Err("a name with a zero byte".into());
    }
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let owners = owners.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect();
    let key = Key { resource: row.resource.into(), namespace: row.namespace.into(), name: row.name.into() };
    Ok(Returning { key, object: row.object, uid: text("uid").to_owned(), owners })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_is_cut_or_damaged_is_refused_whole() {
        let head = r#"{"sluicegate":"backup","format":1,"revision":7}"#;
        let row = r#"{"resource":"/configmaps","namespace":"n","name":"a","object":{"metadata":{"name":"a","namespace":"n"}}}"#;
        let good = format!("{head}\n{row}\n{{\"objects\":1}}\n");
        assert_eq!(check(good.as_bytes()).unwrap().len(), 1);
        for (bad, told) in [
            (String::new(), "empty"),
            (format!("{head}\n{row}\n"), "cut short"),
            (format!("{head}\n{row}\n{{\"objects\":2}}\n"), "says 2"),
            (format!("{head}\n{{\"resource\":\n"), "line 2"),
            (good.replace("\"format\":1", "\"format\":9"), "format 9"),
            (row.to_owned(), "line 1"),
            (good.replace(r#"{"metadata""#, r#"5,"x":{"metadata""#), "line 2: the object is named"),
            (good.replace(r#"{"name":"a""#, r#"{"name":"b""#), "named \"b\""),
            (
                good.replace(r#""n"}}"#, &format!(r#""n"}},"x":{}{}}}"#, "[".repeat(999), "]".repeat(999))),
                "line 2",
            ),
        ] {
            let why = check(bad.as_bytes()).unwrap_err();
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn owners_come_back_before_what_they_own() {
        let row = |name: &str, owners: &[&str]| {
            let owners: Vec<Value> = owners.iter().map(|uid| json!({ "uid": uid })).collect();
            let metadata = json!({ "name": name, "uid": name, "ownerReferences": owners });
            json!({ "resource": "r", "namespace": "", "name": name, "object": { "metadata": metadata } })
                .to_string()
        };
        let lines = [
            row("child", &["parent", "of nobody here"]),
            row("grandchild", &["child", "parent"]),
            row("one of a circle", &["other of a circle"]),
            row("other of a circle", &["one of a circle"]),
            row("parent", &[]),
        ];
        let rows = lines.iter().map(|line| returning(line).unwrap()).collect();
        let found: Vec<Vec<String>> = generations(rows)
            .into_iter()
            .map(|rows| rows.into_iter().map(|row| row.key.name.to_string()).collect())
            .collect();
        let circle = vec!["one of a circle", "other of a circle"];
        assert_eq!(found, [vec!["parent"], vec!["child"], vec!["grandchild"], circle]);
    }
}
