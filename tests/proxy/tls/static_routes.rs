//! TLS of `--route`: the certificate of hosts without one, and upstreams with self-signed certificates.

use kit::tls::TlsFront;
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::client::{BIN, BOTH, TlsTestClient};

const HOST: &str = "app.example.com";

/// `--https` alone serves hosts of `--route`, by a certificate of the appliance's own authority, which stays.
#[test]
fn https_alone_serves_hosts_of_routes() {
    let upstream = TestUpstream::start("one");
    let mut appliance = ApplianceSetup::new(BIN)
        .route(HOST, upstream.address())
        .route("*.wild.example.com", upstream.address())
        .flag("https", "127.0.0.1:0")
        .start();
    let ca = appliance.setup().data().join("https/ca.pem");
    let before = std::fs::read_to_string(&ca).unwrap();
    let client = TlsTestClient::believing(&before, BOTH);
    for host in [HOST, "a.wild.example.com"] {
        let answer = client.call(appliance.https(), host, &HttpCall::get("/").host(host)).unwrap();
        assert_eq!((answer.status, &answer.json()["headers"]["x-forwarded-proto"]), (200, &"https".into()), "{host}");
    }
    assert!(client.connect(appliance.https(), "else.example.com").is_err(), "no route has this host");
    appliance.restart();
    assert_eq!(std::fs::read_to_string(&ca).unwrap(), before);
    client.call(appliance.https(), HOST, &HttpCall::get("/").host(HOST)).unwrap();
}

/// A reload reads the CA file again; addresses whose trust is the same keep their connections.
#[test]
fn reload_keeps_connections_of_https_routes() {
    let upstream = TestUpstream::start("one");
    let made = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
    let (own, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let front = TlsFront::start(own.as_bytes(), key.as_bytes(), &[], upstream.address());
    let setup = ApplianceSetup::new(BIN);
    let file = setup.write_file("ca.pem", &own);
    let rule = format!("{HOST}=https://{}?ca={}", front.address(), file.display());
    let mut appliance = setup.flag("route", &rule).flag("workers", "1").start();
    for reloads in 0..2 {
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
        appliance.reload();
        let is_reloaded = || (appliance.metric("sluicegate_config_reloads_total", "") > reloads).then_some(());
        wait::until(TIMEOUT, "the reload", is_reloaded);
    }
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    assert_eq!(front.handshakes(), (1, 0, 0));
}

/// A self-signed certificate that says it is an authority (`openssl req -x509`) is accepted if exactly it is trusted.
#[test]
fn pinned_authority_certificate_is_accepted_as_a_servers() {
    let upstream = TestUpstream::start("one");
    let certificate = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let ((own, key), (other, _)) = (certificate(HOST), certificate(HOST));
    let front = TlsFront::start(own.as_bytes(), key.as_bytes(), &[], upstream.address());
    let gateway = |ca: &str, options: &str| {
        let setup = ApplianceSetup::new(BIN);
        let file = setup.write_file("ca.pem", ca);
        let rule = format!("{HOST}=https://{}?ca={}{options}", front.address(), file.display());
        setup.flag("route", &rule).flag("trusted-proxies", "127.0.0.1").start()
    };
    let get = |appliance: &Appliance| HttpCall::get("/").host(HOST).send(appliance.http());
    assert_eq!(get(&gateway(&own, "")).status, 200);
    assert_eq!(get(&gateway(&format!("{other}{own}"), "")).status, 200);
    let refused = get(&gateway(&other, ""));
    assert!(refused.status == 502 && refused.reason().contains("trust exactly this certificate"), "{refused}");
    let misnamed = get(&gateway(&own, "&name=else.example.com"));
    assert!(misnamed.status == 502 && misnamed.reason().contains("name=NAME"), "{misnamed}");
}
