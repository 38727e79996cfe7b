//! Authentication of event senders and of deliveries: through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, channel, subscription, trigger, with};
use kit::scene::{BROKER, SILENCE, ids};
use kit::{
    Appliance, ApplianceSetup, EventSink, HttpCall, HttpResponse, KitApi, ReceivedRequest, SinkResponse, TIMEOUT,
    TestEvent, wait,
};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// The audience of tokens for the Broker `main`.
const MAIN: &str = "eventing.knative.dev/broker/default/main";

pub(crate) fn features(appliance: &Appliance, words: &Value) {
    let data = json!({ "data": words });
    appliance.api().patch("ConfigMap", "knative-eventing", "config-features", &data);
}

/// An appliance that asks, with a Broker `main`.
fn server(mode: &str) -> Appliance {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "2").start();
    features(&appliance, &json!({ "authentication-oidc": "enabled", "default-authorization-mode": mode }));
    appliance.api().create(&broker("main"));
    asking(appliance.api(), "Broker", "main");
    appliance
}

/// Waits until the object is ready and its address names an audience.
pub(crate) fn asking(api: KitApi, kind: &str, name: &str) -> Value {
    api.wait_for(kind, NAMESPACE, name, TIMEOUT, |object| {
        kit::api::is_ready(object) && object["status"]["address"]["audience"].is_string()
    })
}

pub(crate) fn account(api: KitApi, namespace: &str, name: &str) {
    let metadata = json!({ "name": name, "namespace": namespace });
    api.create(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }));
}

pub(crate) fn token(api: KitApi, namespace: &str, name: &str, audience: &str) -> String {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [audience], "expirationSeconds": 3600 },
    });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let answer = HttpCall::post(&path).json(&request).send(api.address());
    assert_eq!(answer.status, 201, "{answer}");
    answer.json()["status"]["token"].as_str().unwrap().to_owned()
}

fn send(appliance: &Appliance, path: &str, id: &str, token: &str) -> HttpResponse {
    let mut call = TestEvent::new(id).binary(path);
    if !token.is_empty() {
        call = call.header("Authorization", &format!("Bearer {token}"));
    }
    call.send(appliance.events())
}

pub(crate) fn policy(name: &str, spec: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    json!({ "apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventPolicy", "metadata": metadata, "spec": spec })
}

/// Waits until an event is answered so.
fn comes_to(appliance: &Appliance, path: &str, token: &str, status: u16) {
    wait::until(TIMEOUT, &format!("{path} to answer {status}"), || {
        (send(appliance, path, "probe", token).status == status).then_some(())
    });
}

/// The claims of a token; its signature is checked elsewhere.
fn claims(token: &str) -> Value {
    let body = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap()
}

/// X-FEA-07: a PingSource sends to a Broker that asks, under an account of its own, which a policy can name by the source.
#[test]
fn a_ping_source_says_who_it_is() {
    let appliance = server("deny-all");
    let api = appliance.api();
    let sink = EventSink::start();
    api.create(&trigger("t", "main", &sink.url()));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    let to = json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" } });
    let metadata = json!({ "name": "clock", "namespace": NAMESPACE });
    api.create(&json!({ "apiVersion": "sources.knative.dev/v1", "kind": "PingSource", "metadata": metadata,
        "spec": { "schedule": "* * * * * *", "data": "tick", "sink": to } }));
    let source = api.wait_ready("PingSource", NAMESPACE, "clock", TIMEOUT);
    let account = "clock-oidc-sources.knative.dev-pingsource";
    assert_eq!(source["status"]["auth"]["serviceAccountName"], account);
    assert_eq!(source["status"]["sinkAudience"], MAIN);
    assert_eq!(condition(&source, "OIDCIdentityCreated").unwrap()["status"], "True");

    let from = json!({ "apiVersion": "sources.knative.dev/v1", "kind": "PingSource", "name": "clock" });
    api.create(&policy("clocks", json!({ "from": [{ "ref": from }] })));
    let event = &sink.wait_for(1, TIMEOUT)[0];
    assert_eq!(event.attribute("type").as_deref(), Some("dev.knative.sources.ping"));
    features(&appliance, &json!({ "authentication-oidc": "disabled" }));
    api.wait_for("PingSource", NAMESPACE, "clock", TIMEOUT, |source| source["status"]["auth"].is_null());
}

/// DP-ACK-05, DP-ACK-06, X-FEA-07, X-FEA-08: without a token, with a bad one, or with one for another audience: 401 and
/// what is missing; from another namespace: 403; nothing of it is stored.
#[test]
fn senders_have_to_say_who_they_are() {
    let appliance = server("allow-same-namespace");
    let api = appliance.api();
    let sink = EventSink::start();
    api.create(&trigger("t", "main", &sink.url()));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    let broker = asking(api, "Broker", "main");
    assert_eq!(broker["status"]["address"]["audience"], MAIN);
    let said = condition(&broker, "EventPoliciesReady").unwrap();
    assert_eq!((&said["status"], &said["reason"]), (&json!("True"), &json!("DefaultAuthorizationMode")));

    account(api, NAMESPACE, "robot");
    account(api, "kube-system", "stranger");
    let good = token(api, NAMESPACE, "robot", MAIN);
    let wrong_audience = token(api, NAMESPACE, "robot", "eventing.knative.dev/broker/default/other");
    let unauthorized = token(api, "kube-system", "stranger", MAIN);
    comes_to(&appliance, BROKER, &good, 202);
    let forged = format!("{}.{}", good.rsplit_once('.').unwrap().0, wrong_audience.rsplit_once('.').unwrap().1);
    for (shown, status, reported) in [
        ("", 401, "Authorization: Bearer"),
        ("nonsense", 401, "the token is malformed"),
        (forged.as_str(), 401, "unknown issuer"),
        (wrong_audience.as_str(), 401, MAIN),
        (unauthorized.as_str(), 403, "system:serviceaccount:kube-system:stranger"),
        (good.as_str(), 202, ""),
    ] {
        let answer = send(&appliance, BROKER, "known", shown);
        assert_eq!(answer.status, status, "{answer}");
        assert!(answer.text().contains(reported), "{reported}: {answer}");
        let challenge = answer.headers.get("www-authenticate");
        assert_eq!(challenge.is_some_and(|text| text.starts_with("Bearer ")), status == 401, "{answer}");
    }
    let unread = HttpCall::post(BROKER).body("no event").send(appliance.events());
    assert_eq!(unread.status, 401, "who it is comes before what it says");
    assert_eq!(HttpCall::new("OPTIONS", BROKER).send(appliance.events()).status, 200);
    // It comes before the body too, which would take memory of the senders that have a token.
    let mut client = std::net::TcpStream::connect(appliance.events()).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(client, "POST {BROKER} HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\npart").unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 401");
    assert_eq!(send(&appliance, "/brokers/default/none", "1", "").status, 404);
    sink.wait_until(TIMEOUT, |all| all.iter().any(|one| one.id() == "known")).unwrap();
    let known = |all: &[ReceivedRequest]| all.iter().filter(|one| one.id() == "known").count();
    let twice = sink.wait_until(SILENCE, |all| known(all) > 1);
    assert!(twice.is_err(), "what was refused came through");
    assert!(appliance.metric("sluicegate_stream_unauthorized_total", BROKER) >= 5);
}

/// DP-ACK-06, X-FEA-09: the senders in a policy, and no others, may send what its filters match; it is listed on what
/// it protects, and rejected while authentication is off.
#[test]
fn a_policy_says_who_may_send_what() {
    let off = ApplianceSetup::new(BIN).start();
    let refused = off.api().try_create(&policy("p", json!({ "from": [{ "sub": "*" }] })));
    assert!(refused.status == 422 && refused.text().contains("authentication-oidc"), "{refused}");
    drop(off);

    let appliance = server("allow-all");
    let api = appliance.api();
    for (namespace, name) in [(NAMESPACE, "robot"), ("kube-system", "friend")] {
        account(api, namespace, name);
    }
    let (robot, friend) = (token(api, NAMESPACE, "robot", MAIN), token(api, "kube-system", "friend", MAIN));
    comes_to(&appliance, BROKER, &robot, 202);
    assert_eq!(send(&appliance, BROKER, "1", &friend).status, 202, "allow-all");
    assert_eq!(send(&appliance, BROKER, "1", "").status, 401, "and yet everybody is asked");

    let to = json!([{ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" } }]);
    let spec = json!({
        "to": to, "from": [{ "sub": "system:serviceaccount:kube-system:fr*" }],
        "filters": [{ "prefix": { "id": "fine" } }],
    });
    api.create(&policy("friends", spec));
    let ready = api.wait_ready("EventPolicy", NAMESPACE, "friends", TIMEOUT);
    assert_eq!(ready["status"]["from"], json!(["system:serviceaccount:kube-system:fr*"]));
    let listed = api.wait_for("Broker", NAMESPACE, "main", TIMEOUT, |object| {
        object["status"]["policies"].as_array().is_some_and(|all| !all.is_empty())
    });
    let named = json!([{ "apiVersion": "eventing.knative.dev/v1alpha1", "name": "friends" }]);
    assert_eq!(listed["status"]["policies"], named);
    comes_to(&appliance, BROKER, &robot, 403);
    assert_eq!(send(&appliance, BROKER, "fine-1", &friend).status, 202);
    assert_eq!(send(&appliance, BROKER, "other", &friend).status, 403, "the filter");

    let missing = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "name": "none" });
    api.create(&policy("vague", json!({ "to": to, "from": [{ "ref": missing }] })));
    let unready = api.wait_for("Broker", NAMESPACE, "main", TIMEOUT, |object| {
        condition(object, "EventPoliciesReady").is_some_and(|one| one["status"] == "False")
    });
    let why = condition(&unready, "EventPoliciesReady").unwrap();
    assert_eq!(why["reason"], "EventPoliciesNotReady");
    assert!(why["message"].as_str().unwrap().contains("vague"), "{why}");
    for name in ["friends", "vague"] {
        api.delete("EventPolicy", NAMESPACE, name);
    }
    comes_to(&appliance, BROKER, &robot, 202);
}

/// X-FEA-07: a Trigger sends under an account of its own, to a sink that asks as well as to another Broker, whose
/// policy knows it by its Trigger; what it shows can be checked by the published keys' names.
#[test]
fn deliveries_show_who_sends_them() {
    let appliance = server("deny-all");
    let api = appliance.api();
    let (sink, end, dead) =
        (EventSink::start(), EventSink::start(), EventSink::answering(|_| SinkResponse::status(202)));
    api.create(&broker("second"));
    asking(api, "Broker", "second");
    let audience = json!({ "uri": sink.url(), "audience": "my-sink" });
    api.create(&with(trigger("shown", "main", &sink.url()), "/spec/subscriber", audience));
    let second = json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "second" } });
    let mut bridge = with(trigger("bridge", "main", ""), "/spec/subscriber", second);
    bridge = with(
        bridge,
        "/spec/delivery",
        json!({ "retry": 0, "deadLetterSink": { "uri": dead.url(), "audience": "dead" } }),
    );
    api.create(&bridge);
    api.create(&trigger("end", "second", &end.url()));
    for name in ["shown", "bridge", "end"] {
        api.wait_ready("Trigger", NAMESPACE, name, TIMEOUT);
    }
    let reported = api.get("Trigger", NAMESPACE, "bridge").unwrap();
    let name = "bridge-oidc-eventing.knative.dev-trigger";
    assert_eq!(reported["status"]["auth"]["serviceAccountName"], name);
    assert_eq!(reported["status"]["subscriberAudience"], "eventing.knative.dev/broker/default/second");
    assert_eq!(reported["status"]["deadLetterSinkAudience"], "dead");
    assert_eq!(condition(&reported, "OIDCIdentityCreated").unwrap()["status"], "True");
    let made = api.get("ServiceAccount", NAMESPACE, name).unwrap();
    assert_eq!(made["metadata"]["ownerReferences"][0]["kind"], "Trigger");

    account(api, NAMESPACE, "robot");
    let robot = token(api, NAMESPACE, "robot", MAIN);
    let to =
        |name: &str| json!([{ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": name } }]);
    api.create(&policy("in", json!({ "to": to("main"), "from": [{ "sub": "system:serviceaccount:default:robot" }] })));
    comes_to(&appliance, BROKER, &robot, 202);
    // The Trigger is not authorized yet: 403 is not retried, and the dead letter shows the sender.
    let letter = dead.wait_for(1, TIMEOUT).remove(0);
    assert_eq!(letter.attribute("knativeerrorcode").as_deref(), Some("403"));
    assert_eq!(claims(&letter.header("authorization").unwrap()["Bearer ".len()..])["aud"], json!(["dead"]));

    let reference = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "name": "bridge" });
    api.create(&policy("between", json!({ "to": to("second"), "from": [{ "ref": reference }] })));
    let ready = api.wait_ready("EventPolicy", NAMESPACE, "between", TIMEOUT);
    assert_eq!(ready["status"]["from"], json!([format!("system:serviceaccount:default:{name}")]));
    asking(api, "Broker", "second");
    wait::until(TIMEOUT, "an event to pass both Brokers", || {
        assert_eq!(send(&appliance, BROKER, "through", &robot).status, 202);
        end.wait_until(SILENCE, |all| all.iter().any(|one| one.id() == "through")).ok()
    });
    let shown = sink.wait_for(1, TIMEOUT).remove(0);
    let token = shown.header("authorization").unwrap().strip_prefix("Bearer ").unwrap().to_owned();
    let said = claims(&token);
    assert_eq!(said["sub"], "system:serviceaccount:default:shown-oidc-eventing.knative.dev-trigger");
    assert_eq!(said["aud"], json!(["my-sink"]));
    let keys = HttpCall::get("/openid/v1/jwks").send(api.address()).json();
    let head = token.split('.').next().unwrap();
    let head: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).unwrap()).unwrap();
    assert_eq!((&head["kid"], &head["alg"]), (&keys["keys"][0]["kid"], &json!("ES256")));
    assert!(end.received().iter().all(|one| one.header("authorization").is_none()), "nobody asked there");

    features(&appliance, &json!({ "authentication-oidc": "disabled" }));
    comes_to(&appliance, BROKER, "", 202);
    api.wait_gone("ServiceAccount", NAMESPACE, name, TIMEOUT);
    let reported = api.wait_for("Trigger", NAMESPACE, "bridge", TIMEOUT, |object| object["status"]["auth"].is_null());
    assert_eq!(condition(&reported, "OIDCIdentityCreated").unwrap()["reason"], "AuthenticationOIDCDisabled");
}

/// X-FEA-07, X-FEA-09: a channel's reply and a flow's steps show their Subscription's account; a flow's own steps reach each
/// other whatever the policies say, and no other sender is accepted.
#[test]
fn channels_and_flows_let_their_own_parts_in() {
    let appliance = server("deny-all");
    let api = appliance.api();
    let step = |name: &'static str| {
        EventSink::answering(move |event| {
            let id = format!("{}-{name}", event.id());
            let attributes = [("specversion", "1.0"), ("id", &id), ("source", "/kit"), ("type", "kit.test")];
            SinkResponse::event(200, &attributes, &json!({}))
        })
    };
    let (first, second, last) = (step("a"), step("b"), EventSink::start());
    api.create(&channel("out"));
    asking(api, "Channel", "out");
    api.create(&subscription("last", "out", &last.url()));
    let reply = json!({ "ref": { "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "out" } });
    let metadata = json!({ "name": "f", "namespace": NAMESPACE });
    let spec = json!({ "steps": [{ "uri": first.url() }, { "uri": second.url() }], "reply": reply });
    let sequence =
        json!({ "apiVersion": "flows.knative.dev/v1", "kind": "Sequence", "metadata": metadata, "spec": spec });
    api.create(&sequence);
    let flow = asking(api, "Sequence", "f");
    let audience = "messaging.knative.dev/inmemorychannel/default/f-kn-sequence-0";
    assert_eq!(flow["status"]["address"]["audience"], audience, "its first channel's, as upstream");
    account(api, NAMESPACE, "robot");
    let from = json!([{ "sub": "system:serviceaccount:default:robot" }]);
    let to = |group: &str, kind: &str, name: &str| json!([{ "ref": { "apiVersion": format!("{group}/v1"), "kind": kind, "name": name } }]);
    api.create(&policy("flow", json!({ "to": to("flows.knative.dev", "Sequence", "f"), "from": from })));
    let end = json!({ "apiVersion": "messaging.knative.dev/v1", "kind": "Subscription", "name": "f-kn-sequence-1" });
    api.create(&policy(
        "out",
        json!({ "to": to("messaging.knative.dev", "Channel", "out"), "from": [{ "ref": end }] }),
    ));
    api.wait_ready("EventPolicy", NAMESPACE, "out", TIMEOUT);
    asking(api, "Channel", "out");

    let path = "/channels/default/f-kn-sequence-0";
    comes_to(&appliance, path, &token(api, NAMESPACE, "robot", "flows.knative.dev/sequence/default/f"), 202);
    let robot = token(api, NAMESPACE, "robot", audience);
    comes_to(&appliance, path, &robot, 202);
    wait::until(TIMEOUT, "an event to pass the flow", || {
        assert_eq!(send(&appliance, path, "1", &robot).status, 202);
        last.wait_until(SILENCE, |all| ids(all).contains(&"1-a-b".to_owned())).ok()
    });
    let between = token(api, NAMESPACE, "robot", "messaging.knative.dev/inmemorychannel/default/f-kn-sequence-1");
    assert_eq!(send(&appliance, "/channels/default/f-kn-sequence-1", "1", &between).status, 403);
}

/// X-FEA-07: a restarted appliance requires tokens from its start on, and accepts those it signed before.
#[test]
fn restart_admits_no_unauthorized_sender() {
    let mut appliance = server("allow-same-namespace");
    let sink = EventSink::start();
    let audience = json!({ "uri": sink.url(), "audience": "my-sink" });
    appliance.api().create(&with(trigger("t", "main", &sink.url()), "/spec/subscriber", audience));
    appliance.api().wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    account(appliance.api(), NAMESPACE, "robot");
    let robot = token(appliance.api(), NAMESPACE, "robot", MAIN);
    comes_to(&appliance, BROKER, &robot, 202);
    appliance.restart();
    assert_eq!(send(&appliance, BROKER, "stranger", "").status, 401);
    assert_eq!(send(&appliance, BROKER, "after", &robot).status, 202);
    let all = sink.wait_until(TIMEOUT, |all| all.iter().any(|one| one.id() == "after")).unwrap();
    assert!(all.iter().all(|one| one.header("authorization").is_some_and(|value| value.starts_with("Bearer "))));
}

/// EV-TRG-07, X-FEA-07: a subscriber that is lost is sent its events as before, token and all, also by the next start.
#[test]
fn a_lost_subscriber_is_shown_the_same_account_after_a_restart() {
    let mut appliance = server("allow-same-namespace");
    let api = appliance.api();
    let sink = EventSink::start();
    // Another owner's Broker: neither its address nor what is behind it is checked here.
    let class = "/metadata/annotations/eventing.knative.dev~1broker.class";
    api.create(&with(broker("foreign"), class, json!("Foreign")));
    let status = json!({ "status": { "address": { "url": sink.url(), "audience": "my-sink" } } });
    let path = format!("{}/status", KitApi::path("Broker", NAMESPACE, "foreign"));
    let patch = HttpCall::new("PATCH", &path).header("Content-Type", "application/merge-patch+json");
    let answer = patch.body(status.to_string()).send(api.address());
    assert_eq!(answer.status, 200, "{answer}");
    let to = json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "foreign" } });
    api.create(&with(trigger("t", "main", ""), "/spec/subscriber", to));
    let ready = api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    assert_eq!(ready["status"]["subscriberAudience"], "my-sink");
    api.delete("Broker", NAMESPACE, "foreign");
    let lost = api.wait_for("Trigger", NAMESPACE, "t", TIMEOUT, |object| {
        condition(object, "SubscriberResolved").is_some_and(|one| one["status"] == "False")
    });
    for field in ["subscriberUri", "subscriberAudience"] {
        assert!(lost["status"][field].is_null(), "{lost:#}");
    }
    account(api, NAMESPACE, "robot");
    let robot = token(api, NAMESPACE, "robot", MAIN);
    comes_to(&appliance, BROKER, &robot, 202);
    appliance.restart();
    assert_eq!(send(&appliance, BROKER, "after", &robot).status, 202);
    let all = sink.wait_until(TIMEOUT, |all| ids(all).contains(&"after".to_owned())).unwrap();
    for one in all {
        let shown = one.header("authorization").unwrap_or_else(|| panic!("{} came without a token", one.id()));
        assert_eq!(claims(shown.strip_prefix("Bearer ").unwrap())["aud"], json!(["my-sink"]));
    }
}

/// X-FEA-07: an appliance that follows this API, under no more than the account that is there for it, asks senders for
/// the same tokens and shows its own.
#[test]
fn a_follower_asks_who_comes_and_shows_who_it_is() {
    let home = server("allow-same-namespace");
    let api = home.api();
    let sink = EventSink::start();
    let to = json!({ "uri": sink.url(), "audience": "my-sink" });
    api.create(&with(trigger("t", "main", ""), "/spec/subscriber", to));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    account(api, NAMESPACE, "robot");
    let robot = token(api, NAMESPACE, "robot", MAIN);

    let own = token(api, "knative-serving", "sluicegate", "https://kubernetes.default.svc.cluster.local");
    let printed = std::process::Command::new(BIN)
        .args(["kubeconfig", "--api", &api.address().to_string(), "--token", &own])
        .output()
        .unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let setup = ApplianceSetup::new(BIN).flag("workers", "1");
    let kubeconfig = setup.write_file("kubeconfig", &String::from_utf8(printed.stdout).unwrap());
    let follower = setup.flag("kubeconfig", &kubeconfig.display().to_string()).start();
    comes_to(&follower, BROKER, &robot, 202);
    assert_eq!(send(&follower, BROKER, "stranger", "").status, 401);
    assert_eq!(send(&follower, BROKER, "followed", &robot).status, 202);
    let all = sink.wait_until(TIMEOUT, |all| ids(all).contains(&"followed".to_owned())).unwrap();
    let shown = all.iter().find(|one| one.id() == "followed").unwrap().header("authorization").unwrap();
    let said = claims(shown.strip_prefix("Bearer ").unwrap());
    assert_eq!(said["sub"], "system:serviceaccount:default:t-oidc-eventing.knative.dev-trigger");
    assert!(!ids(&all).contains(&"stranger".to_owned()));
}

/// EV-RTE-15: a reply does not pass the ingress, so it needs no token, whatever the policies say.
#[test]
fn a_reply_passes_no_listener() {
    let appliance = server("deny-all");
    let api = appliance.api();
    let step = EventSink::answering(|event| {
        let attributes = [("specversion", "1.0"), ("id", "answer"), ("source", "/kit"), ("type", "kit.answer")];
        if event.id() == "answer" {
            SinkResponse::status(202)
        } else {
            SinkResponse::event(200, &attributes, &json!({}))
        }
    });
    api.create(&trigger("t", "main", &step.url()));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    account(api, NAMESPACE, "robot");
    let robot = token(api, NAMESPACE, "robot", MAIN);
    let from = json!([{ "sub": "system:serviceaccount:default:robot" }]);
    api.create(&policy("in", json!({ "from": from })));
    comes_to(&appliance, BROKER, &robot, 202);
    step.wait_until(TIMEOUT, |all| ids(all).contains(&"answer".to_owned())).unwrap();
}
