//! What happens to events while an object that their Trigger or Subscription refers to is missing.

use dataplane::table::{EventFilter, HoldReason, Subscriber};
use serde_json::{Value, json};
use sluicegate_control::kinds::eventing::broker::Broker;
use sluicegate_control::kinds::eventing::trigger::Trigger;
use sluicegate_control::kinds::messaging::channel::Channel;
use sluicegate_control::kinds::messaging::subscription::Subscription;
use sluicegate_control::kinds::shared::HasConditions;
use tempfile::TempDir;

use crate::control_plane::{NS, TestControlPlane, in_a_control_plane, on_one_thread};
use crate::eventing::{broker, trigger};

const BROKER: &str = "/brokers/default/b";
const CHANNEL: &str = "/channels/default/c";

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": NS}})
}

/// The Broker of that name as a destination.
fn to(name: &str) -> Value {
    json!({"uri": null, "ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": name}})
}

fn url(name: &str) -> String {
    format!("http://127.0.0.1:8081/brokers/default/{name}")
}

fn subscription(spec: Value) -> Value {
    let channel = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c"});
    let mut whole = json!({"channel": channel});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!({"metadata": {"name": "s", "namespace": NS}, "spec": whole})
}

/// The only reader of a stream.
fn reader<T>(control_plane: &TestControlPlane, path: &str, look: impl Fn(&Subscriber) -> T) -> T {
    control_plane.table(|table| look(&table.streams[path].subscribers[0]))
}

/// Its dead letter sink, and what waits.
fn letters(control_plane: &TestControlPlane) -> (Option<String>, HoldReason) {
    let look = |one: &Subscriber| (one.dead_letter.as_ref().map(|sink| sink.url.to_string()), one.hold);
    reader(control_plane, BROKER, look)
}

/// EV-TRG-08, EV-TRG-11: what its author has turned away from gets nothing more, what is filtered follows at once, and the
/// place in the stream is kept until the new subscriber is there.
#[test]
fn trigger_with_a_missing_subscriber_holds_its_events() {
    let dir = TempDir::new().unwrap();
    let filter = EventFilter::Exact(vec![("type".into(), "never".into())]);
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        let spec = json!({"subscriber": to("missing"), "filter": {"attributes": {"type": "never"}}});
        control_plane.patch::<Trigger>("t", json!({"spec": spec})).await;
        control_plane.until_not_ready::<Trigger>("t", "SubscriberResolveFailed").await;
        let held = |one: &Subscriber| (one.hold, one.filter.clone());
        assert_eq!(reader(&control_plane, BROKER, held), (HoldReason::Everything, filter));
        control_plane.close().await;
    });
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane
            .first_table(|table| assert_eq!(table.streams[BROKER].subscribers[0].hold, HoldReason::Everything));
        control_plane.patch::<Trigger>("t", json!({"spec": {"filter": null}})).await;
        let seen = |t: &Trigger| t.status.as_ref().unwrap().base.observed_generation == Some(3);
        control_plane.until("t", seen).await;
        assert_eq!(reader(&control_plane, BROKER, |one| one.hold), HoldReason::Everything);

        control_plane.create::<Broker>(named("missing")).await;
        control_plane.until_ready::<Trigger>("t").await;
        let found = reader(&control_plane, BROKER, |one| (one.hold, one.target.url.to_string()));
        assert_eq!(found, (HoldReason::Nothing, url("missing")));
        control_plane.close().await;
    });
}

/// EV-TRG-08, EV-DLV-13: whose subscriber has vanished continues trying where it was, by the filter of the day.
#[test]
fn a_trigger_whose_subscriber_has_vanished_goes_on_trying() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Broker>(named("other")).await;
        control_plane.create::<Trigger>(trigger(json!({"subscriber": to("other")}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        control_plane.delete::<Broker>("other").await;
        control_plane.until_not_ready::<Trigger>("t", "SubscriberResolveFailed").await;
        let look = |one: &Subscriber| (one.hold, one.target.url.to_string(), one.filter == EventFilter::Everything);
        assert_eq!(reader(&control_plane, BROKER, look), (HoldReason::Nothing, url("other"), true));

        control_plane.patch::<Trigger>("t", json!({"spec": {"filter": {"attributes": {"type": "x"}}}})).await;
        let seen = |t: &Trigger| t.status.as_ref().unwrap().base.observed_generation == Some(2);
        control_plane.until("t", seen).await;
        assert_eq!(reader(&control_plane, BROKER, look), (HoldReason::Nothing, url("other"), false));
    });
}

/// EV-OBJ-46, AMB-30: dead letters go to the sink's last address while it is missing, and wait without one; nothing waits for
/// a sink that was removed from the Trigger.
#[test]
fn a_triggers_dead_letters_wait_for_the_sink_that_it_names() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Broker>(named("dead")).await;
        control_plane.create::<Trigger>(trigger(json!({"delivery": {"deadLetterSink": to("dead")}}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        control_plane.delete::<Broker>("dead").await;
        let lost = control_plane.until_not_ready::<Trigger>("t", "DeadLetterSinkResolveFailed").await;
        assert_eq!(lost.status.unwrap().delivery.dead_letter_sink_uri, None);
        assert_eq!(letters(&control_plane), (Some(url("dead")), HoldReason::Nothing));

        control_plane.patch::<Trigger>("t", json!({"spec": {"delivery": {"deadLetterSink": to("missing")}}})).await;
        let seen = |t: &Trigger| t.status.as_ref().unwrap().base.observed_generation == Some(2);
        control_plane.until("t", seen).await;
        assert_eq!(letters(&control_plane), (None, HoldReason::DeadLetters));

        control_plane.patch::<Trigger>("t", json!({"spec": {"delivery": null}})).await;
        control_plane.until_ready::<Trigger>("t").await;
        assert_eq!(letters(&control_plane), (None, HoldReason::Nothing));
    });
}

/// EV-OBJ-46, EV-OBJ-04: the same of a sink that the Broker names, also over a restart.
#[test]
fn a_triggers_dead_letters_wait_for_the_sink_that_its_broker_names() {
    let dir = TempDir::new().unwrap();
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.create::<Broker>(named("dead")).await;
        control_plane.create::<Broker>(broker(json!({"delivery": {"deadLetterSink": to("dead")}}))).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        control_plane.delete::<Broker>("dead").await;
        control_plane.until_not_ready::<Trigger>("t", "DeadLetterSinkResolveFailed").await;
        assert_eq!(letters(&control_plane), (Some(url("dead")), HoldReason::Nothing));
        control_plane.close().await;
    });
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        let sink = control_plane.first_table(|table| table.streams[BROKER].subscribers[0].dead_letter.clone());
        assert_eq!(sink.map(|sink| sink.url.to_string()), Some(url("dead")));
        control_plane.patch::<Broker>("b", json!({"spec": {"delivery": {"deadLetterSink": to("missing")}}})).await;
        let held = |one: &Subscriber| one.hold == HoldReason::DeadLetters && one.dead_letter.is_none();
        let wanted = |table: &dataplane::table::RoutingTable| held(&table.streams[BROKER].subscribers[0]);
        control_plane.until_table("in which letters wait", wanted).await;
        control_plane.close().await;
    });
}

/// EV-SUB-10, EV-SUB-17: as of a Trigger.
#[test]
fn subscription_with_a_missing_subscriber_holds_its_events() {
    let dir = TempDir::new().unwrap();
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.create::<Channel>(named("c")).await;
        control_plane.create::<Broker>(named("other")).await;
        control_plane.create::<Subscription>(subscription(json!({"subscriber": to("other")}))).await;
        control_plane.until_ready::<Subscription>("s").await;
        control_plane.delete::<Broker>("other").await;
        control_plane.until_not_ready::<Subscription>("s", "SubscriberResolveFailed").await;
        assert_eq!(
            reader(&control_plane, CHANNEL, |one| one.hold),
            HoldReason::Nothing,
            "it has vanished, and may come back"
        );

        control_plane.patch::<Subscription>("s", json!({"spec": {"subscriber": to("missing")}})).await;
        control_plane.until::<Subscription>("s", |s| s.condition("Ready").unwrap().message.contains("missing")).await;
        let held = |table: &dataplane::table::RoutingTable| {
            table.streams[CHANNEL].subscribers.iter().any(|one| one.hold == HoldReason::Everything)
        };
        control_plane.until_table("in which it waits", held).await;
        control_plane.close().await;
    });
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane
            .first_table(|table| assert_eq!(table.streams[CHANNEL].subscribers[0].hold, HoldReason::Everything));
        control_plane.create::<Broker>(named("missing")).await;
        control_plane.until_ready::<Subscription>("s").await;
        let found = reader(&control_plane, CHANNEL, |one| (one.hold, one.target.url.to_string()));
        assert_eq!(found, (HoldReason::Nothing, url("missing")));
        control_plane.close().await;
    });
}

/// EV-RTE-22, EV-OBJ-46: a subscriber without its sink still gets events; its dead letters wait.
#[test]
fn subscription_with_a_missing_sink_keeps_its_dead_letters() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Channel>(named("c")).await;
        control_plane.create::<Broker>(named("dead")).await;
        let spec = json!({"subscriber": {"uri": "http://s/"}, "delivery": {"deadLetterSink": to("dead")}});
        control_plane.create::<Subscription>(subscription(spec)).await;
        control_plane.until_ready::<Subscription>("s").await;
        let is_at = |sink: Option<String>, hold: HoldReason| {
            move |table: &dataplane::table::RoutingTable| {
                let one = &table.streams[CHANNEL].subscribers[0];
                one.dead_letter.as_ref().map(|sink| sink.url.to_string()) == sink && one.hold == hold
            }
        };
        control_plane.delete::<Broker>("dead").await;
        control_plane.until_not_ready::<Subscription>("s", "DeadLetterSinkResolveFailed").await;
        control_plane.until_table("with the last sink", is_at(Some(url("dead")), HoldReason::Nothing)).await;
        let missing = json!({"spec": {"delivery": {"deadLetterSink": to("missing")}}});
        control_plane.patch::<Subscription>("s", missing).await;
        control_plane.until_table("in which letters wait", is_at(None, HoldReason::DeadLetters)).await;
        control_plane.create::<Broker>(named("missing")).await;
        control_plane.until_ready::<Subscription>("s").await;
        control_plane.until_table("with the new sink", is_at(Some(url("missing")), HoldReason::Nothing)).await;
    });
}
