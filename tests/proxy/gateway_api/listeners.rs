//! GatewayClasses and the listeners of Gateways.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::tls::client::{BOTH, TlsAuthority};

pub(super) fn listener<'a>(gateway: &'a Value, name: &str) -> &'a Value {
    let mut listeners = gateway["status"]["listeners"].as_array().unwrap().iter();
    listeners.find(|listener| listener["name"] == name).unwrap()
}

/// GatewayClassObservedGenerationBump, GatewayClassSupportedFeatures: the class is there from the start.
#[test]
fn class_of_the_appliance_is_accepted_with_its_features() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let class = api
        .wait_for("GatewayClass", "", "sluicegate", TIMEOUT, |class| class["status"]["supportedFeatures"].is_array());
    assert_eq!(condition(&class["status"]["conditions"], "Accepted"), "True Accepted");
    let features = class["status"]["supportedFeatures"].as_array().unwrap();
    assert!(features.iter().any(|feature| feature["name"] == "HTTPRoute"), "{features:?}");

    let foreign = json!({ "apiVersion": GROUP, "kind": "GatewayClass", "metadata": { "name": "foreign" },
        "spec": { "controllerName": "example.com/other" } });
    api.create(&foreign);
    api.create(&json!({
        "apiVersion": GROUP, "kind": "Gateway", "metadata": { "name": "other", "namespace": NAMESPACE },
        "spec": { "gatewayClassName": "foreign", "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }] },
    }));
    gateway(&appliance, "web", json!([{ "name": "http", "port": appliance.http().port(), "protocol": "HTTP" }]));
    let other = api.get("Gateway", NAMESPACE, "other").unwrap();
    assert!(other["status"]["listeners"].is_null(), "another controller's: {other}");
}

/// GatewayModifyListeners, GatewayInvalidRouteKind: each listener has its conditions, and the message names the ports.
#[test]
fn listener_on_a_port_of_the_system_is_refused() {
    let appliance = ApplianceSetup::new(BIN).start();
    let port = appliance.http().port();
    let listeners = json!([
        { "name": "open", "port": port, "protocol": "HTTP", "hostname": "a.test" },
        { "name": "closed", "port": 1, "protocol": "HTTP" },
        { "name": "other", "port": 2000, "protocol": "example.com/other" },
        { "name": "kinds", "port": port, "protocol": "HTTP", "hostname": "b.test",
            "allowedRoutes": { "kinds": [{ "kind": "TCPRoute" }, { "kind": "HTTPRoute" }] } },
    ]);
    let gateway = gateway(&appliance, "web", listeners);
    let conditions = |name: &str| &listener(&gateway, name)["conditions"];
    assert_eq!(condition(conditions("open"), "Programmed"), "True Programmed");
    assert_eq!(condition(conditions("open"), "Conflicted"), "False NoConflicts");
    assert_eq!(condition(conditions("closed"), "Accepted"), "False PortUnavailable");
    assert_eq!(condition(conditions("closed"), "Programmed"), "False Invalid");
    assert!(conditions("closed").to_string().contains("--gateway-ports is 80,443,1024-65535"), "{gateway:#}");
    assert_eq!(condition(conditions("other"), "Accepted"), "False UnsupportedProtocol");
    assert_eq!(condition(conditions("kinds"), "ResolvedRefs"), "False InvalidRouteKinds");
    assert_eq!(listener(&gateway, "kinds")["supportedKinds"][0]["kind"], "HTTPRoute");
    assert_eq!(condition(&gateway["status"]["conditions"], "Accepted"), "True ListenersNotValid");
    assert_eq!(condition(&gateway["status"]["conditions"], "Programmed"), "True Programmed");
    assert_eq!(gateway["status"]["addresses"], json!([{ "type": "IPAddress", "value": "127.0.0.1" }]));
}

pub(super) fn tls_secret(authority: &TlsAuthority, host: &str, namespace: &str, name: &str) -> Value {
    let files = authority.issue(name, host);
    let (chain, key) = files.split_once(',').unwrap();
    let data = |file: &str| STANDARD.encode(std::fs::read(file).unwrap());
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": namespace },
        "type": "kubernetes.io/tls", "data": { "tls.crt": data(chain), "tls.key": data(key) } })
}

/// HTTPRouteHTTPSListener, GatewayInvalidTLSConfiguration, GatewaySecretReferenceGrantSpecific,
/// GatewaySecretMissingReferenceGrant: certificates come from Secrets, those of other namespaces by a grant.
#[test]
fn https_listener_has_the_certificate_of_its_secret() {
    let appliance = ApplianceSetup::new(BIN).flag("https", "127.0.0.1:0").start();
    let (api, authority) = (appliance.api(), TlsAuthority::new());
    let https = appliance.https();
    namespace(api, "certs", json!({}));
    api.create(&tls_secret(&authority, "secure.test", "certs", "shared"));
    let secret = |name: &str, namespace: &str| json!({ "certificateRefs": [{ "name": name, "namespace": namespace }] });
    let listeners = json!([
        { "name": "cross", "port": https.port(), "protocol": "HTTPS", "hostname": "secure.test", "tls": secret("shared", "certs") },
        { "name": "missing", "port": https.port(), "protocol": "HTTPS", "hostname": "b.test", "tls": secret("none", NAMESPACE) },
    ]);
    let before = gateway(&appliance, "web", listeners);
    let conditions = |gateway: &Value, name: &str| listener(gateway, name)["conditions"].clone();
    assert_eq!(condition(&conditions(&before, "cross"), "ResolvedRefs"), "False RefNotPermitted");
    assert_eq!(condition(&conditions(&before, "cross"), "Programmed"), "False Invalid");
    assert_eq!(condition(&conditions(&before, "missing"), "ResolvedRefs"), "False InvalidCertificateRef");
    api.create(&json!({
        "apiVersion": GROUP, "kind": "ReferenceGrant", "metadata": { "name": "g", "namespace": "certs" },
        "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": NAMESPACE }],
            "to": [{ "group": "", "kind": "Secret" }] },
    }));
    api.wait_for("Gateway", NAMESPACE, "web", TIMEOUT, |gateway| {
        condition(&conditions(gateway, "cross"), "Programmed") == "True Programmed"
    });
    let _upstreams = backends(&appliance, ["app"]);
    let mut object = route("app", json!([{ "backendRefs": [to("app")] }]));
    object["spec"]["hostnames"] = json!(["secure.test"]);
    serve(api, &object);
    let response = authority.client(BOTH).call(https, "secure.test", &HttpCall::get("/")).unwrap();
    assert_eq!((response.status, response.header("x-upstream")), (200, Some("app")), "{response}");
    // The listener is for TLS alone.
    assert_eq!(get(&appliance, "secure.test", "/").status, 404);
}
