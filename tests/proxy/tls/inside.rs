//! TLS between Services: `cluster-local-domain-tls`, and the listener for internal callers.

use kit::api::{condition, is_ready};
use kit::kingress::{backend, ingress, path, rule};
use kit::manifest::{NAMESPACE, broker, service, with};
use kit::open_loop::OpenLoopLoad;
use kit::scene::{BROKER, delivery, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, KitApi, TIMEOUT, TestEvent, TestUpstream, wait};
use serde_json::{Value, json};

use super::automatic::set;
use super::client::{BIN, BOTH, TlsAuthority, TlsTestClient};
use super::ingress::secret;

const IMAGE: &str = "example.com/hello";
const PUBLIC: &str = "hello.default.localhost";
const NAME: &str = "hello.default.svc.cluster.local";
const NAMES: [&str; 3] = [NAME, "hello.default.svc", "hello.default"];

fn start() -> Appliance {
    let setup = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("cluster-local", "127.0.0.1:0");
    setup.flag("cluster-local-https", "127.0.0.1:0").flag("https", "127.0.0.1:0").start()
}

fn switch(api: KitApi, word: &str) {
    set(api, &json!({ "cluster-local-domain-tls": word }));
}

/// The Service once others reach it by this scheme.
fn reached_by(api: KitApi, name: &str, scheme: &str) -> Value {
    let url = format!("{scheme}://{name}.default.svc.cluster.local");
    api.wait_for("Service", NAMESPACE, name, TIMEOUT, |service| {
        service["status"]["address"]["url"] == url && is_ready(service)
    })
}

fn believer(service: &Value) -> TlsTestClient {
    TlsTestClient::believing(service["status"]["address"]["CACerts"].as_str().unwrap(), BOTH)
}

/// X-RTE-07: each name inside, a tag's too, has a certificate with all its spellings. Callers inside are shown it, and
/// no others; over a restart too.
#[test]
fn names_inside_have_certificates_for_callers_inside() {
    let mut appliance = start();
    let api = appliance.api();
    switch(api, "Enabled");
    let mut object = service("hello", IMAGE, "inside");
    object["spec"]["traffic"] =
        json!([{ "latestRevision": true, "percent": 100 }, { "latestRevision": true, "tag": "blue" }]);
    api.create(&object);
    let found = reached_by(api, "hello", "https");
    assert_eq!(found["status"]["url"], format!("http://{PUBLIC}:{}", appliance.http().port()));
    let route = api.get("Route", NAMESPACE, "hello").unwrap();
    assert_eq!(condition(&route, "CertificateProvisioned").unwrap()["reason"], Value::Null);
    let certificate = format!("route-{}-local", route["metadata"]["uid"].as_str().unwrap());
    let certificate = api.wait_ready("Certificate", NAMESPACE, &certificate, TIMEOUT);
    assert_eq!(certificate["spec"]["dnsNames"], json!(["hello.default", "hello.default.svc", NAME]));
    let labels = &certificate["metadata"]["labels"];
    assert_eq!(labels["networking.knative.dev/certificate-type"], "cluster-local-domain");
    let reported = api.get("ConfigMap", "knative-serving", "sluicegate-domain-authority").unwrap();
    assert_eq!(reported["metadata"]["labels"]["networking.knative.dev/trust-bundle"], "true");
    assert_eq!(reported["data"]["ca.crt"], found["status"]["address"]["CACerts"]);

    let client = believer(&found);
    let serves = |appliance: &Appliance| {
        let call = HttpCall::get("/");
        for name in NAMES.into_iter().chain(["blue-hello.default.svc.cluster.local"]) {
            let answer = client.call(appliance.private_https(), name, &call).unwrap();
            assert_eq!(answer.status, 200, "{name}");
            assert!(client.connect(appliance.https(), name).is_err(), "{name} is not for the public");
            assert_eq!(call.clone().host(name).send(appliance.private()).status, 200, "{name} in the clear");
        }
        let mut connection = client.connect(appliance.private_https(), NAME).unwrap();
        assert_eq!(connection.call(&call.clone().host(PUBLIC)).unwrap().status, 200);
        assert!(client.connect(appliance.private_https(), "nobody.default").is_err());
    };
    serves(&appliance);
    appliance.restart();
    serves(&appliance);
}

/// X-RTE-05, X-RTE-07: a Service that is only for callers inside shows its URL by TLS, without `https` for the public.
#[test]
fn a_cluster_local_service_is_shown_by_tls() {
    let appliance = start();
    let api = appliance.api();
    set(api, &json!({ "cluster-local-domain-tls": "Enabled", "http-protocol": "Redirected" }));
    let labels = json!({ "networking.knative.dev/visibility": "cluster-local" });
    api.create(&with(service("hello", IMAGE, "inside"), "/metadata/labels", labels));
    let found = reached_by(api, "hello", "https");
    assert_eq!(found["status"]["url"], format!("https://{NAME}"));
    let plain = HttpCall::get("/").host(NAME).send(appliance.private());
    assert_eq!(plain.status, 200, "nobody inside is sent to TLS");
    assert_eq!(believer(&found).call(appliance.private_https(), NAME, &HttpCall::get("/")).unwrap().status, 200);
}

/// X-RTE-07, EV-ADR-01: switched on and off while requests and events come, no request fails and every event arrives;
/// off, all is as it was.
#[test]
fn the_switch_is_thrown_under_load() {
    let appliance = start();
    let api = appliance.api();
    let dead = EventSink::start();
    api.create(&broker("main"));
    api.create(&service("hello", IMAGE, "inside"));
    let before = reached_by(api, "hello", "http");
    assert_eq!(before["status"]["address"]["CACerts"], Value::Null);
    let reference = json!({ "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello" } });
    let changes = [("/spec/subscriber", reference), delivery(0, &dead)];
    let trigger = subscribe(api, "to-hello", "http://unused/", &changes);
    assert_eq!(trigger["status"]["subscriberUri"], format!("http://{NAME}"));

    let requests = OpenLoopLoad::at_rate(appliance.private(), &HttpCall::get("/").host(NAME), 4, 400);
    let events = OpenLoopLoad::at_rate(appliance.events(), &TestEvent::new("e").binary(BROKER), 2, 100);
    for round in 0..3 {
        switch(api, "Enabled");
        let found = reached_by(api, "hello", "https");
        let client = believer(&found);
        let mut kept = client.connect(appliance.private_https(), NAME).unwrap();
        let reported = api.wait_for("Trigger", NAMESPACE, "to-hello", TIMEOUT, |trigger| {
            trigger["status"]["subscriberUri"] == format!("https://{NAME}") && is_ready(trigger)
        });
        assert_eq!(reported["status"]["subscriberCACerts"], found["status"]["address"]["CACerts"]);
        let mut asks = || kept.call(&HttpCall::get("/").host(NAME)).unwrap().status;
        assert_eq!(asks(), 200);
        switch(api, "Disabled");
        let after = reached_by(api, "hello", "http");
        assert_eq!(after["status"]["address"], before["status"]["address"]);
        wait::until(TIMEOUT, "the certificates to go", || api.list("Certificate", NAMESPACE).is_empty().then_some(()));
        wait::until(TIMEOUT, "nothing to be shown", || client.connect(appliance.private_https(), NAME).err().map(drop));
        assert_eq!(asks(), 200, "round {round}: a connection that is open goes on");
    }
    for pulse in [requests, events] {
        assert_eq!((pulse.refused(), pulse.broken()), (0, 0));
        assert!(pulse.stop() > 0);
    }
    wait::until(TIMEOUT, "every event to be delivered", || {
        (appliance.metric("sluicegate_subscriber_pending", "to-hello") == 0).then_some(())
    });
    assert_eq!(dead.received().len(), 0);
}

/// X-KI-12: the certificate of an Ingress's hosts inside is shown inside alone.
#[test]
fn an_ingress_brings_a_certificate_for_hosts_inside() {
    let authority = TlsAuthority::new();
    let appliance = start();
    let (api, upstream) = (appliance.api(), TestUpstream::start("one"));
    backend(api, "one", "http", &[upstream.address()]);
    api.create(&secret(&authority, NAME));
    let mut inside = rule(NAME, &[path("", "one")]);
    inside["visibility"] = json!("ClusterLocal");
    let tls = json!([{ "hosts": NAMES, "secretName": "certificate", "secretNamespace": NAMESPACE }]);
    api.create(&with(ingress("tls", json!([inside])), "/spec/tls", tls));
    api.wait_ready("Ingress", NAMESPACE, "tls", TIMEOUT);
    let client = authority.client(BOTH);
    assert_eq!(client.call(appliance.private_https(), NAME, &HttpCall::get("/")).unwrap().status, 200);
    assert!(client.connect(appliance.https(), NAME).is_err());
}
