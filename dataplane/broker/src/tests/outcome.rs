//! The outcome of one event: responses, retries, dead letters.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::*;

/// One event to one subscriber that always answers with `status`; requests to it and to the sink, and the
/// outcome.
fn one_event(status: Option<u16>) -> (usize, usize, [u64; 5]) {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut subscriber = trigger("t", "http://s/");
    subscriber.dead_letter = Some(target("http://dls/"));
    let stream = rig.publish(vec![subscriber]);
    rig.rule(move |call| match status {
        _ if call.url == "http://dls/" => ScriptedAnswer::Status(202),
        Some(status) => ScriptedAnswer::Status(status),
        None => ScriptedAnswer::Refuse,
    });
    rig.run(async {
        assert_eq!(rig.post("1", "t").await, 202);
        rig.rest(seconds(60)).await;
    });
    (rig.calls("http://s/").len(), rig.calls("http://dls/").len(), ends(&stream, 0))
}

/// DP-RETRY-01 to -16, EV-DLV-03, EV-DLV-04, EV-DLV-08: requests to the subscriber and to the dead letter
/// sink with `retry: 2`.
#[test]
fn response_table_holds_end_to_end() {
    let done = (1, 0, [1, 0, 0, 0, 0]);
    let refused = (1, 1, [0, 0, 1, 0, 0]);
    let used_up = (3, 1, [0, 0, 1, 0, 0]);
    for (statuses, expected) in [
        (&[200, 201, 202, 204, 299][..], done),
        (&[101, 199, 301, 307, 400, 401, 403, 410, 413, 425], refused),
        (&[404, 408, 409, 429, 500, 503, 600, 999], used_up),
    ] {
        for status in statuses {
            assert_eq!(one_event(Some(*status)), expected, "{status}");
        }
    }
    assert_eq!(one_event(None), used_up);
}

/// EV-DLV-10, X-DLV-08: the dead letter is the event itself with the failure as attributes, and asks for no
/// reply.
#[test]
fn dead_letter_carries_failure_attributes() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut subscriber = trigger("t", "http://s/");
    subscriber.dead_letter = Some(target("http://dls/"));
    rig.publish(vec![subscriber]);
    rig.rule(|call| match &*call.url {
        "http://dls/" => ScriptedAnswer::Status(202),
        _ => ScriptedAnswer::Answer(LocalResponse {
            status: 422,
            headers: Vec::new(),
            body: Bytes::from_static(b"no such order"),
        }),
    });
    rig.run(async {
        rig.post("1", "t").await;
        rig.rest(seconds(1)).await;
    });
    let [dead_letter] = &rig.calls("http://dls/")[..] else { panic!("one dead letter") };
    assert_eq!((dead_letter.id.as_str(), &*dead_letter.request.body), ("1", &b"data"[..]));
    assert_eq!(dead_letter.header("ce-knativeerrordest").unwrap(), "http://s/");
    assert_eq!(dead_letter.header("ce-knativeerrorcode").unwrap(), "422");
    assert_eq!(dead_letter.header("ce-knativeerrordata").unwrap(), BASE64.encode("no such order"));
    assert_eq!(dead_letter.header("prefer"), None);
}

/// EV-DLV-11, EV-DLV-09: the sink is retried with the same settings; if it never accepts the event, the
/// event is dropped and counted.
#[test]
fn dead_letter_sink_is_retried() {
    for (failures, expected) in [(1, [0, 0, 1, 0, 0]), (9, [0, 0, 0, 1, 0])] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let mut subscriber = trigger("t", "http://s/");
        subscriber.dead_letter = Some(target("http://dls/"));
        let stream = rig.publish(vec![subscriber]);
        let mut left = failures;
        rig.rule(move |call| match &*call.url {
            "http://dls/" if left == 0 => ScriptedAnswer::Status(202),
            "http://dls/" => {
                left -= 1;
                ScriptedAnswer::Status(503)
            }
            _ => ScriptedAnswer::Status(400),
        });
        rig.run(async {
            rig.post("1", "t").await;
            rig.rest(seconds(60)).await;
        });
        assert_eq!(rig.calls("http://s/").len(), 1);
        assert_eq!(rig.calls("http://dls/").len(), (failures + 1).min(3));
        assert_eq!(ends(&stream, 0), expected);
    }
}

/// EV-DLV-09: without a sink it is dropped, and the backlog continues.
#[test]
fn event_without_sink_is_dropped_and_next_delivered() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![trigger("t", "http://s/")]);
    rig.rule(|call| ScriptedAnswer::Status(if call.id == "1" { 400 } else { 202 }));
    rig.run(async {
        rig.post("1", "t").await;
        rig.post("2", "t").await;
        rig.rest(seconds(1)).await;
    });
    assert_eq!(ends(&stream, 0), [1, 0, 0, 1, 0]);
}

/// EV-DLV-03, AMB-26, AMB-27, DP-OBS-01, DP-RETRY-22: waits between attempts; only the trace's parent
/// differs between them.
#[test]
fn attempts_are_spaced_by_backoff_and_differ_in_trace() {
    for (backoff, waits) in
        [(BackoffPolicy::Linear(seconds(2)), [2, 2, 2]), (BackoffPolicy::Exponential(seconds(2)), [2, 4, 8])]
    {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let mut subscriber = trigger("t", "http://s/");
        subscriber.delivery.retries_max = 3;
        subscriber.delivery.backoff = backoff;
        rig.publish(vec![subscriber]);
        rig.rule(|_| ScriptedAnswer::Status(503));
        rig.run(async {
            rig.post("1", "t").await;
            rig.rest(seconds(60)).await;
        });
        let calls = rig.calls("http://s/");
        let apart: Vec<u64> = calls.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs()).collect();
        assert_eq!(apart, waits, "{backoff:?}");
        for pair in calls.windows(2) {
            let trace = |call: &RecordedCall| call.header("traceparent").unwrap();
            assert_eq!(trace(&pair[0])[..36], trace(&pair[1])[..36]);
            assert_ne!(trace(&pair[0]), trace(&pair[1]));
            let rest = |call: &RecordedCall| {
                let own = |(name, _): &(&str, &[u8])| *name != "traceparent";
                let fields = call.request.headers().filter(own);
                let fields: Vec<_> = fields.map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
                (fields, call.request.body.clone())
            };
            assert_eq!(rest(&pair[0]), rest(&pair[1]));
        }
    }
}

/// X-DLV-01: a request that times out is a temporary failure.
#[test]
fn subscriber_timeout_is_retried() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut subscriber = trigger("t", "http://s/");
    subscriber.delivery.timeout = Duration::from_millis(500);
    let stream = rig.publish(vec![subscriber]);
    let mut first = true;
    rig.rule(move |_| {
        if std::mem::take(&mut first) { ScriptedAnswer::After(seconds(3600), 202) } else { ScriptedAnswer::Status(202) }
    });
    rig.run(async {
        rig.post("1", "t").await;
        rig.rest(seconds(10)).await;
    });
    assert_eq!(rig.calls("http://s/").len(), 2);
    assert_eq!(ends(&stream, 0), [1, 0, 0, 0, 0]);
}

/// DP-REPLY-01, X-DLV-09, X-DLV-10: what a subscriber gets in addition to the event.
#[test]
fn subscriber_gets_headers_but_no_hop_counter() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![trigger("t", "http://s/")]);
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/s"),
        ("ce-type", "t"),
        ("ce-knativebrokerttl", "7"),
        ("X-Request-Id", "abc"),
        ("Authorization", "secret"),
    ];
    rig.run(async {
        assert_eq!(rig.request("POST", PATH, &headers, b"\xff\x00").await.status, 202);
        rig.rest(seconds(1)).await;
    });
    let [call] = &rig.calls("http://s/")[..] else { panic!("one call") };
    assert_eq!(call.header("prefer").unwrap(), "reply");
    assert_eq!(call.header("kn-namespace").unwrap(), "ns");
    assert_eq!(call.header("x-request-id").unwrap(), "abc");
    assert_eq!(call.header("authorization"), None);
    assert_eq!(call.header("ce-knativebrokerttl"), None);
    assert_eq!(&*call.request.body, b"\xff\x00");
}

/// EV-RTE-13, X-BRK-04: our own streams, as subscriber and as dead letter sink, get the hops that an event
/// has left and the internal key; others do not, and the event is the same.
#[test]
fn own_stream_gets_remaining_hops() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream_at = |url| DeliveryTarget { is_stream: true, ..target(url) };
    let mut subscriber = trigger("t", "http://ours/");
    subscriber.target = stream_at("http://ours/");
    subscriber.dead_letter = Some(stream_at("http://dls/"));
    rig.publish(vec![subscriber, trigger("other", "http://other/")]);
    rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://ours/" { 400 } else { 202 }));
    for (given, left) in [(Some("7"), "6"), (None, "255")] {
        let event = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
        let headers: Vec<_> = event.into_iter().chain(given.map(|hops| ("ce-knativebrokerttl", hops))).collect();
        rig.run(async {
            assert_eq!(rig.request("POST", PATH, &headers, b"").await.status, 202);
            rig.rest(seconds(1)).await;
        });
        let last = |url: &str| rig.calls(url).pop().unwrap();
        for (url, received) in [("http://ours/", Some(left)), ("http://dls/", Some(left)), ("http://other/", None)] {
            assert_eq!(last(url).header("sluicegate-hops-left").as_deref(), received, "{url}");
            assert_eq!(last(url).header("sluicegate-internal").as_deref(), received.map(|_| INSIDE_KEY), "{url}");
            assert_eq!(last(url).header("ce-knativebrokerttl"), None);
        }
    }
}
