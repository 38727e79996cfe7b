//! A Broker's own options, its deletion, and the EventTypes of its events: through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, channel, subscription, trigger, with};
use kit::scene::{BROKER, SILENCE, accepted, delivery, ids, only, post, subscribe, with_broker};
use kit::server::closed_address;
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, KitApi, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn setup() -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("workers", "2")
}

fn config_map(namespace: &str, name: &str, data: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": namespace });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })
}

fn feature(appliance: &Appliance, name: &str, word: &str) {
    let data = json!({ "data": { name: word } });
    appliance.api().patch("ConfigMap", "knative-eventing", "config-features", &data);
}

fn of_size(bytes: usize) -> TestEvent {
    TestEvent::new("large").data("application/octet-stream", vec![b'x'; bytes])
}

fn answered(appliance: &Appliance, path: &str, event: &TestEvent) -> u16 {
    event.binary(path).send(appliance.events()).status
}

/// EV-RTE-17, EV-BRK-09: a Broker's options come from the ConfigMap that it names and from its annotations. A map
/// that is not there, or makes no sense, is reported with upstream's reason, and a correction takes effect at once.
#[test]
fn a_broker_takes_its_options_from_its_config_map() {
    let appliance = with_broker(&setup());
    let api = appliance.api();
    let reference = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "options" });
    api.create(&with(broker("own"), "/spec/config", reference));
    let reported = |said: &str| {
        let object = api.wait_for("Broker", NAMESPACE, "own", TIMEOUT, |object| {
            let ready = condition(object, "Ready");
            ready.is_some_and(|ready| ready["message"].as_str().is_some_and(|text| text.contains(said)))
        });
        let found = condition(&object, "TriggerChannelReady").unwrap();
        assert_eq!((&found["status"], &found["reason"]), (&json!("False"), &json!("ChannelTemplateFailed")));
    };
    reported("options not found");
    api.create(&config_map(NAMESPACE, "options", json!({ "event-bytes-max": "lots" })));
    reported("event-bytes-max");
    let data = json!({ "data": { "event-bytes-max": "4Ki", "bootstrap.servers": "not ours" } });
    api.patch("ConfigMap", NAMESPACE, "options", &data);
    api.wait_ready("Broker", NAMESPACE, "own", TIMEOUT);
    let path = "/brokers/default/own";
    assert_eq!((answered(&appliance, path, &of_size(3000)), answered(&appliance, path, &of_size(5000))), (202, 413));

    let larger = json!({ "metadata": { "annotations": { "sluicegate.dev/event-bytes-max": "1536Ki" } } });
    api.patch("Broker", NAMESPACE, "own", &larger);
    wait::until(TIMEOUT, "the annotation to count", || {
        (answered(&appliance, path, &of_size(1_500_000)) == 202).then_some(())
    });
    assert_eq!(answered(&appliance, BROKER, &of_size(1_500_000)), 413, "the others are as they were");
    let refused = api.try_create(&with(
        broker("bad"),
        "/metadata/annotations",
        json!({ "sluicegate.dev/event-bytes-max": "2Gi" }),
    ));
    assert!(refused.status == 422 && refused.text().contains("event-bytes-max"), "{refused}");
    let usual = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "config-br-default-channel",
                        "namespace": "knative-eventing" });
    api.create(&with(broker("usual"), "/spec/config", usual));
    api.wait_ready("Broker", NAMESPACE, "usual", TIMEOUT);
    let other = json!({ "apiVersion": "v1", "kind": "Secret", "name": "options" });
    api.create(&with(broker("odd"), "/spec/config", other));
    let odd = api.wait_for("Broker", NAMESPACE, "odd", TIMEOUT, |object| {
        condition(object, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    assert_eq!(condition(&odd, "Ready").unwrap()["reason"], "ChannelTemplateFailed");
}

/// EV-CH-02: a Channel has a size of its own too.
#[test]
fn a_channel_takes_events_of_its_own_size() {
    let appliance = setup().start();
    let object = with(channel("small"), "/metadata/annotations", json!({ "sluicegate.dev/event-bytes-max": "2Ki" }));
    appliance.api().create(&object);
    appliance.api().wait_ready("Channel", NAMESPACE, "small", TIMEOUT);
    let path = "/channels/default/small";
    assert_eq!((answered(&appliance, path, &of_size(1000)), answered(&appliance, path, &of_size(3000))), (202, 413));
    let drains = with(channel("bad"), "/metadata/annotations", json!({ "sluicegate.dev/on-delete": "drain" }));
    assert_eq!(appliance.api().try_create(&drains).status, 422);
}

/// EV-BRK-13, EV-TRG-14: a deleted Broker that drains takes nothing more, is kept over a restart until its
/// Triggers have had what it holds, and then goes.
#[test]
fn a_deleted_broker_drains_when_its_owner_wants_that() {
    let mut appliance = with_broker(&setup());
    let drain = json!({ "metadata": { "annotations": { "sluicegate.dev/on-delete": "drain" } } });
    appliance.api().patch("Broker", NAMESPACE, "main", &drain);
    let held = |object: &Value| object["metadata"]["finalizers"] == json!(["sluicegate.dev/drain"]);
    appliance.api().wait_for("Broker", NAMESPACE, "main", TIMEOUT, held);
    let address = closed_address();
    let options = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" });
    subscribe(appliance.api(), "slow", &format!("http://{address}/"), &[("/spec/delivery", options)]);
    for n in 0..20 {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }
    appliance.api().delete("Broker", NAMESPACE, "main");
    let leaving = appliance.api().wait_for("Broker", NAMESPACE, "main", TIMEOUT, |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Draining")
    });
    assert!(leaving["status"]["address"].is_null(), "{leaving:#}");
    assert_eq!(answered(&appliance, BROKER, &TestEvent::new("late")), 404);
    appliance.api().wait_for("Trigger", NAMESPACE, "slow", TIMEOUT, |object| {
        condition(object, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    appliance.kill();
    appliance.restart();
    assert_eq!(answered(&appliance, BROKER, &TestEvent::new("late")), 404);

    let sink = EventSink::start_at(address, |_| SinkResponse::status(202));
    let received: BTreeSet<String> = ids(&sink.wait_for(20, TIMEOUT)).into_iter().collect();
    assert_eq!(received, (0..20).map(|n| n.to_string()).collect());
    appliance.api().wait_gone("Broker", NAMESPACE, "main", TIMEOUT);
}

/// EV-BRK-13: without the annotation, and when the owner changes their mind, a deleted Broker is gone at once with
/// what it held; one of the same name starts empty.
#[test]
fn a_deleted_broker_drops_its_backlog_otherwise() {
    let appliance = with_broker(&setup());
    let api = appliance.api();
    let (sink, dead) = (EventSink::answering(|_| SinkResponse::status(503)), EventSink::start());
    let options = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT60S" });
    subscribe(api, "slow", &sink.url(), &[("/spec/delivery", options)]);
    post(&appliance, &TestEvent::new("lost"));
    sink.wait_for(1, TIMEOUT);
    let drains = |word: &str| json!({ "metadata": { "annotations": { "sluicegate.dev/on-delete": word } } });
    api.patch("Broker", NAMESPACE, "main", &drains("drain"));
    api.wait_for("Broker", NAMESPACE, "main", TIMEOUT, |object| !object["metadata"]["finalizers"].is_null());
    api.delete("Broker", NAMESPACE, "main");
    assert!(api.get("Broker", NAMESPACE, "main").is_some(), "it drains");
    api.patch("Broker", NAMESPACE, "main", &drains("drop"));
    api.wait_gone("Broker", NAMESPACE, "main", TIMEOUT);

    api.delete("Trigger", NAMESPACE, "slow");
    api.create(&broker("main"));
    api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    let fresh = EventSink::start();
    subscribe(api, "fresh", &fresh.url(), &[delivery(0, &dead), ("/metadata/annotations", from("earliest"))]);
    post(&appliance, &TestEvent::new("new"));
    assert_eq!(ids(&fresh.wait_for(1, TIMEOUT)), ["new"]);
    wait::nothing(SILENCE, "what the old one held", || (fresh.received().len() > 1).then_some(()));
}

fn from(when: &str) -> Value {
    json!({ "sluicegate.dev/from": when })
}

/// EV-BRK-04, EV-TRG-12: a new Trigger gets what comes after it, and what came before if it asks: all that the log
/// has, or from a time on.
#[test]
fn a_new_trigger_gets_older_events_if_it_asks() {
    let appliance = with_broker(&setup());
    // A subscriber that still needs the events keeps them in the log.
    let keeper = EventSink::answering(|_| SinkResponse::status(503));
    let options = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT60S" });
    subscribe(appliance.api(), "keeper", &keeper.url(), &[("/spec/delivery", options)]);
    post(&appliance, &TestEvent::new("old"));
    keeper.wait_for(1, TIMEOUT);
    let middle = next_millisecond();
    post(&appliance, &TestEvent::new("middle"));
    keeper.wait_for(2, TIMEOUT);
    let sinks = [EventSink::start(), EventSink::start(), EventSink::start()];
    let times = [None, Some("earliest".to_owned()), Some(middle)];
    for (n, (sink, time)) in sinks.iter().zip(times).enumerate() {
        let asks = time.map(|time| ("/metadata/annotations", from(&time)));
        subscribe(appliance.api(), &format!("t{n}"), &sink.url(), asks.as_slice());
    }
    post(&appliance, &TestEvent::new("new"));
    for (sink, wanted) in sinks.iter().zip([&["new"][..], &["middle", "new", "old"], &["middle", "new"]]) {
        let mut received = ids(&sink.wait_for(wanted.len(), TIMEOUT));
        received.sort();
        assert_eq!(received, wanted);
    }
    wait::nothing(SILENCE, "more than was asked for", || {
        (sinks.iter().map(|sink| sink.received().len()).sum::<usize>() > 6).then_some(())
    });
}

/// A time that nothing before has come at: the log counts milliseconds.
fn next_millisecond() -> String {
    let began = jiff::Timestamp::now().as_millisecond();
    wait::until(TIMEOUT, "a millisecond", || {
        let now = jiff::Timestamp::now().as_millisecond();
        (now > began).then(|| jiff::Timestamp::from_millisecond(now).unwrap().to_string())
    })
}

/// X-FEA-06: with `eventtype-auto-create` an EventType is made of each type and source that come in, replies too,
/// once, by whatever core; and again after it was deleted. A reply's names its sender, too. Without
/// the feature none are created.
#[test]
fn event_types_are_made_of_what_comes_in() {
    let appliance = with_broker(&setup());
    let api = appliance.api();
    let sink = EventSink::answering(|event| {
        let reply = [("specversion", "1.0"), ("id", "r"), ("source", "/replier"), ("type", "reply")];
        if event.attribute("type").as_deref() == Some("question") {
            SinkResponse::event(200, &reply, &json!({}))
        } else {
            SinkResponse::status(202)
        }
    });
    subscribe(api, "ask", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("before").of_type("unseen"));
    feature(&appliance, "eventtype-auto-create", "enabled");
    let found = || -> BTreeSet<[String; 3]> {
        let all = api.list("EventType", NAMESPACE);
        let text = |one: &Value, at| one.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        let each = |one: &Value| ["/spec/type", "/spec/source", "/spec/reference/kind"].map(|at| text(one, at));
        all.iter().map(each).collect()
    };
    let wanted: BTreeSet<_> = [
        ["question", "/kit", "Broker"],
        ["reply", "/replier", "Broker"],
        ["reply", "/replier", "Trigger"],
        ["kit.test", "/a", "Broker"],
    ]
    .map(|one| one.map(str::to_owned))
    .into();
    let ask = || {
        post(&appliance, &TestEvent::new("1").of_type("question"));
        post(&appliance, &TestEvent::new("1").with("source", "/a"));
    };
    wait::until(TIMEOUT, "four types", || {
        (0..8).for_each(|_| ask());
        (found() == wanted).then_some(())
    });
    let all = api.list("EventType", NAMESPACE);
    assert_eq!(all.len(), 4, "each once: {all:#?}");
    for (kind, named) in [("Broker", "main"), ("Trigger", "ask")] {
        let of_it = |one: &&Value| one["spec"]["reference"]["kind"] == kind;
        let one = api.list("EventType", NAMESPACE).iter().find(of_it).unwrap().clone();
        assert_eq!(one["spec"]["reference"]["name"], named);
        assert_eq!(one["metadata"]["ownerReferences"][0]["kind"], kind);
        let name = one["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with(&format!("et-{named}-")), "{name}");
        api.wait_ready("EventType", NAMESPACE, name, TIMEOUT);
        api.delete("EventType", NAMESPACE, name);
        wait::until(TIMEOUT, "it to come again", || {
            ask();
            (api.list("EventType", NAMESPACE).len() == 4).then_some(())
        });
    }
    let many = found();
    assert!(!many.iter().any(|[kind, ..]| kind == "unseen"), "{many:?}");

    api.delete("Trigger", NAMESPACE, "ask");
    wait::until(TIMEOUT, "the Trigger's to go with it", || {
        (!found().iter().any(|[_, _, kind]| kind == "Trigger")).then_some(())
    });
}

/// X-FEA-06: the replies of a Subscription's subscriber are reported too, wherever they go.
#[test]
fn event_types_are_made_of_what_a_subscription_is_answered() {
    let appliance = setup().start();
    let api = appliance.api();
    feature(&appliance, "eventtype-auto-create", "enabled");
    let reply = [("specversion", "1.0"), ("id", "r"), ("source", "/replier"), ("type", "reply")];
    let sink = EventSink::answering(move |_| SinkResponse::event(200, &reply, &json!({})));
    api.create(&channel("main"));
    api.create(&subscription("s", "main", &sink.url()));
    api.wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    let path = "/channels/default/main";
    let found = wait::until(TIMEOUT, "the reply's type", || {
        accepted(&TestEvent::new("1").binary(path), &appliance);
        let all = api.list("EventType", NAMESPACE);
        all.into_iter().find(|one| one["spec"]["reference"]["kind"] == "Subscription")
    });
    assert_eq!((&found["spec"]["type"], &found["spec"]["source"]), (&json!("reply"), &json!("/replier")));
    assert_eq!(found["spec"]["reference"]["apiVersion"], "messaging.knative.dev/v1");
    assert_eq!(found["spec"]["reference"]["name"], "s");
}

/// EventTypes in all of their versions: what one writes the others show, list, watch and patch.
#[test]
fn an_event_type_is_the_same_in_all_versions() {
    let appliance = with_broker(&setup());
    let at =
        |version: &str, rest: &str| format!("/apis/eventing.knative.dev/{version}/namespaces/default/eventtypes{rest}");
    let send = |call: HttpCall| call.send(appliance.api().address());
    let attribute = |name: &str, value: &str| json!({ "name": name, "required": true, "value": value });
    let attributes = json!([
        attribute("type", "t"), attribute("source", "/s"), attribute("specversion", "1.0"), { "name": "id", "required": true },
        { "name": "mine", "required": false },
    ]);
    let reference = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" });
    let object = json!({
        "apiVersion": "eventing.knative.dev/v1beta3", "kind": "EventType", "metadata": { "name": "e" },
        "spec": { "attributes": attributes, "reference": reference, "description": "d" },
    });
    let made = send(HttpCall::post(&at("v1beta3", "")).json(&object));
    assert_eq!(made.status, 201, "{made}");
    assert_eq!(made.json()["spec"]["attributes"], attributes);
    assert_eq!(made.json()["apiVersion"], "eventing.knative.dev/v1beta3");
    for version in ["v1beta1", "v1beta2"] {
        let shown = send(HttpCall::get(&at(version, "/e"))).json();
        assert_eq!(shown["apiVersion"], format!("eventing.knative.dev/{version}"), "{shown:#}");
        assert_eq!((&shown["spec"]["type"], &shown["spec"]["source"]), (&json!("t"), &json!("/s")));
        let labelled = json!({ "metadata": { "labels": { "by": version } } });
        let patch = HttpCall::new("PATCH", &at(version, "/e")).body(labelled.to_string());
        let patched = send(patch.header("Content-Type", "application/merge-patch+json"));
        assert_eq!(patched.status, 200, "{patched}");
    }
    let listed = send(HttpCall::get(&at("v1beta3", "?labelSelector=by%3Dv1beta2"))).json();
    assert_eq!(listed["items"][0]["spec"]["attributes"], attributes, "{listed:#}");
    let table =
        send(HttpCall::get(&at("v1beta3", "/e")).header("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1"));
    assert_eq!(table.json()["rows"][0]["cells"][1], "t");
    let watched = send(HttpCall::get(&at("v1beta3", "?watch=1&timeoutSeconds=1"))).text();
    assert!(watched.contains("\"attributes\"") && watched.contains("v1beta3"), "{watched}");

    let mut ready = appliance.api().wait_ready("EventType", NAMESPACE, "e", TIMEOUT);
    assert_eq!(condition(&ready, "ReferenceExists").unwrap()["status"], "True");
    ready["spec"].as_object_mut().unwrap().remove("attributes"); // as a client that does not know them
    let put = send(HttpCall::new("PUT", &at("v1beta2", "/e")).json(&ready));
    assert_eq!(put.status, 200, "{put}");
    let back = send(HttpCall::get(&at("v1beta3", "/e"))).json();
    assert_eq!(back["spec"]["attributes"], attributes);

    let yaml = format!(
        "apiVersion: eventing.knative.dev/v1beta3\nkind: EventType\nmetadata: {{name: applied}}\nspec: {}\n",
        json!({ "attributes": attributes })
    );
    for _ in 0..2 {
        let apply = HttpCall::new("PATCH", &at("v1beta3", "/applied?fieldManager=kubectl")).body(yaml.as_str());
        let applied = send(apply.header("Content-Type", "application/apply-patch+yaml"));
        assert!(matches!(applied.status, 200 | 201), "{applied}");
        assert_eq!(applied.json()["spec"]["attributes"], attributes);
    }
    let short = json!({ "metadata": { "name": "short" }, "spec": { "attributes": [attribute("type", "t")] } });
    let refused = send(HttpCall::post(&at("v1beta3", "")).json(&short));
    assert!(refused.status == 422 && refused.text().contains("spec.attributes"), "{refused}");
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/eventtypes.eventing.knative.dev";
    let versions = send(HttpCall::get(definition)).json()["spec"]["versions"].as_array().unwrap().len();
    assert_eq!(versions, 3);
}

/// X-SQL-06: a call of a function that does not exist is taken, warned of when it is written, and shown in a
/// condition; nothing passes it, and what is corrected works.
#[test]
fn a_missing_cesql_function_is_warned_of() {
    let appliance = with_broker(&setup());
    let api = appliance.api();
    let sink = EventSink::start();
    let filters = |text: &str| json!([{ "cesql": text }]);
    let object = with(trigger("typo", "main", &sink.url()), "/spec/filters", filters("LENGHT(type) > 0"));
    let made = api.try_create(&object);
    assert_eq!(made.status, 201, "{made}");
    let warning = made.headers.get("warning").unwrap_or_default();
    assert!(warning.starts_with("299 - ") && warning.contains("LENGHT"), "{warning}");
    let ready = api.wait_ready("Trigger", NAMESPACE, "typo", TIMEOUT);
    let reported = condition(&ready, "FiltersEvaluable").unwrap();
    assert_eq!((&reported["status"], &reported["severity"]), (&json!("False"), &json!("Warning")));
    assert!(reported["message"].as_str().unwrap().contains("LENGHT"), "{reported}");
    post(&appliance, &TestEvent::new("withheld"));

    let patched =
        api.try_patch("Trigger", NAMESPACE, "typo", &json!({ "spec": { "filters": filters("LENGTH(type) > 0") } }));
    assert!(patched.status == 200 && patched.headers.get("warning").is_none(), "{patched}");
    let right = api.wait_ready("Trigger", NAMESPACE, "typo", TIMEOUT);
    assert!(condition(&right, "FiltersEvaluable").is_none(), "{right:#}");
    post(&appliance, &TestEvent::new("passes"));
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["passes"]);
}

/// EV-OBJ-06, EV-OBJ-14, COND-22: a watch never shows a new observedGeneration with old conditions, on Brokers and on
/// Triggers.
#[test]
fn observed_generation_and_status_change_in_one_write() {
    let appliance = with_broker(&setup());
    let api = appliance.api();
    let sink = EventSink::start();
    subscribe(api, "t", &sink.url(), &[]);
    let address = api.address();
    let watch = |kind: &str| {
        let path = format!("{}?watch=1&timeoutSeconds=4", KitApi::path(kind, NAMESPACE, ""));
        std::thread::spawn(move || HttpCall::get(&path).send(address).text())
    };
    let watches = [watch("Broker"), watch("Trigger")];
    for n in 0..20 {
        let uri = json!({ "uri": format!("http://127.0.0.1:1/{n}") });
        api.patch("Broker", NAMESPACE, "main", &json!({ "spec": { "delivery": { "deadLetterSink": uri } } }));
        api.patch("Trigger", NAMESPACE, "t", &json!({ "spec": { "subscriber": uri } }));
    }
    for kind in ["Broker", "Trigger"] {
        api.wait_ready(kind, NAMESPACE, if kind == "Broker" { "main" } else { "t" }, TIMEOUT);
    }
    for (watched, (wanted, status)) in watches.into_iter().zip([
        ("/spec/delivery/deadLetterSink/uri", "/status/deadLetterSinkUri"),
        ("/spec/subscriber/uri", "/status/subscriberUri"),
    ]) {
        let text = watched.join().unwrap();
        let mut current = 0;
        for line in text.lines() {
            let object = &serde_json::from_str::<Value>(line).unwrap()["object"];
            if object["status"]["observedGeneration"] == object["metadata"]["generation"] {
                current += 1;
                assert_eq!(object.pointer(wanted), object.pointer(status), "{object:#}");
            }
        }
        assert!(current >= 2, "{text}");
    }
}

/// EV-RTE-08, EV-RTE-24: two deliveries of one event to one destination are distinguishable, by the parent id of
/// their trace.
#[test]
fn deliveries_to_one_url_differ_by_trace() {
    let appliance = with_broker(&setup());
    let sink = EventSink::start();
    for name in ["one", "two"] {
        subscribe(appliance.api(), name, &sink.url(), &[only(json!({ "type": "kit.test" }))]);
    }
    post(&appliance, &TestEvent::new("1"));
    let parents: BTreeSet<_> =
        sink.wait_for(2, TIMEOUT).iter().map(|event| event.header("traceparent").unwrap().to_owned()).collect();
    assert_eq!(parents.len(), 2);
    let traces: BTreeSet<_> = parents.iter().map(|parent| &parent[..36]).collect();
    assert_eq!(traces.len(), 1, "one trace: {parents:?}");
}

/// X-FEA-13: where the operator wants it, a Broker is made that a Trigger only names, and one in each namespace with the
/// label, also when the label comes later and when it is deleted; nowhere else.
#[test]
fn a_broker_is_made_where_it_is_only_named() {
    let appliance = setup().start();
    let api = appliance.api();
    let sugar = |data: Value| api.try_patch("ConfigMap", "knative-eventing", "config-sugar", &json!({ "data": data }));
    api.create(&trigger("early", "plain", "http://127.0.0.1:1/"));
    assert_eq!(sugar(json!({ "trigger-selector": "Like" })).status, 422);
    let selectors = json!({
        "trigger-selector": "{matchLabels: {sugar: please}}", "namespace-selector": "{matchLabels: {sugar: please}}",
    });
    assert_eq!(sugar(selectors).status, 200);
    let labels = json!({ "sugar": "please" });
    api.create(&with(trigger("t", "named", "http://127.0.0.1:1/"), "/metadata/labels", labels.clone()));
    let made = api.wait_ready("Broker", NAMESPACE, "named", TIMEOUT);
    assert_eq!(made["metadata"]["labels"]["eventing.knative.dev/injected"], "true");
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);

    let namespace = |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    api.create(&namespace("without"));
    api.create(&namespace("later"));
    api.create(&with(namespace("team"), "/metadata/labels", labels.clone()));
    let first = api.wait_ready("Broker", "team", "default", TIMEOUT);
    api.patch("Namespace", "", "later", &json!({ "metadata": { "labels": labels } }));
    api.wait_ready("Broker", "later", "default", TIMEOUT);
    api.delete("Broker", "team", "default");
    api.wait_for("Broker", "team", "default", TIMEOUT, |again| {
        kit::api::is_ready(again) && again["metadata"]["uid"] != first["metadata"]["uid"]
    });
    assert_eq!(api.list("Broker", "without"), [] as [Value; 0]);
    assert!(api.get("Broker", NAMESPACE, "plain").is_none(), "nobody asked for that");
}
