//! BackendTLSPolicy: backends that are reached by TLS.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kit::tls::TlsFront;
use kit::wait;

use super::*;
use crate::tls::client::TlsAuthority;

/// A backend that shows a certificate for `host`, behind a core Service; requests go on to an upstream of the same name.
struct TlsBackend {
    front: TlsFront,
    _upstream: TestUpstream,
}

fn tls_backend(api: KitApi, authority: &TlsAuthority, service: &str, host: &str, protocol: Option<&str>) -> TlsBackend {
    let upstream = TestUpstream::start(service);
    let files = authority.issue(service, host);
    let (chain, key) = files.split_once(',').unwrap();
    let [chain, key] = [chain, key].map(|file| std::fs::read(file).unwrap());
    let front = TlsFront::start(&chain, &key, &[b"http/1.1"], upstream.address());
    backend(api, NAMESPACE, service, front.address(), protocol);
    TlsBackend { front, _upstream: upstream }
}

/// A policy for a Service, or for its port `section`, that trusts the ConfigMap `ca`.
fn policy(name: &str, service: &str, section: Option<&str>, hostname: &str) -> Value {
    let mut target = json!({ "group": "", "kind": "Service", "name": service });
    if let Some(section) = section {
        target["sectionName"] = section.into();
    }
    let authorities = json!([{ "group": "", "kind": "ConfigMap", "name": "ca" }]);
    json!({
        "apiVersion": GROUP, "kind": "BackendTLSPolicy", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "targetRefs": [target], "validation": { "caCertificateRefs": authorities, "hostname": hostname } },
    })
}

fn authority_map(name: &str, pem: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "ca.crt": pem } })
}

/// Waits until the policy has these conditions at the Gateway `web`.
fn wait_conditions(api: KitApi, name: &str, accepted: &str, resolved: &str) {
    api.wait_for("BackendTLSPolicy", NAMESPACE, name, TIMEOUT, |policy| {
        let ancestor = &policy["status"]["ancestors"][0];
        let is = |kind: &str, wanted: &str| condition(&ancestor["conditions"], kind) == wanted;
        ancestor["ancestorRef"]["name"] == "web" && is("Accepted", accepted) && is("ResolvedRefs", resolved)
    });
}

/// A route of the path `/NAME` to each Service.
fn routes(api: KitApi, services: &[&str]) {
    let rule = |service: &&str| {
        let path = json!({ "path": { "value": format!("/{service}") } });
        json!({ "matches": [path], "backendRefs": [to(service)] })
    };
    serve(api, &route("all", services.iter().map(rule).collect()));
}

fn wait_status(appliance: &Appliance, service: &str, status: u16) -> HttpResponse {
    let target = format!("/{service}");
    wait::until(TIMEOUT, "the status", || Some(get(appliance, HOST, &target)).filter(|found| found.status == status))
}

/// BackendTLSPolicy, BackendTLSPolicySANValidation: the backend is reached by TLS with the policy's name, and only if its
/// certificate is one that the policy accepts.
#[test]
fn backend_with_a_policy_is_reached_by_verified_tls() {
    let appliance = with_gateway();
    let (api, authority, other) = (appliance.api(), TlsAuthority::new(), TlsAuthority::new());
    api.create(&authority_map("ca", &authority.pem()));
    api.create(&authority_map("other", &other.pem()));
    let names = ["good", "host", "foreign", "names", "wrong-names", "wss", "system"];
    let backends: Vec<_> = names
        .iter()
        .map(|name| {
            let protocol = match *name {
                "wss" => Some("kubernetes.io/wss"),
                "host" => Some("HTTPS"),
                _ => None,
            };
            tls_backend(api, &authority, name, "good.test", protocol)
        })
        .collect();
    let mut foreign = policy("foreign", "foreign", None, "good.test");
    foreign["spec"]["validation"]["caCertificateRefs"][0]["name"] = "other".into();
    let with_names = |name: &str, names: Value| {
        let mut policy = policy(name, name, None, "sent.test");
        policy["spec"]["validation"]["subjectAltNames"] = names;
        policy
    };
    let host = |name: &str| json!({ "type": "Hostname", "hostname": name });
    let uri = json!({ "type": "URI", "uri": "spiffe://good.test/a" });
    let mut system = policy("system", "system", None, "good.test");
    system["spec"]["validation"] = json!({ "hostname": "good.test", "wellKnownCACertificates": "System" });
    for policy in [
        policy("good", "good", Some("http"), "good.test"),
        policy("host", "host", None, "other.test"),
        foreign,
        with_names("names", json!([uri, host("good.test")])),
        with_names("wrong-names", json!([uri, host("sent.test")])),
        policy("wss", "wss", None, "good.test"),
        system,
    ] {
        api.create(&policy);
    }
    routes(api, &names);
    for name in &names[..6] {
        wait_conditions(api, name, "True Accepted", "True ResolvedRefs");
    }
    for (name, status) in
        [("good", 200), ("host", 502), ("foreign", 502), ("names", 200), ("wrong-names", 502), ("wss", 200)]
    {
        assert_eq!(wait_status(&appliance, name, status).header("x-upstream"), (status == 200).then_some(name));
    }
    // The authorities of this host did not sign it; a host may have none.
    assert!(get(&appliance, HOST, "/system").status >= 500);
    assert_eq!(backends[0].front.named(), ["good.test"]);
    assert_eq!(backends[3].front.named(), ["sent.test"]);

    // Without its policy the backend is reached in the clear, which it refuses.
    api.delete("BackendTLSPolicy", NAMESPACE, "good");
    wait_status(&appliance, "good", 502);
}

/// BackendTLSPolicyInvalidCACertificateRef, BackendTLSPolicyInvalidKind: no connection is opened, and the status follows the
/// ConfigMap.
#[test]
fn policy_without_a_valid_authority_refuses_its_backends() {
    let appliance = with_gateway();
    let (api, authority) = (appliance.api(), TlsAuthority::new());
    let _backends =
        ["late", "kind", "secret", "unknown"].map(|name| tls_backend(api, &authority, name, "good.test", None));
    let with_reference = |name: &str, group: &str, kind: &str| {
        let mut policy = policy(name, name, None, "good.test");
        policy["spec"]["validation"]["caCertificateRefs"][0] = json!({ "group": group, "kind": kind, "name": "ca" });
        policy
    };
    let mut unknown = policy("unknown", "unknown", None, "good.test");
    unknown["spec"]["validation"] = json!({ "hostname": "good.test", "wellKnownCACertificates": "example.com/other" });
    api.create(&with_reference("late", "", "ConfigMap"));
    api.create(&with_reference("kind", "example.com", "Bundle"));
    api.create(&with_reference("secret", "", "Secret"));
    api.create(&unknown);
    routes(api, &["late", "kind", "secret", "unknown"]);
    wait_conditions(api, "late", "False NoValidCACertificate", "False InvalidCACertificateRef");
    wait_conditions(api, "kind", "False NoValidCACertificate", "False InvalidKind");
    wait_conditions(api, "secret", "False NoValidCACertificate", "False InvalidCACertificateRef");
    wait_conditions(api, "unknown", "False Invalid", "True ResolvedRefs");
    let route = api.get("HTTPRoute", NAMESPACE, "all").unwrap();
    assert_eq!(condition(conditions(&route), "ResolvedRefs"), "True ResolvedRefs", "the Services are there");
    for name in ["late", "kind", "secret", "unknown"] {
        wait_status(&appliance, name, 500);
    }

    api.create(&authority_map("ca", &authority.pem()));
    let data = json!({ "ca.crt": STANDARD.encode(authority.pem()) });
    api.create(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "ca", "namespace": NAMESPACE }, "data": data }));
    for name in ["late", "secret"] {
        wait_conditions(api, name, "True Accepted", "True ResolvedRefs");
        wait_status(&appliance, name, 200);
    }
    api.patch("ConfigMap", NAMESPACE, "ca", &json!({ "data": { "ca.crt": "" } }));
    wait_conditions(api, "late", "False NoValidCACertificate", "False InvalidCACertificateRef");
    wait_status(&appliance, "late", 500);
}

/// BackendTLSPolicyConflictResolution, BackendTLSPolicyObservedGenerationBump: of policies with one target the oldest holds,
/// and one for a port comes before one for the Service.
#[test]
fn oldest_policy_of_a_target_holds_alone() {
    let appliance = with_gateway();
    let (api, authority) = (appliance.api(), TlsAuthority::new());
    api.create(&authority_map("ca", &authority.pem()));
    let backend = tls_backend(api, &authority, "app", "good.test", None);
    api.create(&policy("a-whole", "app", None, "wrong.test"));
    api.create(&policy("b-port", "app", Some("http"), "good.test"));
    // Created in the same second or later: the name decides then.
    api.create(&policy("c-second", "app", Some("http"), "wrong.test"));
    api.create(&policy("d-missing", "none", None, "good.test"));
    api.create(&policy("e-section", "app", Some("other"), "good.test"));
    routes(api, &["app", "none"]);
    wait_conditions(api, "a-whole", "True Accepted", "True ResolvedRefs");
    wait_conditions(api, "b-port", "True Accepted", "True ResolvedRefs");
    wait_conditions(api, "c-second", "False Conflicted", "True ResolvedRefs");
    wait_conditions(api, "d-missing", "False TargetNotFound", "True ResolvedRefs");
    wait_conditions(api, "e-section", "False TargetNotFound", "True ResolvedRefs");
    wait_status(&appliance, "app", 200);
    assert_eq!(backend.front.named(), ["good.test"]);

    // The next in age takes its place.
    api.delete("BackendTLSPolicy", NAMESPACE, "b-port");
    wait_conditions(api, "c-second", "True Accepted", "True ResolvedRefs");
    // Without routes no Gateway is its ancestor.
    api.delete("HTTPRoute", NAMESPACE, "all");
    api.wait_for("BackendTLSPolicy", NAMESPACE, "c-second", TIMEOUT, |policy| {
        policy["status"]["ancestors"].as_array().is_none_or(Vec::is_empty)
    });
}
