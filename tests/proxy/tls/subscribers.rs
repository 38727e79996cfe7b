//! Deliveries by TLS: `https` subscribers, reply targets and dead letter sinks, and the authorities that verify them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kit::manifest::{NAMESPACE, channel, subscription, trigger, with};
use kit::scene::{ids, post, subscribe, with_broker};

use kit::tls::TlsFront;
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, ReceivedRequest, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

use super::client::{BIN, TlsAuthority};
use super::instances::front;

fn url(front: &TlsFront, host: &str, path: &str) -> String {
    format!("https://{host}:{}{path}", front.address().port())
}

/// An appliance whose system trust store is `file`, whatever this host trusts.
fn believing(file: &str) -> ApplianceSetup {
    ApplianceSetup::new(BIN).env("SSL_CERT_FILE", file).env("SSL_CERT_DIR", "/nowhere")
}

/// A Broker on one core, with `authority` as the only trusted authority.
fn server(authority: &TlsAuthority) -> Appliance {
    let file = authority.own_file();
    with_broker(&believing(&file.display().to_string()).flag("workers", "1"))
}

fn with_certificates(uri: &str, authority: &TlsAuthority) -> Value {
    json!({ "uri": uri, "CACerts": authority.pem() })
}

/// EV-ADR-04, X-FEA-05: an `https` subscriber that the Trigger's own `CACerts` vouch for gets its events over one kept
/// connection, under its own name, and again after a restart.
#[test]
fn a_subscriber_is_reached_by_tls_and_its_connection_is_kept() {
    let (authority, sink) = (TlsAuthority::new(), EventSink::start());
    let front = front(&authority, "sub.localhost", &[], sink.address());
    let elsewhere = TlsAuthority::new();
    let mut appliance = server(&elsewhere);
    let uri = url(&front, "sub.localhost", "/in?x=1");
    let to = with_certificates(&uri, &authority);
    let ready = subscribe(appliance.api(), "t", "http://unused/", &[("/spec/subscriber", to)]);
    assert_eq!(ready["status"]["subscriberUri"], uri);
    assert_eq!(ready["status"]["subscriberCACerts"], authority.pem());
    for n in 1..=10 {
        post(&appliance, &TestEvent::new(&n.to_string()));
        wait::until(TIMEOUT, "an answer", || {
            (appliance.metric("sluicegate_subscriber_delivered_total", "default/t") == n).then_some(())
        });
    }
    assert_eq!((front.handshakes(), front.named()), ((1, 0, 0), vec!["sub.localhost".to_owned()]));
    let got = sink.received().remove(0);
    let authority_of = format!("sub.localhost:{}", front.address().port());
    assert_eq!((got.request.target.as_str(), got.header("host")), ("/in?x=1", Some(authority_of.as_str())));
    assert_eq!(appliance.metric("sluicegate_subscriber_tls_verification_failures_total", "default/t"), 0);

    appliance.restart();
    post(&appliance, &TestEvent::new("after"));
    sink.wait_until(TIMEOUT, |all| ids(all).contains(&"after".to_owned())).unwrap();
}

/// What went wrong, as a dead letter tells it.
fn reported(letter: &ReceivedRequest) -> String {
    let data = letter.attribute("knativeerrordata").unwrap();
    String::from_utf8(STANDARD.decode(data).unwrap()).unwrap()
}

/// X-DLV-08: a subscriber with a wrong name or an untrusted certificate gets no byte of an event: that is a failure like
/// others, with its cause in the dead letter, the log and a counter; and is repaired in place.
#[test]
fn who_cannot_prove_who_it_is_gets_nothing() {
    let (authority, unauthorized) = (TlsAuthority::new(), TlsAuthority::new());
    let (sink, dead) = (EventSink::start(), EventSink::start());
    let listener = front(&authority, "sub.localhost", &[], sink.address());
    let dead_listener = front(&authority, "dead.localhost", &[], dead.address());
    let appliance = server(&unauthorized);
    let api = appliance.api();
    let letters = with_certificates(&url(&dead_listener, "dead.localhost", "/"), &authority);
    let options =
        json!({ "retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT0.01S", "deadLetterSink": letters });
    let right = url(&listener, "sub.localhost", "/");
    for (name, to) in [
        ("stranger", with_certificates(&right, &unauthorized)),
        ("nobody", json!({ "uri": right })),
        ("misnamed", with_certificates(&url(&listener, "other.localhost", "/"), &authority)),
    ] {
        let changes = [("/spec/subscriber", to), ("/spec/delivery", options.clone())];
        let ready = subscribe(api, name, "http://unused/", &changes);
        assert_eq!(ready["status"]["deadLetterSinkCACerts"], authority.pem());
    }
    post(&appliance, &TestEvent::new("1"));
    for letter in dead.wait_for(3, TIMEOUT) {
        assert_eq!(letter.attribute("knativeerrorcode").as_deref(), Some("500"));
        let why = reported(&letter);
        assert!(why.starts_with("dispatch error: ") && why.contains("TLS verification of "), "{why}");
    }
    assert!(sink.received().is_empty());
    for name in ["default/stranger", "default/nobody", "default/misnamed"] {
        assert_eq!(appliance.metric("sluicegate_subscriber_tls_verification_failures_total", name), 2, "{name}");
    }
    appliance.wait_says("TLS verification of ");

    for name in ["nobody", "misnamed"] {
        api.delete("Trigger", NAMESPACE, name);
    }
    api.patch("Trigger", NAMESPACE, "stranger", &json!({ "spec": { "subscriber": { "CACerts": authority.pem() } } }));
    api.wait_for("Trigger", NAMESPACE, "stranger", TIMEOUT, |object| {
        object["status"]["subscriberCACerts"] == authority.pem()
    });
    post(&appliance, &TestEvent::new("2"));
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["2"]);
}

/// EV-ADR-02, X-FEA-05: a Subscription's subscriber, its reply and its dead letter sink, each by TLS; a core Service
/// with `CACerts` in addition is one by its name.
#[test]
fn all_three_of_a_subscription_are_reached_by_tls() {
    let authority = TlsAuthority::new();
    let step = EventSink::answering(|event| match event.id().as_str() {
        "bad" => SinkResponse::status(400),
        _ => {
            let attributes = [("specversion", "1.0"), ("id", "answer"), ("source", "/kit"), ("type", "kit.test")];
            SinkResponse::event(200, &attributes, &json!({}))
        }
    });
    let (reply, dead) = (EventSink::start(), EventSink::start());
    let core = "core.default.svc.cluster.local";
    let listener = front(&authority, core, &[], step.address());
    let reply_listener = front(&authority, "reply.localhost", &[], reply.address());
    let dead_listener = front(&authority, "127.0.0.1", &[], dead.address());
    let elsewhere = TlsAuthority::new();
    let appliance = server(&elsewhere);
    let api = appliance.api();
    let put = |plural: &str, body: Value| {
        let answer =
            HttpCall::post(&format!("/api/v1/namespaces/{NAMESPACE}/{plural}")).json(&body).send(api.address());
        assert_eq!(answer.status, 201, "{answer}");
    };
    let metadata = json!({ "name": "core" });
    put("services", json!({ "metadata": metadata, "spec": { "ports": [{ "port": 443 }] } }));
    let place = json!([{ "ip": "127.0.0.1" }]);
    let subsets = json!([{ "addresses": place, "ports": [{ "port": listener.address().port() }] }]);
    put("endpoints", json!({ "metadata": metadata, "subsets": subsets }));

    api.create(&channel("c"));
    let service = json!({ "apiVersion": "v1", "kind": "Service", "name": "core" });
    let mut wanted = subscription("s", "c", "");
    wanted = with(wanted, "/spec/subscriber", json!({ "ref": service, "CACerts": authority.pem() }));
    wanted = with(wanted, "/spec/reply", with_certificates(&url(&reply_listener, "reply.localhost", "/"), &authority));
    let letters = with_certificates(&url(&dead_listener, "127.0.0.1", "/"), &authority);
    wanted = with(wanted, "/spec/delivery", json!({ "retry": 0, "deadLetterSink": letters }));
    api.create(&wanted);
    let ready = api.wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    let physical = &ready["status"]["physicalSubscription"];
    assert_eq!(physical["subscriberUri"], format!("https://{core}"));
    for field in ["subscriberCACerts", "replyCACerts", "deadLetterSinkCACerts"] {
        assert_eq!(physical[field], authority.pem(), "{field}");
    }
    for id in ["good", "bad"] {
        let sent = TestEvent::new(id).binary("/channels/default/c").send(appliance.events());
        assert_eq!(sent.status, 202, "{sent}");
    }
    assert_eq!(ids(&reply.wait_for(1, TIMEOUT)), ["answer"]);
    assert_eq!(ids(&dead.wait_for(1, TIMEOUT)), ["bad"]);
    let kinds: Vec<_> = [&listener, &reply_listener, &dead_listener].map(TlsFront::handshakes).into();
    assert!(kinds.iter().all(|(full, _, failed)| *full >= 1 && *failed == 0), "{kinds:?}");
}

/// X-FEA-05: without `CACerts` the system's authorities count, and those of the operator's trust bundles, from the moment
/// that they are there.
#[test]
fn system_authorities_and_trust_bundles_are_trusted() {
    let (known, later) = (TlsAuthority::new(), TlsAuthority::new());
    let (first, second) = (EventSink::start(), EventSink::start());
    let first_listener = front(&known, "one.localhost", &[], first.address());
    let second_listener = front(&later, "two.localhost", &[], second.address());
    let appliance = server(&known);
    let api = appliance.api();
    subscribe(api, "one", &url(&first_listener, "one.localhost", "/"), &[]);
    let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.2S" });
    subscribe(api, "two", &url(&second_listener, "two.localhost", "/"), &[("/spec/delivery", patient)]);
    post(&appliance, &TestEvent::new("1"));
    assert_eq!(ids(&first.wait_for(1, TIMEOUT)), ["1"]);
    wait::until(TIMEOUT, "a refused handshake", || {
        (appliance.metric("sluicegate_subscriber_tls_verification_failures_total", "default/two") > 0).then_some(())
    });
    assert!(second.received().is_empty());

    let labels = json!({ "networking.knative.dev/trust-bundle": "true" });
    api.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "bundle", "namespace": "knative-eventing", "labels": labels },
        "data": { "ca.crt": later.pem() },
    }));
    assert_eq!(ids(&second.wait_for(1, TIMEOUT)), ["1"]);
}

/// EV-ADR-04: `CACerts` that cannot be read are refused where they are written, by their field.
#[test]
fn certificates_that_cannot_be_read_are_refused() {
    let authority = TlsAuthority::new();
    let (appliance, good) = (server(&authority), authority.pem());
    for bad in ["", "nonsense", &good[..good.len() / 2], "-----BEGIN CERTIFICATE-----"] {
        let to = json!({ "uri": "https://sub.localhost/", "CACerts": bad });
        let refused = appliance.api().try_create(&with(trigger("t", "main", ""), "/spec/subscriber", to));
        assert!(refused.status == 422 && refused.text().contains("spec.subscriber.CACerts"), "{refused}");
    }
}

/// EV-ADR-06: without any trusted authority, an undeliverable destination is not Ready, and the reason says what to do.
#[test]
fn without_any_authority_nobody_is_ready() {
    let appliance = with_broker(&believing("/nowhere.pem"));
    let api = appliance.api();
    api.create(&trigger("t", "main", "https://sub.localhost/"));
    let reported = api.wait_for("Trigger", NAMESPACE, "t", TIMEOUT, |object| {
        kit::api::condition(object, "SubscriberResolved").is_some_and(|one| one["status"] == "False")
    });
    let why = kit::api::condition(&reported, "SubscriberResolved").unwrap();
    assert!(why["message"].as_str().unwrap().contains("set CACerts"), "{why}");
    assert!(!kit::api::is_ready(&reported));
    let authority = TlsAuthority::new().pem();
    api.patch("Trigger", NAMESPACE, "t", &json!({ "spec": { "subscriber": { "CACerts": authority } } }));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
}
