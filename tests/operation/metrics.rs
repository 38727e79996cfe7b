//! Metrics under upstream's names, so that dashboards for Knative work: through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::manifest::{NAMESPACE, channel, service, subscription, with};
use kit::scene::{accepted, post, subscribe, with_broker};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";

/// The value of the only line with this name and all of these labels; `None`: there is none.
fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let found: Vec<&str> = text
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
        .filter(|line| labels.iter().all(|(key, value)| line.contains(&format!("{key}=\"{value}\""))))
        .collect();
    assert!(found.len() < 2, "{name} {labels:?} is not one line: {found:?}");
    found.first()?.rsplit(' ').next()?.parse().ok()
}

fn metrics(appliance: &Appliance) -> String {
    HttpCall::get("/metrics").send(appliance.admin()).text()
}

/// Waits until the line has this value.
fn comes_to(appliance: &Appliance, name: &str, labels: &[(&str, &str)], wanted: f64) {
    let mut last = None;
    wait::until(TIMEOUT, &format!("{name} {labels:?} = {wanted}"), || {
        last = value(&metrics(appliance), name, labels);
        (last == Some(wanted)).then_some(())
    });
}

/// X-OBS-01: what a Broker takes in, what its Triggers and a channel's Subscriptions are sent, each attempt by itself.
#[test]
fn events_are_measured_by_upstreams_names() {
    let appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "2"));
    let busy = EventSink::answering(|received| match received.header("ce-id") {
        Some("1") => SinkResponse::status(503),
        _ => SinkResponse::status(202),
    });
    let once_more = json!({ "retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT0.01S" });
    subscribe(appliance.api(), "t", &busy.url(), &[("/spec/delivery", once_more)]);
    for id in ["1", "2"] {
        post(&appliance, &TestEvent::new(id));
    }
    let api = appliance.api();
    let sink = EventSink::start();
    api.create(&channel("c"));
    api.create(&subscription("s", "c", &sink.url()));
    api.wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    accepted(&TestEvent::new("3").binary("/channels/default/c"), &appliance);

    comes_to(&appliance, "sluicegate_abandoned_total", &[], 0.0); // nothing was deleted
    const COUNT: &str = "kn_eventing_dispatch_duration_seconds_count";
    let owner = [("kn_broker_name", "main"), ("kn_broker_namespace", NAMESPACE)];
    let dispatched = |rest: &[(&str, &str)], wanted| {
        comes_to(&appliance, COUNT, &[&owner[..], rest].concat(), wanted);
    };
    dispatched(&[("otel_scope_name", "knative.dev/pkg/broker/ingress"), ("http_response_status_code", "202")], 2.0);
    let filter =
        [("otel_scope_name", "knative.dev/pkg/broker/filter"), ("messaging_destination_name", "trigger:t.default")];
    for (status, attempts) in [("503", 2.0), ("202", 1.0)] {
        dispatched(&[&filter[..], &[("http_response_status_code", status)]].concat(), attempts);
    }
    comes_to(&appliance, "kn_eventing_process_duration_seconds_count", &[&owner[..], &[filter[1]]].concat(), 3.0);
    let fanout = [
        ("kn_channel_name", "c"),
        ("kn_channel_namespace", NAMESPACE),
        ("messaging_destination_name", "subscription:s.default"),
        ("http_response_status_code", "202"),
    ];
    comes_to(&appliance, COUNT, &fanout, 1.0);

    let text = metrics(&appliance);
    let bucket = |le| {
        let labels = [&owner[..], &filter[..], &[("http_response_status_code", "202"), ("le", le)]].concat();
        value(&text, "kn_eventing_dispatch_duration_seconds_bucket", &labels)
    };
    assert_eq!((bucket("10.0"), bucket("+Inf"), bucket("0.0005")), (Some(1.0), Some(1.0), None), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

/// X-OBS-02, X-OBS-03, X-QP-12: a Revision's requests by status and tag, its instances and what the scaler makes of it.
#[test]
fn revisions_are_measured_by_upstreams_names() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "2").hello_image(IMAGE).start();
    let api = appliance.api();
    api.patch(
        "ConfigMap",
        "knative-serving",
        "config-features",
        &json!({ "data": { "tag-header-based-routing": "Enabled" } }),
    );
    let limited = with(service("hello", IMAGE, "one"), "/spec/template/spec/containerConcurrency", json!(3));
    let traffic = json!([
        { "latestRevision": true, "percent": 100 }, { "latestRevision": true, "tag": "next", "percent": 0 }
    ]);
    api.create(&with(limited, "/spec/traffic", traffic));
    api.create(&with(
        service("counted", IMAGE, "two"),
        "/spec/template/metadata",
        json!({ "annotations": { "autoscaling.knative.dev/metric": "rps", "autoscaling.knative.dev/target": "150" } }),
    ));
    for name in ["hello", "counted"] {
        api.wait_ready("Service", NAMESPACE, name, TIMEOUT);
    }
    for (host, tag) in [("hello", ""), ("hello", "next"), ("hello", "nobody"), ("next-hello", "")] {
        let call = HttpCall::get("/").host(&format!("{host}.default.localhost"));
        let call = if tag.is_empty() { call } else { call.header("Knative-Serving-Tag", tag) };
        assert_eq!(call.send(appliance.http()).status, 200);
    }

    let own = [
        ("k8s_namespace_name", NAMESPACE),
        ("kn_service_name", "hello"),
        ("kn_configuration_name", "hello"),
        ("kn_revision_name", "hello-00001"),
    ];
    let answered = [&own[..], &[("http_response_status_code", "200")]].concat();
    comes_to(&appliance, "kn_serving_invocation_duration_seconds_count", &answered, 4.0);
    for (tag, count) in [("kn:default", 1.0), ("kn:undefined", 1.0), ("next", 2.0)] {
        let labels = [&answered[..], &[("kn_route_tag", tag)]].concat();
        comes_to(&appliance, "http_server_request_duration_seconds_count", &labels, count);
    }
    for (name, wanted) in [
        ("kn_revision_pods_count", 1.0),
        ("kn_revision_pods_desired", 1.0),
        ("kn_revision_pods_requested", 1.0),
        ("kn_revision_pods_not_ready_count", 0.0),
        ("kn_revision_pods_pending_count", 0.0),
        ("kn_revision_pods_terminating_count", 0.0),
        ("kn_revision_request_concurrency", 0.0),
        ("kn_revision_request_queued", 0.0),
        ("kn_revision_request_active", 0.0),
        ("kn_revision_panic_mode", 0.0),
        ("kn_serving_queue_depth", 0.0),
    ] {
        comes_to(&appliance, name, &own, wanted);
    }
    let text = metrics(&appliance);
    let there = |name: &str, labels: &[(&str, &str)]| value(&text, name, labels);
    // 70 percent of the limit, and room for three minus a burst of 211.
    assert!((there("kn_revision_concurrency_target", &own).unwrap() - 2.1).abs() < 1e-9, "{text}");
    assert!(there("kn_revision_capacity_excess", &own).unwrap() <= -208.0, "{text}");
    assert!(there("kn_revision_concurrency_stable", &own) >= Some(0.0));
    assert!(there("kn_revision_concurrency_panic", &own) >= Some(0.0));
    assert_eq!(there("kn_revision_rps_target_per_second", &own), None);
    let other = [("kn_revision_name", "counted-00001")];
    assert!((there("kn_revision_rps_target_per_second", &other).unwrap() - 105.0).abs() < 1e-9, "{text}");
    assert_eq!(there("kn_revision_concurrency_target", &other), None);
    assert_eq!(there("kn_serving_queue_depth", &other), None);
    let peer = [("peer", "autoscaler")];
    assert_eq!(there("kn_activator_stats_conn_reachable", &peer), Some(1.0));
    assert_eq!(there("kn_activator_stats_conn_errors_total", &peer), Some(0.0));
    assert!(there("kn_autoscaler_scrape_duration_seconds_count", &[]) > Some(0.0), "{text}");
}
