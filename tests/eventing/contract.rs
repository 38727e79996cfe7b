//! Smaller promises of eventing to clients and peers: through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use kit::manifest::{NAMESPACE, broker, channel, subscription, trigger, with};
use kit::scene::{BROKER, SILENCE, accepted, ids, post, subscribe, with_broker};
use kit::{ApplianceSetup, EventSink, HttpCall, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn reference(kind: &str, name: &str) -> Value {
    let group = if kind == "Broker" { "eventing" } else { "messaging" };
    json!({ "apiVersion": format!("{group}.knative.dev/v1"), "kind": kind, "name": name,
            "namespace": NAMESPACE, "address": "http" })
}

/// Whether `has` holds all that `wanted` says.
fn check_within(wanted: &Value, has: &Value, at: &str) {
    match wanted {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| check_within(value, &has[name], &format!("{at}.{name}")));
        }
        _ => assert_eq!(wanted, has, "{at}"),
    }
}

/// EV-API-07, EV-API-10: every field of the four kinds and of what they are made of is taken and given back, and the
/// schemas name those that the server sets.
#[test]
fn every_field_is_there() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let certificate = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap().cert.pem();
    let destination = |path: &str| json!({ "ref": reference("Broker", "letters"), "uri": path, "CACerts": certificate, "audience": "who" });
    let delivery = json!({
        "deadLetterSink": destination("/dead"), "retry": 7, "timeout": "PT9S", "backoffPolicy": "linear",
        "backoffDelay": "PT0.3S", "format": "json",
    });
    let config = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "options", "namespace": NAMESPACE });
    let template = json!({ "apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel",
                           "spec": { "delivery": { "retry": 1 } } });
    let attributes = json!({ "type": "t", "any": "" });
    let filters = json!([{ "all": [{ "exact": { "type": "t" } }, { "not": { "prefix": { "id": "x" } } }] },
                         { "any": [{ "suffix": { "source": "/" } }, { "cesql": "EXISTS any" }] }]);
    let of = |object: Value, fields: &[(&str, &Value)]| {
        fields.iter().fold(object, |object, (at, value)| with(object, &format!("/spec/{at}"), (*value).clone()))
    };
    let to = destination("/in");
    let of_channel = json!({ "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c" });
    for object in [
        of(broker("b"), &[("config", &config), ("delivery", &delivery)]),
        of(
            trigger("t", "b", "http://unused/"),
            &[
                ("filter", &json!({ "attributes": attributes })),
                ("filters", &filters),
                ("subscriber", &to),
                ("delivery", &delivery),
            ],
        ),
        of(channel("c"), &[("channelTemplate", &template), ("delivery", &delivery)]),
        of(
            subscription("s", "c", "http://unused/"),
            &[("channel", &of_channel), ("subscriber", &to), ("reply", &to), ("delivery", &delivery)],
        ),
    ] {
        api.create(&object);
        let kind = object["kind"].as_str().unwrap();
        let stored = api.get(kind, NAMESPACE, object["metadata"]["name"].as_str().unwrap()).unwrap();
        check_within(&object["spec"], &stored["spec"], kind);
    }
    for (plural, fields) in [
        ("brokers.eventing", &["observedGeneration", "conditions", "address", "deadLetterSinkUri"][..]),
        ("triggers.eventing", &["observedGeneration", "conditions", "subscriberUri", "deadLetterSinkUri"]),
        ("channels.messaging", &["observedGeneration", "conditions", "address", "subscribers", "deadLetterSinkUri"]),
        ("subscriptions.messaging", &["observedGeneration", "conditions", "physicalSubscription"]),
    ] {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.knative.dev");
        let definition = HttpCall::get(&path).send(api.address()).json();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        for field in fields {
            assert!(schema["properties"][field].is_object(), "{plural} {field}: {schema:#}");
        }
    }
}

/// EV-API-05: a subject that may resolve addressable kinds reads them and their status, by roles that are selected by
/// label and aggregated into one.
#[test]
fn addressable_kinds_have_their_resolver_roles() {
    let appliance = ApplianceSetup::new(BIN).start();
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let get = |path: &str| HttpCall::get(path).send(appliance.api().address()).json();
    let found = get(&format!("{roles}?labelSelector=duck.knative.dev/addressable%3Dtrue"));
    let mut readable = BTreeSet::new();
    for role in found["items"].as_array().unwrap() {
        let name = role["metadata"]["name"].as_str().unwrap();
        assert!(name.ends_with("-addressable-resolver"), "{name}");
        for rule in role["rules"].as_array().unwrap() {
            assert_eq!(rule["verbs"], json!(["get", "list", "watch"]), "{role:#}");
            let texts = |list: &Value| -> Vec<String> {
                list.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
            };
            for group in texts(&rule["apiGroups"]) {
                readable.extend(texts(&rule["resources"]).into_iter().map(|one| format!("{one}.{group}")));
            }
        }
    }
    let all = get(&format!(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?labelSelector={}",
        "duck.knative.dev/addressable%3Dtrue"
    ));
    let kinds: Vec<_> = all["items"].as_array().unwrap().iter().map(|one| one["metadata"]["name"].clone()).collect();
    assert!(kinds.len() >= 6, "{kinds:?}");
    for kind in kinds {
        let (plural, group) = kind.as_str().unwrap().split_once('.').unwrap();
        for resource in [format!("{plural}.{group}"), format!("{plural}/status.{group}")] {
            assert!(readable.contains(&resource), "{resource}: {readable:#?}");
        }
    }
    let whole = get(&format!("{roles}/addressable-resolver"));
    let selectors = &whole["aggregationRule"]["clusterRoleSelectors"];
    assert_eq!(selectors[0]["matchLabels"], json!({ "duck.knative.dev/addressable": "true" }));
}

/// EV-API-05: a subject bound to `channelable-manipulator` may do to channels what a subscriber's controller has to,
/// status included, and nothing else.
#[test]
fn channels_have_their_manipulator_roles() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let binding = json!({
        "metadata": { "name": "m" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "channelable-manipulator" },
        "subjects": [{ "kind": "ServiceAccount", "name": "m", "namespace": NAMESPACE }],
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let made = HttpCall::post(path).json(&binding).send(api.address());
    assert_eq!(made.status, 201, "{made}");
    let may = |verb: &str, resource: &str, subresource: &str| {
        let attributes = json!({
            "verb": verb, "group": "messaging.knative.dev", "resource": resource, "subresource": subresource,
            "namespace": NAMESPACE,
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": "system:serviceaccount:default:m", "resourceAttributes": attributes },
        });
        let answer = HttpCall::post("/apis/authorization.k8s.io/v1/subjectaccessreviews").json(&review);
        answer.send(api.address()).json()["status"]["allowed"] == true
    };
    for verb in ["create", "get", "list", "watch", "update", "patch", "delete"] {
        for resource in ["channels", "inmemorychannels"] {
            assert!(may(verb, resource, "") && may(verb, resource, "status"), "{verb} {resource}");
        }
        assert!(!may(verb, "subscriptions", ""), "{verb} subscriptions");
    }
}

/// DP-PROTO-10, DP-PROTO-12: no OPTIONS request is sent first, so that a subscriber that refuses those gets its
/// events like all others.
#[test]
fn a_subscriber_is_not_asked_before_it_is_sent_an_event() {
    let sink =
        EventSink::answering(|event| SinkResponse::status(if event.request.method == "POST" { 202 } else { 405 }));
    let appliance = with_broker(&ApplianceSetup::new(BIN));
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("1"));
    post(&appliance, &TestEvent::new("2"));
    sink.wait_for(2, TIMEOUT);
    let methods: BTreeSet<_> = sink.received().iter().map(|event| event.request.method.clone()).collect();
    assert_eq!(methods, BTreeSet::from(["POST".to_owned()]));
}

/// DP-ACK-11, DP-ACK-12, DP-ACK-13: nothing is taken for a duplicate: not the same event again, and even less the same id
/// of another source.
#[test]
fn an_event_that_comes_twice_is_delivered_twice() {
    let sink = EventSink::start();
    let appliance = with_broker(&ApplianceSetup::new(BIN));
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    for event in [TestEvent::new("1"), TestEvent::new("1"), TestEvent::new("1").with("source", "/other")] {
        post(&appliance, &event);
    }
    let mut sources: Vec<_> = sink.wait_for(3, TIMEOUT).iter().filter_map(|one| one.attribute("source")).collect();
    sources.sort();
    assert_eq!(sources, ["/kit", "/kit", "/other"]);
}

/// DP-ACK-13, TRN-55: with a deduplication window a repeated event is acknowledged and not stored again, whichever
/// core takes it, also if the process is killed in between. The same id of another source is another event.
#[test]
fn deduplication_window_stores_an_event_once() {
    let sink = EventSink::start();
    let mut appliance = ApplianceSetup::new(BIN).flag("workers", "2").start();
    let object = with(broker("main"), "/metadata/annotations", json!({ "sluicegate.dev/deduplication-window": "10m" }));
    appliance.api().create(&object);
    appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    for repeated in [false, true] {
        for id in 0..20 {
            post(&appliance, &TestEvent::new(&id.to_string()));
        }
        post(&appliance, &TestEvent::new("1").with("source", "/other"));
        let counts = ["accepted", "deduplicated"]
            .map(|name| metric(&appliance, &format!("sluicegate_stream_{name}_total"), BROKER));
        assert_eq!(counts, if repeated { [0, 21] } else { [21, 0] });
        sink.wait_for(21, TIMEOUT);
        appliance.restart();
        appliance.api().wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);
    }
}

/// EV-CH-04, EV-BRK-04: a Subscription begins with what comes after it is Ready.
#[test]
fn a_new_subscription_begins_at_the_end() {
    let appliance = ApplianceSetup::new(BIN).start();
    appliance.api().create(&channel("main"));
    appliance.api().wait_ready("Channel", NAMESPACE, "main", TIMEOUT);
    let path = "/channels/default/main";
    let early = EventSink::start();
    let ready = |name: &str, sink: &EventSink| {
        appliance.api().create(&subscription(name, "main", &sink.url()));
        appliance.api().wait_ready("Subscription", NAMESPACE, name, TIMEOUT);
    };
    ready("early", &early);
    accepted(&TestEvent::new("before").binary(path), &appliance);
    early.wait_for(1, TIMEOUT);
    let late = EventSink::start();
    ready("late", &late);
    accepted(&TestEvent::new("after").binary(path), &appliance);
    assert_eq!(ids(&late.wait_for(1, TIMEOUT)), ["after"]);
    wait::nothing(SILENCE, "an older event", || (late.received().len() > 1).then_some(()));
}

fn metric(appliance: &kit::Appliance, name: &str, label: &str) -> u64 {
    let text = HttpCall::get("/metrics").send(appliance.admin()).text();
    let of_it = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    of_it.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// DP-OBS-02: for each subscriber, what was accepted was delivered, filtered, dead-lettered, dropped with a reason, or is
/// pending; whatever the subscriber answers. A drop is a Kubernetes Event with its reason too.
#[test]
fn nothing_vanishes() {
    let appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "2"));
    let api = appliance.api();
    let moody = EventSink::answering(|event| match event.id().parse::<u32>().unwrap_or(0) % 4 {
        0 => SinkResponse::status(202),
        1 => SinkResponse::status(400),
        2 => SinkResponse::status(if event.attempt < 2 { 503 } else { 202 }),
        _ => SinkResponse::status(503),
    });
    let (dead, refusing) = (EventSink::start(), EventSink::answering(|_| SinkResponse::status(400)));
    let quick = |more: Value| {
        let mut options = json!({ "retry": 2, "backoffPolicy": "linear", "backoffDelay": "PT0.01S" });
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/spec/delivery", options)
    };
    let sink = |sink: &EventSink| json!({ "deadLetterSink": { "uri": sink.url() } });
    subscribe(api, "sinkless", &moody.url(), &[quick(json!({}))]);
    subscribe(api, "buried", &moody.url(), &[quick(sink(&dead))]);
    subscribe(api, "refused", &moody.url(), &[quick(sink(&refusing))]);
    subscribe(api, "picky", &moody.url(), &[quick(json!({})), kit::scene::only(json!({ "type": "none" }))]);
    let away = EventSink::answering(|_| SinkResponse::status(503));
    subscribe(
        api,
        "waits",
        &away.url(),
        &[(
            "/spec/delivery",
            json!({
                "retry": 9, "backoffPolicy": "linear", "backoffDelay": "PT60S", "deadLetterSink": { "uri": dead.url() },
            }),
        )],
    );
    let events: u64 = 80;
    for n in 0..events {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }
    assert_eq!(metric(&appliance, "sluicegate_stream_accepted_total", BROKER), events);
    let of = |name: &str, what: &str| {
        metric(&appliance, &format!("sluicegate_subscriber_{what}"), &format!("subscriber=\"default/{name}\""))
    };
    let ends = |name: &str| {
        ["delivered_total", "filtered_total", "dead_lettered_total", "dropped_total", "pending"].map(|w| of(name, w))
    };
    let wanted = [
        ("sinkless", [40, 0, 0, 40, 0]),
        ("buried", [40, 0, 40, 0, 0]),
        ("refused", [40, 0, 0, 40, 0]),
        ("picky", [0, 80, 0, 0, 0]),
        ("waits", [0, 0, 0, 0, 80]),
    ];
    wait::until(TIMEOUT, "all to come to their ends", || {
        let all = wanted.iter().map(|(name, _)| ends(name));
        all.eq(wanted.iter().map(|(_, ends)| *ends)).then_some(())
    });
    for (name, _) in wanted {
        assert_eq!(of(name, "offered_total"), events);
        let by = |reason: &str| {
            let text = HttpCall::get("/metrics").send(appliance.admin()).text();
            let line = text.lines().find(|line| {
                line.starts_with("sluicegate_subscriber_dropped_by_total{")
                    && line.contains(&format!("default/{name}\""))
                    && line.contains(reason)
            });
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap()
        };
        let (sinkless, refused) = (by("no_dead_letter_sink"), by("dead_letter_sink_failed"));
        assert_eq!(
            (sinkless, refused),
            match name {
                "sinkless" => (40, 0),
                "refused" => (0, 40),
                _ => (0, 0),
            }
        );
    }
    let reported = |name: &str, why: &str| {
        wait::until(TIMEOUT, &format!("an Event on {name}"), || {
            let events = HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/events")).send(api.address()).json();
            let is = |one: &&Value| {
                one["reason"] == "EventDropped"
                    && one["involvedObject"]["name"] == name
                    && one["message"].as_str().is_some_and(|text| text.contains(why))
            };
            events["items"].as_array()?.iter().find(is).map(|_| ())
        });
    };
    reported("sinkless", "there is no dead letter sink");
    reported("refused", "did not take them");
}

/// The addresses of both kinds of stream answer by the book over HTTP/1.1, whatever is asked: DP-ACK-04, DP-ACK-07,
/// DP-ACK-14, DP-PROTO-06, DP-PROTO-11, DP-PROTO-13, X-BRK-02, X-BRK-03.
#[test]
fn broker_and_channel_answer_hostile_requests_by_spec() {
    let appliance = with_broker(&ApplianceSetup::new(BIN));
    appliance.api().create(&channel("main"));
    appliance.api().wait_ready("Channel", NAMESPACE, "main", TIMEOUT);
    let batch = "application/cloudevents-batch+json";
    let whole = |id: &str| json!({ "specversion": "1.0", "id": id, "source": "/s", "type": "t" });
    let old = || {
        let event = TestEvent::new("old").with("specversion", "0.3").with("schemaurl", "http://s");
        event.with("datacontentencoding", "base64").data("application/octet-stream", "AAEC")
    };
    for path in [BROKER, "/channels/default/main"] {
        let as_type = |content: &str, body: String| HttpCall::post(path).header("Content-Type", content).body(body);
        let rows: Vec<(HttpCall, u16)> = vec![
            (old().binary(path), 202),
            (TestEvent::new("x").with("specversion", "0.2").binary(path), 400),
            (TestEvent::new("x").with("specversion", "").binary(path), 400),
            (TestEvent::new("").binary(path), 400),
            (TestEvent::new("x").with("source", "").binary(path), 400),
            (TestEvent::new("x").without("type").binary(path), 400),
            (TestEvent::new("x").with("time", "yesterday").binary(path), 400),
            (TestEvent::new("x").with("an-extension", "1").binary(path), 400),
            (TestEvent::new("x").with("ext", "%FF").binary(path), 400),
            (TestEvent::new("x").with("ext", &"y".repeat(30_000)).binary(path), 202),
            (as_type(batch, json!([whole("1"), whole("2")]).to_string()), 202),
            (as_type(batch, json!([whole("1"), { "id": "2" }]).to_string()), 400),
            (as_type(batch, "{}".to_owned()), 400),
            (as_type(batch, vec![whole("n").to_string(); 1001].join(",").replacen('{', "[{", 1) + "]"), 400),
            (as_type("application/cloudevents+json", "[".repeat(100_000)), 400),
            (as_type("application/cloudevents+json", whole("1").to_string() + "x"), 400),
            (as_type("application/cloudevents+xml", "<x/>".to_owned()), 415),
            (HttpCall::new("OPTIONS", path), 200),
            (HttpCall::get(path), 405),
            (HttpCall::new("PUT", path), 405),
            (HttpCall::new("DELETE", path), 405),
            (HttpCall::new("PATCH", path), 405),
            (TestEvent::new("x").binary(&format!("{path}/deeper")), 404),
            (TestEvent::new("x").binary(&path.replace("default", "..%2fdefault")), 404),
            (TestEvent::new("x").data("text/plain", vec![b'x'; (1 << 20) + 1]).binary(path), 413),
        ];
        for (nth, (call, status)) in rows.iter().enumerate() {
            let answer = call.send(appliance.events());
            assert_eq!(answer.status, *status, "row {nth} at {path}: {answer}");
            assert_eq!(answer.headers.get("allow"), Some("POST, OPTIONS"), "row {nth}: {answer}");
            assert_eq!(answer.body.is_empty(), matches!(*status, 200 | 202), "row {nth}: {answer}");
        }
        let options = HttpCall::new("OPTIONS", path).send(appliance.events());
        assert_eq!(options.headers.get("webhook-allowed-origin"), Some("*"), "{options}");
        assert_eq!(options.headers.get("webhook-allowed-rate"), Some("*"), "{options}");
    }
}

/// DP-PROTO-01, DP-PROTO-02, DP-PROTO-03, DP-ACK-04, DP-ACK-07, DP-PROTO-11, DP-PROTO-13: Brokers and channels accept
/// HTTP/2 as well, many requests at a time, and answer as they do over HTTP/1.1.
#[test]
fn events_come_in_over_http2() {
    const EVENTS: usize = 200;
    let appliance = with_broker(&ApplianceSetup::new(BIN));
    let sink = EventSink::start();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    let to = appliance.events();
    let request = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut request = http::Request::builder().method(method).uri(format!("http://{to}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    };
    let event = |id: &str| {
        [("ce-specversion", "1.0"), ("ce-id", id), ("ce-source", "/h2"), ("ce-type", "t")]
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
    };
    let statuses = kit::http2::run(async {
        let (client, _) = kit::http2::H2Client::open(to).await;
        let posts = (0..EVENTS).map(|n| {
            let (id, client) = (n.to_string(), client.clone());
            let fields = event(&id);
            let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let request = request("POST", BROKER, &fields);
            async move { client.send(request, vec![b'x'; n * 50].into(), None).await.unwrap().status }
        });
        for status in futures_util::future::join_all(posts).await {
            assert_eq!(status, 202);
        }
        let one = event("1").map(|(name, value)| (name, value));
        let whole: Vec<_> = one.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let json = [("content-type", "application/cloudevents+json")];
        type ContractRow<'r> = (&'r str, &'r str, &'r [(&'r str, &'r str)], Vec<u8>);
        let rows: Vec<ContractRow<'_>> = vec![
            ("POST", BROKER, &json, TestEvent::new("structured").envelope().to_string().into()),
            ("POST", BROKER, &whole[..3], b"x".to_vec()),
            ("POST", BROKER, &json, b"{".to_vec()),
            ("POST", "/brokers/default/other", &whole, b"x".to_vec()),
            ("OPTIONS", BROKER, &[], Vec::new()),
            ("GET", BROKER, &[], Vec::new()),
            ("HEAD", BROKER, &[], Vec::new()),
            ("POST", BROKER, &whole, vec![b'x'; (1 << 20) + 1]),
            ("POST", BROKER, &whole, vec![b'x'; 5 << 20]),
        ];
        let mut statuses = Vec::new();
        for (method, path, headers, body) in rows {
            let (response, mut stream) = client.begin(request(method, path, headers), body.is_empty()).await.unwrap();
            if !body.is_empty() {
                // A client that is rejected half way need not send the rest.
                let _ = kit::http2::send_all(&mut stream, body.into(), true).await;
            }
            let answer = kit::http2::answer(response.await.unwrap()).await.unwrap();
            statuses.push(answer.status);
        }
        statuses
    });
    assert_eq!(statuses, [202, 400, 400, 404, 200, 405, 405, 413, 413]);
    let received = sink.wait_for(EVENTS + 1, TIMEOUT);
    assert!(
        received
            .iter()
            .all(|one| one.id() == "structured" || one.data().len() == 50 * one.id().parse::<usize>().unwrap())
    );
}
