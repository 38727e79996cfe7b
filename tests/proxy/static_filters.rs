//! Options of `--route` that change requests and responses, or refuse clients.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, TestUpstream, http2};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

fn gateway(upstream: &TestUpstream, options: &str) -> ApplianceSetup {
    let rule = format!("{HOST}={}?{options}", upstream.address());
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1")
}

fn call(appliance: &Appliance, target: &str, fields: &[(&str, &str)]) -> HttpResponse {
    let call = HttpCall::get(target).host(HOST);
    fields.iter().fold(call, |call, (name, value)| call.header(name, value)).send(appliance.http())
}

/// The same edits for clients of both protocols, and the client's own host stays known.
#[test]
fn route_edits_requests_and_responses() {
    let upstream = TestUpstream::start("one");
    let options = "rewrite-prefix=/v1&rewrite-host=inner.test&set-header=X-Set:new&add-header=X-Add:two&remove-header=Cookie\
        &set-response-header=X-Upstream:hidden&add-response-header=X-Frame-Options:DENY&remove-response-header=Content-Type";
    let appliance = gateway(&upstream, options).start();
    let response = call(&appliance, "/a?b=/c", &[("x-set", "old"), ("X-Add", "one"), ("cookie", "a=b")]);
    let check = |seen: &Value| {
        assert_eq!((&seen["target"], &seen["headers"]["host"]), (&"/v1/a?b=/c".into(), &"inner.test".into()), "{seen}");
        let fields = ["x-set", "x-add", "cookie", "x-forwarded-host"].map(|name| seen["headers"][name].clone());
        assert_eq!(fields, ["new".into(), "one, two".into(), Value::Null, HOST.into()], "{seen}");
    };
    check(&serde_json::from_slice(&response.body).unwrap());
    let fields = ["X-Upstream", "X-Frame-Options", "Content-Type"].map(|name| response.headers.get(name));
    assert_eq!(fields, [Some("hidden"), Some("DENY"), None]);

    http2::run(async {
        let (client, _ended) = http2::H2Client::open(appliance.http()).await;
        let mut asked = http::Request::builder().uri(format!("http://{HOST}/a?b=/c")).body(()).unwrap();
        for (name, value) in [("x-set", "old"), ("x-add", "one"), ("cookie", "a=b")] {
            asked.headers_mut().append(name, value.parse().unwrap());
        }
        let (response, _) = client.begin(asked, true).await.unwrap();
        let (parts, mut body) = response.await.unwrap().into_parts();
        let mut bytes = Vec::new();
        while let Some(piece) = body.data().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        check(&serde_json::from_slice(&bytes).unwrap());
        assert_eq!(parts.headers["x-upstream"], "hidden");
        assert!(parts.headers["x-frame-options"] == "DENY" && !parts.headers.contains_key("content-type"));
    });
}

/// Header edits do not touch the framing, whatever the upstream sends.
#[test]
fn response_edits_keep_the_framing() {
    let upstream = TestServer::start(([127, 0, 0, 1], 0).into(), || {
        |_request| async { HandlerReply::Send(ReceivedMessage::new(200).chunks(vec![b"ab".to_vec(), b"c".to_vec()])) }
    });
    let rule = format!("{HOST}={}?set-response-header=X-A:1&remove-response-header=X-B", upstream.address());
    let appliance = ApplianceSetup::new(BIN).flag("route", &rule).start();
    let response = call(&appliance, "/", &[]);
    assert_eq!((response.body.as_slice(), response.headers.get("x-a")), (b"abc".as_slice(), Some("1")));
}

/// Clients are refused by their address; behind a trusted proxy, by the one that it names.
#[test]
fn route_refuses_clients_by_address() {
    let upstream = TestUpstream::start("one");
    for (options, trusted, forwarded, status) in [
        ("deny=127.0.0.0/8", false, None, 403),
        ("allow=10.0.0.0/8,127.0.0.1", false, None, 200),
        ("allow=10.0.0.0/8", false, None, 403),
        ("allow=10.0.0.0/8", false, Some("10.0.0.1"), 403),
        ("allow=10.0.0.0/8", true, Some("10.0.0.1"), 200),
        ("allow=10.0.0.0/8", true, Some("10.0.0.1, 192.0.2.1"), 403),
        ("allow=10.0.0.0/8&deny=10.0.0.1", true, Some("10.0.0.1"), 403),
        ("deny=10.0.0.0/8", true, Some("::ffff:10.0.0.1"), 403),
    ] {
        let setup = gateway(&upstream, options);
        let setup = if trusted { setup.flag("trusted-proxies", "127.0.0.1/32") } else { setup };
        let appliance = setup.start();
        let fields: Vec<_> = forwarded.iter().map(|list| ("X-Forwarded-For", *list)).collect();
        assert_eq!(call(&appliance, "/", &fields).status, status, "{options} {forwarded:?}");
        assert_eq!(appliance.metric("sluicegate_refused_total", "client_denied"), u64::from(status == 403));
    }
}
