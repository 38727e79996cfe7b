//! Objects that exist and are not ready: clients are told which, unless they must not know.

use kit::kingress::{ingress, path, rule};
use kit::manifest::{NAMESPACE, service, with};
use kit::{ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/broken";

#[test]
fn service_that_is_not_ready_is_named() {
    let appliance = ApplianceSetup::new(BIN)
        .flag("image", &format!("{IMAGE}=/nosuchprog"))
        .flag("cluster-local", "127.0.0.1:0")
        .start();
    let inner = with(
        service("inner", IMAGE, "x"),
        "/metadata/labels",
        json!({ "networking.knative.dev/visibility": "cluster-local" }),
    );
    appliance.api().create(&service("broken", IMAGE, "x"));
    appliance.api().create(&inner);
    let get = |name: &str| HttpCall::get("/").host(&format!("{name}.{NAMESPACE}.localhost")).send(appliance.http());
    let told = wait::until(TIMEOUT, "a 503", || Some(get("broken")).filter(|answer| answer.status == 503));
    assert!(told.text().contains("Service default/broken is not Ready: "), "{told}");
    assert_eq!(told.header("retry-after"), Some("1"));
    assert_eq!(get("nosuch").status, 404);

    // The public must not know of the other.
    let host = format!("inner.{NAMESPACE}.svc.cluster.local");
    let inside = || HttpCall::get("/").host(&host).send(appliance.private());
    wait::until(TIMEOUT, "a 503", || (inside().status == 503).then_some(()));
    assert_eq!(HttpCall::get("/").host(&host).send(appliance.http()).status, 404);

    appliance.api().delete("Service", NAMESPACE, "broken");
    wait::until(TIMEOUT, "a 404", || (get("broken").status == 404).then_some(()));
}

#[test]
fn ingress_without_its_service_is_named() {
    let appliance = ApplianceSetup::new(BIN).start();
    appliance.api().create(&ingress("app", json!([rule("app.example.com", &[path("", "missing")])])));
    let get = || HttpCall::get("/").host("app.example.com").send(appliance.http());
    let told = wait::until(TIMEOUT, "a 503", || Some(get()).filter(|answer| answer.status == 503));
    assert!(told.text().contains(&format!("Ingress {NAMESPACE}/app is not Ready: ")), "{told}");
}
