//! Updates under load through the built binary, without an effect on clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use kit::api::is_ready;
use kit::load::{LoadPlan, run};
use kit::manifest::{NAMESPACE, greets, service, with};
use kit::{ApplianceSetup, HttpCall, TIMEOUT};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const UPDATES: u32 = 20;
/// Requests of one run of the load generator: short, so that the last run ends soon after the last update.
const REQUESTS_PER_RUN: u64 = 400;

/// SRV-CFG-10, APP-39: over twenty updates every request is answered with 200.
#[test]
fn no_request_fails_over_twenty_updates() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let scale = "/spec/template/metadata/annotations/autoscaling.knative.dev~1min-scale";
    api.create(&with(service("hello", IMAGE, "0"), scale, json!("2")));
    let ready = api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let host = ready["status"]["url"].as_str().unwrap_or_default().trim_start_matches("http://").to_owned();

    let over = Arc::new(AtomicBool::new(false));
    let plan = LoadPlan {
        target: appliance.http(),
        call: HttpCall::get("/slow?ms=2").host(&host),
        connections: 8,
        requests: REQUESTS_PER_RUN,
    };
    let load = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            let (mut answered, mut failed) = (0, Vec::new());
            while !over.load(SeqCst) {
                let report = run(plan.clone());
                answered += report.statuses.get(&200).copied().unwrap_or_default();
                if report.broken > 0 || report.statuses.keys().any(|status| *status != 200) {
                    failed.push((report.statuses, report.broken));
                }
            }
            (answered, failed)
        })
    };
    for update in 1..=UPDATES {
        api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, &update.to_string()));
        let wanted = format!("hello-{:05}", update + 1);
        api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
            is_ready(service) && service["status"]["latestReadyRevisionName"] == wanted.as_str()
        });
        let said = HttpCall::get("/").host(&host).send(appliance.http());
        assert_eq!(said.text().trim(), format!("Hello {update} from {wanted}"), "Ready came before the traffic");
    }
    over.store(true, SeqCst);
    let (answered, failed) = load.join().expect("the load's thread says what went wrong");
    assert!(failed.is_empty(), "{failed:?}");
    assert!(answered >= REQUESTS_PER_RUN, "too little load to prove anything: {answered}");
}
