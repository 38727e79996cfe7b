//! A whole connection to the proxy on a simulated machine: a client's bytes, and in one half of the
//! runs an instance's bytes too. Nothing panics or hangs, all connections end; and with an instance that
//! behaves, both sides see the same whether the network is kind or brings seven bytes at a time.
#![no_main]

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::core::{CoreConfig, CoreLimits, Stop, run_on};
use sluicegate_dataplane::http::codec::{BodyReader, Malformed, Parsed, Piece, RequestHead, parse_request};
use sluicegate_dataplane::publish::Tables;
use sluicegate_dataplane::signal::Signals;
use sluicegate_dataplane::table::{Route, Table};
use sluicegate_ring::sim::{Weather, World};
use sluicegate_ring::{Listener, Options, Ring, Stream};

/// What one night looked like.
#[derive(Debug, Default, PartialEq, Eq)]
struct Night {
    /// Whole requests at the instance: method, path, body.
    requests: Vec<(String, String, Vec<u8>)>,
    /// What the client got.
    answer: Vec<u8>,
}

impl Night {
    /// The same, but for a line that never ended: seen whole it is refused for what is in it, seen in pieces
    /// it is read at its end, so it runs out of time.
    fn is_as(&self, other: &Self) -> bool {
        let late = |night: &Self| night.answer.windows(LATE.len()).rposition(|window| window == LATE);
        let same_answer = match (late(self), late(other)) {
            (None, None) | (Some(_), Some(_)) => self.answer == other.answer,
            (Some(at), None) | (None, Some(at)) => {
                let refused =
                    |night: &Self| night.answer.get(at..).is_some_and(|a| a.starts_with(b"HTTP/1.1 "));
                refused(self) && refused(other) && self.answer[..at] == other.answer[..at]
            }
        };
        same_answer && self.requests == other.requests
    }
}

/// How a client begins that speaks HTTP/2 by prior knowledge.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const LATE: &[u8] = b"HTTP/1.1 408 Request Timeout\r\n";

fuzz_target!(|input: &[u8]| {
    let [choice, cut, bytes @ ..] = input else { return };
    if choice % 2 == 0 {
        let kind = night(bytes, None, Weather::calm());
        let rough = night(bytes, None, pieces());
        // What an HTTP/2 connection has said before its first bad frame depends on when that came.
        assert!(bytes.starts_with(PREFACE) || kind.is_as(&rough), "{kind:?}\n{rough:?}");
    } else {
        let (client, instance) = bytes.split_at(bytes.len() * usize::from(*cut) / 256);
        night(client, Some(instance), Weather::calm());
        night(client, Some(instance), pieces());
    }
});

/// Small pieces, and nothing breaks.
fn pieces() -> Weather {
    Weather {
        segment_bytes_max: 7,
        latency: Duration::from_micros(10)..=Duration::from_micros(300),
        ..Weather::calm()
    }
}

fn night(client: &[u8], instance: Option<&[u8]>, weather: Weather) -> Night {
    let options = Options { chunk_bytes: 4096, chunks: 64, ..Options::default() };
    let world = World::with_options(7, weather, options);
    let ring = world.ring();
    let seen = Rc::new(RefCell::new(Night::default()));

    // Of a real listener a simulated machine takes the address only.
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let http = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let upstream = Listener::from_std(&ring, taken).expect("a simulated listener");
    let to = upstream.local_addr().expect("it listens");
    let table = Table { any_host: Some(Arc::new(Route::to_addresses("*", &[to]))), ..Table::default() };
    let tables = Tables::new(table);
    let stop = Arc::new(Stop::default());
    let at = http.local_addr().expect("it listens");
    let config = CoreConfig {
        questions: None,
        index: 0,
        events: None,
        events_tls: None,
        make_events: None,
        tables: Arc::clone(&tables),
        signals: Signals::new(|| {}),
        stop: Arc::clone(&stop),
        counters: Arc::default(),
        limits: CoreLimits::default(),
        seed: 1,
        http,
        https: None,
        private: None,
        inside: None,
        up: Box::new(|| {}),
    };
    let counters = Arc::clone(&config.counters);

    let script = instance.map(<[u8]>::to_vec);
    ring.spawn(serve(ring.clone(), upstream, script, Rc::clone(&seen)));
    let (bytes, side, seen_by_client) = (client.to_vec(), ring.clone(), Rc::clone(&seen));
    ring.spawn(async move {
        let answer = talk(&side, at, bytes).await;
        seen_by_client.borrow_mut().answer = answer;
        stop.say(&tables);
    });
    run_on(&ring, config).expect("a simulated machine runs");
    ring.shutdown();
    assert_eq!(counters.connections_open.load(Relaxed), 0, "a connection outlived its core");
    drop(world);
    seen.take()
}

/// Sends all, and reads until we are done with the connection or the client has waited long enough.
async fn talk(ring: &Ring, to: SocketAddr, bytes: Vec<u8>) -> Vec<u8> {
    let mut answer = Vec::new();
    let Ok(stream) = Stream::connect(ring, to).await else { return answer };
    let spoken = async {
        let _ = stream.send(bytes).await; // we may refuse before it has all left
        while let Ok(chunk) = stream.recv().await {
            if chunk.is_empty() {
                break;
            }
            answer.extend_from_slice(&chunk);
        }
    };
    let _ = ring.timeout(Duration::from_secs(600), spoken).await;
    answer
}

async fn serve(ring: Ring, listener: Listener, script: Option<Vec<u8>>, seen: Rc<RefCell<Night>>) {
    while let Ok(stream) = listener.accept().await {
        match &script {
            Some(bytes) => ring.spawn(misbehave(stream, bytes.clone())),
            None => ring.spawn(behave(stream, Rc::clone(&seen))),
        }
    }
}

/// Sends its bytes at the first sign of a request, reads on, and closes when the other side does.
async fn misbehave(stream: Stream, bytes: Vec<u8>) {
    let closes = bytes.last().is_some_and(|last| last % 2 == 0);
    if stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {
        let _ = stream.send(bytes).await;
    }
    while !closes && stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
}

/// Reads whole requests and answers each with the length of its body.
async fn behave(stream: Stream, seen: Rc<RefCell<Night>>) {
    let mut held = Vec::new();
    let mut head = RequestHead::default();
    loop {
        let end = match parse_request(&held, &mut head) {
            Parsed::Head { bytes } => bytes,
            Parsed::NeedBytes if more(&stream, &mut held).await => continue,
            Parsed::NeedBytes => return,
            // HTTP/1.0 without a host, as RFC 9112 3.2 has it passed on. We would not take it ourselves.
            Parsed::Malformed(Malformed::HostInvalid) if held.windows(10).any(|w| w == b"\r\nHost: \r\n") => {
                return;
            }
            Parsed::Malformed(why) => {
                panic!("{why:?} reached an instance: {}", String::from_utf8_lossy(&held))
            }
        };
        let view = head.view(&held);
        let (method, path) = (view.method().to_owned(), view.path().to_owned());
        held.drain(..end);

        let (mut reader, mut body) = (BodyReader::new(head.framing), Vec::new());
        loop {
            match reader.next(&held).expect("our framing is right") {
                Piece::Data { skip, take } => {
                    body.extend_from_slice(&held[skip..skip + take]);
                    held.drain(..skip + take);
                }
                Piece::End { skip } => {
                    held.drain(..skip);
                    break;
                }
                Piece::NeedBytes => {
                    held.clear();
                    if !more(&stream, &mut held).await {
                        return; // the client broke off, and so did we
                    }
                }
            }
        }
        let text = body.len().to_string();
        let body_sent = if method == "HEAD" { "" } else { &text };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body_sent}", text.len());
        seen.borrow_mut().requests.push((method, path, body));
        if stream.send(answer.into_bytes()).await.is_err() {
            return;
        }
    }
}

async fn more(stream: &Stream, held: &mut Vec<u8>) -> bool {
    match stream.recv().await {
        Ok(chunk) => {
            held.extend_from_slice(&chunk);
            !chunk.is_empty()
        }
        Err(_) => false,
    }
}
