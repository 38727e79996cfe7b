//! Bodies in both directions: framing, trailers, expectations, early answers, broken ends.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ring::sim::{FaultProfile, Simulation};
use ring::{Ring, RingOptions};
use sluicegate_dataplane::core::CoreLimits;

use crate::fixture::{
    ProxyFixture, Reply, backend, in_house, instance, ok, on_every_machine, raw_instance, read_through,
};

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_machine(&CoreLimits::default(), script);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn chunks_and_trailers_pass_both_ways() {
    everywhere(async |house| {
        let address = instance(&house.ring, |seen| {
            assert!(seen.head.contains("\r\nTransfer-Encoding: chunked\r\n"));
            assert!(!seen.head.to_lowercase().contains("content-length"));
            let size = format!("{:x}", seen.body.len());
            let head = "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n";
            let body = format!("{size};ext=1\r\n{}\r\n0\r\nX-Sum: 7\r\n\r\n", text(&seen.body));
            vec![Reply::Send(head.into()), Reply::Send(body.into())]
        });
        house.publish("app", backend(&[address], 0, None));
        let mut client = house.client().await;
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
fn a_large_body_streams_through_unchanged() {
    async fn script(house: ProxyFixture) {
        let address = instance(&house.ring, |seen| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.body.len());
            vec![Reply::Send(head.into()), Reply::Send(seen.body.clone())]
        });
        house.publish("app", backend(&[address], 0, None));
        let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut client = house.client().await;
        for _ in 0..2 {
            client.send(format!("PUT / HTTP/1.1\r\nHost: app\r\nContent-Length: {}\r\n\r\n", body.len())).await;
            client.send(body.clone()).await;
            assert!(client.message().await.unwrap().body == body);
        }
    }
    let limits = CoreLimits::default();
    in_house(&Ring::kernel(RingOptions::default()).unwrap(), &limits, script);
    in_house(&Simulation::new(3, FaultProfile::calm()).ring(), &limits, script);
}

#[test]
fn a_body_that_ends_with_its_connection_becomes_chunked_or_ends_ours() {
    everywhere(async |house| {
        let address = instance(&house.ring, |_| {
            vec![Reply::Send(b"HTTP/1.1 200 OK\r\n\r\nabc".to_vec()), Reply::Send(b"def".to_vec()), Reply::Close]
        });
        house.publish("app", backend(&[address], 0, None));
        let mut client = house.client().await;
        for _ in 0..2 {
            let seen = client.get("app", "/").await;
            assert!(seen.head.contains("Transfer-Encoding: chunked"));
            assert_eq!(seen.body, b"abcdef");
        }
        let mut old = house.client().await;
        old.send("GET / HTTP/1.0\r\nHost: app\r\n\r\n").await;
        let all = old.rest().await;
        assert!(all.ends_with("\r\n\r\nabcdef") && !all.contains("chunked"), "{all}");
    });
}

#[test]
fn heads_without_bodies_leave_the_connection_in_step() {
    everywhere(async |house| {
        let address = instance(&house.ring, |seen| {
            let text: &[u8] = match seen.head.split(' ').next().unwrap() {
                "HEAD" => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                "DELETE" => b"HTTP/1.1 204 No Content\r\n\r\n",
                "PATCH" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
                _ => b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            vec![Reply::Send(text.to_vec())]
        });
        house.publish("app", backend(&[address], 0, None));
        let mut client = house.client().await;
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

/// The instance decides about the body; where it does not know how, we say go on.
#[test]
fn a_client_that_waits_for_100_continue_gets_it_once_from_whoever_knows() {
    everywhere(async |house| {
        for knows in [true, false] {
            let address = raw_instance(&house.ring, move |stream| {
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
            house.publish("app", backend(&[address], 0, None));
            let mut client = house.client().await;
            client.send(EXPECTS).await;
            assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 100 "));
            client.send("abc").await;
            assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 200 "));
        }
    });
}

#[test]
fn an_early_answer_arrives_although_the_body_is_never_finished() {
    everywhere(async |house| {
        let address = raw_instance(&house.ring, |stream| {
            Box::pin(async move {
                read_through(&stream, b"\r\n\r\n").await;
                let answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nmuch";
                stream.send(answer).await.unwrap();
                stream.shutdown_write().await.unwrap();
                while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
            })
        });
        house.publish("app", backend(&[address], 0, None));
        for request in [EXPECTS, "POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 1000000\r\n\r\nbegin"] {
            let mut client = house.client().await;
            client.send(request).await;
            let all = client.rest().await;
            assert!(all.starts_with("HTTP/1.1 413 ") && all.ends_with("much"), "{all}");
            assert!(all.contains("Connection: close"));
        }
    });
}

#[test]
fn a_body_that_stops_coming_is_a_408_and_the_instance_is_let_go() {
    let mut limits = CoreLimits::default();
    limits.http.stall_max = Duration::from_millis(80);
    on_every_machine(&limits, async |house| {
        let ended = Rc::new(Cell::new(0));
        let counted = Rc::clone(&ended);
        let address = raw_instance(&house.ring, move |stream| {
            let ended = Rc::clone(&counted);
            Box::pin(async move {
                while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
                ended.set(ended.get() + 1);
            })
        });
        house.publish("app", backend(&[address], 1, None));
        let mut client = house.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 9\r\n\r\nabc").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 408 "));

        // ... and a client that goes in the middle of its body takes its place with it.
        let client = house.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 9\r\n\r\nabc").await;
        client.stream.shutdown_write().await.unwrap();
        while ended.get() < 2 {
            house.pause(5).await;
        }
        let load = house.tables.load().hosts["app"].splits[0].backend.load.clone();
        assert_eq!(load.demand(), 0);
    });
}

#[test]
fn a_malformed_body_never_reaches_its_end_at_the_instance() {
    everywhere(async |house| {
        let whole = Rc::new(Cell::new(false));
        let told = Rc::clone(&whole);
        let address = instance(&house.ring, move |_| {
            told.set(true);
            ok("")
        });
        house.publish("app", backend(&[address], 0, None));
        let mut client = house.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        house.pause(20).await;
        client.send("0\r\nHost : evil\r\n\r\n").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
        assert!(!whole.get());
    });
}
