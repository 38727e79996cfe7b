//! Replies: stored, sent on, dropped or refused.

use super::*;

/// EV-RTE-10, EV-RTE-12, EV-DLV-05: a reply is an event like any other, for all Triggers, the one that
/// produced it included.
#[test]
fn a_reply_comes_back_into_the_broker() {
    let folder = folder();
    let rig = Rig::new(folder.path());
    let all = trigger("all", "http://all/");
    let stream = rig.publish(vec![all, of_type(trigger("b", "http://b/"), "B")]);
    rig.rule(|call| match (&*call.url, &*call.ty) {
        ("http://all/", "A") => reply("r", "B"),
        _ => Step::Status(202),
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
fn an_endless_echo_ends() {
    for (hops, calls) in [(None, 255), (Some("4"), 3)] {
        let folder = folder();
        let rig = Rig::new(folder.path());
        let stream = rig.publish(vec![trigger("echo", "http://echo/")]);
        rig.rule(|_| reply("again", "t"));
        rig.run(async {
            let mut headers =
                vec![("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
            headers.extend(hops.map(|hops| ("ce-knativebrokerttl", hops)));
            assert_eq!(rig.request("POST", PATH, &headers, b"").await.status, 202);
            rig.rest(seconds(600)).await;
        });
        assert_eq!(rig.calls("http://echo/").len(), calls);
        assert_eq!(stream.subscribers[0].tally.replies_dropped.load(Relaxed), 1);
        assert_eq!(ends(&stream, 0), [calls as u64, 0, 0, 0, 0]);
    }
}

/// DP-REPLY-05 to -07, AMB-31, AMB-33: what is no reply, and completes the delivery all the same.
#[test]
fn only_an_event_in_a_200_is_a_reply() {
    let event = |status| {
        let Step::Answer(answer) = reply("r", "B") else { unreachable!("reply() makes an answer") };
        Answer { status, ..answer }
    };
    let text = Answer {
        status: 200,
        headers: vec![("content-type".into(), Bytes::from_static(b"text/plain"))],
        body: Bytes::from_static(b"thanks"),
    };
    for (answer, dropped) in [(event(202), 0), (event(201), 0), (event(299), 0), (text, 1)] {
        let folder = folder();
        let rig = Rig::new(folder.path());
        let stream = rig.publish(vec![trigger("t", "http://s/")]);
        rig.rule(move |_| Step::Answer(answer.clone()));
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
/// asked again, then the dead letter sink gets the event.
#[test]
fn a_reply_that_cannot_be_stored_fails_the_delivery() {
    let malformed = || {
        let Step::Answer(mut answer) = reply("r", "B") else { unreachable!("reply() makes an answer") };
        answer.headers.retain(|(name, _)| &**name != "ce-id");
        answer
    };
    let too_large = || {
        let Step::Answer(answer) = reply("r", "B") else { unreachable!("reply() makes an answer") };
        Answer { body: vec![0; 100_001].into(), ..answer }
    };
    for answer in [malformed(), too_large()] {
        let folder = folder();
        let rig = Rig::new(folder.path());
        let mut subscriber = trigger("t", "http://s/");
        subscriber.dead_letter = Some(target("http://dls/"));
        let stream = rig.publish(vec![subscriber]);
        rig.rule(move |call| match &*call.url {
            "http://s/" => Step::Answer(answer.clone()),
            _ => Step::Status(202),
        });
        rig.run(async {
            rig.post("1", "A").await;
            rig.rest(seconds(60)).await;
        });
        assert_eq!(rig.ids("http://s/"), ["1", "1", "1"]);
        let [letter] = &rig.calls("http://dls/")[..] else { panic!("one dead letter") };
        assert_eq!(letter.header("ce-knativeerrorcode").unwrap(), "500");
        assert_eq!(stream.tally.accepted.load(Relaxed), 1);
        assert_eq!(ends(&stream, 0), [0, 0, 1, 0, 0]);
    }
}

fn subscription(reply: Reply) -> Subscriber {
    let mut subscriber = of_type(trigger("t", "http://s/"), "A");
    subscriber.reply = reply;
    subscriber.dead_letter = Some(target("http://dls/"));
    subscriber
}

/// EV-DLV-06: nobody wants the reply: no request anywhere.
#[test]
fn a_reply_without_a_target_is_dropped() {
    let folder = folder();
    let rig = Rig::new(folder.path());
    let stream = rig.publish_as("channel/ns/c/1", vec![subscription(Reply::Discard)]);
    rig.rule(|_| reply("r", "B"));
    rig.run(async {
        rig.post("1", "A").await;
        rig.rest(seconds(60)).await;
    });
    assert_eq!(rig.script.0.calls.borrow().len(), 1);
    assert_eq!(stream.subscribers[0].tally.replies_dropped.load(Relaxed), 1);
    assert_eq!(ends(&stream, 0), [1, 0, 0, 0, 0]);
}

/// EV-SUB-13, EV-SUB-14, AMB-21: a reply target in the subscriber's place is asked for nothing, and what it
/// answers, even a broken event, is dropped.
#[test]
fn a_subscriber_that_is_not_asked_cannot_reply() {
    for broken in [false, true] {
        let folder = folder();
        let rig = Rig::new(folder.path());
        let stream = rig.publish_as("channel/ns/c/1", vec![subscription(Reply::Unasked)]);
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

/// EV-DLV-05, EV-DLV-07, AMB-35, DP-REPLY-03, DP-REPLY-08: the reply has retries of its own, its target
/// is asked for no reply and what it answers is dropped.
#[test]
fn a_reply_is_sent_again_without_asking_the_subscriber_again() {
    let folder = folder();
    let rig = Rig::new(folder.path());
    let stream = rig.publish_as("channel/ns/c/1", vec![subscription(Reply::Send(target("http://r/")))]);
    let mut failures = 2;
    rig.rule(move |call| match &*call.url {
        "http://r/" if failures > 0 => {
            failures -= 1;
            Step::Status(500)
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

/// EV-DLV-08, AMB-36: when the reply cannot be delivered, the sink gets the original event with the reply's URL.
#[test]
fn a_reply_that_nobody_takes_makes_the_original_a_dead_letter() {
    let folder = folder();
    let rig = Rig::new(folder.path());
    let stream = rig.publish_as("channel/ns/c/1", vec![subscription(Reply::Send(target("http://r/")))]);
    rig.rule(|call| match &*call.url {
        "http://s/" => reply("r", "B"),
        "http://r/" => Step::Status(503),
        _ => Step::Status(202),
    });
    rig.run(async {
        rig.post("1", "A").await;
        rig.rest(seconds(60)).await;
    });
    let [letter] = &rig.calls("http://dls/")[..] else { panic!("one dead letter") };
    assert_eq!((rig.calls("http://s/").len(), rig.calls("http://r/").len()), (1, 3));
    assert_eq!(letter.id, "1");
    assert_eq!(letter.header("ce-knativeerrordest").unwrap(), "http://r/");
    assert_eq!(letter.header("ce-knativeerrorcode").unwrap(), "503");
    assert_eq!(ends(&stream, 0), [0, 0, 1, 0, 0]);
}

/// EV-RTE-10, EV-RTE-11: a delivery is done, and its bookmark may move, only when its reply is durable.
#[test]
fn a_delivery_is_not_done_before_its_reply_is_durable() {
    let folder = folder();
    let slow = Weather { disk_latency: seconds(5)..=seconds(5), ..Weather::calm() };
    let rig = Rig::with(folder.path(), &[], 1, slow, options());
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
