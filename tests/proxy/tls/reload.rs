//! SIGHUP: new certificates for new connections, and no effect on open ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use kit::{HttpCall, TIMEOUT, TestUpstream, wait};

use super::client::{BOTH, TlsAuthority, server};

/// What the server shows to a newcomer.
fn shown(authority: &TlsAuthority, to: std::net::SocketAddr) -> Vec<u8> {
    let connection = authority.client(BOTH).connect(to, "app.test").unwrap();
    connection.tls.conn.peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn certificates_change_under_load_and_no_request_fails() {
    const ROUNDS: usize = 20;
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let mut appliance = server(&authority, &[("*", "app.test")], &upstream);
    let https = appliance.https();
    let stop = Arc::new(AtomicBool::new(false));
    // Half of them stay on one connection through all reloads, half reconnect for each request.
    let callers: Vec<_> = (0..4)
        .map(|number| {
            let (client, stop) = (authority.client(BOTH), Arc::clone(&stop));
            thread::spawn(move || {
                let call = HttpCall::post("/mirror").host("app.test").body(vec![b'x'; 20_000]);
                let mut kept = client.connect(https, "app.test").unwrap();
                let mut calls = 0;
                while !stop.load(SeqCst) {
                    let answer = match number % 2 {
                        0 => kept.call(&call),
                        _ => client.call(https, "app.test", &call),
                    };
                    let answer = answer.unwrap();
                    assert_eq!((answer.status, answer.body.len()), (200, 20_000));
                    calls += 1;
                }
                calls
            })
        })
        .collect();

    let mut last = shown(&authority, https);
    for round in 0..ROUNDS {
        authority.issue("any", "app.test");
        appliance.reload();
        last = wait::until(TIMEOUT, &format!("a new certificate in round {round}"), || {
            let now = shown(&authority, https);
            (now != last).then_some(now)
        });
    }
    stop.store(true, SeqCst);
    for caller in callers {
        assert!(caller.join().unwrap() > 0);
    }
}

#[test]
fn a_reload_that_fails_leaves_all_as_it_was_and_says_why() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let certificates = [("app.test", "app.test"), ("other.test", "other.test")];
    let mut appliance = server(&authority, &certificates, &upstream);
    let before = shown(&authority, appliance.https());

    authority.issue("app.test", "app.test");
    std::fs::write(authority.file("other.test.pem"), "half a fi").unwrap();
    appliance.reload();
    wait::until(TIMEOUT, "the reason in the log", || appliance.stderr().contains("other.test.pem").then_some(()));

    assert_eq!(shown(&authority, appliance.https()), before);
    let client = authority.client(BOTH);
    assert_eq!(client.call(appliance.https(), "other.test", &HttpCall::get("/")).unwrap().status, 200);
}

#[test]
fn without_tls_a_reload_changes_nothing() {
    let upstream = TestUpstream::start("one");
    let mut appliance = kit::ApplianceSetup::new(super::client::BIN).route("*", upstream.address()).start();
    appliance.reload();
    wait::until(TIMEOUT, "the reload", || appliance.stderr().contains("certificates").then_some(()));
    assert_eq!(HttpCall::get("/").host("a.test").send(appliance.http()).status, 200);
}
