//! Backup of all objects of a running appliance, and restore.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use kit::{Appliance, ApplianceSetup};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");
const TIMEOUT: Duration = Duration::from_secs(60);

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
    let appliance = ApplianceSetup::new(BINARY).start();
    let api = appliance.api();
    let kept = api.create(&map("kept", "red"));
    api.create(&map("lost", "blue"));
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("objects.jsonl");
    let output = tool("backup", &file, &appliance);
    assert!(output.status.success(), "{output:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "it contains Secrets");

    api.patch("ConfigMap", "default", "kept", &json!({ "data": { "color": "green" } }));
    api.delete("ConfigMap", "default", "lost");
    let newest = api.create(&map("new", "white"));

    let whole = std::fs::read_to_string(&file).unwrap();
    let cut = folder.path().join("cut.jsonl");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let refused = tool("restore", &cut, &appliance);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(api.get("ConfigMap", "default", "new").is_some(), "half a backup changes nothing");

    let output = tool("restore", &file, &appliance);
    assert!(output.status.success(), "{output:?}");
    let back = api.get("ConfigMap", "default", "kept").unwrap();
    assert_eq!((&back["data"]["color"], &back["metadata"]["uid"]), (&json!("red"), &kept["metadata"]["uid"]));
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&back) > version(&newest), "versions never go back");
    assert!(api.get("ConfigMap", "default", "lost").is_some());
    assert!(api.get("ConfigMap", "default", "new").is_none());
}

/// APP-39: dependents restored with their owner stay. They are before it in the file, are too many for one
/// commit, and were deleted while it was not back.
#[test]
fn children_come_back_with_their_owner() {
    const CHILDREN: usize = 600;
    let appliance = ApplianceSetup::new(BINARY).start();
    let api = appliance.api();
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("objects.jsonl");
    assert!(tool("backup", &file, &appliance).status.success());

    let row = |resource: &str, object: &Value| {
        let name = &object["metadata"]["name"];
        let row = json!({ "resource": resource, "namespace": "default", "name": name, "object": object });
        row.to_string()
    };
    let owned = |name: &str, owner: &str| {
        let mut child = map(name, "red");
        child["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner }]);
        child
    };
    let owner = json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "owner", "namespace": "default", "uid": "the-owner" } });
    let whole = std::fs::read_to_string(&file).unwrap();
    let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
    lines.pop();
    let children = (0..CHILDREN).map(|number| row("/configmaps", &owned(&format!("child-{number}"), "the-owner")));
    lines.splice(1..1, children);
    lines.push(row("/secrets", &owner));
    lines.push(json!({ "objects": lines.len() - 1 }).to_string());
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    let output = tool("restore", &file, &appliance);
    assert!(output.status.success(), "{output:?}");

    // When this one is gone, the collector has looked at all that changed before it.
    api.create(&owned("of-nobody", "nobody"));
    api.wait_gone("ConfigMap", "default", "of-nobody", TIMEOUT);
    let kept = (0..CHILDREN).filter(|number| api.get("ConfigMap", "default", &format!("child-{number}")).is_some());
    assert_eq!(kept.count(), CHILDREN);
}

/// APP-39: a start without a store but with logs of events is logged, so that an operator can restore a misplaced
/// file. The very first start has neither, and logs nothing.
#[test]
fn missing_store_with_event_logs_is_logged() {
    let mut appliance = kit::scene::with_broker(&ApplianceSetup::new(BINARY));
    assert!(!appliance.stderr().contains("objects.redb"), "{}", appliance.stderr());
    assert!(appliance.terminate().success());
    let setup = appliance.setup().clone();
    let folder = tempfile::TempDir::new().unwrap();
    let (file, aside) = (setup.data().join("objects.redb"), folder.path().join("aside"));
    std::fs::copy(&file, &aside).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut appliance = setup.clone().start();
    appliance.wait_says("there is no objects.redb");
    assert!(appliance.terminate().success());

    std::fs::copy(&aside, &file).unwrap();
    let appliance = setup.start();
    appliance.api().wait_ready("Broker", "default", "main", TIMEOUT);
    assert!(!appliance.stderr().contains("objects.redb"), "{}", appliance.stderr());
}

/// APP-39: a store that its disk has damaged is not opened; the start ends with a message that
/// names the file and both ways on, and the first of them works.
#[test]
fn a_damaged_store_is_refused_in_words_and_a_backup_brings_it_back() {
    let appliance = ApplianceSetup::new(BINARY).start();
    let kept = appliance.api().create(&map("kept", "crimson-crimson-crimson"));
    let folder = tempfile::TempDir::new().unwrap();
    let backup = folder.path().join("objects.jsonl");
    assert!(tool("backup", &backup, &appliance).status.success());
    let setup = appliance.setup().clone();
    let mut appliance = appliance;
    assert!(appliance.terminate().success());
    let file = setup.data().join("objects.redb");
    let whole = std::fs::read(&file).unwrap();

    let flip = |mut bytes: Vec<u8>| {
        let text = b"crimson-crimson";
        while let Some(at) = bytes.windows(text.len()).position(|found| found == text) {
            bytes[at] = b'k';
        }
        bytes
    };
    for bytes in [flip(whole.clone()), whole[..whole.len() / 3].to_vec(), b"nothing of ours ".repeat(999)] {
        std::fs::write(&file, &bytes).unwrap();
        let refusal = setup.refused();
        assert_eq!(refusal.code, Some(1), "{refusal}");
        for word in ["objects.redb", "damaged", "sluicegate api restore", "move"] {
            assert!(refusal.stderr.contains(word), "{word} is missing: {refusal}");
        }
    }

    std::fs::rename(&file, folder.path().join("moved-away")).unwrap();
    let appliance = setup.start();
    assert!(tool("restore", &backup, &appliance).status.success());
    let back = appliance.api().get("ConfigMap", "default", "kept").unwrap();
    assert_eq!(back["metadata"]["uid"], kept["metadata"]["uid"]);
}
