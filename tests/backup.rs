//! All objects out of a running appliance, and back into it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output};

use kit::{Appliance, Setup};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

fn tool(verb: &str, file: &Path, appliance: &Appliance) -> Output {
    let api = appliance.api().address().to_string();
    Command::new(BINARY).args(["api", verb]).arg(file).args(["--api", &api]).output().unwrap()
}

fn map(name: &str, color: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" },
        "data": { "color": color } })
}

/// What was there comes back with its uid under newer versions, what came since goes, and a file that is
/// cut short changes nothing.
#[test]
fn a_restore_makes_the_objects_what_they_were() {
    let appliance = Setup::new(BINARY).start();
    let api = appliance.api();
    let kept = api.create(&map("kept", "red"));
    api.create(&map("lost", "blue"));
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("objects.jsonl");
    let told = tool("backup", &file, &appliance);
    assert!(told.status.success(), "{told:?}");

    api.patch("ConfigMap", "default", "kept", &json!({ "data": { "color": "green" } }));
    api.delete("ConfigMap", "default", "lost");
    let newest = api.create(&map("new", "white"));

    let whole = std::fs::read_to_string(&file).unwrap();
    let cut = folder.path().join("cut.jsonl");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let refused = tool("restore", &cut, &appliance);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(api.get("ConfigMap", "default", "new").is_some(), "half a backup changes nothing");

    let told = tool("restore", &file, &appliance);
    assert!(told.status.success(), "{told:?}");
    let back = api.get("ConfigMap", "default", "kept").unwrap();
    assert_eq!((&back["data"]["color"], &back["metadata"]["uid"]), (&json!("red"), &kept["metadata"]["uid"]));
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&back) > version(&newest), "versions never go back");
    assert!(api.get("ConfigMap", "default", "lost").is_some());
    assert!(api.get("ConfigMap", "default", "new").is_none());
}
