//! References to invalid objects, and to kinds that are defined and deleted.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};
use sluicegate_control::kinds::eventing::broker::Broker;
use sluicegate_control::kinds::eventing::event_type::EventType;
use sluicegate_control::kinds::eventing::trigger::Trigger;
use sluicegate_control::kinds::messaging::channel::Channel;
use sluicegate_control::kinds::messaging::subscription::Subscription;
use sluicegate_control::kinds::shared::{ConditionStatus, HasConditions};

use crate::control_plane::{NS, TestControlPlane, eventually, in_a_control_plane};
use crate::eventing::{broker, trigger};

/// References to what no object can be: each has something that is more than a name to a request's path.
fn impossible() -> Vec<Value> {
    let to = |changed: Value| {
        let mut reference =
            json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "b", "namespace": NS});
        for (field, value) in changed.as_object().unwrap() {
            reference[field] = value.clone();
        }
        reference
    };
    vec![
        to(json!({"name": "a b"})),
        to(json!({"name": "b/status"})),
        to(json!({"name": "b?x=1"})),
        to(json!({"name": "b#x"})),
        to(json!({"name": "%62"})),
        to(json!({"name": ".."})),
        to(json!({"namespace": "a b"})),
        to(json!({"namespace": "default/brokers?watch=true&x="})),
        to(json!({"apiVersion": "x y/v1"})),
        to(json!({"apiVersion": "x.example/v1?watch=true"})),
        to(json!({"apiVersion": "x.example/"})),
    ]
}

/// EV-TRG-06, EV-ADR-05, EV-ADR-06, COND-10: an impossible name is not found, and the referring object's condition
/// says so.
#[test]
fn what_no_object_can_be_called_is_not_found() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        for (index, reference) in impossible().into_iter().enumerate() {
            let mut lost = trigger(json!({"subscriber": {"ref": reference}}));
            lost["metadata"]["name"] = format!("t{index}").into();
            control_plane.create::<Trigger>(lost).await;
            let name = format!("t{index}");
            let shown = control_plane.until_not_ready::<Trigger>(&name, "SubscriberResolveFailed").await;
            let said = &shown.condition("SubscriberResolved").unwrap().message;
            assert!(said.contains("not found") || said.contains("no such kind"), "{reference}: {said}");
        }
    });
}

/// EV-TRG-07, EV-SUB-08, EV-BRK-12, COND-10: the same of everything else that may name an object.
#[test]
fn every_reference_to_what_cannot_be_ends_in_a_condition() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let nowhere =
            json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "a b", "namespace": NS});
        let is_false = |c: Option<&_>| {
            c.is_some_and(|c: &sluicegate_control::kinds::shared::Condition| {
                c.status == ConditionStatus::False && !c.reason.is_empty() && c.message.contains("not found")
            })
        };
        control_plane.create::<Broker>(broker(json!({"delivery": {"deadLetterSink": {"ref": nowhere}}}))).await;
        control_plane.until::<Broker>("b", |b| is_false(b.ready())).await;

        let mut waits = trigger(json!({}));
        let dependency = r#"{"apiVersion":"v1","kind":"Service","name":"a b","namespace":"default"}"#;
        waits["metadata"]["annotations"] = json!({"knative.dev/dependency": dependency});
        control_plane.create::<Trigger>(waits).await;
        control_plane.until::<Trigger>("t", |t| is_false(t.condition("DependencyReady"))).await;

        let named = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": NS}, "spec": spec});
        control_plane.create::<EventType>(named("e", json!({"reference": nowhere, "type": "x"}))).await;
        control_plane.until::<EventType>("e", |e| is_false(e.ready())).await;

        let sink = json!({"delivery": {"deadLetterSink": {"ref": nowhere}}});
        control_plane.create::<Channel>(named("c", sink)).await;
        control_plane.until::<Channel>("c", |c| is_false(c.ready())).await;

        let channel = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c"});
        let reads = json!({"channel": channel, "subscriber": {"ref": nowhere}});
        control_plane.create::<Subscription>(named("s", reads)).await;
        control_plane.until::<Subscription>("s", |s| is_false(s.condition("ReferencesResolved"))).await;
    });
}

const SINKS: &str = "sinks.late.example";

/// A custom kind whose objects have an address.
async fn define_sinks(control_plane: &TestControlPlane, plural: &str) {
    let anything = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"metadata": {"name": format!("{plural}.late.example")}, "spec": {
        "group": "late.example", "scope": "Namespaced", "names": {"plural": plural, "kind": "Sink"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": anything}]}});
    let definitions: Api<CustomResourceDefinition> = Api::all(control_plane.client.clone());
    let definition = serde_json::from_value(definition).unwrap();
    definitions.create(&PostParams::default(), &definition).await.unwrap();
}

async fn make_sink(control_plane: &TestControlPlane, plural: &str, url: &str) {
    let gvk = kube::core::GroupVersionKind::gvk("late.example", "v1", "Sink");
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    let sinks: Api<DynamicObject> = Api::namespaced_with(control_plane.client.clone(), NS, &resource);
    let sink = DynamicObject::new("s", &resource).data(json!({"status": {"address": {"url": url}}}));
    let made = eventually(async || sinks.create(&PostParams::default(), &sink).await.ok()).await;
    made.expect("the kind is served");
}

async fn undefine(control_plane: &TestControlPlane, definition: &str) {
    let definitions: Api<CustomResourceDefinition> = Api::all(control_plane.client.clone());
    definitions.delete(definition, &Default::default()).await.unwrap();
    let gone = eventually(async || definitions.get_opt(definition).await.unwrap().is_none().then_some(()));
    gone.await.expect("the definition goes");
}

/// EV-ADR-01, EV-ADR-05, EV-ADR-09: an object that refers to a kind that is not served yet is reconciled again when
/// the kind is defined; also when it goes and comes back under another plural.
#[test]
fn a_kind_that_is_defined_later_is_found() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        let sink = json!({"apiVersion": "late.example/v1", "kind": "Sink", "name": "s", "namespace": NS});
        control_plane.create::<Trigger>(trigger(json!({"subscriber": {"ref": sink}}))).await;
        let named = json!({"metadata": {"name": "e", "namespace": NS}, "spec": {"reference": sink, "type": "x"}});
        control_plane.create::<EventType>(named).await;
        control_plane.until_not_ready::<Trigger>("t", "SubscriberResolveFailed").await;
        control_plane.until_not_ready::<EventType>("e", "ReferenceDoesNotExist").await;

        for (plural, url) in [("sinks", "http://one.example/"), ("sinkholes", "http://two.example/")] {
            define_sinks(&control_plane, plural).await;
            make_sink(&control_plane, plural, url).await;
            let ready = control_plane.until_ready::<Trigger>("t").await;
            assert_eq!(ready.status.unwrap().subscriber_uri.as_deref(), Some(url));
            control_plane.until_ready::<EventType>("e").await;

            undefine(&control_plane, &format!("{plural}.late.example")).await;
            control_plane.until_not_ready::<Trigger>("t", "SubscriberResolveFailed").await;
            control_plane.until_not_ready::<EventType>("e", "ReferenceDoesNotExist").await;
        }
        define_sinks(&control_plane, "sinks").await;
        make_sink(&control_plane, "sinks", "http://three.example/").await;
        control_plane.until_ready::<Trigger>("t").await;
        undefine(&control_plane, SINKS).await;
    });
}

/// TRN-19, AMB-60: a reference to a kind of ours in an old version means the kind.
#[test]
fn a_kind_of_ours_is_found_in_whatever_version_it_is_named() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        let old = json!({"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "Broker", "name": "b"});
        control_plane.create::<Trigger>(trigger(json!({"subscriber": {"ref": old}}))).await;
        let ready = control_plane.until_ready::<Trigger>("t").await;
        let url = "http://127.0.0.1:8081/brokers/default/b";
        assert_eq!(ready.status.unwrap().subscriber_uri.as_deref(), Some(url));

        let named = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": NS}, "spec": spec});
        let template = json!({"apiVersion": "messaging.knative.dev/v1beta1", "kind": "InMemoryChannel"});
        control_plane.create::<Channel>(named("c", json!({"channelTemplate": template}))).await;
        control_plane.until_ready::<Channel>("c").await;
        let channel = json!({"apiVersion": "messaging.knative.dev/v1beta1", "kind": "Channel", "name": "c"});
        let reads = json!({"channel": channel, "subscriber": {"uri": "http://127.0.0.1:9/"}});
        control_plane.create::<Subscription>(named("s", reads)).await;
        control_plane.until_ready::<Subscription>("s").await;
    });
}

/// EV-TRG-02: a Broker that can never be made is missing anyway.
#[test]
fn a_trigger_says_that_its_broker_is_missing_though_none_can_be_made() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let ns = "knative-eventing";
        let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(control_plane.client.clone(), ns);
        let patch = kube::api::Patch::Merge(json!({"data": {"trigger-selector": "{}"}}));
        maps.patch("config-sugar", &Default::default(), &patch).await.unwrap();
        let settle = trigger(json!({"broker": "made"}));
        control_plane.create::<Trigger>(settle).await;
        control_plane.until_ready::<Trigger>("t").await;
        for (name, changed) in [
            ("odd", json!({"broker": "My_Broker"})),
            (
                "nowhere",
                json!({"brokerRef": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker",
                "name": "b", "namespace": "nowhere"}}),
            ),
        ] {
            let mut one = trigger(changed.clone());
            one["metadata"]["name"] = name.into();
            if changed["brokerRef"].is_object() {
                let on = kube::api::Patch::Merge(json!({"data": {"cross-namespace-event-links": "enabled"}}));
                maps.patch("config-features", &Default::default(), &on).await.unwrap();
                one["spec"].as_object_mut().unwrap().remove("broker");
            }
            let made = eventually(async || {
                let one = serde_json::from_value(one.clone()).unwrap();
                control_plane.api::<Trigger>().create(&PostParams::default(), &one).await.ok()
            });
            made.await.expect("it is taken once the feature is on");
            control_plane.until_not_ready::<Trigger>(name, "BrokerDoesNotExist").await;
        }
    });
}
