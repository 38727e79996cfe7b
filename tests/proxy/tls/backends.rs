//! TLS to the backends of Ingresses: `system-internal-tls`.

use kit::kingress::{core_service, ingress, path, rule};
use kit::manifest::NAMESPACE;
use kit::tls::TlsFront;
use kit::{ApplianceSetup, HttpCall, KitApi, TIMEOUT, TestUpstream, wait};
use serde_json::{Value, json};

use super::client::{BIN, TlsAuthority};

const HOST: &str = "app.example.com";

/// An instance that shows a certificate for `name`, behind the Service `service`.
fn backend(api: KitApi, authority: &TlsAuthority, (service, name): (&str, &str), upstream: &TestUpstream) -> TlsFront {
    let files = authority.issue(service, name);
    let (chain, key) = files.split_once(',').unwrap();
    let [chain, key] = [chain, key].map(|file| std::fs::read(file).unwrap());
    let front = TlsFront::start(&chain, &key, &[b"http/1.1"], upstream.address());
    let ports = json!([{ "name": "http", "port": 80 }, { "name": "https", "port": 443 }]);
    core_service(
        api,
        &json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": service, "namespace": NAMESPACE }, "spec": { "ports": ports },
        }),
    );
    let address = front.address();
    api.create(&json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": service, "namespace": NAMESPACE },
        "subsets": [{
            "addresses": [{ "ip": address.ip() }],
            "ports": [{ "name": "https", "port": address.port() }, { "name": "http", "port": 1 }],
        }],
    }));
    front
}

fn to(service: &str) -> Value {
    let mut way = path("", service);
    way["splits"][0]["servicePort"] = json!(443);
    way
}

/// X-RTE-07: with `system-internal-tls` an Ingress reaches its Services by TLS, and only those who prove by the cluster's
/// authority to be an activator or a queue-proxy of the namespace.
#[test]
fn ingresses_reach_their_services_by_tls_and_believe_only_the_clusters() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = ApplianceSetup::new(BIN).flag("trusted-proxies", "127.0.0.0/8").start();
    let api = appliance.api();
    let patch = json!({ "data": { "system-internal-tls": "Enabled" } });
    api.patch("ConfigMap", "knative-serving", "config-network", &patch);
    let _fronts = [("user", "kn-user-default"), ("routing", "kn-routing"), ("stranger", "kn-user-other")]
        .map(|one| backend(api, &authority, one, &upstream));
    let host = |service: &str| format!("{service}.{HOST}");
    let rules: Vec<_> = ["user", "routing", "stranger"].map(|service| rule(&host(service), &[to(service)])).into();
    api.create(&ingress("inner", json!(rules)));
    api.wait_for("Ingress", NAMESPACE, "inner", TIMEOUT, |object| {
        kit::api::condition(object, "Ready").is_some_and(|ready| ready["reason"] == "CABundleNotFound")
    });

    let label = json!({ "networking.knative.dev/trust-bundle": "true" });
    api.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "bundle", "namespace": "knative-serving", "labels": label },
        "data": { "ca.pem": authority.pem() },
    }));
    api.wait_ready("Ingress", NAMESPACE, "inner", TIMEOUT);
    let call = |service: &str| HttpCall::get("/").host(&host(service)).send(appliance.http());
    assert_eq!((call("user").status, call("routing").status), (200, 200));
    let refused = call("stranger");
    assert!(refused.status == 502 && refused.reason().contains("not valid for name"), "{refused}");

    // In the clear again: the port for TLS is then one like any other.
    api.patch(
        "ConfigMap",
        "knative-serving",
        "config-network",
        &json!({ "data": { "system-internal-tls": "Disabled" } }),
    );
    wait::until(TIMEOUT, "requests in the clear", || (call("user").status != 200).then_some(()));
}
