//! Where io_uring is forbidden, the cores use epoll.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::thread;

use container::seccomp::SeccompFilter;
use kit::manifest::{NAMESPACE, broker};
use kit::scene::{post, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, TIMEOUT, TestEvent, TestUpstream, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "epoll.example.com";

/// Starts an appliance under the default seccomp profile of container engines. The filter applies to the calling thread
/// and what it starts, so that the thread is a new one.
fn start_confined(setup: ApplianceSetup) -> Appliance {
    let start = move || {
        SeccompFilter::of_defaults().install().unwrap();
        setup.start()
    };
    thread::spawn(start).join().unwrap()
}

/// Requests, events and a restart work without io_uring.
#[test]
fn default_seccomp_profile_of_containers_is_enough() {
    let upstream = TestUpstream::start("one");
    let route = format!("{HOST}={}", upstream.address());
    let mut appliance = start_confined(ApplianceSetup::new(BIN).flag("route", &route).flag("workers", "2"));
    appliance.wait_says("using epoll instead of io_uring");
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);

    appliance.api().create(&broker("main"));
    appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    let sink = EventSink::start();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("1"));
    sink.wait_for(1, TIMEOUT);
    assert!(appliance.terminate().success());
}

/// Events that were acknowledged on epoll survive a kill.
#[test]
fn acknowledged_events_survive_a_kill_on_epoll() {
    let sink = EventSink::start();
    let mut appliance = ApplianceSetup::new(BIN).flag("io-driver", "epoll").start();
    appliance.api().create(&broker("main"));
    appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    subscribe(appliance.api(), "all", "http://127.0.0.1:1/", &[]);
    for id in 0..100 {
        post(&appliance, &TestEvent::new(&id.to_string()));
    }
    appliance.restart();
    let to = serde_json::json!({ "spec": { "subscriber": { "uri": sink.url() } } });
    appliance.api().patch("Trigger", NAMESPACE, "all", &to);
    wait::until(TIMEOUT, "all events", || (sink.received().len() >= 100).then_some(()));
}

#[test]
fn required_io_uring_that_is_forbidden_stops_the_start() {
    let refused = || {
        SeccompFilter::of_defaults().install().unwrap();
        ApplianceSetup::new(BIN).flag("io-driver", "io_uring").refused().stderr
    };
    let text = thread::spawn(refused).join().unwrap();
    assert!(text.contains("io_uring on Linux"), "{text}");
}
