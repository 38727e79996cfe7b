//! References that the operator has to enable, through the built binary: to other namespaces, without a version,
//! and to objects without an address.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, channel, subscription, trigger, with};
use kit::scene::{SILENCE, accepted, ids};
use kit::{Appliance, ApplianceSetup, EventSink, KitApi, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const EVENTING: &str = "knative-eventing";
/// The namespace that is read from.
const OTHER: &str = "elsewhere";

fn feature(appliance: &Appliance, name: &str, word: &str) {
    let data = json!({ "data": { name: word } });
    appliance.api().patch("ConfigMap", EVENTING, "config-features", &data);
}

fn namespace(api: KitApi, name: &str) {
    api.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
}

fn elsewhere(object: Value) -> Value {
    with(object, "/metadata/namespace", OTHER.into())
}

/// A Trigger here of the Broker `main` there.
fn reaching_trigger(name: &str, sink: &EventSink) -> Value {
    let mut object = trigger(name, "", &sink.url());
    object["spec"].as_object_mut().unwrap().remove("broker");
    let there = json!({
        "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main", "namespace": OTHER,
    });
    with(object, "/spec/brokerRef", there)
}

fn reaching_subscription(name: &str, sink: &EventSink) -> Value {
    with(subscription(name, "main", &sink.url()), "/spec/channel/namespace", OTHER.into())
}

/// A user who may write everything in `default`, and nothing elsewhere.
fn neighbour(api: KitApi) -> KitApi {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "neighbour", "namespace": NAMESPACE },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "neighbour" }],
    });
    api.create(&binding);
    api.as_user("neighbour")
}

/// Lets the neighbour subscribe to what is elsewhere, by upstream's role.
fn let_in(api: KitApi) {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "neighbour", "namespace": OTHER },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "crossnamespace-subscriber",
        },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "neighbour" }],
    });
    api.create(&binding);
}

/// X-FEA-10: a Broker and a channel of another namespace are read only where the operator allows it, and only for
/// authors with the verb `knsubscribe` there; switching the feature off ends it.
#[test]
fn events_cross_namespaces_only_where_operator_and_owner_let_them() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, of_trigger, of_subscription) = (appliance.api(), EventSink::start(), EventSink::start());
    namespace(api, OTHER);
    for (kind, object) in [("Broker", broker("main")), ("Channel", channel("main"))] {
        api.create(&elsewhere(object));
        api.wait_ready(kind, OTHER, "main", TIMEOUT);
    }
    let (reader, listener) =
        (reaching_trigger("reader", &of_trigger), reaching_subscription("listener", &of_subscription));
    let dev = neighbour(api);
    for (object, field) in [(&reader, "spec.brokerRef.namespace"), (&listener, "spec.channel.namespace")] {
        let refused = api.try_create(object);
        assert_eq!((refused.status, &refused.json()["details"]["causes"][0]["field"]), (422, &field.into()));
    }

    feature(&appliance, "cross-namespace-event-links", "enabled");
    wait::until(TIMEOUT, "the feature to be on", || (dev.try_create(&reader).status == 422).then_some(()));
    for object in [&reader, &listener] {
        let refused = dev.try_create(object);
        let why = refused.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(refused.status == 422 && why.contains("not authorized") && why.contains(OTHER), "{refused}");
    }
    let_in(api);
    dev.create(&reader);
    dev.create(&listener);
    api.wait_ready("Trigger", NAMESPACE, "reader", TIMEOUT);
    api.wait_ready("Subscription", NAMESPACE, "listener", TIMEOUT);
    // The Broker of that name in its own namespace is another one.
    api.create(&broker("main"));
    api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    for (path, id) in
        [("/brokers/elsewhere/main", "1"), ("/brokers/default/main", "2"), ("/channels/elsewhere/main", "3")]
    {
        accepted(&TestEvent::new(id).binary(path), &appliance);
    }
    assert_eq!(ids(&of_trigger.wait_for(1, TIMEOUT)), ["1"]);
    assert_eq!(ids(&of_subscription.wait_for(1, TIMEOUT)), ["3"]);

    feature(&appliance, "cross-namespace-event-links", "disabled");
    api.wait_for("Trigger", NAMESPACE, "reader", TIMEOUT, |object| !kit::api::is_ready(object));
    api.wait_for("Subscription", NAMESPACE, "listener", TIMEOUT, |object| !kit::api::is_ready(object));
    accepted(&TestEvent::new("4").binary("/brokers/elsewhere/main"), &appliance);
    wait::rest(SILENCE);
    assert_eq!(ids(&of_trigger.received()), ["1"]);
}

/// X-FEA-01: a reference may say the group alone, for a channel and for whatever is sent to.
#[test]
fn a_reference_by_group_means_the_version_that_is_served() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, sink) = (appliance.api(), EventSink::start());
    for name in ["main", "second"] {
        api.create(&channel(name));
        api.wait_ready("Channel", NAMESPACE, name, TIMEOUT);
    }
    let by_group = |kind: &str, name: &str| json!({ "group": "messaging.knative.dev", "kind": kind, "name": name });
    let first = with(subscription("first", "", ""), "/spec/channel", by_group("Channel", "main"));
    let first = with(first, "/spec/subscriber", json!({ "ref": by_group("Channel", "second") }));
    let refused = api.try_create(&first);
    assert_eq!(refused.status, 422, "{refused}");
    let causes = refused.json()["details"]["causes"].clone();
    let fields: Vec<_> = causes.as_array().unwrap().iter().map(|cause| &cause["field"]).collect();
    assert_eq!(fields, ["spec.subscriber.ref.group", "spec.channel.group"]);

    feature(&appliance, "kreference-group", "enabled");
    wait::until(TIMEOUT, "the feature to be on", || (api.try_create(&first).status == 201).then_some(()));
    api.wait_ready("Subscription", NAMESPACE, "first", TIMEOUT);
    let stored = api.create(&subscription("last", "second", &sink.url()));
    assert_eq!(stored["spec"]["channel"].get("group"), None);
    api.wait_ready("Subscription", NAMESPACE, "last", TIMEOUT);
    accepted(&TestEvent::new("1").binary("/channels/default/main"), &appliance);
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["1"]);

    let nobody = json!({ "ref": { "group": "nobody.example", "kind": "Thing", "name": "x" } });
    api.create(&with(subscription("lost", "main", ""), "/spec/subscriber", nobody));
    let lost = api.wait_for("Subscription", NAMESPACE, "lost", TIMEOUT, |object| {
        condition(object, "ReferencesResolved").is_some_and(|found| found["status"] == "False")
    });
    let why = condition(&lost, "ReferencesResolved").unwrap()["message"].as_str().unwrap();
    assert!(why.contains("no such kind is served by group nobody.example"), "{why}");
}

/// X-FEA-02: the operator gives URLs to objects of a kind that has no address.
#[test]
fn a_kind_without_an_address_is_reached_by_the_operators_url() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, sink) = (appliance.api(), EventSink::start());
    let to = json!({ "ref": { "apiVersion": "v1", "kind": "ConfigMap", "name": "box" } });
    api.create(&broker("main"));
    api.create(&with(trigger("boxed", "main", ""), "/spec/subscriber", to));
    let resolved = |word: &'static str| {
        move |object: &Value| condition(object, "SubscriberResolved").is_some_and(|found| found["status"] == word)
    };
    api.wait_for("Trigger", NAMESPACE, "boxed", TIMEOUT, resolved("False"));

    let template = format!("{}{{{{ .Namespace }}}}/{{{{ .Name }}}}", sink.url());
    let bad = api.try_patch(
        "ConfigMap",
        EVENTING,
        "config-kreference-mapping",
        &json!({ "data": { "ConfigMap.v1": "/{{ .Name }}" } }),
    );
    assert_eq!(bad.status, 422, "{bad}");
    let data = json!({ "data": { "ConfigMap.v1": template } });
    api.patch("ConfigMap", EVENTING, "config-kreference-mapping", &data);
    feature(&appliance, "kreference-mapping", "enabled");
    let ready = api.wait_ready("Trigger", NAMESPACE, "boxed", TIMEOUT);
    assert_eq!(ready["status"]["subscriberUri"], format!("{}default/box", sink.url()));
    accepted(&TestEvent::new("1").binary("/brokers/default/main"), &appliance);
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["1"]);

    feature(&appliance, "kreference-mapping", "disabled");
    api.wait_for("Trigger", NAMESPACE, "boxed", TIMEOUT, resolved("False"));
}
