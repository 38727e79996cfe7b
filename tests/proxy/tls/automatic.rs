//! Automatic certificates: `external-domain-tls`, and the effect on clients without TLS.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kit::api::condition;
use kit::manifest::{NAMESPACE, service};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

use super::client::{BIN, BOTH, TlsAuthority, TlsTestClient};
use super::ingress::secret;

const IMAGE: &str = "example.com/hello";
const HOST: &str = "hello.default.localhost";
const TAG_HOST: &str = "blue-hello.default.localhost";
const SERVING: &str = "knative-serving";
const DISABLE: &str = "networking.knative.dev/disable-external-domain-tls";
const PROTOCOL: &str = "networking.knative.dev/http-protocol";

fn start(settings: &Value) -> Appliance {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("https", "127.0.0.1:0").start();
    set(appliance.api(), settings);
    appliance
}

pub(super) fn set(api: KitApi, settings: &Value) {
    api.patch("ConfigMap", SERVING, "config-network", &json!({ "data": settings }));
}

/// A Service with a tag.
fn hello(api: KitApi) {
    let mut object = service("hello", IMAGE, "tls");
    object["spec"]["traffic"] =
        json!([{ "latestRevision": true, "percent": 100 }, { "latestRevision": true, "tag": "blue" }]);
    api.create(&object);
}

fn annotate(api: KitApi, key: &str, value: &str) {
    api.patch("Service", NAMESPACE, "hello", &json!({ "metadata": { "annotations": { (key): value } } }));
}

/// The Route once its condition CertificateProvisioned has this reason.
fn route_because(api: KitApi, reason: &str) -> Value {
    api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        condition(route, "CertificateProvisioned").is_some_and(|c| c["reason"].as_str().unwrap_or_default() == reason)
    })
}

fn url(appliance: &Appliance, scheme: &str, host: &str) -> String {
    let address = if scheme == "https" { appliance.https() } else { appliance.http() };
    format!("{scheme}://{host}:{}", address.port())
}

/// The Route once its URL and that of its tag have this scheme.
fn by(appliance: &Appliance, scheme: &str) -> Value {
    appliance.api().wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        let status = &route["status"];
        let tagged = status["traffic"].as_array().into_iter().flatten();
        let tagged: Vec<_> = tagged.filter_map(|target| target["url"].as_str()).collect();
        status["url"] == url(appliance, scheme, HOST) && tagged == [url(appliance, scheme, TAG_HOST)]
    })
}

/// A client that trusts the appliance's authority.
fn believer(api: KitApi) -> TlsTestClient {
    let map = api.wait_for("ConfigMap", SERVING, "sluicegate-domain-authority", TIMEOUT, |_| true);
    TlsTestClient::believing(map["data"]["ca.crt"].as_str().unwrap(), BOTH)
}

/// X-RTE-06, X-RTE-07: each public host gets a certificate of its own, by which it is served and shown; over a restart
/// too. An annotation declines it.
#[test]
fn a_service_gets_certificates_for_its_hosts() {
    let mut appliance = start(&json!({ "external-domain-tls": "Enabled" }));
    hello(appliance.api());
    let route = by(&appliance, "https");
    // Ready by HTTP at first, as upstream has it, and then by TLS.
    appliance.api().wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        kit::api::is_ready(service) && service["status"]["url"] == url(&appliance, "https", HOST)
    });
    assert_eq!(condition(&route, "CertificateProvisioned").unwrap()["status"], "True");
    let name = format!("route-{}", route["metadata"]["uid"].as_str().unwrap());
    let certificate = appliance.api().wait_ready("Certificate", NAMESPACE, &name, TIMEOUT);
    assert_eq!(certificate["spec"]["dnsNames"], json!([HOST]));
    assert!(certificate["status"]["notAfter"].is_string(), "{certificate}");
    let kept = appliance.api().get("Secret", NAMESPACE, &name).unwrap();
    assert_eq!(kept["type"], "kubernetes.io/tls");

    let client = believer(appliance.api());
    let serves = |appliance: &Appliance| {
        for host in [HOST, TAG_HOST] {
            let mut connection = client.connect(appliance.https(), host).unwrap();
            assert_eq!(connection.call(&HttpCall::get("/").host(host)).unwrap().status, 200, "{host}");
            let others = [HOST, TAG_HOST].into_iter().filter(|other| *other != host && !host.ends_with(other));
            others.for_each(|other| assert!(!connection.shown_for(other), "{host} is not shown {other}"));
        }
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200, "HTTP is served too");
    };
    serves(&appliance);
    appliance.restart();
    serves(&appliance);

    let api = appliance.api();
    api.delete("Secret", NAMESPACE, &name);
    let again = api.wait_for("Secret", NAMESPACE, &name, TIMEOUT, |_| true);
    assert_ne!(again["data"]["tls.crt"], kept["data"]["tls.crt"], "who loses it gets another");
    by(&appliance, "https");

    annotate(api, DISABLE, "true");
    let route = by(&appliance, "http");
    let reported = condition(&route, "CertificateProvisioned").unwrap();
    assert_eq!(
        (&reported["reason"], &reported["message"]),
        (&json!("TLSNotEnabled"), &json!("external-domain-tls is not enabled"))
    );
    wait::until(TIMEOUT, "the certificates to go", || api.list("Certificate", NAMESPACE).is_empty().then_some(()));
    assert!(client.connect(appliance.https(), HOST).is_err());
}

/// X-RTE-06: the operator's setting, overridden by an annotation's. An unknown value is reported, and what
/// was routed stays.
#[test]
fn clients_without_tls_are_sent_there_as_operator_or_annotation_say() {
    let appliance = start(&json!({ "external-domain-tls": "Enabled", "http-protocol": "Redirected" }));
    let api = appliance.api();
    hello(api);
    by(&appliance, "https");
    let status = || HttpCall::get("/x?y").host(HOST).send(appliance.http());
    let answers = |wanted: u16| {
        wait::until(TIMEOUT, &format!("answers {wanted}"), || (status().status == wanted).then_some(()));
    };
    answers(301);
    let there = format!("https://{HOST}:{}/x?y", appliance.https().port());
    assert_eq!(status().header("Location"), Some(&*there));
    annotate(api, PROTOCOL, "enabled");
    answers(200);
    annotate(api, PROTOCOL, "Never");
    let reported = api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        condition(route, "IngressReady").is_some_and(|c| c["reason"] == "IngressNotConfigured")
    });
    let why = condition(&reported, "IngressReady").unwrap();
    assert_eq!(
        (&why["status"], &why["message"]),
        (&json!("Unknown"), &json!("incorrect http-protocol annotation: never"))
    );
    answers(200);
    annotate(api, PROTOCOL, "Redirected");
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    answers(301);
    set(api, &json!({ "http-protocol": "Disabled" }));
    annotate(api, PROTOCOL, "");
    answers(200);
}

/// X-RTE-07: until another issuer's certificate is ready the Service is served in plain text, and reports so; where HTTP is no
/// way in, it waits.
#[test]
fn a_certificate_that_another_provides_is_awaited_and_then_shown() {
    let class = "other.certificate.networking.knative.dev";
    let appliance = start(&json!({ "external-domain-tls": "Enabled", "certificate-class": class }));
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "tls"));
    let route = route_because(api, "HTTPDowngrade");
    let name = format!("route-{}", route["metadata"]["uid"].as_str().unwrap());
    let reported = condition(&route, "CertificateProvisioned").unwrap();
    assert_eq!(reported["message"], format!("Certificate {name} is not ready downgrade HTTP."));
    assert_eq!(route["status"]["url"], url(&appliance, "http", HOST));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    set(api, &json!({ "http-protocol": "Redirected" }));
    let waits = route_because(api, "CertificateNotReady");
    assert_eq!(waits["status"]["url"], url(&appliance, "https", HOST));
    assert_eq!(condition(&waits, "Ready").unwrap()["status"], "Unknown");

    let authority = TlsAuthority::new();
    let mut kept = secret(&authority, HOST);
    kept["metadata"]["name"] = json!(name);
    api.create(&kept);
    let certificate = api.get("Certificate", NAMESPACE, &name).unwrap();
    let status = json!({ "status": {
        "observedGeneration": certificate["metadata"]["generation"],
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    let path = format!("{}/status", KitApi::path("Certificate", NAMESPACE, &name));
    let patched = HttpCall::new("PATCH", &path)
        .header("Content-Type", "application/merge-patch+json")
        .body(status.to_string())
        .send(api.address());
    assert_eq!(patched.status, 200, "{patched}");
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let answer = authority.client(BOTH).call(appliance.https(), HOST, &HttpCall::get("/")).unwrap();
    assert_eq!(answer.status, 200);
}

/// X-RTE-07: what the operator gave with `--tls-cert` is good for the hosts that it names, and nothing is made for them;
/// his own authority signs where he puts it.
#[test]
fn the_operators_certificates_and_authority_come_first() {
    let authority = TlsAuthority::new();
    let files = authority.issue("wild", "*.default.localhost");
    let appliance = ApplianceSetup::new(BIN)
        .hello_image(IMAGE)
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("*={files}"))
        .start();
    let api = appliance.api();
    let data = |pem: String| STANDARD.encode(pem);
    api.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "sluicegate-domain-authority", "namespace": SERVING },
        "data": { "tls.crt": data(authority.pem()), "tls.key": data(authority.key()) },
    }));
    set(api, &json!({ "external-domain-tls": "Enabled", "autocreate-cluster-domain-claims": "true" }));
    hello(api);
    by(&appliance, "https");
    assert_eq!(api.list("Certificate", NAMESPACE), [] as [Value; 0]);

    api.create(&json!({
        "apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping",
        "metadata": { "name": "app.example.com", "namespace": NAMESPACE },
        "spec": { "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello" } },
    }));
    let mapping = api.wait_for("DomainMapping", NAMESPACE, "app.example.com", TIMEOUT, |mapping| {
        mapping["status"]["url"] == url(&appliance, "https", "app.example.com") && kit::api::is_ready(mapping)
    });
    assert_eq!(condition(&mapping, "CertificateProvisioned").unwrap()["reason"], Value::Null);
    let certificate = api.wait_ready("Certificate", NAMESPACE, "app.example.com", TIMEOUT);
    assert_eq!(certificate["spec"]["domain"], "app.example.com");
    let client = authority.client(BOTH);
    for host in ["app.example.com", HOST] {
        assert_eq!(client.call(appliance.https(), host, &HttpCall::get("/")).unwrap().status, 200, "{host}");
    }
}

/// X-RTE-07: an operator puts his authority in the place of ours in two steps, the certificate and then the key. In
/// between nothing is signed, nothing of his is overwritten, and what was signed before is served.
#[test]
fn an_authority_without_its_key_takes_nothing_away() {
    let appliance = start(&json!({ "external-domain-tls": "Enabled" }));
    let api = appliance.api();
    hello(api);
    by(&appliance, "https");
    let believer = believer(api);
    let own = TlsAuthority::new();
    let put = |key: &str, pem: String| {
        let data = json!({ "data": { (key): STANDARD.encode(pem) } });
        api.patch("Secret", SERVING, "sluicegate-domain-authority", &data)
    };
    let half = put("tls.crt", own.pem());
    api.create(&service("later", IMAGE, "tls"));
    let failed = wait::until(TIMEOUT, "a certificate that is not signed", || {
        api.list("Certificate", NAMESPACE).into_iter().find(|certificate| {
            condition(certificate, "Ready").is_some_and(|ready| ready["reason"] == "AuthorityInvalid")
        })
    });
    assert_eq!(failed["spec"]["dnsNames"], json!(["later.default.localhost"]));
    let answer = believer.call(appliance.https(), HOST, &HttpCall::get("/")).unwrap();
    assert_eq!(answer.status, 200);
    let route = by(&appliance, "https");
    assert_eq!(condition(&route, "CertificateProvisioned").unwrap()["status"], "True");
    let there = api.get("Secret", SERVING, "sluicegate-domain-authority").unwrap();
    assert_eq!(there["data"], half["data"]);

    put("tls.key", own.key());
    let client = own.client(BOTH);
    for host in [HOST, "later.default.localhost"] {
        wait::until(TIMEOUT, "a certificate of the operator's authority", || {
            let answer = client.call(appliance.https(), host, &HttpCall::get("/")).ok()?;
            (answer.status == 200).then_some(())
        });
    }
}

/// X-RTE-07: one certificate for all names of a namespace, so the Service needs none of its own; deleted when it is not needed.
#[test]
fn a_namespace_has_one_certificate_for_all_its_names() {
    let appliance = start(&json!({ "external-domain-tls": "Enabled", "namespace-wildcard-cert-selector": "{}" }));
    let api = appliance.api();
    let wild = api.wait_ready("Certificate", NAMESPACE, "default.localhost", TIMEOUT);
    assert_eq!(wild["spec"]["dnsNames"], json!(["*.default.localhost"]));
    assert_eq!(wild["metadata"]["labels"]["networking.knative.dev/wildcardDomain"], "localhost");
    hello(api);
    by(&appliance, "https");
    assert_eq!(api.list("Certificate", NAMESPACE).len(), 1);
    let client = believer(api);
    for host in [HOST, TAG_HOST] {
        assert!(client.connect(appliance.https(), host).unwrap().shown_for("*.default.localhost"), "{host}");
    }
    set(api, &json!({ "namespace-wildcard-cert-selector": "" }));
    wait::until(TIMEOUT, "each host its own", || {
        let connection = client.connect(appliance.https(), HOST).ok()?;
        connection.shown_for("hello.default.localhost").then_some(())
    });
    api.wait_gone("Certificate", NAMESPACE, "default.localhost", TIMEOUT);
}

/// X-RTE-07: a developer's Certificate for a host of another owner is not signed; and without a listener for TLS
/// the status says with what to start.
#[test]
fn nobody_gets_a_certificate_for_the_host_of_another() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    set(api, &json!({ "external-domain-tls": "Enabled" }));
    api.create(&service("hello", IMAGE, "tls"));
    let route = route_because(api, "HTTPDowngrade");
    let reported = condition(&route, "CertificateProvisioned").unwrap();
    assert!(reported["message"].as_str().unwrap().contains("--https"), "{reported}");
    assert_eq!(route["status"]["url"], url(&appliance, "http", HOST));

    api.create(&json!({
        "apiVersion": "networking.internal.knative.dev/v1alpha1", "kind": "Certificate",
        "metadata": {
            "name": "mine", "namespace": NAMESPACE,
            "annotations": {
                "networking.knative.dev/certificate.class": "sluicegate.certificate.networking.knative.dev"
            },
        },
        "spec": { "dnsNames": ["other.example.com"], "secretName": "mine" },
    }));
    api.wait_for("Certificate", NAMESPACE, "mine", TIMEOUT, |certificate| {
        condition(certificate, "Ready").is_some_and(|ready| ready["reason"] == "HostNotOwned")
    });
    assert!(api.get("Secret", NAMESPACE, "mine").is_none());
}
