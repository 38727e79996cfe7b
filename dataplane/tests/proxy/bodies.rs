//! Bodies in both directions: framing, trailers, expectations, early responses, broken ends.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ring::sim::{FaultProfile, Simulation};
use ring::{Ring, RingOptions};
use sluicegate_dataplane::core::CoreLimits;

use crate::fixture::{
    ProxyFixture, Reply, backend, instance, ok, on_every_driver, raw_instance, read_through, run_with_proxy,
};

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_driver(&CoreLimits::default(), script);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn chunks_and_trailers_pass_both_ways() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            assert!(seen.head.contains("\r\nTransfer-Encoding: chunked\r\n"));
            assert!(!seen.head.to_lowercase().contains("content-length"));
            let size = format!("{:x}", seen.body.len());
            let head = "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n";
            let body = format!("{size};ext=1\r\n{}\r\n0\r\nX-Sum: 7\r\n\r\n", text(&seen.body));
            vec![Reply::Send(head.into()), Reply::Send(body.into())]
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        for _ in 0..3 {
            client.send("POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab").await;
            client.send("c\r\n4;x=\"y\"\r\ndefg\r\n").await;
            client.send("0\r\nX-Up: 1\r\n\r\n").await;
            let seen = client.message().await.unwrap();
            assert!(seen.head.contains("\r\nTransfer-Encoding: chunked\r\n"));
            assert_eq!((text(&seen.body), seen.head.ends_with("\r\n\r\nX-Sum: 7\r\n")), ("abcdefg".into(), true));
        }
    });
}

/// Larger than any buffer on the way, in both directions, byte for byte.
#[test]
fn large_body_streams_through_unchanged() {
    async fn script(fixture: ProxyFixture) {
        let address = instance(&fixture.ring, |seen| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.body.len());
            vec![Reply::Send(head.into()), Reply::Send(seen.body.clone())]
        });
        fixture.publish("app", backend(&[address], 0, None));
        let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut client = fixture.client().await;
        for _ in 0..2 {
            client.send(format!("PUT / HTTP/1.1\r\nHost: app\r\nContent-Length: {}\r\n\r\n", body.len())).await;
            client.send(body.clone()).await;
            assert!(client.message().await.unwrap().body == body);
        }
    }
    let limits = CoreLimits::default();
    run_with_proxy(&Ring::kernel(RingOptions::default()).unwrap(), &limits, script);
    run_with_proxy(&Simulation::new(3, FaultProfile::calm()).ring(), &limits, script);
}

#[test]
fn until_close_body_becomes_chunked_or_ends_the_connection() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |_| {
            vec![Reply::Send(b"HTTP/1.1 200 OK\r\n\r\nabc".to_vec()), Reply::Send(b"def".to_vec()), Reply::Close]
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        for _ in 0..2 {
            let seen = client.get("app", "/").await;
            assert!(seen.head.contains("Transfer-Encoding: chunked"));
            assert_eq!(seen.body, b"abcdef");
        }
        let mut old = fixture.client().await;
        old.send("GET / HTTP/1.0\r\nHost: app\r\n\r\n").await;
        let all = old.rest().await;
        assert!(all.ends_with("\r\n\r\nabcdef") && !all.contains("chunked"), "{all}");
    });
}

#[test]
fn heads_without_bodies_keep_the_connection_in_sync() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            let text: &[u8] = match seen.head.split(' ').next().unwrap() {
                "HEAD" => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                "DELETE" => b"HTTP/1.1 204 No Content\r\n\r\n",
                "PATCH" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
                _ => b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            vec![Reply::Send(text.to_vec())]
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        client.send("HEAD / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        let seen = client.message_of("HEAD").await.unwrap();
        assert!(seen.head.contains("Content-Length: 5"));
        client.send("DELETE / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 204 "));
        client.send("PATCH / HTTP/1.1\r\nHost: app\r\nContent-Length: 0\r\n\r\n").await;
        assert!(client.message_of("HEAD").await.unwrap().head.starts_with("HTTP/1.1 304 "));
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        let early = client.message().await.unwrap();
        assert!(early.head.starts_with("HTTP/1.1 103 ") && early.head.contains("Link: <a>"));
        assert_eq!(client.message().await.unwrap().body, b"ok");
    });
}

const EXPECTS: &str = "POST / HTTP/1.1\r\nHost: app\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";

/// The instance decides about the body; if it does not know the expectation, the proxy sends the 100.
#[test]
fn expecting_http1_client_gets_100_continue_once() {
    everywhere(async |fixture| {
        for knows in [true, false] {
            let address = raw_instance(&fixture.ring, move |stream| {
                Box::pin(async move {
                    let head = read_through(&stream, b"\r\n\r\n").await;
                    assert!(head.contains("Expect: 100-continue"));
                    if knows {
                        stream.send(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
                    }
                    assert_eq!(read_through(&stream, b"abc").await, "abc");
                    stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                })
            });
            fixture.publish("app", backend(&[address], 0, None));
            let mut client = fixture.client().await;
            client.send(EXPECTS).await;
            assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 100 "));
            client.send("abc").await;
            assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 200 "));
        }
    });
}

#[test]
fn early_response_arrives_before_the_body_is_complete() {
    everywhere(async |fixture| {
        let address = raw_instance(&fixture.ring, |stream| {
            Box::pin(async move {
                read_through(&stream, b"\r\n\r\n").await;
                let answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nmuch";
                stream.send(answer).await.unwrap();
                stream.shutdown_write().await.unwrap();
                while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
            })
        });
        fixture.publish("app", backend(&[address], 0, None));
        for request in [EXPECTS, "POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 1000000\r\n\r\nbegin"] {
            let mut client = fixture.client().await;
            client.send(request).await;
            let all = client.rest().await;
            assert!(all.starts_with("HTTP/1.1 413 ") && all.ends_with("much"), "{all}");
            assert!(all.contains("Connection: close"));
        }
    });
}

#[test]
fn stalled_body_is_a_408_and_releases_the_instance() {
    let mut limits = CoreLimits::default();
    limits.http.stall_max = Duration::from_millis(80);
    on_every_driver(&limits, async |fixture| {
        let ended = Rc::new(Cell::new(0));
        let counted = Rc::clone(&ended);
        let address = raw_instance(&fixture.ring, move |stream| {
            let ended = Rc::clone(&counted);
            Box::pin(async move {
                while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
                ended.set(ended.get() + 1);
            })
        });
        fixture.publish("app", backend(&[address], 1, None));
        let mut client = fixture.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 9\r\n\r\nabc").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 408 "));

        // A client that disconnects inside its body releases its permit.
        let client = fixture.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 9\r\n\r\nabc").await;
        client.stream.shutdown_write().await.unwrap();
        while ended.get() < 2 {
            fixture.pause(5).await;
        }
        let load = fixture.tables.load().hosts["app"].splits[0].backend.load.clone();
        assert_eq!(load.demand(), 0);
    });
}

#[test]
fn malformed_body_never_completes_at_the_instance() {
    everywhere(async |fixture| {
        let whole = Rc::new(Cell::new(false));
        let observed = Rc::clone(&whole);
        let address = instance(&fixture.ring, move |_| {
            observed.set(true);
            ok("")
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut client = fixture.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        fixture.pause(20).await;
        client.send("0\r\nHost : evil\r\n\r\n").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
        assert!(!whole.get());
    });
}
