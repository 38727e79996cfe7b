//! The ingress: what is accepted, what is rejected, and that no 202 is sent too early.

use contract::stream_admission::{AdmissionRule, TokenError, TokenVerifier, VerifiedToken};

use super::*;

const EVENT: [(&str, &str); 4] = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
const ENVELOPE: &str = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#;

fn header<'a>(answer: &'a LocalResponse, name: &str) -> Option<&'a [u8]> {
    answer.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
}

/// DP-PROTO-11, DP-PROTO-13, DP-ACK-03, -04, -07, AMB-48, X-BRK-02, X-BRK-03.
#[test]
fn requests_are_answered_and_only_events_stored() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![trigger("t", "http://s/")]);
    let structured = [("Content-Type", "application/cloudevents+json; charset=utf-8")];
    let avro = [("Content-Type", "application/cloudevents+avro")];
    let spent: Vec<_> = EVENT.into_iter().chain([("ce-knativebrokerttl", "1")]).collect();
    let upgrade: Vec<_> = EVENT.into_iter().chain([("Upgrade", "foo")]).collect();
    let large = vec![b'x'; 100_001];
    type AdmissionCase<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a [u8], u16);
    let cases: [AdmissionCase<'_>; 17] = [
        ("POST", PATH, &EVENT, b"x", 202),
        ("POST", "/brokers/ns/b/", &EVENT, b"x", 202),
        ("POST", "/brokers/ns/b?a=b", &EVENT, b"x", 202),
        ("POST", PATH, &upgrade, b"x", 202),
        ("POST", PATH, &structured, ENVELOPE.as_bytes(), 202),
        ("OPTIONS", PATH, &[], b"", 200),
        ("GET", PATH, &EVENT, b"x", 405),
        ("PUT", PATH, &EVENT, b"x", 405),
        ("DELETE", PATH, &EVENT, b"x", 405),
        ("POST", "/", &EVENT, b"x", 404),
        ("POST", "/brokers/ns/other", &EVENT, b"x", 404),
        ("OPTIONS", "/brokers/ns/other", &[], b"", 404),
        ("POST", PATH, &EVENT[..3], b"x", 400),
        ("POST", PATH, &structured, b"{", 400),
        ("POST", PATH, &spent, b"x", 400),
        ("POST", PATH, &EVENT, &large, 413),
        ("POST", PATH, &avro, b"x", 415),
    ];
    let mut accepted = 0;
    for (method, path, headers, body, status) in cases {
        let answer = rig.run(rig.request(method, path, headers, body));
        assert_eq!(answer.status, status, "{method} {path} {headers:?}");
        assert_eq!(header(&answer, "allow").unwrap(), b"POST, OPTIONS");
        assert_eq!(answer.body.is_empty(), status < 300, "a refusal says why, an acceptance nothing");
        accepted += u64::from(status == 202);
        assert_eq!(stream.tally.accepted.load(Relaxed), accepted);
    }
    assert_eq!(stream.tally.refused.load(Relaxed), 8, "all but the unknown paths");
    rig.run(rig.rest(seconds(1)));
    assert_eq!(ends(&stream, 0), [accepted, 0, 0, 0, 0]);

    let answer = rig.run(rig.request("POST", PATH, &EVENT[..3], b""));
    assert_eq!(&*answer.body, b"not a CloudEvent: attribute \"type\" is missing\n");
}

/// EV-RTE-13, X-BRK-04: an event from one of our streams has the hops left that the header says, at a
/// channel too; the lowest value counts, and an invalid number is ignored.
#[test]
fn forwarded_hops_count_at_brokers_and_channels() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let broker = rig.publish(Vec::new());
    let channel = Arc::new(EventStream { guards_loops: false, ..stream_like(&broker) });
    let read = |stream: &Arc<EventStream>, more: &[(&str, &str)]| {
        let headers: Vec<_> = EVENT.iter().chain(more).map(|(name, value)| (*name, value.as_bytes())).collect();
        let intake = crate::ingress::read(stream, &headers, b"");
        intake.map(|intake| (intake.events[0].hops_left, intake.events[0].event.attributes.len())).ok()
    };
    let ttl = |hops| ("ce-knativebrokerttl", hops);
    let carried = |hops| ("sluicegate-hops-left", hops);
    for (more, at_broker, at_channel) in [
        (vec![], Some((255, 4)), Some((0, 4))),
        (vec![carried("9")], Some((8, 4)), Some((8, 4))),
        (vec![carried("9"), ttl("5")], Some((4, 4)), Some((8, 5))),
        (vec![carried("5"), ttl("9")], Some((4, 4)), Some((4, 5))),
        (vec![carried("1")], None, None),
        (vec![carried("0")], None, None),
        (vec![carried("many")], Some((255, 4)), Some((0, 4))),
        (vec![ttl("1")], None, Some((0, 5))),
        (vec![ttl("-3")], None, Some((0, 5))),
        (vec![ttl("9999")], Some((255, 4)), Some((0, 5))),
        (vec![ttl("x")], None, Some((0, 5))),
    ] {
        assert_eq!((read(&broker, &more), read(&channel, &more)), (at_broker, at_channel), "{more:?}");
    }
}

fn stream_like(stream: &EventStream) -> EventStream {
    EventStream {
        name: stream.name.clone(),
        event_bytes_max: stream.event_bytes_max,
        keeping: stream.keeping,
        quota: Arc::clone(&stream.quota),
        in_order: false,
        is_closed: false,
        guards_loops: stream.guards_loops,
        types: None,
        admission: None,
        subscribers: Vec::new(),
        external: None,
        tally: Arc::default(),
    }
}

/// Accepts the tokens of two senders.
#[derive(Debug)]
struct TwoSenderVerifier;

impl TokenVerifier for TwoSenderVerifier {
    fn read(&self, token: &str, _: u64) -> Result<VerifiedToken, TokenError> {
        match token {
            "friend" | "guest" => {
                Ok(VerifiedToken { subject: token.into(), audiences: vec!["here".into()], until_s: u64::MAX })
            }
            "early" => Err(TokenError::NoKeys),
            _ => Err(TokenError::Unknown),
        }
    }
}

/// DP-ACK-05, DP-ACK-06, X-FEA-07, X-FEA-09: first authentication, then parsing, then authorization;
/// rejected events are counted and not stored.
#[test]
fn stream_with_admission_checks_sender_and_event() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let only = |name: &str, filter| AdmissionRule { subjects: [name].into_iter().collect(), filter };
    let filter_by_type = EventFilter::Exact(vec![("type".into(), "t".into())]);
    rig.admission.replace(Some(Arc::new(StreamAdmission {
        verifier: Arc::new(TwoSenderVerifier),
        audiences: vec!["here".into()],
        grants: vec![only("friend", EventFilter::Everything), only("guest", filter_by_type)],
    })));
    let stream = rig.publish(vec![trigger("t", "http://s/")]);
    let post = |token: &'static str, headers: &[(&'static str, &'static str)]| {
        let shown = (!token.is_empty()).then_some(("Authorization", token));
        let all: Vec<_> = headers.iter().copied().chain(shown).collect();
        rig.run(rig.request("POST", PATH, &all, b"x")).status
    };
    let other: Vec<_> = EVENT.into_iter().map(|(n, v)| (n, if n == "ce-type" { "other" } else { v })).collect();
    for (token, headers, status) in [
        ("Bearer friend", &EVENT[..], 202),
        ("Bearer friend", &other, 202),
        ("Bearer guest", &EVENT, 202),
        ("Bearer guest", &other, 403),
        ("Bearer guest", &EVENT[..3], 400),
        ("Bearer nobody", &EVENT, 401),
        ("Bearer nobody", &EVENT[..3], 401),
        ("Bearer early", &EVENT, 503),
        ("", &EVENT, 401),
    ] {
        assert_eq!(post(token, headers), status, "{token} {headers:?}");
    }
    let tally = &stream.tally;
    let counts = [&tally.refused, &tally.unauthorized].map(|count| count.load(Relaxed));
    assert_eq!((tally.accepted.load(Relaxed), counts), (3, [6, 5]));
    rig.run(rig.rest(seconds(1)));
    assert_eq!(ends(&stream, 0), [3, 0, 0, 0, 0]);
    assert_eq!(rig.run(rig.request("OPTIONS", PATH, &[], b"")).status, 200, "OPTIONS needs no token");
}

/// DP-PROTO-06, AMB-49: a batch is stored as a whole or not at all; each event is delivered on its own.
#[test]
fn batch_is_stored_atomically() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![trigger("t", "http://s/")]);
    let batch = [("content-type", "application/cloudevents-batch+json")];
    let post = |body: String| rig.run(rig.request("POST", PATH, &batch, body.as_bytes())).status;
    assert_eq!(post(format!("[{ENVELOPE},{ENVELOPE},{{}}]")), 400);
    assert_eq!(post("[]".into()), 202);
    assert_eq!(stream.tally.accepted.load(Relaxed), 0);
    assert_eq!(post(format!("[{ENVELOPE},{ENVELOPE},{ENVELOPE}]")), 202);
    rig.run(rig.rest(seconds(1)));
    assert_eq!(stream.tally.accepted.load(Relaxed), 3);
    assert_eq!(ends(&stream, 0), [3, 0, 0, 0, 0]);
}

/// EV-RTE-02, EV-RTE-19, DP-ACK-02, SRC-02: the response waits for the disk, and so does the delivery.
#[test]
fn event_is_acknowledged_and_delivered_only_when_durable() {
    let folder = folder();
    let slow = FaultProfile { disk_latency: seconds(5)..=seconds(5), ..FaultProfile::calm() };
    let rig = BrokerFixture::with(folder.path(), &[], 1, slow, options());
    rig.publish(vec![trigger("t", "http://s/")]);
    rig.run(async {
        let early = rig.ring.timeout(seconds(4), rig.post("1", "t")).await;
        assert!(early.is_err(), "no answer before the disk has the event");
        assert_eq!(rig.ids("http://s/"), [""; 0]);
        rig.rest(seconds(60)).await;
    });
    assert_eq!(rig.ids("http://s/"), ["1"], "the sender hung up, the event is durable all the same");
}

/// DP-ACK-02: after a failed write nothing is acknowledged any more, and control gets a signal.
#[test]
fn failed_log_rejects_events() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![trigger("t", "http://s/")]);
    rig.run(async {
        assert_eq!(rig.post("1", "t").await, 202);
        rig.rest(seconds(1)).await;
        rig.simulation.set_faults(FaultProfile { disk_errors: 1_000_000, ..FaultProfile::calm() });
        assert_eq!(rig.post("2", "t").await, 503);
        rig.simulation.set_faults(FaultProfile::calm());
        let answer = rig.request("POST", PATH, &EVENT, b"").await;
        assert_eq!(answer.status, 503);
        assert!(header(&answer, "retry-after").is_some());
        rig.rest(seconds(1)).await;
    });
    assert_eq!(rig.ids("http://s/"), ["1"]);
    assert!(matches!(rig.signals.receive(), Some(contract::signal::Signal::LogFailed { core: 0, .. })));
}

/// DP-ACK-02: a flush that finds no memory is tried again; the events that it acknowledges survive a power cut.
#[test]
fn flush_without_memory_is_tried_again() {
    let retrying_trigger = || {
        let mut subscriber = trigger("t", "http://s/");
        subscriber.delivery.backoff = BackoffPolicy::Linear(seconds(3600));
        subscriber
    };
    for durable_writes in [true, false] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        rig.publish(vec![retrying_trigger()]);
        rig.rule(|_| ScriptedAnswer::Status(503)); // no event is delivered before the power cut
        rig.run(async {
            rig.simulation.set_faults(FaultProfile { disk_shortages: 700_000, durable_writes, ..FaultProfile::calm() });
            for id in ["1", "2", "3"] {
                assert_eq!(rig.post(id, "t").await, 202);
            }
        });
        rig.simulation.power_cut();
        assert!(
            rig.signals.receive().is_none_or(|signal| !matches!(signal, contract::signal::Signal::LogFailed { .. }))
        );
        rig.end();

        let next = BrokerFixture::new(folder.path());
        next.publish(vec![retrying_trigger()]);
        next.sync();
        next.run(next.rest(seconds(1)));
        let mut ids = next.ids("http://s/");
        ids.sort_unstable();
        assert_eq!(ids, ["1", "2", "3"], "durable_writes: {durable_writes}");
    }
}

/// Without an end of the shortage the log fails like one on a broken disk, and says why.
#[test]
fn flush_without_memory_for_too_long_fails_the_log() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![trigger("t", "http://s/")]);
    rig.run(async {
        assert_eq!(rig.post("1", "t").await, 202);
        rig.simulation.set_faults(FaultProfile { disk_shortages: 1_000_000, ..FaultProfile::calm() });
        assert_eq!(rig.post("2", "t").await, 503);
        rig.simulation.set_faults(FaultProfile::calm());
        rig.rest(seconds(1)).await;
    });
    assert_eq!(rig.ids("http://s/"), ["1"]);
    let Some(contract::signal::Signal::LogFailed { reason, .. }) = rig.signals.receive() else { panic!("no signal") };
    assert!(reason.contains("os error 12"), "{reason}");
}

/// APP-07, DP-ACK-10, EV-RTE-11: a full log refuses with Retry-After, replies included, and takes events
/// again when its subscriber has caught up.
#[test]
fn full_log_rejects_until_subscriber_catches_up() {
    let folder = folder();
    let small = LogOptions { segment_bytes: 1 << 18, record_bytes_max: 1 << 17, log_bytes_max: 1 << 20, ..options() };
    let rig = BrokerFixture::with(folder.path(), &[], 1, FaultProfile::calm(), small);
    let mut subscriber = trigger("t", "http://s/");
    subscriber.delivery.retries_max = 1_000_000;
    let stream = rig.publish(vec![subscriber]);
    let up = Rc::new(Cell::new(false));
    let is_up = Rc::clone(&up);
    rig.rule(move |_| ScriptedAnswer::Status(if is_up.get() { 202 } else { 503 }));
    let body = vec![7; 50_000];
    rig.run(async {
        let mut accepted = 0;
        let refusal = loop {
            let answer = rig.request("POST", PATH, &EVENT, &body).await;
            if answer.status != 202 {
                break answer;
            }
            accepted += 1;
            assert!(accepted < 100, "the log has a limit");
        };
        assert_eq!(refusal.status, 503);
        assert!(header(&refusal, "retry-after").is_some());
        assert_eq!(stream.tally.accepted.load(Relaxed), accepted);

        up.set(true);
        rig.rest(seconds(10)).await;
        assert_eq!(ends(&stream, 0), [accepted, 0, 0, 0, 0]);
        assert_eq!(rig.request("POST", PATH, &EVENT, &body).await.status, 202);
        rig.rest(seconds(10)).await;
        assert_eq!(ends(&stream, 0), [accepted + 1, 0, 0, 0, 0]);
    });
}

/// EV-DLV-08, APP-07: events forwarded by our own streams are rejected by no quota within their namespace,
/// and are accepted by a full log; from another namespace they count like external ones. Without the key
/// the header has no effect.
#[test]
fn internal_event_bypasses_quota_and_full_log() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let quota = ByteQuota::new("namespace ns", 1000, None);
    quota.account(0, 1001);
    rig.quota.replace(Arc::new(quota));
    rig.publish(Vec::new());
    rig.run(async {
        for (key, namespace, status) in [
            (INSIDE_KEY, "ns", 202),
            (INSIDE_KEY, "other", 429),
            (INSIDE_KEY, "", 429),
            ("some key", "ns", 429),
            ("", "ns", 429),
        ] {
            let extra = [("Sluicegate-Internal", key), ("Kn-Namespace", namespace)];
            let headers: Vec<_> = EVENT.into_iter().chain(extra).collect();
            let answer = rig.request("POST", PATH, &headers, b"").await;
            assert_eq!(answer.status, status, "{key:?} from {namespace:?}");
        }
        assert_eq!(rig.request("POST", PATH, &EVENT, b"").await.status, 429);
    });
}

/// EV-BRK-13: a closed stream accepts nothing from outside; stored events are delivered, and replies are
/// accepted.
#[test]
fn closed_stream_drains() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let up = Rc::new(Cell::new(false));
    let is_up = Rc::clone(&up);
    rig.rule(move |call| match &*call.ty {
        _ if !is_up.get() => ScriptedAnswer::Status(503),
        "question" => reply("r", "answer"),
        _ => ScriptedAnswer::Status(202),
    });
    let retrying_trigger = || {
        let mut subscriber = trigger("t", "http://s/");
        subscriber.delivery.retries_max = 1_000;
        subscriber
    };
    rig.publish(vec![retrying_trigger()]);
    rig.run(async {
        assert_eq!(rig.post("1", "question").await, 202);
        rig.closed.set(true);
        let closed = rig.publish(vec![retrying_trigger()]);
        rig.sync();
        assert_eq!(rig.post("2", "question").await, 404);
        assert_eq!(rig.request("OPTIONS", PATH, &[], b"").await.status, 404);
        up.set(true);
        rig.rest(seconds(10)).await;
        assert_eq!(closed.tally.accepted.load(Relaxed), 1, "the reply");
    });
    let mut ids = rig.ids("http://s/");
    ids.dedup();
    assert_eq!(ids, ["1", "r"]);
}

/// X-FEA-06: ingress and replies report each type once, with the replying subscriber; rejected events are
/// not reported.
#[test]
fn event_types_are_registered_at_ingress() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let types = Arc::<EventTypeRegistry>::default();
    rig.types.replace(Some(Arc::clone(&types)));
    rig.publish(vec![of_type(trigger("t", "http://s/"), "question")]);
    rig.rule(|_| reply("r", "answer"));
    rig.run(async {
        for id in ["1", "2", "3"] {
            assert_eq!(rig.post(id, "question").await, 202);
        }
        assert_eq!(rig.request("POST", PATH, &EVENT[..3], b"").await.status, 400);
        let old = [
            ("ce-specversion", "0.3"),
            ("ce-id", "1"),
            ("ce-source", "/s"),
            ("ce-type", "old"),
            ("ce-schemaurl", "http://schema"),
        ];
        assert_eq!(rig.request("POST", PATH, &old, b"").await.status, 202);
        rig.rest(seconds(5)).await;
    });
    let mut reported: Vec<_> =
        types.take().map(|seen| [seen.kind, seen.source, seen.schema, seen.by].join(" ")).collect();
    reported.sort();
    assert_eq!(reported, ["answer /r  ", "answer /r  t", "old /s http://schema ", "question /s  "]);
}
