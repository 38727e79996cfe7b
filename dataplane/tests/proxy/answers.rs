//! Sequential requests: order, persistence, local replies, failures.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::signal::Signal;
use sluicegate_dataplane::table::RequestTimeouts;

use crate::fixture::{ProxyFixture, Reply, Seen, backend, instance, ok, on_every_driver, unused_address};

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_driver(&CoreLimits::default(), script);
}

fn status(seen: &Seen) -> &str {
    &seen.head[9..12]
}

/// SRV-REQ-01, RT-PORT-10, RT-HDR-01, RT-HDR-04.
#[test]
fn requests_use_kept_connections() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| ok(seen.head.lines().next().unwrap()));
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        for round in 0..20 {
            let seen = client.get("APP:80", &format!("/r{round}?x=%2F")).await;
            assert_eq!(status(&seen), "200");
            assert_eq!(String::from_utf8(seen.body).unwrap(), format!("GET /r{round}?x=%2F HTTP/1.1"));
        }
        assert_eq!(fixture.counters.upstream_opened.load(Relaxed), 1);
        assert_eq!(fixture.counters.requests_total(), 20);
    });
}

/// A response to HEAD has no body. The local reply to the request after it once had none either, so the client waited
/// for the announced bytes.
#[test]
fn local_reply_after_a_head_request_has_its_body() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |_| ok(""));
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        client.send("HEAD / HTTP/1.1\r\nHost: app\r\n\r\nnonsense\r\n\r\n").await;
        assert_eq!(status(&client.message_of("HEAD").await.unwrap()), "200");
        let refusal = client.message().await.expect("a whole answer");
        assert_eq!(status(&refusal), "400");
        assert!(!refusal.body.is_empty());
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let slow = seen.head.starts_with("GET /0");
            let mut replies = vec![Reply::Wait(Duration::from_millis(if slow { 20 } else { 0 }))];
            replies.extend(ok(&seen.head[5..6]));
            replies
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        let all: String = (0..6).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: app\r\n\r\n")).collect();
        client.send(all).await;
        for n in 0..6 {
            assert_eq!(client.message().await.unwrap().body, [b'0' + n]);
        }
    });
}

/// SRV-REQ-01: unknown host.
#[test]
fn unservable_request_gets_a_clear_status() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |_| ok("fine"));
        fixture.publish("app", backend(&[address], 0, None));
        for (request, wanted) in [
            ("GET / HTTP/1.1\r\nHost: other\r\n\r\n", "404"),
            ("GET / HTTP/1.1\r\n\r\n", "400"),
            ("GET / HTTP/1.1\nHost: app\n\n", "400"),
            ("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"),
            ("CONNECT app:80 HTTP/1.1\r\nHost: app:80\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\nHost: app\r\nExpect: a-pony\r\n\r\n", "417"),
            ("GET / HTTP/2.0\r\nHost: app\r\n\r\n", "505"),
        ] {
            let mut client = fixture.client().await;
            client.send(request).await;
            assert_eq!(status(&client.message().await.unwrap()), wanted, "{request:?}");
        }
        // DP-PROTO-07: an unknown upgrade is ignored.
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n").await;
        assert_eq!(client.message().await.unwrap().body, b"fine");
        // An upgrade that the instance does not accept is a request like any other.
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").await;
        assert_eq!(client.message().await.unwrap().body, b"fine");
        // A local reply that leaves nothing unread keeps the connection.
        let mut client = fixture.client().await;
        assert_eq!(status(&client.get("other", "/").await), "404");
        assert_eq!(status(&client.get("app", "/").await), "200");
    });
}

#[test]
fn bytes_after_a_malformed_request_are_never_parsed() {
    everywhere(async |fixture| {
        let hits = Rc::new(Cell::new(0));
        let counted = Rc::clone(&hits);
        let address = instance(&fixture.ring, move |_| {
            counted.set(counted.get() + 1);
            ok("fine")
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        client
            .send(
                "POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
                 GET /smuggled HTTP/1.1\r\nHost: app\r\n\r\n",
            )
            .await;
        let all = client.rest().await;
        assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{all}");
        assert!(all.contains("Connection: close"));
        assert_eq!(hits.get(), 0);
    });
}

/// RT-PORT-01: an instance that fails, or does not speak HTTP/1.1.
#[test]
fn instance_failure_is_a_502_or_a_cut_response() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let text: &[u8] = match seen.head.split(' ').nth(1).unwrap() {
                "/close" => b"",
                "/half" => b"HTTP/1.1 200 OK\r\nContent-Le",
                "/garbage" => b"SSH-2.0-server\r\n\r\n",
                "/smuggle" => b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                "/switch" => b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
                _ => b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            };
            vec![Reply::Send(text.to_vec()), Reply::Close]
        });
        fixture.publish("app", backend(&[address], 0, None));
        for path in ["/close", "/half", "/garbage", "/smuggle", "/switch"] {
            let seen = fixture.client().await.get("app", path).await;
            assert_eq!(status(&seen), "502", "{path}");
            assert_eq!(seen.body, b"bad gateway\n", "{path}");
        }
        let mut client = fixture.client().await;
        client.send("GET /cut HTTP/1.1\r\nHost: app\r\n\r\n").await;
        let all = client.rest().await;
        assert!(all.starts_with("HTTP/1.1 200 OK\r\n") && all.ends_with("abc"), "{all}");
    });
}

#[test]
fn refusing_instance_is_reported_and_another_one_used() {
    everywhere(async |fixture| {
        let good = instance(&fixture.ring, |_| ok("fine"));
        let gone = unused_address(&fixture.ring).await;
        fixture.publish("app", backend(&[gone, good], 0, None));
        let mut client = fixture.client().await;
        for _ in 0..10 {
            assert_eq!(client.get("app", "/").await.body, b"fine");
        }
        let endpoint = fixture.tables.load().hosts["app"].splits[0].backend.endpoints[0].id;
        let mut reports = 0;
        while let Some(signal) = fixture.signals.receive() {
            assert_eq!(signal, Signal::Unreachable { backend: "default/app".into(), endpoint });
            reports += 1;
        }
        // It looks the least loaded, and still is not tried first by every request.
        assert!((1..=3).contains(&reports), "{reports} of 10");

        fixture.publish("app", backend(&[gone], 0, None));
        assert_eq!(status(&client.get("app", "/").await), "502");
    });
}

/// A stale pooled connection costs an idempotent request nothing, and a POST is not sent twice.
#[test]
fn only_idempotent_request_is_retried_on_a_stale_connection() {
    everywhere(async |fixture| {
        let posts = Rc::new(Cell::new(0));
        let counted = Rc::clone(&posts);
        // Answers once per connection; a second request meets its close.
        let address = crate::fixture::raw_instance(&fixture.ring, move |stream| {
            let posts = Rc::clone(&counted);
            Box::pin(async move {
                let mut buffer = Vec::new();
                for round in 0..2 {
                    while !buffer.ends_with(b"\r\n\r\n") {
                        let chunk = stream.recv().await.unwrap_or_default();
                        if chunk.is_empty() {
                            return;
                        }
                        buffer.extend_from_slice(&chunk);
                    }
                    posts.set(posts.get() + usize::from(buffer.starts_with(b"POST")));
                    buffer.clear();
                    if round == 0 {
                        let _ = stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                    }
                }
            })
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        for _ in 0..5 {
            assert_eq!(status(&client.get("app", "/").await), "200");
        }
        client.send("POST / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        assert_eq!(status(&client.message().await.unwrap()), "502");
        assert_eq!(posts.get(), 1);
    });
}

#[test]
fn timeout_is_a_504_before_the_first_byte_and_a_cut_after() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n".to_vec();
            let late = Reply::Wait(Duration::from_millis(300));
            match seen.head.split(' ').nth(1).unwrap() {
                "/silent" => vec![late],
                _ => vec![Reply::Send(head), Reply::Send(b"a".to_vec()), late, Reply::Send(b"bc".to_vec())],
            }
        });
        let limit = Duration::from_millis(60);
        for timeouts in [
            RequestTimeouts { total: limit, ..RequestTimeouts::NONE },
            RequestTimeouts { response_start: limit, ..RequestTimeouts::NONE },
            RequestTimeouts { idle: limit, ..RequestTimeouts::NONE },
        ] {
            let mut app = backend(&[address], 0, None);
            app.timeouts = timeouts;
            fixture.publish("app", app);
            let seen = fixture.client().await.get("app", "/silent").await;
            assert_eq!((status(&seen), seen.body.as_slice()), ("504", b"request timeout\n".as_slice()));

            let mut client = fixture.client().await;
            client.send("GET /begun HTTP/1.1\r\nHost: app\r\n\r\n").await;
            let all = client.rest_or(&fixture, 1_000).await;
            let whole = timeouts.response_start == limit;
            assert_eq!(all.ends_with("abc"), whole, "{timeouts:?}: {all}");
        }
    });
}

#[test]
fn idle_client_and_slow_head_are_timed_out() {
    let mut limits = CoreLimits::default();
    limits.http.idle_max = Duration::from_millis(50);
    limits.http.head_max = Duration::from_millis(50);
    on_every_driver(&limits, async |fixture| {
        let mut idle = fixture.client().await;
        assert_eq!(idle.rest().await, "");
        let mut slow = fixture.client().await;
        slow.send("GET / HTTP/1.1\r\nHos").await;
        assert!(slow.rest().await.starts_with("HTTP/1.1 408 "));
    });
}

/// RFC 9110 7.6.2: a request with Max-Forwards 0 is answered here, for any host; others are forwarded.
#[test]
fn request_at_its_last_hop_is_not_forwarded() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| ok(seen.head.split(' ').next().unwrap()));
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        for (method, hops, wanted) in
            [("OPTIONS", 0, "200"), ("TRACE", 0, "405"), ("OPTIONS", 1, "200"), ("GET", 0, "200")]
        {
            client.send(format!("{method} / HTTP/1.1\r\nHost: app\r\nMax-Forwards: {hops}\r\n\r\n")).await;
            let seen = client.message().await.unwrap();
            assert_eq!(status(&seen), wanted, "{method} {hops}");
            let is_local_reply = method != "GET" && hops == 0;
            assert_eq!(seen.head.contains("Allow: GET, HEAD"), is_local_reply, "{}", seen.head);
            assert_eq!(seen.body == method.as_bytes(), !is_local_reply, "{method} {hops}");
        }
    });
}

/// RFC 9110 6.6.1: exactly one date, the instance's if it sent one; interim responses and a 101 get none.
#[test]
fn every_response_has_one_date() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let text = match seen.head.split(' ').nth(1).unwrap() {
                "/own" => "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 0\r\n\r\n",
                "/early" => "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            };
            vec![Reply::Send(text.as_bytes().to_vec())]
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        for (host, path, is_instances) in [("app", "/own", true), ("app", "/none", false), ("nobody", "/", false)] {
            let head = client.get(host, path).await.head;
            let dates: Vec<_> = head.lines().filter_map(|line| line.strip_prefix("Date: ")).collect();
            assert_eq!(dates.len(), 1, "{head}");
            assert!(dates[0].ends_with(" GMT") && dates[0].len() == 29, "{head}");
            assert_eq!(dates[0].contains("1994"), is_instances, "{head}");
        }
        assert_eq!(client.get("app", "/early").await.head, "HTTP/1.1 103 Early Hints\r\n\r\n");
        assert!(client.message().await.unwrap().head.contains("\r\nDate: "));
    });
}

/// A client may close its side after the request; HTTP/1.0 and `Connection: close` end the connection.
#[test]
fn connection_ends_when_the_client_asks() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |_| ok("fine"));
        fixture.publish("app", backend(&[address], 0, None));
        for request in
            ["GET / HTTP/1.0\r\nHost: app\r\n\r\n", "GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n"]
        {
            let mut client = fixture.client().await;
            client.send(request).await;
            let all = client.rest().await;
            assert!(all.contains("\r\nConnection: close\r\n") && all.ends_with("fine"), "{all}");
        }
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        client.stream.shutdown_write().await.unwrap();
        assert!(client.rest().await.ends_with("fine"));
    });
}
