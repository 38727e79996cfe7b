//! The memory of large requests goes back to the kernel, also when they were refused and others go on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::{Map, Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// What a process may keep of hundreds of MiB, in KiB: its code that was loaded meanwhile, and heaps that are in use.
const KEPT_KIB_MAX: u64 = 64 * 1024;

/// `VmRSS` is the resident memory, and `VmHWM` the most that it ever was.
fn kib(appliance: &Appliance, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", appliance.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A refused request changes no object, so nothing gave the pages back that it left empty: 328 MB stayed.
#[test]
fn memory_of_refused_requests_returns() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "1").start();
    // Each schema is 12 bytes as text and 2,000 as a type.
    let schemas: Map<String, Value> = (0..40_000).map(|n| (format!("k{n:05}"), json!({}))).collect();
    let names = json!({ "plural": "longs", "singular": "long", "kind": "Long", "listKind": "LongList" });
    let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": schemas } });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "longs.example.com" },
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": names,
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }],
        },
    });
    let large = HttpCall::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").json(&definition);
    let small = HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps"));
    assert_eq!(small.send(appliance.api().address()).status, 200);
    let (before, api) = (kib(&appliance, "VmRSS"), appliance.api().address());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let status = large.send(api).status;
                assert!([422, 429].contains(&status), "{status}");
            });
        }
    });
    let peak = kib(&appliance, "VmHWM");
    assert!(peak > before + KEPT_KIB_MAX, "the requests took too little to show anything: {before} to {peak} KiB");
    wait::until(TIMEOUT, "memory to return", || {
        assert_eq!(small.send(appliance.api().address()).status, 200);
        let kept = kib(&appliance, "VmRSS").saturating_sub(before);
        (kept < KEPT_KIB_MAX).then_some(())
    });
}
