//! Certificates of Ingress objects.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kit::kingress::{backend, ingress, path, rule};
use kit::manifest::{NAMESPACE, with};
use kit::{ApplianceSetup, HttpCall, TIMEOUT, TestUpstream};
use serde_json::{Value, json};

use super::client::{BIN, BOTH, TlsAuthority};

const HOST: &str = "app.example.com";

pub(super) fn secret(authority: &TlsAuthority, name: &str) -> Value {
    let files = authority.issue("secret", name);
    let (chain, key) = files.split_once(',').unwrap();
    let data = |file: &str| STANDARD.encode(std::fs::read(file).unwrap());
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "certificate", "namespace": NAMESPACE },
        "data": { "tls.crt": data(chain), "tls.key": data(key) },
    })
}

/// X-KI-12, X-KI-13: an Ingress's certificate is shown for its hosts, clients without TLS are sent there,
/// and a Secret that changes is shown at once.
#[test]
fn an_ingress_brings_its_own_certificate() {
    let authority = TlsAuthority::new();
    let own = authority.issue("own", "other.example.com");
    let appliance = ApplianceSetup::new(BIN)
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("other.example.com={own}"))
        .start();
    let (api, upstream) = (appliance.api(), TestUpstream::start("one"));
    backend(api, "one", "http", &[upstream.address()]);
    let mut object = ingress("tls", json!([rule(HOST, &[path("", "one")])]));
    object = with(object, "/spec/httpOption", json!("Redirected"));
    let tls = json!([{ "hosts": [HOST], "secretName": "certificate", "secretNamespace": NAMESPACE }]);
    api.create(&with(object, "/spec/tls", tls));
    api.wait_for("Ingress", NAMESPACE, "tls", TIMEOUT, |object| {
        kit::api::condition(object, "Ready").is_some_and(|ready| ready["reason"] == "SecretNotFound")
    });
    // Issued for another name at first: the client must reject it.
    api.create(&secret(&authority, "wrong.example.com"));
    api.wait_ready("Ingress", NAMESPACE, "tls", TIMEOUT);
    let client = authority.client(BOTH);
    assert!(client.connect(appliance.https(), HOST).is_err());

    let renewed = secret(&authority, HOST);
    api.patch("Secret", NAMESPACE, "certificate", &json!({ "data": renewed["data"] }));
    let call = HttpCall::get("/x?y");
    let response =
        kit::wait::until(TIMEOUT, "the new certificate", || client.call(appliance.https(), HOST, &call).ok());
    assert_eq!((response.status, response.json()["name"].clone()), (200, json!("one")));

    let plain = call.host(HOST).send(appliance.http());
    assert_eq!(plain.status, 301, "{plain}");
    assert_eq!(plain.header("Location"), Some("https://app.example.com/x?y"));
}

/// X-KI-13: a client is sent to HTTPS only if its host is served there. Callers inside go on in the clear, whatever host they
/// ask for.
#[test]
fn nobody_is_sent_to_tls_that_is_not_there() {
    let authority = TlsAuthority::new();
    let bare = "bare.example.com";
    let start = |setup: ApplianceSetup| {
        let appliance = setup.flag("cluster-local", "127.0.0.1:0").start();
        let (api, upstream) = (appliance.api(), TestUpstream::start("one"));
        backend(api, "one", "http", &[upstream.address()]);
        api.create(&secret(&authority, HOST));
        let mut object = ingress("tls", json!([rule(HOST, &[path("", "one")]), rule(bare, &[path("", "one")])]));
        object = with(object, "/spec/httpOption", json!("Redirected"));
        let tls = json!([{ "hosts": [HOST], "secretName": "certificate", "secretNamespace": NAMESPACE }]);
        api.create(&with(object, "/spec/tls", tls));
        api.wait_ready("Ingress", NAMESPACE, "tls", TIMEOUT);
        let status = |host: &str, to| HttpCall::get("/").host(host).send(to).status;
        let [own, other] = [HOST, bare].map(|host| status(host, appliance.http()));
        assert_eq!([HOST, bare].map(|host| status(host, appliance.private())), [200, 200]);
        (own, other)
    };
    assert_eq!(start(ApplianceSetup::new(BIN).flag("https", "127.0.0.1:0")), (301, 200));
    assert_eq!(start(ApplianceSetup::new(BIN)), (200, 200));
}

/// X-KI-12: a listener for TLS needs no certificate of its own; and of a thousand that objects bring, each name is
/// shown its own.
#[test]
fn a_thousand_names_are_shown_their_own_certificates() {
    const EACH: usize = 100;
    let authority = TlsAuthority::new();
    let appliance = ApplianceSetup::new(BIN).flag("https", "127.0.0.1:0").start();
    let (api, upstream) = (appliance.api(), TestUpstream::start("one"));
    let client = authority.client(BOTH);
    assert!(client.connect(appliance.https(), HOST).is_err(), "there is no certificate yet");
    backend(api, "one", "http", &[upstream.address()]);
    let host = |number: usize| format!("host-{number}.example.com");
    for group in 0..10 {
        let hosts: Vec<String> = (group * EACH..(group + 1) * EACH).map(host).collect();
        let mut tls = Vec::new();
        for name in &hosts {
            let label = name.split('.').next().unwrap();
            let object = with(secret(&authority, name), "/metadata/name", json!(label));
            api.create(&object);
            tls.push(json!({ "hosts": [name], "secretName": label, "secretNamespace": NAMESPACE }));
        }
        let rules: Vec<Value> = hosts.iter().map(|name| rule(name, &[path("", "one")])).collect();
        let object = ingress(&format!("tls-{group}"), json!(rules));
        api.create(&with(object, "/spec/tls", json!(tls)));
    }
    for group in 0..10 {
        api.wait_ready("Ingress", NAMESPACE, &format!("tls-{group}"), 2 * TIMEOUT);
    }
    for number in (0..10 * EACH).step_by(7) {
        let name = host(number);
        let mut connection = client.connect(appliance.https(), &name).unwrap();
        assert!(connection.shown_for(&name), "{name}");
        assert_eq!(connection.call(&HttpCall::get("/").host(&name)).unwrap().status, 200);
    }
    assert!(client.connect(appliance.https(), "host-1000.example.com").is_err());
}
