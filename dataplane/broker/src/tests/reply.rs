//! Replies: stored, forwarded, dropped or rejected.

use std::collections::BTreeSet;

use super::*;

/// EV-RTE-10, EV-RTE-12, EV-DLV-05: a reply is an event like any other, for all Triggers, including the one
/// that produced it.
#[test]
fn reply_is_stored_in_broker() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let all = trigger("all", "http://all/");
    let stream = rig.publish(vec![all, of_type(trigger("b", "http://b/"), "B")]);
    rig.rule(|call| match (&*call.url, &*call.ty) {
        ("http://all/", "A") => reply("r", "B"),
        _ => ScriptedAnswer::Status(202),
    });
    rig.run(async {
        rig.post("1", "A").await;
        rig.rest(seconds(1)).await;
    });
    assert_eq!(rig.ids("http://all/"), ["1", "r"]);
    let [call] = &rig.calls("http://b/")[..] else { panic!("the reply, once") };
    assert_eq!((call.id.as_str(), &*call.request.body), ("r", &b"reply data"[..]));
    assert_eq!(stream.tally.accepted.load(Relaxed), 2);
    assert_eq!((ends(&stream, 0), ends(&stream, 1)), ([2, 0, 0, 0, 0], [1, 1, 0, 0, 0]));
    let trace = |url| rig.calls(url)[0].header("traceparent").unwrap()[..36].to_owned();
    assert_eq!(trace("http://all/"), trace("http://b/"), "one trace from event to reply");
}

/// EV-RTE-13, X-BRK-04: an endless echo ends by itself after the documented number of hops.
#[test]
fn endless_echo_ends_after_hop_limit() {
    for (hops, calls) in [(None, 255), (Some("4"), 3)] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let stream = rig.publish(vec![trigger("echo", "http://echo/")]);
        rig.rule(|_| reply("again", "t"));
        rig.run(async {
            let mut headers = vec![("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
            headers.extend(hops.map(|hops| ("ce-knativebrokerttl", hops)));
            assert_eq!(rig.request("POST", PATH, &headers, b"").await.status, 202);
            rig.rest(seconds(600)).await;
        });
        assert_eq!(rig.calls("http://echo/").len(), calls);
        assert_eq!(stream.subscribers[0].tally.replies_dropped.load(Relaxed), 1);
        assert_eq!(ends(&stream, 0), [calls as u64, 0, 0, 0, 0]);
    }
}

/// DP-REPLY-05 to -07, AMB-31, AMB-33: responses that are no reply complete the delivery anyway.
#[test]
fn only_event_in_200_is_reply() {
    let event = |status| {
        let ScriptedAnswer::Answer(answer) = reply("r", "B") else { unreachable!("reply() makes an answer") };
        LocalResponse { status, ..answer }
    };
    let text = LocalResponse {
        status: 200,
        headers: vec![("content-type".into(), Bytes::from_static(b"text/plain"))],
        body: Bytes::from_static(b"thanks"),
    };
    for (answer, dropped) in [(event(202), 0), (event(201), 0), (event(299), 0), (text, 1)] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let stream = rig.publish(vec![trigger("t", "http://s/")]);
        rig.rule(move |_| ScriptedAnswer::Answer(answer.clone()));
        rig.run(async {
            rig.post("1", "A").await;
            rig.rest(seconds(60)).await;
        });
        assert_eq!(rig.ids("http://s/"), ["1"]);
        assert_eq!(stream.tally.accepted.load(Relaxed), 1);
        assert_eq!(stream.subscribers[0].tally.replies_dropped.load(Relaxed), dropped);
        assert_eq!(ends(&stream, 0), [1, 0, 0, 0, 0]);
    }
}

/// DP-REPLY-10, AMB-34, EV-RTE-11: a reply that cannot be stored fails the delivery: the subscriber is
/// retried, then the dead letter sink gets the event.
#[test]
fn unstorable_reply_fails_delivery() {
    let malformed = || {
        let ScriptedAnswer::Answer(mut answer) = reply("r", "B") else { unreachable!("reply() makes an answer") };
        answer.headers.retain(|(name, _)| &**name != "ce-id");
        answer
    };
    let too_large = || {
        let ScriptedAnswer::Answer(answer) = reply("r", "B") else { unreachable!("reply() makes an answer") };
        LocalResponse { body: vec![0; 100_001].into(), ..answer }
    };
    for answer in [malformed(), too_large()] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let mut subscriber = trigger("t", "http://s/");
        subscriber.dead_letter = Some(target("http://dls/"));
        let stream = rig.publish(vec![subscriber]);
        rig.rule(move |call| match &*call.url {
            "http://s/" => ScriptedAnswer::Answer(answer.clone()),
            _ => ScriptedAnswer::Status(202),
        });
        rig.run(async {
            rig.post("1", "A").await;
            rig.rest(seconds(60)).await;
        });
        assert_eq!(rig.ids("http://s/"), ["1", "1", "1"]);
        let [dead_letter] = &rig.calls("http://dls/")[..] else { panic!("one dead letter") };
        assert_eq!(dead_letter.header("ce-knativeerrorcode").unwrap(), "500");
        assert_eq!(stream.tally.accepted.load(Relaxed), 1);
        assert_eq!(ends(&stream, 0), [0, 0, 1, 0, 0]);
    }
}

fn subscription(reply: ReplyTarget) -> Subscriber {
    let mut subscriber = of_type(trigger("t", "http://s/"), "A");
    subscriber.reply = reply;
    subscriber.dead_letter = Some(target("http://dls/"));
    subscriber
}

/// EV-DLV-06: without a reply target no request is made.
#[test]
fn reply_without_target_is_dropped() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish_as("channel/ns/c/1", vec![subscription(ReplyTarget::Discard)]);
    rig.rule(|_| reply("r", "B"));
    rig.run(async {
        rig.post("1", "A").await;
        rig.rest(seconds(60)).await;
    });
    assert_eq!(rig.script.0.calls.borrow().len(), 1);
    assert_eq!(stream.subscribers[0].tally.replies_dropped.load(Relaxed), 1);
    assert_eq!(ends(&stream, 0), [1, 0, 0, 0, 0]);
}

/// EV-SUB-13, EV-SUB-14, AMB-21: a reply target in place of the subscriber is not asked for a reply, and
/// its response, even a broken event, is dropped.
#[test]
fn reply_target_as_subscriber_cannot_reply() {
    for broken in [false, true] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let stream = rig.publish_as("channel/ns/c/1", vec![subscription(ReplyTarget::Unasked)]);
        rig.rule(move |_| reply("r", if broken { "" } else { "B" }));
        rig.run(async {
            rig.post("1", "A").await;
            rig.rest(seconds(60)).await;
        });
        let [call] = &rig.script.0.calls.borrow()[..] else { panic!("one request") };
        assert!(call.header("prefer").is_none());
        assert_eq!(stream.tally.accepted.load(Relaxed), 1);
        assert_eq!(ends(&stream, 0), [1, 0, 0, 0, 0]);
    }
}

/// EV-DLV-05, EV-DLV-07, AMB-35, DP-REPLY-03, DP-REPLY-08: the reply has retries of its own, its target is
/// not asked for a reply and its response is dropped.
#[test]
fn reply_is_retried_without_new_subscriber_request() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish_as("channel/ns/c/1", vec![subscription(ReplyTarget::Send(target("http://r/")))]);
    let mut failures = 2;
    rig.rule(move |call| match &*call.url {
        "http://r/" if failures > 0 => {
            failures -= 1;
            ScriptedAnswer::Status(500)
        }
        _ => reply("r", "B"),
    });
    rig.run(async {
        rig.post("1", "A").await;
        rig.rest(seconds(60)).await;
    });
    assert_eq!(rig.ids("http://s/"), ["1"]);
    assert_eq!(rig.ids("http://r/"), ["r", "r", "r"]);
    assert!(rig.calls("http://r/").iter().all(|call| call.header("prefer").is_none()));
    assert_eq!(stream.tally.accepted.load(Relaxed), 1);
    assert_eq!(ends(&stream, 0), [1, 0, 0, 0, 0]);
}

/// EV-DLV-01, EV-DLV-05: each attempt uses the current reply target: the channel of a removed step no
/// longer exists.
#[test]
fn reply_retry_uses_current_reply_target() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let to = |url| vec![subscription(ReplyTarget::Send(target(url)))];
    rig.publish_as("channel/ns/c/1", to("http://old/"));
    rig.rule(|call| match &*call.url {
        "http://s/" => reply("r", "B"),
        "http://old/" => ScriptedAnswer::Status(404),
        _ => ScriptedAnswer::Status(202),
    });
    rig.run(async {
        rig.post("1", "A").await;
        while rig.calls("http://old/").is_empty() {
            rig.rest(Duration::from_millis(1)).await;
        }
        rig.publish_as("channel/ns/c/1", to("http://new/"));
        rig.sync();
        rig.rest(seconds(60)).await;
    });
    assert_eq!((rig.ids("http://s/"), rig.ids("http://old/")), (vec!["1".to_owned()], vec!["r".to_owned()]));
    assert_eq!(rig.ids("http://new/"), ["r"]);
    assert!(rig.calls("http://dls/").is_empty());
}

/// EV-DLV-08, AMB-36: when the reply cannot be delivered, the sink gets the original event with the reply's
/// URL.
#[test]
fn undeliverable_reply_makes_original_dead_letter() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish_as("channel/ns/c/1", vec![subscription(ReplyTarget::Send(target("http://r/")))]);
    rig.rule(|call| match &*call.url {
        "http://s/" => reply("r", "B"),
        "http://r/" => ScriptedAnswer::Status(503),
        _ => ScriptedAnswer::Status(202),
    });
    rig.run(async {
        rig.post("1", "A").await;
        rig.rest(seconds(60)).await;
    });
    let [dead_letter] = &rig.calls("http://dls/")[..] else { panic!("one dead letter") };
    assert_eq!((rig.calls("http://s/").len(), rig.calls("http://r/").len()), (1, 3));
    assert_eq!(dead_letter.id, "1");
    assert_eq!(dead_letter.header("ce-knativeerrordest").unwrap(), "http://r/");
    assert_eq!(dead_letter.header("ce-knativeerrorcode").unwrap(), "503");
    assert_eq!(ends(&stream, 0), [0, 0, 1, 0, 0]);
}

/// EV-RTE-10, EV-RTE-11: a delivery is done, and its cursor may advance, only when its reply is durable.
#[test]
fn delivery_is_done_only_when_reply_is_durable() {
    let folder = folder();
    let slow = FaultProfile { disk_latency: seconds(5)..=seconds(5), ..FaultProfile::calm() };
    let rig = BrokerFixture::with(folder.path(), &[], 1, slow, options());
    let stream = rig.publish(vec![of_type(trigger("a", "http://a/"), "A")]);
    rig.rule(|_| reply("r", "B"));
    rig.run(async {
        assert_eq!(rig.post("1", "A").await, 202);
        rig.rest(seconds(4)).await;
        assert_eq!((rig.calls("http://a/").len(), ends(&stream, 0)[0]), (1, 0));
        assert_eq!(stream.tally.accepted.load(Relaxed), 1, "the reply is not taken in yet either");
        rig.rest(seconds(60)).await;
        assert_eq!((rig.calls("http://a/").len(), ends(&stream, 0)[0]), (1, 1));
        assert_eq!(stream.tally.accepted.load(Relaxed), 2);
    });
}

/// EV-RTE-10, EV-DLV-05, APP-07: a log is full of events whose replies are as large. Each reply is stored
/// beyond the limit, no subscriber gets a second request, and the log empties.
#[test]
fn replies_are_stored_in_full_log() {
    let folder = folder();
    let rig = BrokerFixture::with(folder.path(), &[], 1, FaultProfile::calm(), small_log());
    let stream = rig.publish(vec![of_type(trigger("t", "http://t/"), "A"), of_type(trigger("r", "http://r/"), "B")]);
    rig.sync();
    let up = Rc::new(Cell::new(false));
    rig.rule(answering(&up, 50_000));
    rig.run(async {
        let accepted = fill(&rig).await;
        let asked = rig.calls("http://t/").len();
        up.set(true);
        rig.rest(seconds(600)).await;
        assert_eq!((ends(&stream, 0)[0], ends(&stream, 1)[0]), (accepted, accepted));
        assert_eq!((ends(&stream, 0)[4], ends(&stream, 1)[4]), (0, 0));
        assert_eq!(rig.calls("http://t/").len(), asked + accepted as usize, "once each since it is up");
        assert_eq!(rig.post("again", "C").await, 202);
    });
}

/// AMB-34: where even that space is used up, replies wait for more, and their subscriber gets no further
/// request meanwhile: it did its work, and its retries are for failures of its own.
#[test]
fn reply_without_space_waits_without_retry() {
    let folder = folder();
    let rig = BrokerFixture::with(folder.path(), &[], 1, FaultProfile::calm(), small_log());
    let mut down = of_type(trigger("r", "http://r/"), "B");
    down.hold = HoldReason::Everything;
    let stream = rig.publish(vec![of_type(trigger("t", "http://t/"), "A"), down]);
    rig.sync();
    let up = Rc::new(Cell::new(false));
    rig.rule(answering(&up, 90_000));
    rig.run(async {
        let accepted = fill(&rig).await;
        up.set(true);
        let asked = rig.calls("http://t/").len();
        rig.rest(seconds(600)).await;
        let [delivered, .., dropped, pending] = ends(&stream, 0);
        assert_eq!((delivered + pending, dropped), (accepted, 0));
        assert!(pending > 0, "the limit counts for replies too");
        assert!(rig.calls("http://t/").len() <= asked + accepted as usize, "no subscriber gets a second request");

        let again =
            |at: usize, subscriber| Subscriber { tally: Arc::clone(&stream.subscribers[at].tally), ..subscriber };
        let t = again(0, of_type(trigger("t", "http://t/"), "A"));
        let taking = rig.publish(vec![t, again(1, of_type(trigger("r", "http://r/"), "B"))]);
        rig.sync();
        rig.rest(seconds(600)).await;
        assert_eq!(ends(&taking, 0)[4] + ends(&taking, 1)[4], 0, "nothing is left");
    });
    let answered: BTreeSet<_> = rig.ids("http://t/").into_iter().map(|id| format!("r{id}")).collect();
    assert_eq!(rig.ids("http://r/").into_iter().collect::<BTreeSet<_>>(), answered);
}

fn small_log() -> LogOptions {
    LogOptions { segment_bytes: 1 << 18, record_bytes_max: 1 << 17, log_bytes_max: 1 << 20, ..options() }
}

/// Answers A's with B's of this size, once `up` is set.
fn answering(up: &Rc<Cell<bool>>, bytes: usize) -> impl FnMut(&RecordedCall) -> ScriptedAnswer + 'static {
    let up = Rc::clone(up);
    move |call| match &*call.ty {
        "A" if !up.get() => ScriptedAnswer::Status(503),
        "A" => {
            let ScriptedAnswer::Answer(answer) = reply(&format!("r{}", call.id), "B") else { unreachable!() };
            ScriptedAnswer::Answer(LocalResponse { body: vec![7; bytes].into(), ..answer })
        }
        _ => ScriptedAnswer::Status(202),
    }
}

/// Posts A's until the log rejects one, and returns how many it accepted.
async fn fill(rig: &BrokerFixture) -> u64 {
    for accepted in 0.. {
        let id = accepted.to_string();
        let headers = [("ce-specversion", "1.0"), ("ce-id", &*id), ("ce-source", "/s"), ("ce-type", "A")];
        if rig.request("POST", PATH, &headers, &vec![7; 50_000]).await.status != 202 {
            return accepted;
        }
    }
    unreachable!("the log has a limit")
}
