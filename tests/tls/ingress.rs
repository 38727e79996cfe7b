//! Certificates that Ingress objects bring.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kit::kingress::{backend, ingress, path, rule};
use kit::manifest::{NAMESPACE, with};
use kit::{Call, PATIENCE, Setup, Upstream};
use serde_json::{Value, json};

use super::client::{Authority, BIN, BOTH};

const HOST: &str = "app.example.com";

pub(super) fn secret(authority: &Authority, name: &str) -> Value {
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
    let authority = Authority::new();
    let own = authority.issue("own", "other.example.com");
    let appliance = Setup::new(BIN)
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("other.example.com={own}"))
        .start();
    let (api, upstream) = (appliance.api(), Upstream::start("one"));
    backend(api, "one", "http", &[upstream.address()]);
    let mut object = ingress("tls", json!([rule(HOST, &[path("", "one")])]));
    object = with(object, "/spec/httpOption", json!("Redirected"));
    let tls = json!([{ "hosts": [HOST], "secretName": "certificate", "secretNamespace": NAMESPACE }]);
    api.create(&with(object, "/spec/tls", tls));
    api.wait_for("Ingress", NAMESPACE, "tls", PATIENCE, |object| {
        kit::api::condition(object, "Ready").is_some_and(|ready| ready["reason"] == "SecretNotFound")
    });
    // Made out for somebody else at first: the client must not take it.
    api.create(&secret(&authority, "wrong.example.com"));
    api.wait_ready("Ingress", NAMESPACE, "tls", PATIENCE);
    let client = authority.client(BOTH);
    assert!(client.connect(appliance.https(), HOST).is_err());

    let mended = secret(&authority, HOST);
    api.patch("Secret", NAMESPACE, "certificate", &json!({ "data": mended["data"] }));
    let call = Call::get("/x?y");
    let response = kit::wait::until(PATIENCE, "the new certificate", || {
        client.call(appliance.https(), HOST, &call).ok()
    });
    assert_eq!((response.status, response.json()["name"].clone()), (200, json!("one")));

    let plain = call.host(HOST).send(appliance.http());
    assert_eq!(plain.status, 301, "{plain}");
    assert_eq!(plain.header("Location"), Some("https://app.example.com/x?y"));
}
