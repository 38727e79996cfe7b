//! Services that call each other by name, through the built binary. Skipped where instances get no names: that takes
//! root, control groups and port 53 of loopback.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::thread;

use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HELLO: &str = "example.com/hello";
const CALLER: &str = "example.com/caller";

fn appliance() -> Appliance {
    ApplianceSetup::new(BIN).hello_image(HELLO).flag("image", &format!("{CALLER}={BIN} example caller")).start()
}

fn deploy(appliance: &Appliance, manifest: &Value) -> String {
    appliance.api().create(manifest);
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let ready = appliance.api().wait_ready("Service", NAMESPACE, name, TIMEOUT);
    ready["status"]["url"].as_str().unwrap().trim_start_matches("http://").to_owned()
}

/// The host of a program that makes these calls; `None` where instances have no names.
fn caller(appliance: &Appliance, urls: &[String]) -> Option<String> {
    let env = json!([{ "name": "CALLS", "value": urls.join(" ") }]);
    let containers = json!([{ "image": CALLER, "env": env }]);
    let manifest = with(service("caller", CALLER, ""), "/spec/template/spec/containers", containers);
    let host = deploy(appliance, &manifest);
    if appliance.stderr().contains("do not reach Services by name") {
        eprintln!("skipped: instances have no names here");
        return None;
    }
    Some(host)
}

/// What its calls came to, line by line.
fn calls(appliance: &Appliance, urls: &[String]) -> Option<Vec<String>> {
    let host = caller(appliance, urls)?;
    let text = HttpCall::get("/").host(&host).send(appliance.http()).text();
    Some(text.lines().map(str::to_owned).collect())
}

/// SRV-SVC-17, SRV-VOL-30, RT-FS-07, X-RTE-05: an instance reaches a Service that is only for callers inside by each of its names,
/// and wakes it, by its short one too; the public listener still does not know it.
#[test]
fn an_instance_reaches_other_services_by_name() {
    let appliance = appliance();
    let labels = json!({ "networking.knative.dev/visibility": "cluster-local" });
    let hidden = with(service("hidden", HELLO, "neighbour"), "/metadata/labels", labels);
    deploy(&appliance, &hidden);
    deploy(&appliance, &service("open", HELLO, "all"));
    let allowed = json!({ "data": { "allow-zero-initial-scale": "true" } });
    appliance.api().patch("ConfigMap", "knative-serving", "config-autoscaler", &allowed);
    let none = "/spec/template/metadata/annotations/autoscaling.knative.dev~1initial-scale";
    deploy(&appliance, &with(service("sleeper", HELLO, "early"), none, json!("0")));
    let urls = [
        "http://hidden.default.svc.cluster.local/",
        "http://hidden.default.svc/",
        "http://hidden.default/",
        "http://hidden/",
        "http://open.default/",
        "http://nobody.default/",
        "http://sleeper/",
    ]
    .map(str::to_owned);
    let Some(said) = calls(&appliance, &urls) else { return };
    for (url, said) in urls.iter().zip(&said).take(4) {
        assert_eq!(*said, format!("{url} 200 Hello neighbour from hidden-00001"));
    }
    assert_eq!(said[4], format!("{} 200 Hello all from open-00001", urls[4]));
    assert!(!said[5].contains(" 200 ") && said.len() == 7, "{said:?}");
    assert_eq!(said[6], format!("{} 200 Hello early from sleeper-00001", urls[6]));
    for host in ["hidden.default", "hidden.default.svc.cluster.local", "hidden"] {
        assert_eq!(HttpCall::get("/").host(host).send(appliance.http()).status, 404, "{host}");
    }
}

/// X-RTE-07: port 443 of a name leads to callers' own listener for TLS, whose certificates are in tests/proxy/tls/inside.rs.
#[test]
fn an_instance_meets_tls_at_the_usual_port() {
    let appliance = appliance();
    deploy(&appliance, &service("hidden", HELLO, "neighbour"));
    let Some(said) = calls(&appliance, &["http://hidden.default:443/".to_owned()]) else { return };
    assert_eq!(said, ["http://hidden.default:443/ 400 this port speaks HTTPS only"]);
}

/// EV-ADR-02: a core Service is reached by its name, at the ports of its endpoints.
#[test]
fn an_instance_reaches_a_core_service_by_name() {
    let appliance = appliance();
    let database = TestUpstream::start("database");
    let address = database.address();
    let api = appliance.api();
    let meta =
        |name: &str| json!({ "name": name, "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": "db" } });
    let port = json!([{ "name": "http", "port": address.port() }]);
    let db = json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta("db"), "spec": { "ports": port } });
    let made = HttpCall::post("/api/v1/namespaces/default/services").json(&db).send(api.address());
    assert_eq!(made.status, 201, "{}", made.text());
    api.create(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": meta("db-1"),
        "ports": port, "endpoints": [{ "addresses": [address.ip()] }],
    }));
    let urls = [format!("http://db:{}/", address.port()), format!("http://db.default.svc:{}/", address.port())];
    let Some(said) = calls(&appliance, &urls) else { return };
    assert!(said.len() == 2 && said.iter().all(|line| line.contains(" 200 ") && line.contains("database")), "{said:?}");
}

/// A request in progress when the appliance is stopped may still call others.
#[test]
fn who_is_still_answering_may_call_others_to_the_end() {
    let mut appliance = appliance();
    deploy(&appliance, &service("hidden", HELLO, "neighbour"));
    let urls = ["http://hidden.default/slow?ms=1500", "http://hidden.default/"].map(str::to_owned);
    let Some(host) = caller(&appliance, &urls) else { return };
    let address = appliance.http();
    let asking = thread::spawn(move || HttpCall::get("/").host(&host).send(address).text());
    wait::until(TIMEOUT, "the first call", || {
        (appliance.metric("sluicegate_backend_requests_total", "hidden") > 0).then_some(())
    });
    assert!(appliance.terminate().success());
    let said = asking.join().unwrap();
    assert_eq!(said.matches(" 200 Hello neighbour").count(), 2, "{said}");
}
