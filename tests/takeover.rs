//! `sluicegate run --takeover`: one process after another, and no client notices.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use kit::crowd::{Crowd, keep_alive, one_by_one, streams};
use kit::manifest::{NAMESPACE, broker, service, trigger};
use kit::{Appliance, Call, Connection, Event, EventSink, PATIENCE, Setup, Upstream, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

/// No connection is refused and no request fails, twice in a row, whatever the client speaks.
#[test]
fn requests_go_on_while_one_process_follows_another() {
    let upstream = Upstream::start("one");
    let mut current = Setup::new(BIN).route(HOST, upstream.address()).flag("workers", "2").start();
    let to = current.http();
    let mut crowd = Crowd::new();
    let get = |_| Call::get("/").host(HOST);
    crowd.add(keep_alive(to, get, 200, Duration::ZERO));
    crowd.add(keep_alive(to, get, 200, Duration::from_millis(30)));
    crowd.add(keep_alive(
        to,
        |_| Call::post("/mirror").host(HOST).body(vec![b'x'; 100_000]),
        200,
        Duration::ZERO,
    ));
    crowd.add(one_by_one(to, HOST));
    crowd.add(streams(to, HOST));
    for _ in 0..2 {
        crowd.goes_on(100);
        let next = current.successor();
        assert_eq!(next.ports(), current.ports());
        crowd.goes_on(100);
        assert_eq!(current.wait().code(), Some(0), "{}", current.stderr());
        crowd.goes_on(100);
        current = next;
    }
    crowd.end();
    assert_eq!(current.terminate().code(), Some(0));
    assert!(Connection::try_open(to).is_err(), "nobody is left who takes connections in");
}

/// What was acknowledged by either process is delivered; objects and their uids are the same ones; instances of
/// the old process answer what they have, and none of them is left.
#[test]
fn events_objects_and_instances_survive_the_change() {
    let sink = EventSink::start();
    let mut old = Setup::new(BIN).hello_image("example.com/hello").flag("workers", "2").start();
    let api = old.api();
    let before = api.create(&broker("main"));
    api.create(&trigger("all", "main", &sink.url()));
    api.create(&service("hello", "example.com/hello", "World"));
    api.wait_ready("Trigger", NAMESPACE, "all", PATIENCE);
    api.wait_ready("Service", NAMESPACE, "hello", PATIENCE);

    let mut crowd = Crowd::new();
    let event = |number: u64| Event::new(&format!("e{number}")).binary("/brokers/default/main");
    let accepted = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&accepted);
    let post = keep_alive(old.events(), event, 202, Duration::ZERO);
    crowd.add(move |stop, answers| {
        let outcome = post(stop, &counted);
        answers.fetch_add(1, SeqCst);
        outcome
    });
    crowd.add(one_by_one(old.http(), "hello.default.localhost"));
    crowd.goes_on(20);
    let new = old.successor();
    let mark = accepted.load(SeqCst);
    crowd.goes_on(20);
    wait::until(PATIENCE, "events to the new process", || (accepted.load(SeqCst) > mark + 20).then_some(()));
    assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
    crowd.goes_on(20);
    crowd.end();

    let wanted: BTreeSet<String> = (0..accepted.load(SeqCst)).map(|number| format!("e{number}")).collect();
    wait::until(PATIENCE, "all that was accepted", || {
        let got: BTreeSet<String> = sink.received().iter().map(kit::Received::id).collect();
        wanted.is_subset(&got).then_some(())
    });
    let after = new.api().get("Broker", NAMESPACE, "main").unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    new.api().create(&broker("newer"));
    new.api().wait_ready("Broker", NAMESPACE, "newer", PATIENCE);
}

/// A successor that does not fit is told why, and nothing has changed.
#[test]
fn a_successor_that_does_not_fit_is_refused() {
    let upstream = Upstream::start("one");
    let mut old = Setup::new(BIN).route(HOST, upstream.address()).flag("workers", "2").start();
    let like_it = old.setup().clone().ports(old.ports()).switch("takeover");
    let elsewhere = kit::server::closed_address().to_string();
    for (setup, why) in [
        (like_it.clone().flag("workers", "1"), "workers"),
        (like_it.clone().flag("http", &elsewhere), "Http"),
        (like_it.flag("route", "no address"), "route"),
    ] {
        let refusal = setup.refused();
        assert!(refusal.code.is_some_and(|code| code != 0), "{refusal}");
        assert!(refusal.stderr.contains(why) && !refusal.stderr.contains("panicked"), "{refusal}");
        assert!(old.is_running());
        assert_eq!(Call::get("/").host(HOST).send(old.http()).status, 200);
        old.api().create(&broker(&format!("still-{}", why.to_lowercase())));
    }
    assert_eq!(old.terminate().code(), Some(0));
}

/// The worst case: the successor has everything and fails. Requests go on, and the next one carries it out.
#[test]
fn a_successor_that_fails_leaves_requests_as_they_are() {
    let upstream = Upstream::start("one");
    let mut old = Setup::new(BIN).route(HOST, upstream.address()).flag("workers", "1").start();
    let bad = old.setup().write_file("bad.pem", "no certificate").to_string_lossy().into_owned();
    let like_it = old.setup().clone().ports(old.ports()).switch("takeover");
    let refusal = like_it.clone().flag("api-tls-cert", &format!("{bad},{bad}")).refused();
    assert!(refusal.stderr.contains("TLS"), "{refusal}");
    for _ in 0..10 {
        assert_eq!(Call::get("/").host(HOST).send(old.http()).status, 200);
    }
    let new = like_it.start();
    assert_eq!(old.wait().code(), Some(0));
    assert_eq!(Call::get("/").host(HOST).send(new.http()).status, 200);
    new.api().create(&broker("main"));
    new.api().wait_ready("Broker", NAMESPACE, "main", PATIENCE);
}

/// Where nobody runs `--takeover` is a start like any other, so a unit file can always have it; also where somebody
/// was killed.
#[test]
fn a_takeover_from_nobody_is_a_start() {
    let setup = Setup::new(BIN).switch("takeover");
    let mut first: Appliance = setup.start();
    first.kill();
    let second = setup.start();
    assert_eq!(Call::get("/readyz").send(second.admin()).status, 200);
}
