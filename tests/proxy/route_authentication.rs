//! Options of `--route` that require credentials.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, TestUpstream, http2, wait};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
/// The password is `open sesame`.
pub(crate) const ANN: &str = "ann:$2y$04$/VFpO1ODbZBib5hhgL6qEunI/XpPHApcyXwm5HMMOXJypjogNNAkK";
/// The password is `password`.
const BOB: &str = "bob:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn gateway(upstream: &TestUpstream, options: &str) -> ApplianceSetup {
    let rule = format!("{HOST}={}?{options}", upstream.address());
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1")
}

fn call(appliance: &Appliance, fields: &[(&str, &str)]) -> HttpResponse {
    let call = HttpCall::get("/").host(HOST);
    fields.iter().fold(call, |call, (name, value)| call.header(name, value)).send(appliance.http())
}

pub(crate) fn basic(pair: &str) -> String {
    format!("Basic {}", STANDARD.encode(pair))
}

fn seen(response: &HttpResponse, header: &str) -> Value {
    serde_json::from_slice::<Value>(&response.body).unwrap()["headers"][header].clone()
}

#[test]
fn route_requires_a_password() {
    let (upstream, files) = (TestUpstream::start("one"), Files::new());
    let users = files.write("users", &format!("{ANN}\n{BOB}\n"));
    let options = format!("basic-auth={}&basic-auth-realm=staff only&basic-auth-user-header=X-User", users.display());
    let appliance = gateway(&upstream, &options).start();

    let silent = call(&appliance, &[]);
    let challenge = silent.headers.get("www-authenticate");
    assert_eq!((silent.status, challenge), (401, Some("Basic realm=\"staff only\", charset=\"UTF-8\"")));
    // Each twice: the second result is from the cache.
    for (pair, status) in [
        ("ann:open sesame", 200),
        ("ann:open sesame", 200),
        ("bob:password", 200),
        ("ann:password", 401),
        ("ann:password", 401),
        ("eve:open sesame", 401),
        ("ann", 401),
    ] {
        let response = call(&appliance, &[("Authorization", &basic(pair)), ("X-User", "root"), ("X_User", "root")]);
        assert_eq!(response.status, status, "{pair}");
        if status == 200 {
            assert_eq!(seen(&response, "x-user"), pair.split(':').next().unwrap(), "{pair}");
            assert!(!response.text().contains("root"), "{pair}: {}", response.text());
        }
    }
    let good = basic("ann:open sesame");
    let twice = call(&appliance, &[("Authorization", &good), ("Authorization", &good)]);
    let bearer = call(&appliance, &[("Authorization", "Bearer x")]);
    assert_eq!((twice.status, bearer.status), (401, 401));
    assert_eq!(appliance.metric("sluicegate_refused_total", "unauthorized"), 7);
}

/// The same for streams, which wait for the verification without a connection of their own.
#[test]
fn route_requires_a_password_of_http2_clients() {
    let (upstream, files) = (TestUpstream::start("one"), Files::new());
    let users = files.write("users", ANN);
    let appliance = gateway(&upstream, &format!("basic-auth={}", users.display())).start();
    http2::run(async {
        let (client, _ended) = http2::H2Client::open(appliance.http()).await;
        for (pair, status) in [("ann:open sesame", 200), ("ann:wrong", 401), ("ann:open sesame", 200)] {
            let asked = http::Request::builder().uri(format!("http://{HOST}/")).header("authorization", basic(pair));
            let (response, _) = client.begin(asked.body(()).unwrap(), true).await.unwrap();
            assert_eq!(response.await.unwrap().status(), status, "{pair}");
        }
    });
}

/// A password needs its own request to be verified, also one with a body; and curl understands the challenge.
#[test]
fn curl_logs_in_by_a_password() {
    let (upstream, files) = (TestUpstream::start("one"), Files::new());
    let users = files.write("users", ANN);
    let appliance = gateway(&upstream, &format!("basic-auth={}", users.display())).start();
    for (more, status) in [
        (&["--anyauth", "--user", "ann:open sesame"][..], "200"),
        (&["--user", "ann:open sesame", "--data", "body"], "200"),
        (&["--user", "ann:wrong", "--data", "body"], "401"),
        (&["--http2-prior-knowledge", "--user", "ann:open sesame", "--data", "body"], "200"),
    ] {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "30", "-o", "/dev/null", "-w", "%{http_code}", "-H", &format!("Host: {HOST}")]);
        let output = curl.args(more).arg(format!("http://{}/", appliance.http())).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), status, "{more:?}");
    }
}

/// A broken file keeps the users of the last good one.
#[test]
fn reload_reads_users_again() {
    let (upstream, files) = (TestUpstream::start("one"), Files::new());
    let users = files.write("users", ANN);
    let mut appliance = gateway(&upstream, &format!("basic-auth={}", users.display())).start();
    let status = |appliance: &Appliance, pair: &str| call(appliance, &[("Authorization", &basic(pair))]).status;
    assert_eq!(status(&appliance, "ann:open sesame"), 200);
    files.write("users", BOB);
    appliance.reload();
    wait::until(kit::TIMEOUT, "bob may log in", || (status(&appliance, "bob:password") == 200).then_some(()));
    assert_eq!(status(&appliance, "ann:open sesame"), 401);
    files.write("users", "carl:plain text");
    appliance.reload();
    appliance.wait_says("the settings cannot be read again");
    assert_eq!((status(&appliance, "bob:password"), status(&appliance, "carl:plain text")), (200, 401));
}

/// An issuer of tokens.
pub(crate) struct Issuer(KeyPair);

impl Issuer {
    pub(crate) fn new() -> Self {
        Self(KeyPair::generate_for(&PKCS_ED25519).unwrap())
    }

    pub(crate) fn keys(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.der_bytes());
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "1", "x": x }] }).to_string()
    }

    pub(crate) fn token(&self, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({ "alg": "EdDSA", "kid": "1" })), part(claims));
        let signature = self.0.sign(signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn route_requires_a_token() {
    let (upstream, files, issuer) = (TestUpstream::start("one"), Files::new(), Issuer::new());
    let keys = files.write("keys.json", &issuer.keys());
    let options = format!(
        "jwks={}&jwt-issuer=https://issuer.test/&jwt-audience=app&jwt-claim-header=sub:X-Subject&jwt-claim-header=realm.roles:X-Roles",
        keys.display()
    );
    let appliance = gateway(&upstream, &options).start();
    let silent = call(&appliance, &[]);
    assert_eq!(
        (silent.status, silent.headers.get("www-authenticate")),
        (401, Some("Bearer realm=\"https://issuer.test/\""))
    );

    let claims = |changes: Value| {
        let mut claims = json!({ "iss": "https://issuer.test/", "aud": ["app"], "exp": now_s() + 600, "sub": "ann",
            "realm": { "roles": ["a", "b"] } });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    };
    let good = issuer.token(&claims(json!({})));
    for _ in 0..2 {
        let response = call(&appliance, &[("Authorization", &format!("Bearer {good}")), ("X-Subject", "root")]);
        assert_eq!((response.status, seen(&response, "x-subject")), (200, "ann".into()));
        assert_eq!(seen(&response, "x-roles"), "a,b");
    }
    let unnamed = issuer.token(&claims(json!({ "sub": null })));
    let response = call(&appliance, &[("Authorization", &format!("Bearer {unnamed}")), ("X-Subject", "root")]);
    assert_eq!((response.status, seen(&response, "x-subject")), (200, Value::Null), "a client cannot claim it itself");

    let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), good.split('.').nth(1).unwrap());
    for (what, token) in [
        ("expired", issuer.token(&claims(json!({ "exp": now_s() - 1 })))),
        ("not valid yet", issuer.token(&claims(json!({ "nbf": now_s() + 600 })))),
        ("of another issuer", issuer.token(&claims(json!({ "iss": "https://else.test/" })))),
        ("for another audience", issuer.token(&claims(json!({ "aud": "other" })))),
        ("by another key", Issuer::new().token(&claims(json!({})))),
        ("not signed", none),
        ("not a token", "x".to_owned()),
        ("too long", "x".repeat(17 << 10)),
    ] {
        let refused = call(&appliance, &[("Authorization", &format!("Bearer {token}"))]);
        assert_eq!(refused.status, 401, "{what}");
        assert!(refused.headers.get("www-authenticate").unwrap().ends_with("error=\"invalid_token\""), "{what}");
    }
}

/// Either is enough, and both are offered.
#[test]
fn route_accepts_passwords_and_tokens() {
    let (upstream, files, issuer) = (TestUpstream::start("one"), Files::new(), Issuer::new());
    let (keys, users) = (files.write("keys.json", &issuer.keys()), files.write("users", ANN));
    let appliance = gateway(&upstream, &format!("jwks={}&basic-auth={}", keys.display(), users.display())).start();
    let token = format!("Bearer {}", issuer.token(&json!({ "exp": now_s() + 600 })));
    for (credentials, status) in [(basic("ann:open sesame"), 200), (token, 200), ("Digest x".to_owned(), 401)] {
        assert_eq!(call(&appliance, &[("Authorization", &credentials)]).status, status, "{credentials}");
    }
}
