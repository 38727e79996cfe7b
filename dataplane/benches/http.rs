//! The CPU cost of one proxied request, step by step: parse the head, choose a backend, write the head.

use std::hint::black_box;
use std::sync::Arc;

use bytes::BytesMut;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fastrand::Rng;
use sluicegate_dataplane::client_address::{ClientAddress, ClientScheme};
use sluicegate_dataplane::codec::http::{
    BodyDecoder, BodyEvent, BodyFraming, Method, Parsed, RequestHead, ResponseHead, parse_request, parse_response,
    put_chunk_line,
};
use sluicegate_dataplane::http::headers::{ResponseContext, put_request, put_response};
use sluicegate_dataplane::proxy::pick;
use sluicegate_dataplane::table::{
    Backend, BackendShare, Endpoint, NoEndpointPolicy, Protocol, RequestMatch, RequestTimeouts, Route, RouteMatch,
    RouteRequest, RoutingTable, ValueMatch,
};

/// The request of a load generator.
const SMALL: &[u8] = b"GET / HTTP/1.1\r\nHost: app.default.example.com\r\n\r\n";

/// The request of a browser.
const USUAL: &[u8] = b"GET /orders/4711?expand=lines&page=2 HTTP/1.1\r\nHost: shop.default.example.com\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: en-US,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\nConnection: keep-alive\r\nUpgrade-Insecure-Requests: 1\r\n\
    Cookie: session=3f9c1e0a7b5d4c2f8e6a9b0c1d2e3f40; theme=dark\r\nReferer: https://shop.example.com/orders\r\n\
    Sec-Fetch-Dest: document\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Site: same-origin\r\nPriority: u=0, i\r\n\r\n";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.26\r\nDate: Sat, 21 Nov 2026 07:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 128\r\nLast-Modified: Sat, 21 Nov 2026 06:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"6740-80\"\r\nAccept-Ranges: bytes\r\n\r\n";

fn heads(c: &mut Criterion) {
    let mut group = c.benchmark_group("http/head");
    for (name, text) in [("small", SMALL), ("usual", USUAL)] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        let mut head = RequestHead::default();
        group.bench_function(format!("read a {name} request"), |b| {
            b.iter(|| parse_request(black_box(text), &mut head));
        });
        assert_eq!(parse_request(text, &mut head), Parsed::Head { bytes: text.len() });
        let peer = ClientAddress::new(([192, 0, 2, 7], 40_000).into(), ClientScheme::Http);
        let mut rng = Rng::with_seed(1);
        let mut out = BytesMut::with_capacity(4096);
        group.bench_function(format!("write a {name} request"), |b| {
            b.iter(|| {
                out.clear();
                put_request(&mut out, head.view(black_box(text)), &peer, None, &mut rng);
            });
        });
    }
    let mut head = ResponseHead::default();
    let mut out = BytesMut::with_capacity(4096);
    group.throughput(Throughput::Bytes(ANSWER.len() as u64));
    group.bench_function("read and write an answer", |b| {
        b.iter(|| {
            out.clear();
            let parsed = parse_response(black_box(ANSWER), Method::Get, &mut head);
            put_response(&mut out, head.view(ANSWER), ResponseContext::INTERIM);
            parsed
        });
    });
    group.finish();
}

fn route_and_pick(c: &mut Criterion) {
    let mut group = c.benchmark_group("http/route and pick");
    for hosts in [10, 100_000] {
        let table = table_of(hosts);
        let mut rng = Rng::with_seed(1);
        group.bench_function(format!("{hosts} hosts, 2 splits, 4 instances"), |b| {
            b.iter_batched(
                || format!("app-{}.default.example.com:8080", rng.usize(..hosts)),
                |host| {
                    let mut rng = Rng::with_seed(2);
                    let route = table.route(&host).expect("made above");
                    let split = pick::split(route.select(&RouteRequest::internal(&host, "/")), &mut rng);
                    pick::instance(&split.expect("has weight").backend, &[], &mut rng).is_some()
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// The lookup alone, and the cost of a publish that changes one of many routes.
fn hosts(c: &mut Criterion) {
    let mut group = c.benchmark_group("http/hosts");
    for hosts in [10, 100_000] {
        let table = table_of(hosts);
        let mut rng = Rng::with_seed(1);
        let mut host_header = HostHeader::default();
        group.bench_function(format!("look up one of {hosts}"), |b| {
            b.iter(|| table.route(host_header.name(rng.usize(..hosts))).map(Arc::as_ptr));
        });
        group.bench_function(format!("look up and divide one of {hosts}"), |b| {
            b.iter(|| {
                let host = host_header.name(rng.usize(..hosts));
                table.route(host).expect("made above").select(&RouteRequest::internal(host, "/")).len()
            });
        });
        let changed = Arc::clone(&table.hosts["app-0.default.example.com"]);
        group.bench_function(format!("change one of {hosts}"), |b| {
            b.iter(|| {
                let mut next = table.clone();
                next.hosts.insert("app-0.default.example.com", Arc::clone(&changed));
                next
            });
        });
    }
    group.finish();
}

/// A Host header's value that is in the CPU cache, as in a request: written here, in some 20 ns.
#[derive(Default)]
struct HostHeader {
    text: String,
}

impl HostHeader {
    fn name(&mut self, number: usize) -> &str {
        self.text.clear();
        self.text.push_str("app-");
        self.text.push_str(itoa::Buffer::new().format(number));
        self.text.push_str(".default.example.com:8080");
        &self.text
    }
}

fn table_of(hosts: usize) -> RoutingTable {
    let mut table = RoutingTable::default();
    for host in 0..hosts {
        let backend = |key: &str| {
            Arc::new(Backend {
                key: key.into(),
                endpoints: (0..4).map(|_| Arc::new(Endpoint::new(([127, 0, 0, 1], 1).into()))).collect(),
                concurrency_max: 10,
                when_empty: NoEndpointPolicy::Refuse,
                protocol: Protocol::Http1,
                tls: None,
                timeouts: RequestTimeouts::NONE,
                proxy_protocol: None,
                load: Arc::default(),
            })
        };
        let splits = vec![BackendShare::new(80, backend("a")), BackendShare::new(20, backend("b"))];
        let name = format!("app-{host}.default.example.com");
        table.hosts.insert(&name, Arc::new(Route::of(splits)));
    }
    table
}

/// The rule of a request among 10,000, each with a path, a method and a header: of many hosts, and of one.
fn rules(c: &mut Criterion) {
    const RULES: usize = 10_000;
    let rule = |number: usize| {
        let matches = RequestMatch::prefix(&format!("/team-{}/app-{number}", number % 100));
        let header = ValueMatch::Exact("2".into());
        RouteMatch::new(matches.with_method("GET").with_header("X-Version", header), Vec::new())
    };
    let mut group = c.benchmark_group("http/rules");
    for rules_of_host in [10, RULES] {
        let mut table = RoutingTable::default();
        for host in 0..RULES / rules_of_host {
            let rules = (0..rules_of_host).map(|nth| rule(host * rules_of_host + nth)).collect();
            table.hosts.insert(&format!("app-{host}.default.example.com"), Arc::new(Route::new(rules, Vec::new())));
        }
        let mut rng = Rng::with_seed(1);
        let peer = ClientAddress::new(([192, 0, 2, 7], 40_000).into(), ClientScheme::Http);
        group.bench_function(format!("find one of {RULES}, {rules_of_host} of a host"), |b| {
            b.iter_batched_ref(
                || {
                    let number = rng.usize(..RULES);
                    let (team, host) = (number % 100, number / rules_of_host);
                    let text = format!(
                        "GET /team-{team}/app-{number}/x?y=1 HTTP/1.1\r\nHost: app-{host}.default.example.com\r\n\
                         User-Agent: bench\r\nX-Version: 2\r\n\r\n"
                    );
                    let mut head = RequestHead::default();
                    assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }));
                    (text, head)
                },
                |(text, head)| {
                    let request = RouteRequest::client(head.view(text.as_bytes()), &peer);
                    let route = table.route_for(&request).expect("made above");
                    std::ptr::from_ref(route.branch(&request).expect("made above"))
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn bodies(c: &mut Criterion) {
    let mut wire = BytesMut::new();
    for _ in 0..16 {
        put_chunk_line(&mut wire, 4096);
        wire.extend_from_slice(&[b'x'; 4096]);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"0\r\n\r\n");
    let mut group = c.benchmark_group("http/body");
    group.throughput(Throughput::Bytes(wire.len() as u64));
    group.bench_function("read 16 chunks of 4 KiB", |b| {
        b.iter(|| {
            let mut reader = BodyDecoder::new(BodyFraming::Chunked);
            let mut at = 0;
            while let Ok(BodyEvent::Data { skip, take }) = reader.next(black_box(&wire[at..])) {
                at += skip + take;
            }
            assert!(reader.is_done());
        });
    });
    group.finish();
}

criterion_group!(benches, heads, hosts, rules, route_and_pick, bodies);
criterion_main!(benches);
