//! Many writers and many watchers, across restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use http::{Method, Request};
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate_control::store::ObjectStore;

use crate::support::{MAPS, TestApiServer};

const WATCHERS: usize = 50;
const WRITERS: usize = 16;
/// Starts of the appliance, and writes in all.
const STARTS: usize = 4;
const WRITES: usize = 10_000;
/// Names that each writer works on.
const NAMES: usize = 7;

/// As much of an event as is checked, so that half a million of them are soon read.
#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(borrow, rename = "type")]
    what: &'a str,
    object: WatchLineObject,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WatchLineObject {
    code: Option<u16>,
    metadata: WatchLineMetadata,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct WatchLineMetadata {
    name: String,
    resource_version: String,
}

/// What a client knows: like an informer's, from a list and the watch after it.
#[derive(Default)]
struct TestInformer {
    seen: BTreeMap<String, u64>,
    last: u64,
    lists: usize,
}

impl TestInformer {
    async fn list(&mut self, server: &TestApiServer) {
        let (_, list) = server.get(MAPS).await;
        let version = number(&list["metadata"]["resourceVersion"]);
        assert!(version >= self.last, "versions go back: {version} after {}", self.last);
        self.last = version;
        self.lists += 1;
        let items = list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]);
        self.seen =
            items.map(|meta| (meta["name"].as_str().unwrap().to_owned(), number(&meta["resourceVersion"]))).collect();
    }

    /// Follows until the watch ends, or the object `end` appears.
    async fn follow(&mut self, server: &TestApiServer, end: &str) {
        if self.last == 0 {
            self.list(server).await;
        }
        while !self.seen.contains_key(end) {
            let path = format!("{MAPS}?watch=1&resourceVersion={}", self.last);
            let response = server.send(Request::get(path).body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), 200);
            let mut body = response.into_body().into_data_stream();
            let mut gone = false;
            while let Some(chunk) = body.next().await {
                // A chunk holds whole lines.
                for line in chunk.unwrap().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    gone |= self.hear(&serde_json::from_slice(line).unwrap());
                }
                if self.seen.contains_key(end) {
                    return;
                }
            }
            if !gone {
                return; // the appliance ends
            }
            self.list(server).await;
        }
    }

    /// Whether it has to list again.
    fn hear(&mut self, event: &WatchLine<'_>) -> bool {
        if event.what == "ERROR" {
            assert_eq!(event.object.code, Some(410));
            return true;
        }
        let name = event.object.metadata.name.clone();
        let at: u64 = event.object.metadata.resource_version.parse().unwrap();
        assert!(at > self.last, "{at} after {}: events come in order, each once", self.last);
        self.last = at;
        let before = if event.what == "DELETED" { self.seen.remove(&name) } else { self.seen.insert(name, at) };
        assert_eq!(before.is_none(), event.what == "ADDED", "{} of what was {before:?}", event.what);
        false
    }
}

fn number(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

async fn write(server: &TestApiServer, writer: usize, start: usize) {
    for round in 0..WRITES / STARTS / WRITERS + 1 {
        let name = format!("w{writer}-{}", round % NAMES);
        let path = format!("{MAPS}/{name}");
        let body = json!({ "metadata": { "name": name }, "data": { "round": format!("{start}-{round}") } });
        // Some are refused, because the object is there or is not: that is part of it.
        match round % 5 {
            0 | 2 => server.ask(Method::POST, MAPS, &body).await,
            4 => server.delete(&path).await,
            _ => server.ask(Method::PATCH, &path, &body).await,
        };
    }
}

/// APP-23, APP-39: 10,000 writes of 16 clients, 50 watchers, restarts between: no event is missed, repeated or out
/// of order, and no version goes back.
#[tokio::test]
async fn informers_agree_with_the_store_over_writes_and_restarts() {
    let TestApiServer { mut store, registry, dir } = TestApiServer::open().await;
    let mut informers: Vec<TestInformer> = (0..WATCHERS).map(|_| TestInformer::default()).collect();
    for start in 0..STARTS {
        let server = TestApiServer { store, registry: Arc::clone(&registry), dir: tempfile::tempdir().unwrap() };
        let last = start + 1 == STARTS;
        // In the last round all see the end; before, the appliance goes while some are behind.
        let end = if last { "end".to_owned() } else { format!("end-{start}") };
        let writers = async {
            join_all((0..WRITERS).map(|writer| write(&server, writer, start))).await;
            let end = json!({ "metadata": { "name": end } });
            assert_eq!(server.ask(Method::POST, MAPS, &end).await.0, 201);
            if !last {
                server.store.close();
            }
        };
        let follow = join_all(informers.iter_mut().map(|informer| informer.follow(&server, &end)));
        tokio::join!(writers, follow);
        if last {
            let mut truth = TestInformer::default();
            truth.list(&server).await;
            for informer in &informers {
                assert_eq!(informer.seen, truth.seen);
            }
        }
        drop(server);
        store = Arc::new(ObjectStore::open(dir.path()).unwrap());
    }
    let lists: usize = informers.iter().map(|informer| informer.lists).sum();
    assert!(lists <= WATCHERS * STARTS, "{lists} lists");
}
