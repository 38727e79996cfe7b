//! Certificates of another issuer with HTTP-01 challenges: the Service that a challenge names answers it.

use std::net::SocketAddr;

use kit::kingress::backend;
use kit::manifest::{NAMESPACE, service};
use kit::{ApplianceSetup, HttpCall, KitApi, TIMEOUT, TestUpstream, wait};
use serde_json::{Value, json};

use super::automatic::set;
use super::client::{BIN, TlsAuthority};

const IMAGE: &str = "example.com/hello";
const HOST: &str = "hello.default.localhost";
const DOMAIN: &str = "app.example.com";
/// For a domain whose certificate has a shorter name of its own.
const BELOW: &str = "k.app.example.com";
const PATH: &str = "/.well-known/acme-challenge/token";

/// The Certificate's provider says how it is.
fn say(api: KitApi, name: &str, status: &Value) {
    let path = format!("{}/status", KitApi::path("Certificate", NAMESPACE, name));
    let patched = HttpCall::new("PATCH", &path)
        .header("Content-Type", "application/merge-patch+json")
        .body(json!({ "status": status }).to_string())
        .send(api.address());
    assert_eq!(patched.status, 200, "{patched}");
}

fn challenges(hosts: &[&str], namespace: &str) -> Value {
    let one = |host: &&str| {
        json!({ "url": format!("http://{host}{PATH}"), "serviceName": "solver", "serviceNamespace": namespace,
            "servicePort": "http" })
    };
    json!({ "http01Challenges": hosts.iter().map(one).collect::<Vec<_>>() })
}

fn get(http: SocketAddr, host: &str, path: &str) -> u16 {
    HttpCall::get(path).host(host).send(http).status
}

/// X-RTE-07, X-RTE-06, X-RTE-13: a challenge of a Route's or DomainMapping's Certificate is answered in the clear by its
/// Service, though clients are redirected otherwise; only as long as it is asked, and at no other path or host.
#[test]
fn a_challenge_is_answered_by_its_service_until_the_certificate_is_there() {
    let authority = TlsAuthority::new();
    let other = authority.issue("other", "other.example.com");
    let mut appliance = ApplianceSetup::new(BIN)
        .hello_image(IMAGE)
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("*={other}"))
        .start();
    let api = appliance.api();
    set(
        api,
        &json!({
            "external-domain-tls": "Enabled", "http-protocol": "Redirected",
            "certificate-class": "other.certificate.networking.knative.dev",
            "autocreate-cluster-domain-claims": "true",
        }),
    );
    api.create(&service("hello", IMAGE, "tls"));
    api.create(&json!({
        "apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping",
        "metadata": { "name": DOMAIN, "namespace": NAMESPACE },
        "spec": { "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello" } },
    }));
    let route = api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |_| true);
    let of_route = format!("route-{}", route["metadata"]["uid"].as_str().unwrap());
    for name in [&*of_route, DOMAIN] {
        api.wait_for("Certificate", NAMESPACE, name, TIMEOUT, |_| true);
    }
    wait::until(TIMEOUT, "clients to be redirected", || {
        [HOST, DOMAIN].iter().all(|host| get(appliance.http(), host, PATH) == 301).then_some(())
    });

    // The Service that answers comes after the question, as it may.
    say(api, &of_route, &challenges(&[HOST, "stranger.example.com"], NAMESPACE));
    say(api, DOMAIN, &challenges(&[DOMAIN, BELOW, "stranger.example.com"], NAMESPACE));
    let solver = TestUpstream::start("solver");
    backend(api, "solver", "http", &[solver.address()]);
    let answered = |http: SocketAddr| {
        wait::until(TIMEOUT, "the challenges to be answered", || {
            [HOST, DOMAIN, BELOW].iter().all(|host| get(http, host, PATH) == 200).then_some(())
        });
        assert_eq!(get(http, HOST, &format!("{PATH}x")), 301, "another token");
        assert_eq!(get(http, DOMAIN, "/"), 301, "another path");
        for host in [BELOW, "stranger.example.com"] {
            assert_eq!(get(http, host, "/"), 404, "{host}");
        }
        assert_eq!(get(http, "stranger.example.com", PATH), 404);
    };
    answered(appliance.http());
    appliance.restart();
    answered(appliance.http());

    let api = appliance.api();
    say(api, DOMAIN, &challenges(&[DOMAIN], "knative-serving"));
    say(api, &of_route, &json!({ "http01Challenges": null }));
    wait::until(TIMEOUT, "the challenges to be over", || {
        [HOST, DOMAIN].iter().all(|host| get(appliance.http(), host, PATH) == 301).then_some(())
    });
    wait::until(TIMEOUT, "the name below to be free", || (get(appliance.http(), BELOW, PATH) == 404).then_some(()));
}
