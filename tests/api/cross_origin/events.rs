//! The events listener takes every `Host` and every origin, because it trusts no caller by its address. A page still cannot send
//! an event: each mode of CloudEvents needs a header that a page may send only after a preflight, which grants nothing.

use kit::{HttpCall, TIMEOUT, TestEvent};
use serde_json::json;

use super::with_one_event;

const BROKER: &str = "/brokers/default/main";

/// What a page can send to another origin without a preflight.
#[test]
fn request_of_a_page_without_preflight_is_no_event() {
    let (appliance, sink) = with_one_event();
    let event = json!({ "specversion": "1.0", "type": "t", "source": "/page", "id": "page", "data": {} });
    let batch = json!([event]).to_string();
    let event = event.to_string();
    for content_type in [
        None,
        Some("text/plain"),
        Some("text/plain;charset=UTF-8"),
        Some("text/plain; application/cloudevents+json"),
        Some("text/plain;a=application/cloudevents-batch+json"),
        Some("application/x-www-form-urlencoded"),
        Some("application/x-www-form-urlencoded; charset=application/cloudevents+json"),
        Some("multipart/form-data; boundary=application/cloudevents+json"),
    ] {
        for body in [&event, &batch] {
            let query = "?ce-specversion=1.0&ce-type=t&ce-source=/page&ce-id=page";
            for path in [BROKER.to_owned(), format!("{BROKER}{query}")] {
                let call = HttpCall::post(&path).header("Origin", "http://evil.example").host("evil.example");
                let call = content_type.map_or_else(|| call.clone(), |kind| call.clone().header("Content-Type", kind));
                let answer = call.body(body.as_bytes()).send(appliance.events());
                assert!((400..500).contains(&answer.status), "{path} {content_type:?}: {answer}");
            }
        }
    }
    let last = TestEvent::new("last").binary(BROKER).send(appliance.events());
    assert_eq!(last.status, 202, "{last}");
    sink.wait_for(2, TIMEOUT);
    assert_eq!(sink.received().len(), 2, "an event of a page was delivered");
}

/// A name of the caller's network leads here, and a web page's origin is no reason to reject what a sender with its own
/// headers sends.
#[test]
fn event_for_any_host_and_origin_is_accepted() {
    let (appliance, sink) = with_one_event();
    for (id, host) in
        [("1", "broker-ingress.knative-eventing.svc.cluster.local"), ("2", "evil.example"), ("3", "10.0.0.1")]
    {
        let call = TestEvent::new(id).binary(BROKER).host(host).header("Origin", "http://evil.example");
        let answer = call.send(appliance.events());
        assert_eq!(answer.status, 202, "{host}: {answer}");
    }
    sink.wait_for(4, TIMEOUT);
}

/// A preflight for what an event needs: no answer grants it, whatever else `OPTIONS` is for.
#[test]
fn preflight_for_an_event_grants_nothing() {
    let (appliance, _sink) = with_one_event();
    for headers in ["content-type", "ce-id, ce-type, ce-source, ce-specversion"] {
        let answer = HttpCall::new("OPTIONS", BROKER)
            .header("Origin", "http://evil.example")
            .header("Access-Control-Request-Method", "POST")
            .header("Access-Control-Request-Headers", headers)
            .header("WebHook-Request-Origin", "evil.example")
            .send(appliance.events());
        let grants = |(name, _): &(String, String)| name.to_ascii_lowercase().starts_with("access-control-");
        assert!(!answer.headers.0.iter().any(grants), "{answer}");
    }
}
