//! The memory of large requests goes back to the kernel, also when they were refused and others go on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::json;

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
    let ports = vec![json!({ "port": 1 }); 50_000];
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "long", "namespace": NAMESPACE }, "spec": { "ports": ports },
    });
    let large = HttpCall::post(&format!("/api/v1/namespaces/{NAMESPACE}/services")).json(&service);
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
