//! Custom domains: claimed, mapped to a Service, refused to others, and released.

use kit::api::condition;
use kit::manifest::{NAMESPACE, service};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const DOMAIN: &str = "app.example.com";

fn mapping(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping",
        "metadata": { "name": DOMAIN, "namespace": namespace },
        "spec": { "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": name } },
    })
}

fn claim(namespace: &str) -> Value {
    json!({
        "apiVersion": "networking.internal.knative.dev/v1alpha1", "kind": "ClusterDomainClaim",
        "metadata": { "name": DOMAIN }, "spec": { "namespace": namespace },
    })
}

/// Waits until Ready is False for `reason`.
fn wait_refused(api: KitApi, namespace: &str, reason: &str) -> Value {
    api.wait_for("DomainMapping", namespace, DOMAIN, TIMEOUT, |mapping| {
        condition(mapping, "Ready").is_some_and(|ready| ready["status"] == "False" && ready["reason"] == reason)
    })
}

fn get(appliance: &Appliance) -> (u16, String) {
    let response = HttpCall::get("/").host(DOMAIN).send(appliance.http());
    (response.status, response.text())
}

/// X-RTE-13, X-ACT-05, RT-HDR-04: no claim, no domain; with it the domain reaches the Service, over restarts too, until the mapping goes.
#[test]
fn a_claimed_domain_leads_to_its_service() {
    let mut appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "mapped"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    api.create(&mapping(NAMESPACE, "hello"));
    let refused = wait_refused(api, NAMESPACE, "DomainClaimFailed");
    let message = &condition(&refused, "DomainClaimed").unwrap()["message"];
    assert!(message.as_str().is_some_and(|text| text.contains(DOMAIN)), "{message}");
    assert_eq!(get(&appliance).0, 404);

    api.create(&claim(NAMESPACE));
    let ready = api.wait_ready("DomainMapping", NAMESPACE, DOMAIN, TIMEOUT);
    assert!(ready["status"]["url"].as_str().is_some_and(|url| url.starts_with("http://app.example.com")), "{ready:#}");
    for kind in ["DomainClaimed", "ReferenceResolved", "IngressReady", "CertificateProvisioned"] {
        assert_eq!(condition(&ready, kind).map(|c| &c["status"]), Some(&json!("True")), "{kind}");
    }
    let (status, text) = get(&appliance);
    assert_eq!((status, text.trim()), (200, "Hello mapped from hello-00001"));
    let seen = HttpCall::get("/headers").host(DOMAIN).send(appliance.http()).text().to_ascii_lowercase();
    assert!(seen.contains(&format!("[\"host\",\"{DOMAIN}\"]")), "{seen}");
    assert!(!seen.contains("k-original-host"), "{seen}");

    appliance.restart_on_same_ports();
    assert_eq!(get(&appliance).0, 200, "the first request after a restart");

    let api = appliance.api();
    api.delete("DomainMapping", NAMESPACE, DOMAIN);
    wait::until(TIMEOUT, "the domain to be free", || (get(&appliance).0 == 404).then_some(()));
}

/// A domain that another namespace claimed is refused, and so is a reference to a missing object.
#[test]
fn domain_of_another_namespace_is_refused() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "other" } }));
    api.create(&claim(NAMESPACE));
    api.create(&mapping("other", "hello"));
    wait_refused(api, "other", "DomainAlreadyClaimed");
    api.create(&mapping(NAMESPACE, "nobody"));
    wait_refused(api, NAMESPACE, "ResolveFailed");
    // A target that is created later is resolved without a change of the mapping.
    api.create(&service("nobody", IMAGE, "late"));
    api.wait_ready("DomainMapping", NAMESPACE, DOMAIN, TIMEOUT);
    assert!(get(&appliance).1.contains("late"));
}
