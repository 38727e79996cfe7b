//! The statuses of eventing, messaging and flows objects, through the built binary and with
//! only create, get, list, update, patch and delete.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, channel, subscription, trigger, with};
use kit::scene::{accepted, delivery};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, KitApi, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// Of the kinds of eventing, messaging and flows: group and version, kind, plural.
const KINDS: [(&str, &str, &str); 8] = [
    ("eventing.knative.dev/v1", "Broker", "brokers"),
    ("eventing.knative.dev/v1", "Trigger", "triggers"),
    ("eventing.knative.dev/v1beta2", "EventType", "eventtypes"),
    ("messaging.knative.dev/v1", "Channel", "channels"),
    ("messaging.knative.dev/v1", "InMemoryChannel", "inmemorychannels"),
    ("messaging.knative.dev/v1", "Subscription", "subscriptions"),
    ("flows.knative.dev/v1", "Sequence", "sequences"),
    ("flows.knative.dev/v1", "Parallel", "parallels"),
];

fn made(kind: &str, name: &str, spec: Value) -> Value {
    let (version, kind, _) = KINDS.iter().find(|(_, other, _)| *other == kind).unwrap();
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec })
}

/// One of each kind, with nothing in its spec that is not asked for.
fn one_of_each(api: KitApi, sink: &EventSink) {
    let to = json!({ "uri": sink.url() });
    for object in [
        broker("main"),
        trigger("one", "main", &sink.url()),
        made("EventType", "one", json!({ "type": "t" })),
        channel("main"),
        made("InMemoryChannel", "alone", json!({})),
        subscription("one", "main", &sink.url()),
        made("Sequence", "one", json!({ "steps": [to] })),
        made("Parallel", "one", json!({ "branches": [{ "subscriber": to }] })),
    ] {
        api.create(&object);
    }
}

fn name_of(kind: &str) -> &'static str {
    match kind {
        "Broker" | "Channel" => "main",
        "InMemoryChannel" => "alone",
        _ => "one",
    }
}

fn server() -> (EventSink, Appliance) {
    let sink = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).start();
    one_of_each(appliance.api(), &sink);
    (sink, appliance)
}

fn conditions(object: &Value) -> Vec<Value> {
    object["status"]["conditions"].as_array().cloned().unwrap_or_default()
}

/// Every rule for conditions that holds whatever they say.
fn check_conditions(object: &Value) {
    let all = conditions(object);
    let types: BTreeSet<_> = all.iter().map(|one| one["type"].as_str().unwrap_or_default()).collect();
    assert_eq!(types.len(), all.len(), "each type once: {object:#}");
    let summaries = types.iter().filter(|one| ["Ready", "Succeeded"].contains(one)).count();
    assert_eq!(summaries, 1, "{object:#}");
    let is_word = |text: &str| {
        !text.is_empty()
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "_,:".contains(c))
    };
    for one in &all {
        let text = |key: &str| one[key].as_str().unwrap_or_default();
        assert!(is_word(text("type")) && text("type").starts_with(char::is_uppercase), "{one}");
        assert!(["True", "False", "Unknown"].contains(&text("status")), "{one}");
        assert!(["", "Warning", "Info"].contains(&text("severity")), "{one}");
        assert!(text("reason").is_empty() || is_word(text("reason")), "{one}");
        assert!(one.get("lastHeartbeatTime").is_none(), "{one}");
        assert!(!text("type").starts_with("Not") && !text("type").contains("Fail"), "{one}");
        if text("status") == "False" {
            assert!(!text("reason").is_empty() && !text("message").is_empty(), "{one}");
        }
        if ["Ready", "Succeeded"].contains(&text("type")) {
            assert_eq!(text("severity"), "", "{one}");
        }
    }
}

/// COND-01, COND-03, COND-04, COND-05, COND-07, COND-09, COND-19, COND-21, EV-API-08, EV-OBJ-01, EV-OBJ-05,
/// EV-OBJ-13, EV-OBJ-21, EV-OBJ-30: one of each kind, with the least that it may have, becomes Ready and says
/// so in conditions.
#[test]
fn the_least_of_each_kind_becomes_ready_with_conditions() {
    let (_sink, appliance) = server();
    for (version, kind, _) in KINDS {
        let object = appliance.api().wait_ready(kind, NAMESPACE, name_of(kind), TIMEOUT);
        check_conditions(&object);
        assert_eq!((object["apiVersion"].as_str(), object["kind"].as_str()), (Some(version), Some(kind)));
        let meta = &object["metadata"];
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            assert!(meta[field].as_str().is_some_and(|text| !text.is_empty()), "{kind} {field}: {meta:#}");
        }
        assert!(meta["generation"].as_u64().is_some_and(|generation| generation >= 1), "{kind}: {meta:#}");
    }
}

/// COND-06, COND-17, EV-ADR-05, EV-ADR-06, EV-SUB-08, EV-SUB-09: what cannot work says of which object and why.
#[test]
fn what_cannot_work_says_why() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let missing = json!({ "ref": { "apiVersion": "v1", "kind": "Service", "name": "nowhere" } });
    api.create(&broker("main"));
    api.create(&channel("main"));
    api.create(&with(broker("lost"), "/spec/delivery/deadLetterSink", missing.clone()));
    api.create(&with(channel("lost"), "/spec/delivery/deadLetterSink", missing.clone()));
    api.create(&with(trigger("lost", "main", "http://unused/"), "/spec/subscriber", missing.clone()));
    api.create(&with(subscription("lost", "main", "http://unused/"), "/spec/subscriber", missing));
    for kind in ["Broker", "Channel", "Trigger", "Subscription"] {
        let object = api.wait_for(kind, NAMESPACE, "lost", TIMEOUT, |object| {
            condition(object, "Ready").is_some_and(|ready| ready["status"] == "False")
        });
        check_conditions(&object);
        let ready = condition(&object, "Ready").unwrap();
        assert!(ready["message"].as_str().is_some_and(|text| text.contains("nowhere")), "{kind}: {ready}");
        for one in conditions(&object).iter().filter(|one| one["status"] != "True") {
            let said = |key: &str| one[key].as_str().is_some_and(|text| !text.is_empty());
            assert!(said("reason") && said("message"), "{kind}: {one}");
        }
    }
}

/// EV-API-01, EV-API-02, EV-API-06: where the kinds are, and what can be done with them.
#[test]
fn discovery_lists_the_kinds_with_their_verbs() {
    let appliance = ApplianceSetup::new(BIN).start();
    for (version, kind, plural) in KINDS {
        let list = HttpCall::get(&format!("/apis/{version}")).send(appliance.api().address()).json();
        let resources = list["resources"].as_array().unwrap();
        let find = |name: &str| resources.iter().find(|one| one["name"] == name);
        let found = find(plural).unwrap_or_else(|| panic!("no {plural} in {list:#}"));
        assert_eq!((found["kind"].as_str(), found["namespaced"].as_bool()), (Some(kind), Some(true)));
        for verb in ["get", "list", "create", "update", "patch", "delete", "watch"] {
            assert!(found["verbs"].as_array().unwrap().contains(&json!(verb)), "{plural}: {found}");
        }
        assert!(find(&format!("{plural}/status")).is_some(), "{plural} has no status of its own");
    }
}

/// EV-API-03, EV-API-04, EV-API-11, EV-OBJ-02, EV-OBJ-12: a Broker and a Trigger through all of their life with
/// get, list, create, update, patch and delete, and no request was authenticated.
#[test]
fn six_verbs_are_enough() {
    let (sink, dead) = (EventSink::start(), EventSink::start());
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let config = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "options" });
    let metadata = json!({ "name": "options", "namespace": NAMESPACE });
    api.create(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }));
    api.create(&with(broker("main"), "/spec/config", config.clone()));
    let made = api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    for (field, value) in config.as_object().unwrap() {
        assert_eq!(&made["spec"]["config"][field], value, "{made:#}");
    }
    api.create(&trigger("one", "main", "http://unused/"));
    let ready = api.wait_ready("Trigger", NAMESPACE, "one", TIMEOUT);

    // Update: status is not the client's.
    let path = KitApi::path("Trigger", NAMESPACE, "one");
    let mut changed = with(ready, "/spec/subscriber", json!({ "uri": sink.url() }));
    changed["status"] = json!({ "subscriberUri": "http://forged/" });
    let put = HttpCall::new("PUT", &path).json(&changed).send(api.address());
    assert_eq!(put.status, 200, "{put}");
    let ready = api.wait_ready("Trigger", NAMESPACE, "one", TIMEOUT);
    assert_eq!(ready["status"]["subscriberUri"], sink.url());

    let (_, options) = delivery(1, &dead);
    api.patch("Trigger", NAMESPACE, "one", &json!({ "spec": { "delivery": options } }));
    let ready = api.wait_ready("Trigger", NAMESPACE, "one", TIMEOUT);
    assert_eq!(ready["status"]["deadLetterSinkUri"], dead.url());
    assert_eq!(api.list("Trigger", NAMESPACE).len(), 1);
    accepted(&TestEvent::new("1").binary("/brokers/default/main"), &appliance);
    sink.wait_for(1, TIMEOUT);

    api.delete("Trigger", NAMESPACE, "one");
    api.delete("Broker", NAMESPACE, "main");
    api.wait_gone("Trigger", NAMESPACE, "one", TIMEOUT);
    api.wait_gone("Broker", NAMESPACE, "main", TIMEOUT);
}

/// EV-API-09, EV-OBJ-09, EV-OBJ-26, EV-OBJ-36, EV-OBJ-50, EV-OBJ-51, EV-OBJ-53: what is wrong is refused with the
/// field's path.
#[test]
fn a_refusal_names_the_field() {
    let appliance = ApplianceSetup::new(BIN).start();
    let reference = json!({ "apiVersion": "v1", "kind": "Service", "name": "s" });
    let without = |field: &str| {
        let mut less = reference.clone();
        less.as_object_mut().unwrap().remove(field);
        json!({ "ref": less })
    };
    let good = || trigger("t", "main", "http://s/");
    let rows = [
        (with(good(), "/spec/broker", json!("")), "spec.broker"),
        (with(good(), "/spec/subscriber", json!({})), "spec.subscriber"),
        (with(good(), "/spec/subscriber", without("kind")), "spec.subscriber.ref.kind"),
        (with(good(), "/spec/subscriber", without("name")), "spec.subscriber.ref.name"),
        (with(good(), "/spec/subscriber", without("apiVersion")), "spec.subscriber.ref.apiVersion"),
        (with(good(), "/spec/delivery/backoffDelay", json!("1s")), "spec.delivery.backoffDelay"),
        (with(good(), "/spec/delivery/backoffPolicy", json!("odd")), "spec.delivery.backoffPolicy"),
        (with(good(), "/spec/unheard", json!(1)), "spec.unheard"),
        (with(subscription("s", "main", "http://s/"), "/spec/channel", json!({})), "spec.channel"),
        (with(broker("b"), "/spec/delivery/retry", json!(-1)), "spec.delivery.retry"),
    ];
    for (object, field) in rows {
        let refused = appliance.api().try_create(&object);
        assert!(matches!(refused.status, 400 | 422), "{field}: {refused}");
        let status = refused.json();
        assert_eq!(status["kind"], "Status", "{status:#}");
        assert!(status["message"].as_str().is_some_and(|text| text.contains(field)), "{field}: {status:#}");
    }
}

/// `--events-address` is what senders are told instead of the listener: a Service in front of several replicas.
#[test]
fn advertised_address_is_in_statuses() {
    let setup = ApplianceSetup::new(BIN).flag("events-address", "events.example.test:8081");
    let appliance = setup.start();
    appliance.api().create(&broker("main"));
    let status = appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT)["status"].clone();
    assert_eq!(status["address"]["url"], "http://events.example.test:8081/brokers/default/main");
}

/// EV-OBJ-07, EV-OBJ-08, EV-OBJ-15, EV-OBJ-16, EV-OBJ-23, EV-OBJ-25, EV-OBJ-33, EV-OBJ-34, EV-OBJ-35, EV-OBJ-52,
/// EV-OBJ-55, EV-OBJ-56, EV-OBJ-57, EV-ADR-07, EV-ADR-11: addresses and resolved URIs, of references too: any
/// addressable object may be a dead letter sink.
#[test]
fn addresses_and_resolved_uris_are_reported() {
    let (sink, appliance) = server();
    let api = appliance.api();
    let address = |kind: &str, name: &str| {
        let ready = api.wait_ready(kind, NAMESPACE, name, TIMEOUT);
        let url = ready["status"]["address"]["url"].as_str().unwrap_or_default().to_owned();
        assert!(url.starts_with("http://"), "{kind}: {ready:#}");
        url
    };
    let letters = address("Channel", "main");
    assert!(api.get("Broker", NAMESPACE, "main").unwrap()["status"].get("deadLetterSinkUri").is_none());

    let reference = json!({ "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "main" });
    let to_channel = json!({ "ref": reference });
    api.create(&with(broker("b"), "/spec/delivery/deadLetterSink", to_channel.clone()));
    let url = address("Broker", "b");
    assert!(url.ends_with("/brokers/default/b"), "{url}");
    let ready = api.wait_ready("Broker", NAMESPACE, "b", TIMEOUT);
    assert_eq!(ready["status"]["deadLetterSinkUri"], letters.as_str());

    // The Broker's sink is the Trigger's as long as that has none.
    api.create(&with(trigger("t", "b", "http://unused/"), "/spec/subscriber", to_channel.clone()));
    let ready = api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    assert_eq!(ready["spec"]["subscriber"]["ref"]["namespace"], NAMESPACE);
    assert_eq!(ready["status"]["subscriberUri"], letters.as_str());
    assert_eq!(ready["status"]["deadLetterSinkUri"], letters.as_str());
    api.patch(
        "Trigger",
        NAMESPACE,
        "t",
        &json!({ "spec": { "delivery": { "deadLetterSink": { "uri": sink.url() } } } }),
    );
    api.wait_for("Trigger", NAMESPACE, "t", TIMEOUT, |object| object["status"]["deadLetterSinkUri"] == sink.url());

    let to_broker = json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "b" } });
    let object = with(subscription("s", "main", &sink.url()), "/spec/reply", to_broker);
    api.create(&with(object, "/spec/delivery/deadLetterSink", json!({ "uri": "http://dead/" })));
    let ready = api.wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    let physical = &ready["status"]["physicalSubscription"];
    assert_eq!(physical["subscriberUri"], sink.url());
    assert_eq!(physical["replyUri"], url.as_str());
    assert_eq!(physical["deadLetterSinkUri"], "http://dead/");
}

/// EV-OBJ-18, EV-OBJ-24, EV-OBJ-37, EV-OBJ-38, EV-OBJ-39, EV-OBJ-40, EV-OBJ-41, EV-OBJ-42, EV-OBJ-43, EV-OBJ-44,
/// EV-OBJ-45, EV-OBJ-46: a channel lists its subscribers as they were resolved, and says of each how it is.
#[test]
fn a_channel_lists_its_subscribers() {
    let sink = EventSink::answering(|_| kit::SinkResponse::status(400));
    let dead = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    for name in ["main", "letters"] {
        api.create(&channel(name));
        api.wait_ready("Channel", NAMESPACE, name, TIMEOUT);
    }
    let reference = json!({ "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "letters" });
    let object = with(subscription("s", "main", &sink.url()), "/spec/reply", json!({ "uri": "http://reply/" }));
    api.create(&with(object, "/spec/delivery/deadLetterSink", json!({ "ref": reference })));
    let ready = api.wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    let letters = api.get("Channel", NAMESPACE, "letters").unwrap()["status"]["address"]["url"].clone();

    let uid = &ready["metadata"]["uid"];
    let backing = api.get("InMemoryChannel", NAMESPACE, "main").unwrap();
    let entry = &backing["spec"]["subscribers"][0];
    assert_eq!((&entry["uid"], &entry["generation"]), (uid, &ready["metadata"]["generation"]));
    assert_eq!(entry["subscriberUri"], sink.url());
    assert_eq!(entry["replyUri"], "http://reply/");
    assert_eq!(entry["delivery"]["deadLetterSink"], json!({ "uri": letters }));
    let is_listed = |object: &Value| object["status"]["subscribers"][0]["uid"] == *uid;
    let object = api.wait_for("Channel", NAMESPACE, "main", TIMEOUT, is_listed);
    let status = &object["status"]["subscribers"][0];
    assert_eq!(status["ready"], "True", "{object:#}");
    assert_eq!(status["observedGeneration"], ready["metadata"]["generation"]);
    assert!(status.get("message").is_none_or(Value::is_string), "{object:#}");

    // The dead letter goes to the channel that was named, and on from there.
    api.create(&subscription("dead", "letters", &dead.url()));
    api.wait_ready("Subscription", NAMESPACE, "dead", TIMEOUT);
    accepted(&TestEvent::new("1").binary("/channels/default/main"), &appliance);
    assert_eq!(dead.wait_for(1, TIMEOUT)[0].attribute("knativeerrorcode").as_deref(), Some("400"));
}

/// EV-OBJ-10, EV-OBJ-59: no filter is every event; an empty value asks for the attribute alone.
#[test]
fn an_absent_filter_and_an_empty_value() {
    let (all, some) = (EventSink::start(), EventSink::start());
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN));
    kit::scene::subscribe(appliance.api(), "all", &all.url(), &[]);
    kit::scene::subscribe(appliance.api(), "some", &some.url(), &[kit::scene::only(json!({ "ext": "" }))]);
    kit::scene::post(&appliance, &TestEvent::new("without"));
    kit::scene::post(&appliance, &TestEvent::new("with").with("ext", "anything"));
    all.wait_for(2, TIMEOUT);
    assert_eq!(kit::scene::ids(&some.wait_for(1, TIMEOUT)), ["with"]);
    wait::nothing(kit::scene::SILENCE, "the other one", || (some.received().len() > 1).then_some(()));
}

/// EV-DLV-01, DP-REPLY-02, EV-SUB-11: what is sent goes where the status says, and asks for a reply.
#[test]
fn events_go_where_the_status_says() {
    let sink = EventSink::start();
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN));
    let url = format!("{}in/here?x=1", sink.url());
    let ready = kit::scene::subscribe(appliance.api(), "t", &url, &[]);
    assert_eq!(ready["status"]["subscriberUri"], url.as_str());
    appliance.api().create(&channel("main"));
    appliance.api().create(&subscription("s", "main", &url));
    let ready = appliance.api().wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    assert_eq!(ready["status"]["physicalSubscription"]["subscriberUri"], url.as_str());
    kit::scene::post(&appliance, &TestEvent::new("1"));
    accepted(&TestEvent::new("2").binary("/channels/default/main"), &appliance);
    for received in sink.wait_for(2, TIMEOUT) {
        assert_eq!(received.request.target, "/in/here?x=1");
        assert_eq!(received.header("prefer"), Some("reply"));
    }
}

/// DP-ACK-08: an event that does not arrive is not waited for without end.
#[test]
fn a_stalled_event_is_given_up() {
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN));
    let mut connection = kit::HttpConnection::open(appliance.events());
    connection.timeout(Duration::from_secs(90));
    connection.send(b"POST /brokers/default/main HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nce-id: 1\r\n");
    connection.send(b"ce-source: /s\r\nce-type: t\r\nce-specversion: 1.0\r\n\r\nhalf");
    match connection.try_receive(false) {
        Ok(answer) => assert_eq!(answer.status, 408, "{answer}"),
        Err(why) => {
            use std::io::ErrorKind::{TimedOut, WouldBlock};
            assert!(![TimedOut, WouldBlock].contains(&why.kind()), "neither answered nor closed: {why}");
        }
    }
}

/// The order that is asked for, whichever core each event came in at, and through a retry.
#[test]
fn an_ordered_trigger_gets_its_events_in_order() {
    let sink = EventSink::answering(|event| {
        kit::SinkResponse::status(if event.attempt == 1 && event.id().ends_with('7') { 503 } else { 202 })
    });
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN).flag("workers", "3"));
    let order = ("/metadata/annotations/kafka.eventing.knative.dev~1delivery.order", json!("ordered"));
    kit::scene::subscribe(appliance.api(), "t", &sink.url(), &[order]);
    for n in 0..60 {
        kit::scene::post(&appliance, &TestEvent::new(&n.to_string())); // a connection each
    }
    let ids: Vec<u32> = sink.wait_for(66, TIMEOUT).iter().map(|received| received.id().parse().unwrap()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
}

/// EV-RTE-14, EV-RTE-17, DP-RETRY-21: what users have to know is in the documentation.
#[test]
fn the_documentation_names_limits_and_keys() {
    let text = include_str!("../../docs/eventing.md");
    for word in ["knativebrokerttl", "255", "default-br-config", "1000", "back-off", "deadLetterSink"] {
        assert!(text.contains(word), "{word}");
    }
}

/// EV-ADR-02, EV-ADR-09: a core Service is reached through its endpoints, and followed when they change.
#[test]
fn a_core_service_is_a_destination() {
    let (first, second) = (EventSink::start(), EventSink::start());
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN));
    let core = |method: &str, plural: &str, name: &str, body: Value| {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/{plural}{name}");
        let answer = HttpCall::new(method, &path).json(&body).send(appliance.api().address());
        assert!(matches!(answer.status, 200 | 201), "{answer}");
        answer.json()
    };
    let endpoints = |sink: &EventSink| {
        let place = json!([{ "ip": sink.address().ip().to_string() }]);
        json!([{ "addresses": place, "ports": [{ "port": sink.address().port() }] }])
    };
    let metadata = json!({ "name": "core" });
    core("POST", "services", "", json!({ "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } }));
    let made = core("POST", "endpoints", "", json!({ "metadata": metadata, "subsets": endpoints(&first) }));
    let reference = json!({ "ref": { "apiVersion": "v1", "kind": "Service", "name": "core" }, "uri": "/in" });
    let ready = kit::scene::subscribe(appliance.api(), "t", "http://unused/", &[("/spec/subscriber", reference)]);
    assert_eq!(ready["status"]["subscriberUri"], "http://core.default.svc.cluster.local/in");
    kit::scene::post(&appliance, &TestEvent::new("1"));
    assert_eq!(first.wait_for(1, TIMEOUT)[0].request.target, "/in");

    let mut moved = made;
    moved["subsets"] = endpoints(&second);
    core("PUT", "endpoints", "/core", moved);
    wait::until(TIMEOUT, "an event at the new place", || {
        kit::scene::post(&appliance, &TestEvent::new("2"));
        (!second.received().is_empty()).then_some(())
    });
}

/// A listener on all addresses of the host is reported by one that leads to it, plain and by TLS.
#[test]
fn wildcard_address_is_not_reported() {
    let appliance = ApplianceSetup::new(BIN).flag("events", "0.0.0.0:0").flag("events-https", "0.0.0.0:0").start();
    let api = appliance.api();
    let both = json!({ "data": { "transport-encryption": "permissive" } });
    api.patch("ConfigMap", "knative-eventing", "config-features", &both);
    api.create(&broker("main"));
    api.create(&channel("main"));
    for (kind, path) in [("Broker", "/brokers/default/main"), ("Channel", "/channels/default/main")] {
        let object = api.wait_for(kind, NAMESPACE, "main", TIMEOUT, |object| {
            object["status"]["addresses"].as_array().is_some_and(|all| all.len() == 2)
        });
        for address in object["status"]["addresses"].as_array().unwrap() {
            let url = address["url"].as_str().unwrap();
            let (scheme, rest) = url.split_once("://").unwrap();
            let at: std::net::SocketAddr = rest.strip_suffix(path).unwrap().parse().unwrap();
            assert!(!at.ip().is_unspecified(), "{kind}: {url}");
            if scheme == "http" {
                assert_eq!(TestEvent::new("1").binary(path).send(at).status, 202, "{kind}: {url}");
            }
        }
    }
}
