//! Options of `--route` that ask an authorization service.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use kit::message::HttpRequest;
use kit::server::{HandlerReply, ReceivedMessage, TestServer, closed_address};
use kit::tls::TlsFront;
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, TestUpstream, http2};

use crate::tls::client::TlsAuthority;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

/// A service that permits requests with the cookie `ann`, and sends others to a login.
pub(crate) struct AuthService {
    server: TestServer,
    asked: Receiver<HttpRequest>,
}

impl AuthService {
    pub(crate) fn start() -> Self {
        let (sender, asked) = channel::<HttpRequest>();
        let server = TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), move || {
            move |request: HttpRequest| decide(request, sender.clone())
        });
        Self { server, asked }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The next request that it was asked about.
    pub(crate) fn asked(&self) -> HttpRequest {
        self.asked.recv_timeout(kit::TIMEOUT).unwrap()
    }

    fn has_been_asked(&self) -> bool {
        self.asked.try_recv().is_ok()
    }
}

async fn decide(request: HttpRequest, asked: Sender<HttpRequest>) -> HandlerReply {
    let is_ann = request.headers.get("cookie") == Some("ann");
    asked.send(request).unwrap();
    HandlerReply::Send(if is_ann {
        ReceivedMessage::new(200).header("X-User", "ann").header("X-Secret", "no").body("ok")
    } else {
        ReceivedMessage::new(302)
            .header("Location", "https://login.example.com/")
            .header("Set-Cookie", "s=1")
            .header("Set-Cookie", "t=2")
            .body("log in")
    })
}

fn gateway(upstream: &TestUpstream, options: &str) -> ApplianceSetup {
    let rule = format!("{HOST}={}?{options}", upstream.address());
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1")
}

fn call(appliance: &Appliance, fields: &[(&str, &str)]) -> HttpResponse {
    let call = HttpCall::get("/private?x=1").host(HOST);
    fields.iter().fold(call, |call, (name, value)| call.header(name, value)).send(appliance.http())
}

#[test]
fn service_permits_or_answers_the_client() {
    let (upstream, service) = (TestUpstream::start("one"), AuthService::start());
    let options = format!("forward-auth=http://{}/verify&forward-auth-response-headers=X-User", service.address());
    let appliance = gateway(&upstream, &options).start();

    let forged = [("x-user", "root"), ("x-forwarded-for", "10.0.0.1"), ("x-forwarded-uri", "/public")];
    let refused = call(&appliance, &forged);
    assert_eq!((refused.status, refused.header("location")), (302, Some("https://login.example.com/")));
    assert_eq!((refused.text(), upstream.requests()), ("log in".into(), 0));
    let asked = service.asked();
    assert_eq!((asked.method.as_str(), asked.target.as_str(), asked.body.len()), ("GET", "/verify", 0));
    for (name, value) in [
        ("host", service.address().to_string().as_str()),
        ("x-forwarded-method", "GET"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", HOST),
        ("x-forwarded-uri", "/private?x=1"),
        ("x-forwarded-for", "127.0.0.1"),
    ] {
        assert_eq!(asked.headers.get(name), Some(value), "{name}");
    }

    let call = HttpCall::post("/private").host(HOST).header("cookie", "ann").header("x-user", "root").body("abc");
    let permitted = call.send(appliance.http());
    let seen = permitted.json();
    assert_eq!((permitted.status, &seen["headers"]["x-user"], &seen["body"]), (200, &"ann".into(), &"abc".into()));
    assert!(seen["headers"]["x-secret"].is_null() && upstream.requests() == 1);
    assert_eq!(service.asked().headers.get("x-forwarded-method"), Some("POST"));
    assert_eq!(appliance.metric("sluicegate_refused_total", "authorization_denied"), 1);

    http2::run(async {
        let (client, _ended) = http2::H2Client::open(appliance.http()).await;
        for (cookie, status) in [("ann", 200), ("bob", 302)] {
            let asked = http::Request::get(format!("http://{HOST}/")).header("cookie", cookie).body(()).unwrap();
            let (response, _) = client.begin(asked, true).await.unwrap();
            assert_eq!(response.await.unwrap().status(), status, "{cookie}");
        }
    });
}

/// Passwords come first: who has none costs the service nothing.
#[test]
fn service_is_asked_after_other_checks() {
    let (upstream, service, folder) = (TestUpstream::start("one"), AuthService::start(), tempfile::tempdir().unwrap());
    let users = folder.path().join("users");
    std::fs::write(&users, crate::route_authentication::ANN).unwrap();
    let options = format!("forward-auth=http://{}&basic-auth={}", service.address(), users.display());
    let appliance = gateway(&upstream, &options).start();
    assert_eq!((call(&appliance, &[]).status, service.has_been_asked()), (401, false));
    let credentials = crate::route_authentication::basic("ann:open sesame");
    let login = [("authorization", credentials.as_str())];
    assert_eq!(call(&appliance, &login).status, 302);
    assert_eq!(call(&appliance, &[login[0], ("cookie", "ann")]).status, 200);
    assert_eq!(service.asked().headers.get("authorization"), Some(login[0].1));
}

#[test]
fn failure_of_the_service_closes_the_route_unless_it_may_pass() {
    let upstream = TestUpstream::start("one");
    let slow = TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), || |_| std::future::pending::<HandlerReply>());
    for service in [closed_address(), slow.address()] {
        for (mode, status) in [("503", 503), ("403", 403), ("allow", 200)] {
            let options = format!(
                "forward-auth=http://{service}&forward-auth-timeout=200ms&forward-auth-failure-mode={mode}\
                 &forward-auth-response-headers=X-User"
            );
            let appliance = gateway(&upstream, &options).start();
            let response = call(&appliance, &[("x-user", "root")]);
            assert_eq!(response.status, status, "{service} {mode}");
            if status == 200 {
                assert!(response.json()["headers"]["x-user"].is_null());
            } else {
                assert_eq!(appliance.metric("sluicegate_refused_total", "authorization_unavailable"), 1);
            }
            appliance.wait_says("authorization service cannot be asked");
        }
    }
}

/// The service must not be the appliance itself, whose API trusts its callers.
#[test]
fn own_listeners_and_metadata_services_are_not_asked() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream, "forward-auth=http://169.254.169.254/").start();
    assert_eq!(call(&appliance, &[("cookie", "ann")]).status, 503);
    appliance.wait_says("169.254.169.254:80 is refused");
    let api = closed_address();
    let refused = gateway(&upstream, &format!("forward-auth=http://{api}/")).flag("api", &api.to_string()).refused();
    assert!(refused.stderr.contains("it is the API listener of this appliance"), "{}", refused.stderr);
}

#[test]
fn service_is_verified_by_its_certificate() {
    let (upstream, service, authority) = (TestUpstream::start("one"), AuthService::start(), TlsAuthority::new());
    let files = authority.issue("service", "localhost");
    let (chain, key) = files.split_once(',').unwrap();
    let [chain, key] = [chain, key].map(|file| std::fs::read(file).unwrap());
    let front = TlsFront::start(&chain, &key, &[b"http/1.1"], service.address());
    let other = TlsAuthority::new();
    for (authority, status) in [(&authority, 200), (&other, 503)] {
        let (port, ca) = (front.address().port(), authority.own_file());
        let options = format!("forward-auth=https://localhost:{port}/&forward-auth-ca={}", ca.display());
        let appliance = gateway(&upstream, &options).start();
        assert_eq!(call(&appliance, &[("cookie", "ann")]).status, status);
    }
}

/// A reload that names another service asks that one.
#[test]
fn reload_changes_the_service() {
    let (upstream, service, folder) = (TestUpstream::start("one"), AuthService::start(), tempfile::tempdir().unwrap());
    let config = folder.path().join("config.toml");
    let write = |options: &str| {
        std::fs::write(&config, format!("workers = 1\nroute = \"{HOST}={}{options}\"\n", upstream.address())).unwrap();
    };
    write("");
    let appliance = ApplianceSetup::new(BIN).flag("config", config.to_str().unwrap()).start();
    assert_eq!(call(&appliance, &[]).status, 200);
    write(&format!("?forward-auth=http://localhost:{}/", service.address().port()));
    kit::wait::until(kit::TIMEOUT, "the refusal", || (call(&appliance, &[]).status == 302).then_some(()));
    write("");
    kit::wait::until(kit::TIMEOUT, "the open route", || (call(&appliance, &[]).status == 200).then_some(()));
}
