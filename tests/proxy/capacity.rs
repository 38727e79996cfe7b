//! A subscriber that is a Service of ours: its window follows the capacity of its instances, and it is started
//! and scaled by its backlog.

use kit::manifest::{NAMESPACE, service, trigger, with};
use kit::scene::{post, with_broker};
use kit::{ApplianceSetup, EventSink, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
/// More than four instances take at a time by far.
const EVENTS: u64 = 120;

/// Takes one request at a time, and has four instances at most.
fn narrow() -> Value {
    let annotation = "/spec/template/metadata/annotations/autoscaling.knative.dev~1max-scale";
    let limited = with(service("app", IMAGE, "x"), annotation, json!("4"));
    with(limited, "/spec/template/spec/containerConcurrency", json!(1))
}

/// To the Service's `/slow`, which takes 200 ms. What is not answered within 3 s is given up: the last of the
/// backlog waits twice as long for its place.
fn to_the_service(dead: &EventSink) -> Value {
    let plain = trigger("t", "main", "/slow?ms=200");
    let reference = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "app" });
    let subscribed = with(plain, "/spec/subscriber/ref", reference);
    let options = json!({ "retry": 0, "timeout": "PT3S", "deadLetterSink": { "uri": dead.url() } });
    with(subscribed, "/spec/delivery", options)
}

/// SRV-REV-06, X-ACT-03: the backlog brings four instances, all four have an event, more events are not sent,
/// and none is given up because it waited for its place.
#[test]
fn a_backlog_brings_as_many_instances_as_there_may_be_and_fills_them() {
    let dead = EventSink::start();
    let appliance = with_broker(&ApplianceSetup::new(BIN).hello_image(IMAGE).flag("workers", "2"));
    let api = appliance.api();
    api.create(&narrow());
    api.wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    api.create(&to_the_service(&dead));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    for n in 0..EVENTS {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }

    let inside = || appliance.metric("sluicegate_backend_active_requests", "default/app-00001");
    let delivered = || appliance.metric("sluicegate_subscriber_delivered_total", "default/t");
    let mut most = 0;
    wait::until(TIMEOUT * 3, "all events to be delivered", || {
        most = most.max(inside());
        (delivered() == EVENTS).then_some(())
    });
    // A place counts for a moment longer than its request is inside, so a look may see one more.
    assert!((4..=6).contains(&most), "{most} events at a time");
    assert_eq!(appliance.metric("sluicegate_backend_instances", "default/app-00001"), 4);
    assert_eq!(appliance.metric("sluicegate_subscriber_retries_total", "default/t"), 0);
    assert!(dead.received().is_empty(), "an event was given up because it waited");
}
