//! The seccomp profile in `deploy/` is the default profile of containers here, and the calls of io_uring.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

const RING_CALLS: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];
/// Calls that are allowed with some arguments only.
const WITH_ARGUMENTS: [&str; 4] = ["clone", "clone3", "personality", "socket"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The calls that the profile of containers allows without a capability: constants of `libc`, and numbers with their
/// names beside.
fn default_calls() -> BTreeSet<String> {
    let source = read("control/container/src/seccomp/profile.rs");
    let table = |name: &str| {
        let from = source.find(&format!("const {name}:")).unwrap();
        let text = &source[from..];
        text[..text.find("];").unwrap()].to_owned()
    };
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map(str::to_owned).collect()
    };
    let tables = ["ALLOWED", "ALLOWED_HERE"].map(table).concat();
    let constants = words(&tables).into_iter().filter_map(|word| word.strip_prefix("SYS_").map(str::to_owned));
    let numbered = table("ALLOWED_SINCE");
    let named = numbered.lines().filter_map(|line| line.split_once("// ")).map(|(_, name)| name.to_owned());
    constants.chain(named).chain(["io_pgetevents".to_owned()]).collect()
}

#[test]
fn seccomp_profile_adds_io_uring_to_the_default() {
    let profile: Value = serde_json::from_str(&read("deploy/seccomp/sluicegate.json")).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().unwrap();
    let names = |rule: &Value| -> Vec<String> {
        rule["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let unconditional: BTreeSet<String> =
        rules.iter().filter(|rule| rule.get("args").is_none()).flat_map(names).collect();
    let mut wanted = default_calls();
    assert!(wanted.len() > 250 && RING_CALLS.iter().all(|call| !wanted.contains(*call)), "{}", wanted.len());
    wanted.extend(RING_CALLS.map(str::to_owned));
    wanted.retain(|call| !WITH_ARGUMENTS.contains(&call.as_str()));
    let plain: BTreeSet<String> =
        unconditional.into_iter().filter(|call| !WITH_ARGUMENTS.contains(&call.as_str())).collect();
    assert_eq!(plain, wanted);
    for call in WITH_ARGUMENTS {
        assert!(rules.iter().any(|rule| names(rule) == [call]), "{call}");
    }
}
