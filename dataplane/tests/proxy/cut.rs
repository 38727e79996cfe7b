//! Responses that are cut, and which bytes reset their timeouts.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ring::sim::{FaultProfile, Simulation};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{Backend, RequestTimeouts};

use crate::fixture::{
    ProxyFixture, Reply, backend, instance, ok, on_every_driver, raw_instance, read_through, run_with_proxy,
};

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_driver(&CoreLimits::default(), script);
}

/// X-QP-02: a response beyond its deadline is cut, so that its client does not take a part for the whole, and its rest
/// is not sent to other clients.
#[test]
fn late_response_in_chunks_has_no_last_chunk() {
    everywhere(async |fixture| {
        let heads = Rc::new(Cell::new(0));
        let count = Rc::clone(&heads);
        let address = instance(&fixture.ring, move |seen| {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n".to_vec();
            let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec();
            count.set(count.get() + 1);
            match seen.head.split(' ').nth(1).unwrap() {
                "/late" => vec![
                    Reply::Send(head),
                    Reply::Wait(Duration::from_millis(300)),
                    Reply::Send(b"1\r\nb\r\n0\r\n\r\n".to_vec()),
                ],
                _ => vec![Reply::Send(whole)],
            }
        });
        let limit = Duration::from_millis(60);
        for timeouts in [
            RequestTimeouts { total: limit, ..RequestTimeouts::NONE },
            RequestTimeouts { idle: limit, ..RequestTimeouts::NONE },
        ] {
            let mut app = backend(&[address], 0, None);
            app.timeouts = timeouts;
            fixture.publish("app", app);
            let mut client = fixture.client().await;
            client.send("GET /late HTTP/1.1\r\nHost: app\r\n\r\n").await;
            let all = client.rest_or(&fixture, 1_000).await;
            assert!(all.ends_with("\r\n\r\n1\r\na\r\n"), "{timeouts:?}: {all}");
            fixture.pause(400).await; // the rest has arrived by now
            let seen = fixture.client().await.get("app", "/").await;
            assert_eq!((&seen.head[9..12], seen.body.as_slice()), ("200", b"ok".as_slice()));
        }
        assert_eq!(heads.get(), 4);
    });
}

/// X-QP-02: whatever arrives at the very moment of the deadline, the response is cut or replaced by a 504.
#[test]
fn response_at_its_deadline_is_late() {
    run_with_proxy(&Simulation::new(1, FaultProfile::calm()).ring(), &CoreLimits::default(), async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let head = Reply::Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec());
            let (pause, piece) = (Reply::Wait(Duration::from_millis(2)), Reply::Send(b"1\r\na\r\n".to_vec()));
            match seen.head.contains("/begun") {
                true => vec![head, pause, piece, Reply::Wait(Duration::from_millis(9))],
                false => vec![pause, head, piece, Reply::Wait(Duration::from_millis(9))],
            }
        });
        for micros in 1_900..2_500 {
            let mut app = backend(&[address], 0, None);
            app.timeouts.total = Duration::from_micros(micros);
            fixture.publish("app", app);
            for path in ["/begun", "/silent"] {
                let mut client = fixture.client().await;
                client.send(format!("GET {path} HTTP/1.1\r\nHost: app\r\n\r\n")).await;
                let all = client.rest_or(&fixture, 5).await;
                let cut = all.ends_with("\r\n\r\n") || all.ends_with("a\r\n");
                let ended = all.ends_with("0\r\n\r\n");
                assert!(cut && !ended || all.starts_with("HTTP/1.1 504 "), "{path} {micros}: {all}");
            }
        }
    });
}

/// A response that ends with its connection, to an HTTP/1.0 client: only a reset shows that it is cut.
#[test]
fn cut_until_close_response_ends_in_a_reset() {
    everywhere(async |fixture| {
        for (path, whole) in [("/whole", true), ("/short", false), ("/late", false)] {
            let address = instance(&fixture.ring, move |_| {
                let head = Reply::Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n".to_vec());
                match path {
                    "/whole" => vec![head, Reply::Send(b"0\r\n\r\n".to_vec())],
                    "/short" => vec![head, Reply::Wait(Duration::from_millis(20)), Reply::Close],
                    _ => vec![head, Reply::Wait(Duration::from_secs(1)), Reply::Close],
                }
            });
            let mut app = backend(&[address], 0, None);
            app.timeouts.total = Duration::from_millis(100);
            fixture.publish("app", app);
            let client = fixture.client().await;
            client.send(format!("GET {path} HTTP/1.0\r\nHost: app\r\n\r\n")).await;
            let ended = loop {
                match client.stream.recv().await {
                    Ok(bytes) if bytes.is_empty() => break true,
                    Ok(_) => {}
                    Err(_) => break false,
                }
            };
            assert_eq!(ended, whole, "{path}");
        }
    });
}

/// The field's documentation says "any network traffic": that includes interim responses and partial heads.
#[test]
fn interim_responses_and_partial_heads_are_traffic() {
    let pause = || Reply::Wait(Duration::from_millis(300));
    let send = |text: &str| Reply::Send(text.as_bytes().to_vec());
    let limit = Duration::from_millis(500);
    for timeouts in [
        RequestTimeouts { response_start: limit, ..RequestTimeouts::NONE },
        RequestTimeouts { idle: limit, ..RequestTimeouts::NONE },
    ] {
        everywhere(move |fixture| async move {
            let address = instance(&fixture.ring, move |seen| {
                let whole = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                match seen.head.split(' ').nth(1).unwrap() {
                    "/interim" => {
                        vec![pause(), send("HTTP/1.1 102 Processing\r\n\r\n"), pause(), send(whole)]
                    }
                    "/half" => vec![pause(), send(&whole[..10]), pause(), send(&whole[10..])],
                    _ => vec![Reply::Wait(Duration::from_secs(2)), send(whole)],
                }
            });
            let mut app = backend(&[address], 0, None);
            app.timeouts = timeouts;
            fixture.publish("app", app);
            for (path, status) in [("/interim", "200"), ("/half", "200"), ("/silent", "504")] {
                let mut client = fixture.client().await;
                client.send(format!("GET {path} HTTP/1.1\r\nHost: app\r\n\r\n")).await;
                let all = client.rest_or(&fixture, 1_500).await;
                assert!(all.contains(&format!("HTTP/1.1 {status} ")), "{path} {timeouts:?}: {all}");
            }
        });
    }
}

/// An instance that begins and then sends nothing more is idle anyway.
#[test]
fn interim_response_does_not_disable_the_idle_timeout() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let begin: &[u8] = match seen.head.contains("/half") {
                true => b"HTTP/1.1 200 O",
                false => b"HTTP/1.1 103 Early Hints\r\n\r\n",
            };
            vec![Reply::Send(begin.to_vec()), Reply::Wait(Duration::from_secs(5))]
        });
        let mut app = backend(&[address], 0, None);
        app.timeouts.idle = Duration::from_millis(300);
        fixture.publish("app", app);
        for path in ["/half", "/interim"] {
            let mut client = fixture.client().await;
            client.send(format!("GET {path} HTTP/1.1\r\nHost: app\r\n\r\n")).await;
            let all = client.rest_or(&fixture, 2_000).await;
            assert!(all.contains("HTTP/1.1 504 "), "{path}: {all}");
        }
    });
}

/// The close of a client while its instance is silent is noticed within a tenth of a second, and not after ten.
#[test]
fn client_that_closes_ends_its_request_at_once() {
    everywhere(async |fixture| {
        for begun in ["", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"] {
            let address = raw_instance(&fixture.ring, move |stream| {
                Box::pin(async move {
                    read_through(&stream, b"\r\n\r\n").await;
                    stream.send(begun.as_bytes().to_vec()).await.unwrap();
                    while stream.recv().await.is_ok_and(|bytes| !bytes.is_empty()) {}
                })
            });
            let load = Arc::new(BackendLoad::default());
            fixture.publish("app", Backend { load: Arc::clone(&load), ..backend(&[address], 1, None) });
            let client = fixture.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            while load.demand() == 0 {
                fixture.pause(1).await;
            }
            let closed = fixture.ring.now();
            drop(client);
            while load.demand() > 0 {
                fixture.pause(1).await;
            }
            assert!(fixture.ring.now() - closed < Duration::from_secs(5), "{begun:?}");
        }
    });
}

/// RFC 9112 9.3. A response that ends with its connection cannot keep it.
#[test]
fn http10_connection_is_kept_when_its_client_asks() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| match seen.head.contains("/chunks") {
            true => vec![Reply::Send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n".to_vec(),
            )],
            false => ok("fine"),
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        for host in ["app", "app", "nobody", "app"] {
            client.send(format!("GET / HTTP/1.0\r\nHost: {host}\r\nConnection: keep-alive\r\n\r\n")).await;
            let head = client.message().await.unwrap().head;
            assert_eq!(head.matches("\r\nConnection: keep-alive\r\n").count(), 1, "{head}");
        }
        client.send("GET /chunks HTTP/1.0\r\nHost: app\r\nConnection: keep-alive\r\n\r\n").await;
        let all = client.rest().await;
        assert!(all.contains("\r\nConnection: close\r\n") && all.ends_with("\r\n\r\nfine"), "{all}");
    });
}

/// Responses of real applications: many cookies, a large policy, a blank before a colon.
#[test]
fn response_with_many_or_large_fields_is_forwarded() {
    // In one segment: at seven bytes each, 50 kB take a minute.
    run_with_proxy(&Simulation::new(1, FaultProfile::calm()).ring(), &CoreLimits::default(), async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let fields = match seen.head.split(' ').nth(1).unwrap() {
                "/many" => (0..250).map(|n| format!("X-{n}: y\r\n")).collect(),
                "/large" => format!("X-1: {}\r\n", "y".repeat(50_000)),
                "/padded" => "X-1 : y\r\n".to_owned(),
                _ => (0..300).map(|n| format!("X-{n}: y\r\n")).collect(),
            };
            vec![Reply::Send(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n").into())]
        });
        fixture.publish("app", backend(&[address], 0, None));
        for (path, status) in [("/many", "200"), ("/large", "200"), ("/padded", "200"), ("/more", "502")] {
            let head = fixture.client().await.get("app", path).await.head;
            assert_eq!(&head[9..12], status, "{path}");
            assert_eq!(head.contains("\r\nX-1: y"), status == "200", "{path}");
        }
    });
}
