//! `sluicegate run --hot-restart`: one process after another, without an effect on clients.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod generations;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kit::background_clients::{BackgroundClients, keep_alive, one_by_one, streams};
use kit::manifest::{NAMESPACE, broker, service, trigger};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, TIMEOUT, TestEvent, TestUpstream, wait};
use rustix::process::{Pid, Signal, kill_process};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

/// No connection is refused and no request fails, twice in a row, whatever the client speaks.
#[test]
fn requests_go_on_while_one_process_follows_another() {
    let upstream = TestUpstream::start("one");
    let mut current = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "2").start();
    let to = current.http();
    let mut clients = BackgroundClients::new();
    let get = |_| HttpCall::get("/").host(HOST);
    clients.add(keep_alive(to, get, 200, Duration::ZERO));
    clients.add(keep_alive(to, get, 200, Duration::from_millis(30)));
    clients.add(keep_alive(
        to,
        |_| HttpCall::post("/mirror").host(HOST).body(vec![b'x'; 100_000]),
        200,
        Duration::ZERO,
    ));
    clients.add(one_by_one(to, HOST));
    clients.add(streams(to, HOST));
    for _ in 0..2 {
        clients.goes_on(100);
        let next = current.successor();
        assert_eq!(next.ports(), current.ports());
        clients.goes_on(100);
        assert_eq!(current.wait().code(), Some(0), "{}", current.stderr());
        clients.goes_on(100);
        current = next;
    }
    clients.end();
    assert_eq!(current.terminate().code(), Some(0));
    assert!(HttpConnection::try_open(to).is_err(), "no process accepts connections any more");
}

/// What was acknowledged by either process is delivered; objects and their uids are the same ones; instances of
/// the old process answer what they have, and none of them is left.
#[test]
fn events_objects_and_instances_survive_the_change() {
    let sink = EventSink::start();
    let mut old = ApplianceSetup::new(BIN).hello_image("example.com/hello").flag("workers", "2").start();
    let api = old.api();
    let before = api.create(&broker("main"));
    api.create(&trigger("all", "main", &sink.url()));
    api.create(&service("hello", "example.com/hello", "World"));
    api.wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);

    let mut clients = BackgroundClients::new();
    let event = |number: u64| TestEvent::new(&format!("e{number}")).binary("/brokers/default/main");
    let accepted = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&accepted);
    let post = keep_alive(old.events(), event, 202, Duration::ZERO);
    clients.add(move |stop, answers| {
        let outcome = post(stop, &counted);
        answers.fetch_add(1, SeqCst);
        outcome
    });
    clients.add(one_by_one(old.http(), "hello.default.localhost"));
    clients.goes_on(20);
    let new = old.successor();
    let mark = accepted.load(SeqCst);
    clients.goes_on(20);
    wait::until(TIMEOUT, "events to the new process", || (accepted.load(SeqCst) > mark + 20).then_some(()));
    assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
    clients.goes_on(20);
    clients.end();

    let wanted: BTreeSet<String> = (0..accepted.load(SeqCst)).map(|number| format!("e{number}")).collect();
    wait::until(TIMEOUT, "all that was accepted", || {
        let got: BTreeSet<String> = sink.received().iter().map(kit::ReceivedRequest::id).collect();
        wanted.is_subset(&got).then_some(())
    });
    let after = new.api().get("Broker", NAMESPACE, "main").unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    new.api().create(&broker("newer"));
    new.api().wait_ready("Broker", NAMESPACE, "newer", TIMEOUT);
}

/// A successor that does not fit gets the reason, and nothing has changed.
#[test]
fn a_successor_that_does_not_fit_is_refused() {
    let upstream = TestUpstream::start("one");
    let mut old = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "2").start();
    let like_it = old.setup().clone().ports(old.ports()).switch("hot-restart");
    let elsewhere = kit::server::closed_address().to_string();
    let bad = old.setup().write_file("bad.pem", "no certificate").to_string_lossy().into_owned();
    let nowhere = "/proc/nowhere/api.sock";
    let with_acme = like_it.clone().flag("https", "127.0.0.1:0").flag("acme-email", "a@example.com");
    let cases = [
        (like_it.clone().flag("api-tls-cert", &format!("{bad},{bad}")), "TLS"),
        (like_it.clone().flag("api-tls-cert", "/dev/zero,/dev/zero"), "bytes"),
        (like_it.clone().flag("api-client-ca", &bad), "bad.pem"),
        (like_it.clone().flag("api-tokens", &bad), "tokens"),
        (like_it.clone().flag("api-socket", nowhere), "--api-socket"),
        (like_it.clone().flag("api-socket", &bad), "not a socket"),
        (like_it.clone().flag("access-log", "json").flag("access-log-file", nowhere), "access-log-file"),
        (like_it.clone().flag("api-audit-log", nowhere), "api-audit-log"),
        (like_it.clone().flag("route", &format!("a.example.com=https://127.0.0.1:1?ca={bad}")), "bad.pem"),
        (like_it.clone().flag("kubeconfig", &bad), "kubeconfig"),
        (like_it.clone().flag("registry-config", nowhere), "registry-config"),
        (like_it.clone().flag("registry-config", &bad), "registry-config"),
        (with_acme.flag("acme-ca", &bad), "acme-ca"),
        (like_it.clone().flag("route", &format!("a.example.com=127.0.0.1:1?basic-auth={bad}")), "bad.pem"),
        (like_it.clone().env("SLUICEGATE_LOG", "wran"), "is not a level"),
        (like_it.clone().flag("https", "127.0.0.1:0"), "--https"),
        (like_it.clone().flag("workers", "1"), "workers"),
        (like_it.clone().flag("http", &elsewhere), "--http"),
        (like_it.clone().flag("route", "no address"), "route"),
    ];
    for (number, (setup, why)) in cases.into_iter().enumerate() {
        let refusal = setup.refused();
        assert!(refusal.code.is_some_and(|code| code != 0), "{refusal}");
        assert!(refusal.stderr.contains(why) && !refusal.stderr.contains("panicked"), "{refusal}");
        assert!(old.is_running());
        assert_eq!(HttpCall::get("/").host(HOST).send(old.http()).status, 200);
        assert_eq!(old.api().try_create(&broker(&format!("still-{number}"))).status, 201);
    }
    // What it would open in the data folder is tried too.
    let key = old.setup().data().join("api/service-accounts.key");
    std::fs::write(&key, "no key").unwrap();
    let refusal = like_it.refused();
    assert!(refusal.stderr.contains("service-accounts.key"), "{refusal}");
    assert_eq!(HttpCall::get("/readyz").send(old.admin()).status, 200);
    assert_eq!(old.terminate().code(), Some(0));
}

/// The earlier name still works, and one line says what to write instead.
#[test]
fn takeover_flag_works_with_one_warning() {
    let mut old = ApplianceSetup::new(BIN).start();
    let like_it = old.setup().clone().ports(old.ports());
    let by_flag = like_it.clone().switch("takeover").start();
    assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
    by_flag.wait_says("use --hot-restart");
    assert_eq!(by_flag.stderr().matches("hot-restart:").count(), 1);
    let by_variable = like_it.env("SLUICEGATE_TAKEOVER", "true").start();
    by_variable.wait_says("use --hot-restart");
}

/// Connections that say nothing, however many, delay no successor.
#[test]
fn stalled_peers_delay_no_hot_restart() {
    let mut old = ApplianceSetup::new(BIN).start();
    let path = old.setup().data().join("takeover.sock");
    let stalled: Vec<_> = (0..200).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let began = Instant::now();
    let new = old.successor();
    assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
    assert!(began.elapsed() < Duration::from_secs(60), "200 silent peers of 5 s each were waited for");
    assert_eq!(HttpCall::get("/readyz").send(new.admin()).status, 200);
    drop(stalled);
}

/// The worst case: the successor has everything and fails. Requests go on, and the next one carries it out.
#[test]
fn a_successor_that_fails_leaves_requests_as_they_are() {
    let upstream = TestUpstream::start("one");
    let mut old = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "1").start();
    let like_it = old.setup().clone().ports(old.ports()).switch("hot-restart");
    // It fails last of all, at the ready line, when it has everything and a takeover socket of its own.
    for failures in 1..=3 {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let status = like_it.command().stdout(full).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(1));
        wait::until(TIMEOUT, "the old process to know of it", || {
            (old.stderr().matches("does not serve").count() == failures).then_some(())
        });
        wait::until(TIMEOUT, "the old process at its admin port", || {
            (HttpCall::get("/healthz").try_send(old.admin()).ok()?.status == 503).then_some(())
        });
        for _ in 0..10 {
            assert_eq!(HttpCall::get("/").host(HOST).send(old.http()).status, 200);
        }
        assert_eq!(HttpCall::get("/readyz").send(old.admin()).status, 503);
        assert!(old.metric("sluicegate_requests_total", "2xx") >= 10);
    }
    let new = like_it.start();
    assert_eq!(old.wait().code(), Some(0));
    assert_eq!(HttpCall::get("/").host(HOST).send(new.http()).status, 200);
    assert_eq!(HttpCall::get("/healthz").send(new.admin()).status, 200);
    new.api().create(&broker("main"));
    new.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
}

/// A start that waits for a stopped process logs the reason, and the process is not lost: it continues from where it
/// was.
#[test]
fn a_process_that_is_stopped_is_waited_for_in_words() {
    let mut old = ApplianceSetup::new(BIN).start();
    let process = Pid::from_raw(old.pid().cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let mut command = old.setup().clone().ports(old.ports()).switch("hot-restart").command();
    let mut new = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(new.stderr.take().unwrap()).lines();
    let words = format!("which is stopped: `kill -CONT {}`", old.pid());
    let reported = lines.map_while(Result::ok).find(|line| line.contains(&words));
    // The operator may give up waiting at this point.
    let mut interrupted = command.stderr(Stdio::null()).spawn().unwrap();
    kill_process(Pid::from_child(&interrupted), Signal::TERM).unwrap();
    wait::until(TIMEOUT, "its end", || interrupted.try_wait().unwrap());
    kill_process(process, Signal::CONT).unwrap();
    assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
    kill_process(Pid::from_child(&new), Signal::TERM).unwrap();
    assert!(new.wait().unwrap().success() && reported.is_some());
}

/// Where no process runs `--hot-restart` is a start like any other, so a unit file can always have it; also where another user
/// was killed.
#[test]
fn a_takeover_from_nobody_is_a_start() {
    let setup = ApplianceSetup::new(BIN).switch("hot-restart");
    let mut first: Appliance = setup.start();
    first.kill();
    let second = setup.start();
    assert_eq!(HttpCall::get("/readyz").send(second.admin()).status, 200);
}
