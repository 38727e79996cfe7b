//! Events from socket to socket: 64 senders, one Trigger or a hundred, their subscriber and the core, all on one
//! thread, with every 202 durable. The figure includes the work of the senders and the subscriber.
#![allow(clippy::unwrap_used)]

#[path = "support/admission.rs"]
mod admission;

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use ring::{Ring, RingListener, RingOptions, RingStream};
use sluicegate_dataplane::access_token::AccessToken;
use sluicegate_dataplane::broker::server::{EventsConfig, OpenLog, make};
use sluicegate_dataplane::core::{CoreConfig, CoreLimits, StopSignal, run_on};
use sluicegate_dataplane::core_relay::CoreRelay;
use sluicegate_dataplane::signal::SignalQueue;
use sluicegate_dataplane::table::{
    DeliveryPolicy, DeliveryTarget, EventFilter, HoldReason, InitialOffset, ReplyTarget, RoutingTable, Subscriber,
};
use sluicegate_dataplane::table_publisher::TablePublisher;

use admission::{admission, token};

const SENDERS: u64 = 64;

/// Deliveries in one sample: enough to make connecting and the first flushes negligible. In a debug build the benchmark
/// only checks that it works.
const DELIVERIES: u64 = if cfg!(debug_assertions) { 1280 } else { 20_480 };

/// The subscribers.
#[derive(Clone, Copy)]
struct Readers {
    all: usize,
    /// The first of them match every event, the others none.
    matching: usize,
}

const ONE: Readers = Readers { all: 1, matching: 1 };
/// The fan-out of `benches/delivery`.
const TEN_OF_100: Readers = Readers { all: 100, matching: 10 };

/// Which sides use tokens. Each token is verified once and then cached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tokens {
    None,
    /// Deliveries carry a token.
    Deliveries,
    /// Senders must have a token, and deliveries carry one.
    SendersAndDeliveries,
}

fn access_token() -> Arc<AccessToken> {
    let access_token = AccessToken::default();
    access_token.renew(&token());
    Arc::new(access_token)
}

/// Reads messages with Content-Length; the benchmark sends nothing else.
async fn message(stream: &RingStream, held: &mut Vec<u8>) -> bool {
    loop {
        if let Some(at) = held.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = std::str::from_utf8(&held[..at]).unwrap();
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let end = at + 4 + length.map_or(0, |(_, length)| length.parse::<usize>().unwrap());
            if held.len() >= end {
                held.drain(..end);
                return true;
            }
        }
        match stream.recv().await {
            Ok(chunk) if !chunk.is_empty() => held.extend_from_slice(&chunk),
            _ => return false,
        }
    }
}

fn subscriber_at(ring: &Ring) -> SocketAddr {
    let listener = RingListener::bind(ring, "127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, on) = (listener.local_addr().unwrap(), ring.clone());
    ring.spawn(async move {
        while let Ok(stream) = listener.accept().await {
            on.spawn(async move {
                let mut held = Vec::new();
                while message(&stream, &mut held).await {
                    let answer = &b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"[..];
                    if stream.send(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn subscriber(number: usize, port: u16, tokens: Tokens, readers: Readers) -> Subscriber {
    let kind = if number < readers.matching { "com.example.order.created" } else { "com.example.order.lost" };
    Subscriber {
        name: format!("t{number}").into(),
        label: format!("ns/t{number}").into(),
        filter: EventFilter::Exact(vec![("type".into(), kind.into())]),
        target: DeliveryTarget {
            url: "http://127.0.0.1/".into(),
            authority: "127.0.0.1".into(),
            host: "127.0.0.1".into(),
            port,
            path: "/".into(),
            is_stream: false,
            access_token: (tokens != Tokens::None).then(access_token),
            tls: None,
        },
        reply: ReplyTarget::Reenter,
        dead_letter: None,
        hold: HoldReason::Nothing,
        delivery: DeliveryPolicy::ONCE,
        initial_offset: InitialOffset::Now,
        tally: Arc::default(),
    }
}

fn table(port: u16, tokens: Tokens, readers: Readers) -> RoutingTable {
    let subscribers = (0..readers.all).map(|number| Arc::new(subscriber(number, port, tokens, readers)));
    let stream = sluicegate_dataplane::table::EventStream {
        name: "broker/ns/b/1".into(),
        event_bytes_max: 1 << 20,
        keeping: Default::default(),
        quota: Arc::default(),
        in_order: false,
        is_closed: false,
        guards_loops: true,
        types: None,
        admission: (tokens == Tokens::SendersAndDeliveries).then(|| Arc::new(admission())),
        subscribers: subscribers.collect(),
        external: None,
        tally: Arc::default(),
    };
    let mut table = RoutingTable::default();
    table.streams.insert("/brokers/ns/b".into(), Arc::new(stream));
    table
}

fn request(tokens: Tokens) -> String {
    let authorization = match tokens {
        Tokens::SendersAndDeliveries => format!("Authorization: Bearer {}\r\n", token()),
        Tokens::None | Tokens::Deliveries => String::new(),
    };
    format!(
        "POST /brokers/ns/b HTTP/1.1\r\nHost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\n\
         ce-type: com.example.order.created\r\nContent-Type: application/octet-stream\r\n\
         {authorization}Content-Length: 512\r\n\r\n{}",
        "x".repeat(512)
    )
}

/// Publishes events for this many deliveries; returns the time until the last one.
fn run(deliveries: u64, tokens: Tokens, readers: Readers) -> Duration {
    let folder = tempfile::tempdir_in(".").unwrap(); // a real disk: /tmp may be memory
    let ring = Ring::kernel(RingOptions::default()).unwrap();
    let (tables, signals, stop) =
        (TablePublisher::new(RoutingTable::default()), SignalQueue::new(|| {}), Arc::new(StopSignal::default()));
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let service = EventsConfig {
        core: 0,
        home_folder: OpenLog::open(folder.path(), wal::LogOptions::default()).unwrap(),
        others: Vec::new(),
        tables: Arc::clone(&tables),
        signals: signals.clone(),
        counters: Arc::default(),
        relay: CoreRelay::alone(),
        seed: 1,
    };
    let config = CoreConfig {
        queries: None,
        index: 0,
        http: listen(),
        events: Some(listen()),
        https: None,
        private: None,
        private_https: None,
        events_tls: None,
        cluster_local: None,
        make_events: Some(make(service)),
        tables: Arc::clone(&tables),
        signals,
        stop: Arc::clone(&stop),
        counters: Arc::default(),
        limits: CoreLimits::default(),
        seed: 1,
        up: Box::new(|| ()),
    };
    let events_address = config.events.as_ref().unwrap().local_addr().unwrap();
    let took = Rc::new(Cell::new(Duration::ZERO));
    let (on, result) = (ring.clone(), Rc::clone(&took));
    ring.spawn(async move {
        tables.publish(table(subscriber_at(&on).port(), tokens, readers));
        let broker = Arc::clone(&tables.load().streams["/brokers/ns/b"]);
        let each = deliveries.div_ceil(SENDERS * readers.matching as u64);
        let began = Instant::now();
        for _ in 0..SENDERS {
            let (ring, request) = (on.clone(), request(tokens));
            on.spawn(async move {
                let stream = RingStream::connect(&ring, events_address).await.unwrap();
                let mut held = Vec::new();
                for _ in 0..each {
                    stream.send(request.clone().into_bytes()).await.unwrap();
                    assert!(message(&stream, &mut held).await);
                }
            });
        }
        let has_all = |reader: &Arc<Subscriber>| reader.tally.delivered.load(Relaxed) == each * SENDERS;
        while !broker.subscribers[..readers.matching].iter().all(has_all) {
            on.sleep(Duration::from_millis(1)).await;
        }
        result.set(began.elapsed());
        stop.signal(&tables);
    });
    run_on(&ring, config).unwrap();
    ring.shutdown();
    took.get()
}

fn events_core(c: &mut Criterion) {
    let mut group = c.benchmark_group("events core");
    group.sample_size(10).sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(DELIVERIES));
    for (what, tokens, readers) in [
        ("20,480 events of 512 B published, durable, delivered", Tokens::None, ONE),
        ("... with a token for the subscriber", Tokens::Deliveries, ONE),
        ("... and one of each sender", Tokens::SendersAndDeliveries, ONE),
        ("2,048 of them, each to 10 of 100 Triggers", Tokens::None, TEN_OF_100),
    ] {
        group.bench_function(what, |b| {
            b.iter_custom(|times| (0..times).map(|_| run(DELIVERIES, tokens, readers)).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, events_core);
criterion_main!(benches);
