//! Broker and Trigger: from a manifest to a stream with its subscribers.

use dataplane::abandoned::AbandonedEvents;
use dataplane::table::{BackoffPolicy, EventFilter, HoldReason, ReplyTarget};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use serde_json::{Value, json};
use sluicegate_control::kinds::eventing::broker::Broker;
use sluicegate_control::kinds::eventing::trigger::Trigger;
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::kinds::shared::HasConditions;

use crate::control_plane::{NS, TestControlPlane, eventually, in_a_control_plane, turn_over};
use crate::serving::hello;

pub(crate) fn broker(spec: Value) -> Value {
    json!({"metadata": {"name": "b", "namespace": NS}, "spec": spec})
}

pub(crate) fn trigger(spec: Value) -> Value {
    let mut whole = json!({"broker": "b", "subscriber": {"uri": "http://127.0.0.1:9/in"}});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!({"metadata": {"name": "t", "namespace": NS}, "spec": whole})
}

const PATH: &str = "/brokers/default/b";

/// EV-BRK-01, EV-TRG-12, EV-OBJ-03, EV-OBJ-58, AMB-29: when Ready is seen the table has the subscriber
/// with its filter and the Broker's delivery.
#[test]
fn a_broker_and_its_trigger_become_a_stream_with_a_subscriber() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let made = control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Trigger>(trigger(json!({"filter": {"attributes": {"type": "order"}}}))).await;
        let ready = control_plane.until_ready::<Trigger>("t").await;
        control_plane.table(|table| {
            let stream = &table.streams[PATH];
            assert_eq!(&*stream.name, format!("broker/default/b/{}", made.metadata.uid.as_ref().unwrap()));
            let subscriber = &stream.subscribers[0];
            assert_eq!(&*subscriber.name, ready.metadata.uid.as_deref().unwrap());
            assert_eq!(subscriber.filter, EventFilter::Exact(vec![("type".into(), "order".into())]));
            assert_eq!(&*subscriber.target.url, "http://127.0.0.1:9/in");
            assert_eq!(subscriber.reply, ReplyTarget::Reenter);
            assert_eq!(subscriber.delivery.retries_max, 10);
            assert_eq!(subscriber.delivery.backoff, BackoffPolicy::Exponential(std::time::Duration::from_millis(200)));
        });
        let broker = control_plane.until_ready::<Broker>("b").await;
        let url = broker.status.unwrap().address.unwrap().url.unwrap();
        assert_eq!(url, "http://127.0.0.1:8081/brokers/default/b");
    });
}

/// EV-OBJ-03, COND-12: what a Broker says of deliveries holds for its Triggers when it is Ready with it, and not some time later.
/// What is given up while the sink is not known to them yet waits.
#[test]
fn ready_broker_has_published_its_triggers() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        for n in 0..40 {
            let sink = json!({"uri": format!("http://s/{n}")});
            let delivery = json!({"retry": n, "backoffPolicy": "linear", "deadLetterSink": sink});
            let changed =
                control_plane.patch::<Broker>("b", json!({"spec": {"delivery": delivery}})).await.metadata.generation;
            let seen = |b: &Broker| b.status.as_ref().and_then(|status| status.base.observed_generation);
            control_plane.until::<Broker>("b", |b| seen(b) == changed && b.is_ready()).await;
            control_plane.table(|table| {
                let subscriber = &table.streams[PATH].subscribers[0];
                assert_eq!(subscriber.delivery.retries_max, n);
                match &subscriber.dead_letter {
                    Some(sink) => assert_eq!(&*sink.url, format!("http://s/{n}")),
                    None => assert_eq!(subscriber.hold, HoldReason::DeadLetters),
                }
            });
            let shown = |t: &Trigger| t.status.as_ref()?.delivery.dead_letter_sink_uri.clone();
            control_plane.until::<Trigger>("t", |t| t.is_ready() && shown(t) == Some(format!("http://s/{n}"))).await;
            control_plane.table(|table| {
                let subscriber = &table.streams[PATH].subscribers[0];
                assert_eq!(&*subscriber.dead_letter.as_ref().unwrap().url, format!("http://s/{n}"));
            });
        }
    });
}

/// A backlog that is dropped with its subscriber is reported on the Broker or channel, also when that is gone.
#[test]
fn abandoned_backlog_is_reported_on_its_object() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let here = control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.until_ready::<Broker>("b").await;
        let uid = here.metadata.uid.unwrap();
        let reported = control_plane.table(|table| std::sync::Arc::clone(&table.abandoned));
        reported.report(AbandonedEvents {
            stream: format!("broker/default/b/{uid}").into(),
            is_whole: false,
            events: 1,
        });
        for stream in ["broker/default/gone/1", "channel/default/c/2", "of no kind"] {
            reported.report(AbandonedEvents { stream: stream.into(), is_whole: true, events: 3 });
        }
        let found = eventually(async || {
            let events = control_plane.api::<Event>().list(&ListParams::default()).await.unwrap().items;
            let dropped = events.into_iter().filter(|one| one.reason.as_deref() == Some("EventsAbandoned"));
            let mut dropped: Vec<_> = dropped
                .map(|one| {
                    let of = one.involved_object;
                    let says = one.message.unwrap().contains("It was deleted");
                    (of.kind.unwrap(), of.name.unwrap(), of.uid.unwrap(), says)
                })
                .collect();
            dropped.sort();
            (dropped.len() == 3).then_some(dropped)
        });
        let of = |kind: &str, name: &str, uid: &str, whole| (kind.into(), name.into(), uid.into(), whole);
        assert_eq!(
            found.await.expect("three are told"),
            [of("Broker", "b", &uid, false), of("Broker", "gone", "1", true), of("InMemoryChannel", "c", "2", true)]
        );
    });
}

/// EV-TRG-01, EV-TRG-02, EV-BRK-13: a Trigger waits for its Broker, and misses it when it goes.
#[test]
fn a_trigger_is_ready_just_as_long_as_its_broker_exists() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_not_ready::<Trigger>("t", "BrokerDoesNotExist").await;
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        control_plane.delete::<Broker>("b").await;
        control_plane.until_not_ready::<Trigger>("t", "BrokerDoesNotExist").await;
        control_plane.until_table("without the stream", |table| !table.streams.contains_key(PATH)).await;
    });
}

/// EV-BRK-12, EV-TRG-03, EV-TRG-09, EV-ADR-05: a dead letter sink that is nowhere keeps Broker and
/// Trigger from Ready until it is there.
#[test]
fn an_unresolved_dead_letter_sink_holds_everything_back() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let sink = json!({"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"}});
        control_plane.create::<Broker>(broker(json!({"delivery": {"retry": 1, "deadLetterSink": sink}}))).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_not_ready::<Broker>("b", "DeadLetterSinkResolveFailed").await;
        control_plane.until_not_ready::<Trigger>("t", "DeadLetterSinkResolveFailed").await;

        control_plane.create::<Service>(hello("v1")).await;
        let broker = control_plane.until_ready::<Broker>("b").await;
        let uri = "http://hello.default.svc.cluster.local";
        assert_eq!(broker.status.unwrap().delivery.dead_letter_sink_uri.as_deref(), Some(uri));
        let trigger = control_plane.until_ready::<Trigger>("t").await;
        assert_eq!(trigger.status.unwrap().delivery.dead_letter_sink_uri.as_deref(), Some(uri));
        let sink = control_plane.table(|table| table.streams[PATH].subscribers[0].dead_letter.clone()).unwrap();
        assert_eq!(&*sink.host, "hello.default.svc.cluster.local");
    });
}

/// EV-TRG-05, EV-TRG-06, EV-TRG-07, EV-TRG-08, EV-ADR-01, EV-ADR-02, EV-ADR-03, EV-ADR-09: the subscriber is
/// resolved, lost and resolved elsewhere without a change of the Trigger.
#[test]
fn a_subscriber_is_followed_wherever_it_goes() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        let reference = json!({"apiVersion": "v1", "kind": "Service", "name": "core"});
        control_plane.create::<Trigger>(trigger(json!({"subscriber": {"ref": reference, "uri": "/in"}}))).await;
        let shown = control_plane.until_not_ready::<Trigger>("t", "SubscriberResolveFailed").await;
        assert!(shown.condition("SubscriberResolved").unwrap().message.contains("default/core"));

        let core = json!({"metadata": {"name": "core", "namespace": NS}, "spec": {"ports": [{"port": 80}]}});
        control_plane.create::<k8s_openapi::api::core::v1::Service>(core).await;
        let ready = control_plane.until_ready::<Trigger>("t").await;
        let uri = "http://core.default.svc.cluster.local/in";
        assert_eq!(ready.status.unwrap().subscriber_uri.as_deref(), Some(uri));

        control_plane.delete::<k8s_openapi::api::core::v1::Service>("core").await;
        assert_eq!(
            control_plane
                .until_not_ready::<Trigger>("t", "SubscriberResolveFailed")
                .await
                .status
                .unwrap()
                .subscriber_uri,
            None
        );
    });
}

/// EV-TRG-06, EV-ADR-05: an object without an address cannot be a subscriber, and the status says so.
#[test]
fn an_object_that_is_not_addressable_is_no_subscriber() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane
            .create::<k8s_openapi::api::core::v1::ConfigMap>(json!({"metadata": {"name": "c", "namespace": NS}}))
            .await;
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c"});
        control_plane.create::<Trigger>(trigger(json!({"subscriber": {"ref": reference}}))).await;
        let shown = control_plane.until_not_ready::<Trigger>("t", "SubscriberResolveFailed").await;
        assert!(shown.condition("SubscriberResolved").unwrap().message.contains("not addressable"));
    });
}

/// EV-ADR-07, EV-TRG-11: a Broker is a subscriber too, and a Trigger is turned to it in place.
#[test]
fn a_trigger_is_turned_to_another_subscriber_in_place() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Broker>(json!({"metadata": {"name": "other", "namespace": NS}})).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        let reference = json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "other"});
        control_plane.patch::<Trigger>("t", json!({"spec": {"subscriber": {"uri": null, "ref": reference}}})).await;
        control_plane.until::<Trigger>("t", |t| t.metadata.generation == Some(2) && t.is_ready()).await;
        let url = control_plane.table(|table| table.streams[PATH].subscribers[0].target.url.clone());
        assert_eq!(&*url, "http://127.0.0.1:8081/brokers/default/other");
    });
}

/// EV-BRK-06, EV-BRK-07: Brokers of another class are ignored.
#[test]
fn a_foreign_broker_and_its_triggers_are_left_alone() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let mut foreign = broker(json!({}));
        foreign["metadata"]["annotations"] = json!({"eventing.knative.dev/broker.class": "Other"});
        control_plane.create::<Broker>(foreign).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await; // by now the two were checked
        assert!(control_plane.api::<Broker>().get("b").await.unwrap().status.is_none());
        assert!(control_plane.table(|table| table.streams.is_empty()));
    });
}

/// EV-TRG-14: a deleted Trigger reads no more.
#[test]
fn a_deleted_trigger_leaves_the_stream() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        control_plane.delete::<Trigger>("t").await;
        control_plane.until_table("without the subscriber", |table| table.streams[PATH].subscribers.is_empty()).await;
    });
}

/// EV-TRG-14: ... also one that was being reconciled when it was deleted.
#[test]
fn a_trigger_that_is_deleted_while_it_is_looked_at_is_not_subscribed() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        for name in ["b", "other"] {
            control_plane.create::<Broker>(json!({"metadata": {"name": name, "namespace": NS}})).await;
            control_plane.until_ready::<Broker>(name).await;
        }
        let reference = json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "other"});
        let sink = json!({"deadLetterSink": {"ref": reference}});
        let spec = json!({"subscriber": {"ref": reference}, "delivery": sink});
        for turns in 0..8 {
            let lives = (0..40).map(async |one| {
                let (mut object, name) = (trigger(spec.clone()), format!("t-{one}"));
                object["metadata"]["name"] = name.as_str().into();
                control_plane.create::<Trigger>(object).await;
                let to = json!({"spec": {"subscriber": {"uri": format!("/{turns}")}}});
                control_plane.patch::<Trigger>(&name, to).await;
                turn_over(turns).await;
                control_plane.delete::<Trigger>(&name).await;
            });
            join_all(lives).await;
        }
        control_plane.until_table("without the subscriber", |table| table.streams[PATH].subscribers.is_empty()).await;
    });
}
