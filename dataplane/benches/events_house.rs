//! Events from socket to socket: 64 senders, one Trigger, its subscriber and the core, all on one thread,
//! every 202 durable. The figure holds the senders' and the subscriber's work too.
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
use ring::{Listener, Options, Ring, Stream};
use sluicegate_dataplane::core::{CoreConfig, CoreLimits, Stop, run_on};
use sluicegate_dataplane::events::admission::Pass;
use sluicegate_dataplane::events::relay::Relay;
use sluicegate_dataplane::events::service::{EventsConfig, OpenLog, make};
use sluicegate_dataplane::publish::Tables;
use sluicegate_dataplane::signal::Signals;
use sluicegate_dataplane::table::{Begin, Delivery, Filter, Reply, Subscriber, Table, Target};

use admission::{admission, token};

const SENDERS: u64 = 64;

/// In one sample: enough that connecting and the first flushes do not show.
const EVENTS: u64 = 20_000;

/// Who has to say who he is. Each token is read once, and known from then on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tokens {
    None,
    /// Deliveries show one.
    Shown,
    /// Senders are asked for one, and deliveries show one.
    Asked,
}

fn pass() -> Arc<Pass> {
    let pass = Pass::default();
    pass.renew(&token());
    Arc::new(pass)
}

/// Reads messages with Content-Length; nothing else is sent here.
async fn message(stream: &Stream, held: &mut Vec<u8>) -> bool {
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
    let listener = Listener::bind(ring, "127.0.0.1:0".parse().unwrap()).unwrap();
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

fn table(port: u16, tokens: Tokens) -> Table {
    let subscriber = Subscriber {
        name: "t".into(),
        label: "ns/t".into(),
        filter: Filter::Exact(vec![("type".into(), "com.example.order.created".into())]),
        target: Target {
            url: "http://127.0.0.1/".into(),
            authority: "127.0.0.1".into(),
            host: "127.0.0.1".into(),
            port,
            path: "/".into(),
            pass: (tokens != Tokens::None).then(pass),
            trust: None,
        },
        reply: Reply::Reenter,
        dead_letter: None,
        delivery: Delivery::ONCE,
        begin: Begin::Now,
        tally: Arc::default(),
    };
    let stream = sluicegate_dataplane::table::Stream {
        name: "broker/ns/b/1".into(),
        event_bytes_max: 1 << 20,
        keeping: Default::default(),
        quota: Arc::default(),
        in_order: false,
        is_closed: false,
        guards_loops: true,
        types: None,
        admission: (tokens == Tokens::Asked).then(|| Arc::new(admission())),
        subscribers: vec![Arc::new(subscriber)],
        tally: Arc::default(),
    };
    let mut table = Table::default();
    table.streams.insert("/brokers/ns/b".into(), Arc::new(stream));
    table
}

fn request(tokens: Tokens) -> String {
    let shown = match tokens {
        Tokens::Asked => format!("Authorization: Bearer {}\r\n", token()),
        Tokens::None | Tokens::Shown => String::new(),
    };
    format!(
        "POST /brokers/ns/b HTTP/1.1\r\nHost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\n\
         ce-type: com.example.order.created\r\nContent-Type: application/octet-stream\r\n\
         {shown}Content-Length: 512\r\n\r\n{}",
        "x".repeat(512)
    )
}

/// Publishes and delivers `events`; returns the time until the last is delivered.
fn run(events: u64, tokens: Tokens) -> Duration {
    let folder = tempfile::tempdir_in(".").unwrap(); // a real disk: /tmp may be memory
    let ring = Ring::kernel(Options::default()).unwrap();
    let (tables, signals, stop) =
        (Tables::new(Table::default()), Signals::new(|| {}), Arc::new(Stop::default()));
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let service = EventsConfig {
        core: 0,
        home: OpenLog::open(folder.path(), wal::Options::default()).unwrap(),
        others: Vec::new(),
        tables: Arc::clone(&tables),
        signals: signals.clone(),
        counters: Arc::default(),
        relay: Relay::alone(),
        seed: 1,
    };
    let config = CoreConfig {
        questions: None,
        index: 0,
        http: listen(),
        events: Some(listen()),
        https: None,
        private: None,
        private_https: None,
        events_tls: None,
        inside: None,
        make_events: Some(make(service)),
        tables: Arc::clone(&tables),
        signals,
        stop: Arc::clone(&stop),
        counters: Arc::default(),
        limits: CoreLimits::default(),
        seed: 1,
        up: Box::new(|| ()),
    };
    let door = config.events.as_ref().unwrap().local_addr().unwrap();
    let took = Rc::new(Cell::new(Duration::ZERO));
    let (on, result) = (ring.clone(), Rc::clone(&took));
    ring.spawn(async move {
        tables.publish(table(subscriber_at(&on).port(), tokens));
        let broker = Arc::clone(&tables.load().streams["/brokers/ns/b"]);
        let each = events.div_ceil(SENDERS);
        let began = Instant::now();
        for _ in 0..SENDERS {
            let (ring, request) = (on.clone(), request(tokens));
            on.spawn(async move {
                let stream = Stream::connect(&ring, door).await.unwrap();
                let mut held = Vec::new();
                for _ in 0..each {
                    stream.send(request.clone().into_bytes()).await.unwrap();
                    assert!(message(&stream, &mut held).await);
                }
            });
        }
        let tally = &broker.subscribers[0].tally;
        while tally.delivered.load(Relaxed) < each * SENDERS {
            on.sleep(Duration::from_millis(1)).await;
        }
        result.set(began.elapsed());
        stop.say(&tables);
    });
    run_on(&ring, config).unwrap();
    ring.shutdown();
    took.get()
}

fn house(c: &mut Criterion) {
    let mut group = c.benchmark_group("events house");
    group.sample_size(10).sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(EVENTS));
    for (what, tokens) in [
        ("20,000 events of 512 B published, durable, delivered", Tokens::None),
        ("... with a token for the subscriber", Tokens::Shown),
        ("... and one of each sender", Tokens::Asked),
    ] {
        group.bench_function(what, |b| {
            b.iter_custom(|times| (0..times).map(|_| run(EVENTS, tokens)).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, house);
criterion_main!(benches);
