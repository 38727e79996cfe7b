//! Hostile HTTP/2 clients: each is rejected, by a named limit, while others are served.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use http::{HeaderValue, Request};
use kit::http2::{H2Client, frame, get_block, opening, run};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

const HEADERS: u8 = 0x1;
const GOAWAY: u8 = 0x7;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const ENHANCE_YOUR_CALM: u32 = 0xb;

fn gateway(upstream: &TestUpstream) -> Appliance {
    ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "1").start()
}

/// Writes `parts` for as long as the other side takes them, while reading; the code of its GOAWAY if
/// one was seen, or nothing when the connection broke first.
fn attack(to: SocketAddr, parts: impl Iterator<Item = Vec<u8>> + Send + 'static) -> Option<u32> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut out = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let mut sent = opening();
        for part in parts {
            sent.extend_from_slice(&part);
            if sent.len() > 8192 {
                if out.write_all(&sent).is_err() {
                    return;
                }
                sent.clear();
            }
        }
        let _ = out.write_all(&sent);
    });
    let mut read = Vec::new();
    let mut piece = [0; 65536];
    let mut ended = false;
    while !ended {
        match wait::read(&mut stream, &mut piece) {
            Ok(0) => ended = true,
            Ok(count) => read.extend_from_slice(&piece[..count]),
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => panic!("nobody ended the attack"),
            Err(_) => ended = true,
        }
    }
    writer.join().unwrap();
    goaway(&read)
}

fn goaway(mut read: &[u8]) -> Option<u32> {
    while let [high, middle, low, kind, _, _, _, _, _, rest @ ..] = read {
        let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
        let payload = rest.get(..length)?;
        if *kind == GOAWAY {
            return Some(u32::from_be_bytes(payload.get(4..8)?.try_into().ok()?));
        }
        read = &rest[length..];
    }
    None
}

/// The sum of a counter's samples that have `label`.
fn metric(appliance: &Appliance, name: &str, label: &str) -> u64 {
    let text = HttpCall::get("/metrics").send(appliance.admin()).text();
    text.lines()
        .filter(|line| line.starts_with(name) && line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Runs the attack next to another client's connection, which must not be affected.
fn while_others_are_served(
    appliance: &Appliance,
    parts: impl Iterator<Item = Vec<u8>> + Send + 'static,
) -> Option<u32> {
    let to = appliance.http();
    run(async {
        let (client, _ended) = H2Client::open(to).await;
        let call = || Request::get(format!("http://{HOST}/")).body(()).unwrap();
        let attack = tokio::task::spawn_blocking(move || attack(to, parts));
        let mut served = 0;
        while served < 20 || !attack.is_finished() {
            assert_eq!(client.call(call()).await.unwrap().status, 200);
            served += 1;
        }
        attack.await.unwrap()
    })
}

/// HTTP/2's cheap frames: each kind has an allowance, and a client that exceeds it gets ENHANCE_YOUR_CALM.
#[test]
fn floods_of_cheap_frames_are_cut_and_counted_by_kind() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let open = frame(HEADERS, END_HEADERS, 1, &get_block(HOST, "/mirror"));
    for (kind, first, flood) in [
        ("pings", vec![], frame(0x6, 0, 0, &[7; 8])),
        ("settings", vec![], frame(0x4, 0, 0, &[])),
        ("ignored", vec![], frame(0x2, 0, 1, &[0, 0, 0, 3, 1])),
        ("ignored", vec![], frame(0xbe, 0, 0, b"what is this")),
        ("ignored", vec![], frame(0x6, 0x1, 0, &[7; 8])),
        ("empty_data", open.clone(), frame(0x0, 0, 1, &[])),
        ("window_updates", vec![], frame(0x8, 0, 0, &[0, 0, 0, 1])),
    ] {
        let before = metric(&appliance, "sluicegate_http2_flood_closes_total", kind);
        let parts = std::iter::once(first).chain(std::iter::repeat_n(flood, 100_000));
        let code = while_others_are_served(&appliance, parts);
        assert!(code.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{kind}: {code:?}");
        wait::until(TIMEOUT, kind, || {
            let after = metric(&appliance, "sluicegate_http2_flood_closes_total", kind);
            (after == before + 1).then_some(())
        });
    }
}

/// The events listener cuts and counts floods as the proxy does.
#[test]
fn a_flood_on_the_events_listener_is_cut_and_counted() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "1").start();
    let code = attack(appliance.events(), std::iter::repeat_n(frame(0x6, 0, 0, &[7; 8]), 100_000));
    assert!(code.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{code:?}");
    wait::until(TIMEOUT, "the cut", || {
        (metric(&appliance, "sluicegate_http2_flood_closes_total", "pings") == 1).then_some(())
    });
}

/// Rapid reset (CVE-2023-44487): requests that are taken back at once reach the instance in bounded
/// number.
#[test]
fn rapid_resets_are_cut_before_they_reach_the_instance_in_number() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let parts = (0..50_000_u32).map(|n| {
        let stream = 2 * n + 1;
        let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, &get_block(HOST, "/delay?ms=1"));
        [open, frame(0x3, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    let code = while_others_are_served(&appliance, parts);
    assert!(code.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{code:?}");
    wait::until(TIMEOUT, "the cut", || {
        let cut = metric(&appliance, "sluicegate_http2_flood_closes_total", "resets");
        (cut == 1).then_some(())
    });
    let requests = metric(&appliance, "sluicegate_requests_total", "");
    assert!(requests < 3_000, "{requests} of 50,000 became requests");
}

/// MadeYouReset (CVE-2025-8671): the client's own faults make us reset its streams.
#[test]
fn a_client_that_makes_us_reset_streams_is_cut() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    // A window update by nothing, which ends the connection, and one by too much, which ends the stream.
    for (more, counter, kind) in [
        (0_u32, "sluicegate_http2_violations_total", ""),
        (0x7fff_ffff, "sluicegate_http2_flood_closes_total", "own_resets"),
    ] {
        let parts = (0..50_000_u32).map(move |n| {
            let stream = 2 * n + 1;
            let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, &get_block(HOST, "/delay?ms=50"));
            [open, frame(0x8, 0, stream, &more.to_be_bytes())].concat()
        });
        while_others_are_served(&appliance, parts);
        wait::until(TIMEOUT, "the cut", || (metric(&appliance, counter, kind) == 1).then_some(()));
    }
}

/// CONTINUATION flood (CVE-2024-27316): a head without an end.
#[test]
fn a_head_without_end_is_cut() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let full = [&[0x00, 0x01, b'a', 0x7f, 0x81, 0x01], [b'x'; 256].as_slice()].concat();
    for (cut, piece) in (1..).zip([vec![], full]) {
        let open = frame(HEADERS, END_STREAM, 1, &get_block(HOST, "/"));
        let parts = std::iter::once(open).chain(std::iter::repeat_n(frame(0x9, 0, 1, &piece), 100_000));
        let before = upstream.requests();
        while_others_are_served(&appliance, parts);
        assert!(upstream.requests() > before); // the others
        wait::until(TIMEOUT, "the cut", || {
            (metric(&appliance, "sluicegate_http2_flood_closes_total", "continuations") == cut).then_some(())
        });
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
}

/// An HPACK bomb, and plain large heads: refused by size, and the connection continues.
#[test]
fn a_head_that_is_too_large_is_refused_alone() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let mut bomb = Request::get(format!("http://{HOST}/")).body(()).unwrap();
        let value = HeaderValue::from_str(&"v".repeat(3000)).unwrap();
        for _ in 0..30 {
            bomb.headers_mut().append("x-same", value.clone()); // one table entry, 90 KB of fields
        }
        match client.call(bomb).await {
            Ok(answer) => assert_eq!(answer.status, 431),
            Err(why) => assert!(why.is_reset(), "{why}"),
        }
        let fine = Request::get(format!("http://{HOST}/")).body(()).unwrap();
        assert_eq!(client.call(fine).await.unwrap().status, 200);
        let mut many = Request::get(format!("http://{HOST}/")).body(()).unwrap();
        for n in 0..257 {
            many.headers_mut().append("x-many", n.into());
        }
        assert_eq!(client.call(many).await.unwrap().status, 431);
    });
}

/// More streams than allowed are refused, not queued.
#[test]
fn a_connection_has_a_bounded_number_of_streams() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut stream = TcpStream::connect(appliance.http()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = opening();
    for n in 0..300_u32 {
        let block = get_block(HOST, "/delay?ms=3000");
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &block));
    }
    stream.write_all(&bytes).unwrap();
    wait::until(TIMEOUT, "256 requests at the instance", || (upstream.requests() >= 256).then_some(()));
    wait::nothing(Duration::from_millis(300), "a 257th", || (upstream.requests() > 256).then(|| upstream.requests()));
}

/// What HTTP/1's parser refuses is refused here as well, stream by stream.
#[test]
fn ambiguous_requests_are_refused_on_their_own_stream() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        for (name, value, status) in
            [("host", "other.example.com", 400), ("content-length", "+1", 400), ("expect", "magic", 417)]
        {
            let asked = Request::post(format!("http://{HOST}/")).header(name, value).body(()).unwrap();
            match client.call(asked).await {
                Ok(answer) => assert_eq!(answer.status, status, "{name}"),
                Err(why) => assert!(why.is_reset(), "{name}: {why}"),
            }
        }
        let tunnel = Request::builder().method("CONNECT").uri(HOST).body(()).unwrap();
        assert_eq!(client.call(tunnel).await.unwrap().status, 405);
    });
    assert_eq!(upstream.requests(), 0);
}
