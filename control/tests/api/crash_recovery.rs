//! What is on disk after the process was killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use sluicegate_control::api;
use sluicegate_control::store::{ObjectStore, StoreError};
use tower::ServiceExt as _;

use crate::support::{MAPS, TestApiServer, WIDGETS, registry};

/// Tells the child of a test which folder to use.
const KILLED_DIR: &str = "SLUICEGATE_TEST_KILLED_DIR";

/// APP-39: objects, uids and versions are as they were, and a deletion's version is not reused.
#[tokio::test]
async fn a_restart_keeps_objects_and_goes_on_counting() {
    let server = TestApiServer::open().await;
    let one = server.widget("one", &json!({ "a": "b" })).await;
    server.widget("two", &json!({})).await;
    server.delete(&format!("{WIDGETS}/two")).await;
    let revision = server.store.read().revision();
    let TestApiServer { store, registry, dir } = server;
    drop(store);

    let store = Arc::new(ObjectStore::open(dir.path()).unwrap());
    let server = TestApiServer { store, registry, dir };
    assert_eq!(server.store.read().revision(), revision);
    assert_eq!(server.get(&format!("{WIDGETS}/one")).await.1, one);
    assert_eq!(server.get(&format!("{WIDGETS}/two")).await.0, 404);
    let three = server.widget("three", &json!({})).await;
    assert_eq!(three["metadata"]["resourceVersion"], (revision + 1).to_string());

    // A watcher that continues from the newest version before the restart misses nothing; an older one
    // has to list again, because the changes in between are not kept.
    let mut watch = server.watch(&format!("{WIDGETS}?watch=1&resourceVersion={revision}")).await;
    assert_eq!(watch.next_change().await, ("ADDED".into(), "three".into()));
    let mut watch = server.watch(&format!("{WIDGETS}?watch=1&resourceVersion=1")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
}

/// The other half of the next test, in a process of its own: writes and says what was acknowledged.
#[tokio::test]
#[ignore = "runs until it is killed"]
async fn writes_until_it_is_killed() {
    let Ok(dir) = std::env::var(KILLED_DIR) else { return };
    let store = Arc::new(ObjectStore::open(dir.as_ref()).unwrap());
    api::seed(&store, &registry()).await.unwrap();
    let router = api::router(store, registry());
    let write = |writer: usize| {
        let router = router.clone();
        async move {
            for _ in 0.. {
                let body = json!({ "metadata": { "generateName": format!("w{writer}-") } }).to_string();
                let request = http::Request::post(MAPS).body(axum::body::Body::from(body)).unwrap();
                let answer = router.clone().oneshot(request).await.unwrap();
                let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
                println!("acknowledged {}", String::from_utf8(bytes.to_vec()).unwrap());
            }
        }
    };
    futures_util::future::join_all((0..8).map(write)).await;
}

/// APP-39: kill -9 in the middle of writes loses nothing that was acknowledged, and no version is
/// assigned twice.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    const ACKNOWLEDGED_BEFORE_KILL: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<Value> = Vec::new();
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "crash_recovery::writes_until_it_is_killed"])
            .env(KILLED_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reported = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((_, object)) = line.split_once("acknowledged ") else { continue };
            // The last line may be cut off by the kill; it was not acknowledged.
            let Ok(object) = serde_json::from_str(object) else { continue };
            acknowledged.push(object);
            reported += 1;
            if reported == ACKNOWLEDGED_BEFORE_KILL {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(reported >= ACKNOWLEDGED_BEFORE_KILL);
    }
    let store = ObjectStore::open(dir.path()).unwrap();
    let memory = store.read();
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for object in &acknowledged {
        let found = memory.by_uid(object["metadata"]["uid"].as_str().unwrap()).unwrap();
        assert_eq!(found.value(), *object);
        assert!(seen.insert(version(object)), "given out twice");
        assert!(version(object) <= memory.revision());
    }
}

#[tokio::test]
async fn a_second_opening_of_the_same_folder_is_refused() {
    let server = TestApiServer::open().await;
    let refused = ObjectStore::open(server.dir.path()).unwrap_err();
    assert!(matches!(refused, StoreError::InUse(_)), "{refused}");
    assert!(refused.to_string().contains("in use by another process"));
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("objects.redb");
    std::fs::write(&file, "this was never a database, but it is long enough to look at ".repeat(100)).unwrap();
    let before = std::fs::read(&file).unwrap();
    let refused = ObjectStore::open(dir.path()).unwrap_err();
    assert!(matches!(refused, StoreError::Damaged { .. }), "{refused:?}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn a_decision_that_panics_costs_only_its_own_caller() {
    let server = TestApiServer::open().await;
    let outcome = server.store.write::<StoreError>(|_| panic!("on purpose")).await;
    assert!(matches!(outcome, Err(StoreError::Canceled)));
    assert_eq!(server.ask(Method::POST, WIDGETS, &json!({ "metadata": { "name": "one" } })).await.0, 201);
}
