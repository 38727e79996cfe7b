//! What a Broker of class SluicegateJetStream keeps when the appliance, its server or a server of a cluster is killed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kit::scene::{BROKER, post, subscribe};
use kit::{Appliance, EventSink, NatsServer, SinkResponse, TestEvent, wait};
use serde_json::json;

use crate::jetstream::{setup, with_jetstream};

/// An election of a leader and the repetition of unacknowledged events take some 20 s together.
const RECOVERY: Duration = Duration::from_secs(90);

/// Retries often enough to outlast every test.
fn patient() -> (&'static str, serde_json::Value) {
    ("/spec/delivery", json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.2S" }))
}

fn wait_all(sink: &EventSink, wanted: &BTreeSet<String>) {
    let has_all = |received: &[kit::ReceivedRequest]| {
        let ids: BTreeSet<_> = received.iter().map(kit::ReceivedRequest::id).collect();
        wanted.is_subset(&ids)
    };
    if let Err(received) = sink.wait_until(RECOVERY, has_all) {
        let ids: BTreeSet<_> = received.iter().map(kit::ReceivedRequest::id).collect();
        let missing: Vec<_> = wanted.difference(&ids).collect();
        panic!("acknowledged and not delivered: {missing:?}");
    }
}

/// Sends until it is acknowledged; returns whether it was rejected meanwhile.
fn send_until_accepted(appliance: &Appliance, event: &TestEvent) -> bool {
    let (call, began, mut was_rejected) = (event.binary(BROKER), Instant::now(), false);
    while began.elapsed() < RECOVERY {
        let answer = call.send(appliance.events());
        if answer.status == 202 {
            return was_rejected;
        }
        assert!(answer.status == 503 && answer.header("retry-after").is_some(), "{answer}");
        was_rejected = true;
        wait::rest(Duration::from_millis(50));
    }
    panic!("not accepted within {RECOVERY:?}");
}

/// EV-DLV-13: a kill of the appliance with events in flight loses none that was acknowledged.
#[test]
fn kill_of_the_appliance_loses_no_event() {
    let Some(server) = NatsServer::start() else { return };
    let mut appliance = with_jetstream(&setup(), &[&server], 1);
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&is_open);
    let sink = EventSink::answering(move |request| {
        let is_first = request.id().parse::<u32>().unwrap() < 10;
        SinkResponse::status(if opened.load(Relaxed) || is_first { 202 } else { 503 })
    });
    subscribe(appliance.api(), "all", &sink.url(), &[patient()]);
    let sent: BTreeSet<_> = (0..100).map(|n| n.to_string()).collect();
    sent.iter().for_each(|id| post(&appliance, &TestEvent::new(id)));
    sink.wait_for(20, RECOVERY);
    appliance.kill();
    is_open.store(true, Relaxed);
    appliance.restart_on_same_ports();
    wait_all(&sink, &sent);
}

/// A stop ends in time although no event is done, and gives them all back.
#[test]
fn stop_of_the_appliance_gives_events_back() {
    let Some(server) = NatsServer::start() else { return };
    let mut appliance = with_jetstream(&setup(), &[&server], 1);
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&is_open);
    let sink = EventSink::answering(move |_| SinkResponse::status(if opened.load(Relaxed) { 202 } else { 503 }));
    subscribe(appliance.api(), "all", &sink.url(), &[patient()]);
    let sent: BTreeSet<_> = (0..20).map(|n| n.to_string()).collect();
    sent.iter().for_each(|id| post(&appliance, &TestEvent::new(id)));
    sink.wait_for(20, RECOVERY);
    assert!(appliance.terminate().success());
    is_open.store(true, Relaxed);
    appliance.restart_on_same_ports();
    wait_all(&sink, &sent);
}

/// DP-ACK-10: without its server a Broker answers 503 with Retry-After; after its return nothing is lost.
#[test]
fn kill_of_the_server_loses_no_event() {
    let Some(mut server) = NatsServer::start() else { return };
    let appliance = with_jetstream(&setup(), &[&server], 1);
    let sink = EventSink::answering(|_| SinkResponse::status(202).after(Duration::from_millis(50)));
    subscribe(appliance.api(), "all", &sink.url(), &[patient()]);
    let sent: BTreeSet<_> = (0..100).map(|n| n.to_string()).collect();
    sent.iter().for_each(|id| post(&appliance, &TestEvent::new(id)));
    server.kill();
    let answer = TestEvent::new("meanwhile").binary(BROKER).send(appliance.events());
    assert!(answer.status == 503 && answer.header("retry-after").is_some(), "{answer}");
    server.start_again();
    send_until_accepted(&appliance, &TestEvent::new("after"));
    wait_all(&sink, &sent.into_iter().chain(["after".to_owned()]).collect());
}

/// With three replicas, a kill of the server that leads the stream costs senders some retries, and no event.
#[test]
fn kill_of_a_leader_loses_no_event() {
    let Some(mut servers) = NatsServer::cluster() else { return };
    let appliance = with_jetstream(&setup(), &servers.iter().collect::<Vec<_>>(), 3);
    let sink = EventSink::start();
    subscribe(appliance.api(), "all", &sink.url(), &[patient()]);
    let sent: BTreeSet<_> = (0..300).map(|n| n.to_string()).collect();
    let mut killed = None;
    for (count, id) in sent.iter().enumerate() {
        if count == 100 {
            let leads = |server: &NatsServer| {
                let streams = server.streams();
                let leader = streams.first().and_then(|stream| stream["cluster"]["leader"].as_str().map(str::to_owned));
                leader.and_then(|name| name.strip_prefix('n')?.parse::<usize>().ok())
            };
            let leader = wait::until(RECOVERY, "a leader of the stream", || servers.iter().find_map(leads));
            servers[leader].kill();
            killed = Some(leader);
        }
        send_until_accepted(&appliance, &TestEvent::new(id));
    }
    wait_all(&sink, &sent);
    servers[killed.unwrap()].start_again();
    send_until_accepted(&appliance, &TestEvent::new("after"));
}
