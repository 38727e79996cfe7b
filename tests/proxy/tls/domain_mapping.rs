//! Certificates of DomainMappings.

use kit::api::condition;
use kit::manifest::{NAMESPACE, service};
use kit::{ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::json;

use super::client::{BIN, BOTH, TlsAuthority};
use super::ingress::secret;

const IMAGE: &str = "example.com/hello";
const HOST: &str = "app.example.com";

/// X-RTE-13: `spec.tls.secretName` serves the domain by TLS with that certificate, over restarts too, and says what is
/// missing until it can.
#[test]
fn a_domain_mapping_brings_its_own_certificate() {
    let authority = TlsAuthority::new();
    let own = authority.issue("own", "other.example.com");
    let mut appliance = ApplianceSetup::new(BIN)
        .hello_image(IMAGE)
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("other.example.com={own}"))
        .start();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "mapped"));
    api.create(&json!({
        "apiVersion": "networking.internal.knative.dev/v1alpha1", "kind": "ClusterDomainClaim",
        "metadata": { "name": HOST }, "spec": { "namespace": NAMESPACE },
    }));
    api.create(&json!({
        "apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping",
        "metadata": { "name": HOST, "namespace": NAMESPACE },
        "spec": {
            "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello" },
            "tls": { "secretName": "certificate" },
        },
    }));
    let reported = api.wait_for("DomainMapping", NAMESPACE, HOST, TIMEOUT, |mapping| {
        condition(mapping, "CertificateProvisioned").is_some_and(|c| c["reason"] == "SecretNotFound")
    });
    assert_eq!(condition(&reported, "CertificateProvisioned").unwrap()["status"], "False");
    let client = authority.client(BOTH);
    assert!(client.connect(appliance.https(), HOST).is_err());

    api.create(&secret(&authority, HOST));
    let ready = api.wait_ready("DomainMapping", NAMESPACE, HOST, TIMEOUT);
    let url = ready["status"]["url"].as_str().unwrap();
    assert_eq!(url, format!("https://{HOST}:{}", appliance.https().port()));
    let answer = client.call(appliance.https(), HOST, &HttpCall::get("/")).unwrap();
    assert_eq!((answer.status, answer.text().trim()), (200, "Hello mapped from hello-00001"));

    appliance.restart();
    assert_eq!(client.call(appliance.https(), HOST, &HttpCall::get("/")).unwrap().status, 200, "after a restart");
    appliance.api().delete("DomainMapping", NAMESPACE, HOST);
    wait::until(TIMEOUT, "the certificate to go", || client.connect(appliance.https(), HOST).err().map(drop));
}

/// Without a listener for TLS the condition says what to start with.
#[test]
fn a_certificate_without_a_listener_says_so() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    appliance.api().create(&json!({
        "apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping",
        "metadata": { "name": HOST, "namespace": NAMESPACE },
        "spec": {
            "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello" },
            "tls": { "secretName": "certificate" },
        },
    }));
    let reported = appliance.api().wait_for("DomainMapping", NAMESPACE, HOST, TIMEOUT, |mapping| {
        condition(mapping, "CertificateProvisioned").is_some_and(|c| c["status"] == "False")
    });
    let certificate = condition(&reported, "CertificateProvisioned").unwrap();
    assert_eq!(certificate["reason"], "HTTPSNotEnabled");
    assert!(certificate["message"].as_str().unwrap().contains("--https"), "{certificate}");
}
