//! Requests that wait for the first instance of a Revision.

use std::fs;
use std::thread::scope;

use kit::manifest::{NAMESPACE, service, with};
use kit::{ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/late";
const PARKED: usize = 24;

/// One core, one instance and one request at a time in it: each is let in when the one before it is answered, so the order
/// of the access log is that of the queue. The instance starts when all of them wait.
#[test]
fn parked_requests_of_a_core_are_answered_in_the_order_in_which_they_came() {
    let setup = ApplianceSetup::new(BIN).flag("workers", "1").flag("access-log", "json");
    let log = setup.write_file("access.log", "");
    let gate = log.with_file_name("gate");
    let script = format!("until test -e {}; do sleep 0.05; done\nexec {BIN} example hello\n", gate.display());
    let script = setup.write_file("late.sh", &script);
    let setup = setup.flag("access-log-file", &log.to_string_lossy());
    let appliance = setup.flag("image", &format!("{IMAGE}=sh {}", script.display())).start();
    let api = appliance.api();
    let any = json!({ "data": { "allow-zero-initial-scale": "true" } });
    api.patch("ConfigMap", "knative-serving", "config-autoscaler", &any);
    let mut late = with(service("late", IMAGE, ""), "/spec/template/spec/containerConcurrency", json!(1));
    for (name, value) in [("initial-scale", "0"), ("max-scale", "1")] {
        let place = format!("/spec/template/metadata/annotations/autoscaling.knative.dev~1{name}");
        late = with(late, &place, json!(value));
    }
    api.create(&late);
    api.wait_ready("Service", NAMESPACE, "late", TIMEOUT);

    let call = |n: usize| HttpCall::get(&format!("/parked-{n}-")).host("late.default.localhost");
    let (to, mut waiting) = (appliance.http(), 0);
    scope(|scope| {
        for n in 0..PARKED {
            scope.spawn(move || assert_eq!(call(n).send(to).status, 200));
            wait::until(TIMEOUT, "the request to wait", || {
                let now = appliance.metric("sluicegate_backend_queued_requests", "default/late-00001");
                (now > waiting).then(|| waiting = now)
            });
        }
        fs::write(&gate, "").expect("the gate is opened");
    });
    let answered = wait::until(TIMEOUT, "all lines of the access log", || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<String> = text
            .lines()
            .filter_map(|line| Some(line.split_once("/parked-")?.1.split('-').next()?.to_owned()))
            .collect();
        (lines.len() == PARKED).then_some(lines)
    });
    let came: Vec<String> = (0..PARKED).map(|n| n.to_string()).collect();
    assert_eq!(answered, came);
}
