//! The CPU cost of one event without I/O: parsed at ingress, encoded as a record, matched by a filter, encoded for a
//! subscriber. cloudevents-sdk parses the same envelope for comparison.
#![allow(clippy::unwrap_used)]

#[path = "support/admission.rs"]
mod admission;

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use sluicegate_dataplane::broker::auth::Authenticator;
use sluicegate_dataplane::broker::filter_index::FilterIndex;
use sluicegate_dataplane::broker::ingress::admits;
use sluicegate_dataplane::cloudevent::{CloudEvent, ContentMode, binary, structured};
use sluicegate_dataplane::encode::encode;
use sluicegate_dataplane::filter::steps::Steps;
use sluicegate_dataplane::filter::{cesql, matches};
use sluicegate_dataplane::record::{EventRecord, encode_head};
use sluicegate_dataplane::table::{
    DeliveryPolicy, DeliveryTarget, EventFilter, HoldReason, InitialOffset, ReplyTarget, Subscriber,
};

use admission::{admission, token};

const HEADERS: [(&str, &[u8]); 9] = [
    ("Host", b"127.0.0.1:8081"),
    ("User-Agent", b"bench"),
    ("Ce-Specversion", b"1.0"),
    ("Ce-Id", b"4a6f9c5e-6f0d-4d3a-9d57-0a1f0c5b9e21"),
    ("Ce-Source", b"/shops/berlin/orders"),
    ("Ce-Type", b"com.example.order.created"),
    ("Ce-Time", b"2018-04-05T17:31:00Z"),
    ("Ce-Subject", b"orders/1234"),
    ("Content-Type", b"application/json"),
];

fn body() -> Vec<u8> {
    format!(r#"{{"order":1234,"note":"{}"}}"#, "x".repeat(512 - 28)).into_bytes()
}

fn record(event: &CloudEvent<'_>) -> Bytes {
    let mut bytes = encode_head(event, &[], 255);
    bytes.extend(event.data.bytes());
    bytes.into()
}

fn events(c: &mut Criterion) {
    let body = body();
    let event = binary::parse(HEADERS, &body).unwrap();
    let bytes = record(&event);
    let decoded = EventRecord::decode(bytes.clone()).unwrap();
    let envelope = encode(&decoded, ContentMode::Structured, &[]).body;
    let exact = |ty: &str| {
        EventFilter::Exact(vec![("type".into(), ty.into()), ("source".into(), "/shops/berlin/orders".into())])
    };
    let (matching, other) = (exact("com.example.order.created"), exact("com.example.order.deleted"));

    let mut group = c.benchmark_group("events");
    group.bench_function("parse binary, 512 B", |b| b.iter(|| binary::parse(black_box(HEADERS), &body).unwrap()));
    group.bench_function("parse structured, 512 B", |b| b.iter(|| structured::parse(black_box(&envelope)).unwrap()));
    group.bench_function("parse structured with cloudevents-sdk, 512 B", |b| {
        b.iter(|| serde_json::from_slice::<cloudevents::Event>(black_box(&envelope)).unwrap());
    });
    group.bench_function("record encode", |b| b.iter(|| encode_head(black_box(&event), &[], 255)));
    group.bench_function("record decode", |b| b.iter(|| EventRecord::decode(black_box(bytes.clone())).unwrap()));
    group.bench_function("filter, two attributes, match", |b| {
        b.iter(|| matches(black_box(&matching), &decoded, &Steps::default()))
    });
    group.bench_function("filter, two attributes, no match", |b| {
        b.iter(|| matches(black_box(&other), &decoded, &Steps::default()))
    });
    group.bench_function("encode for a subscriber, binary", |b| {
        b.iter(|| encode(black_box(&decoded), ContentMode::Binary, &[]));
    });
    group.finish();
}

fn subscriber(filter: EventFilter) -> Arc<Subscriber> {
    let target = DeliveryTarget {
        url: "".into(),
        authority: "".into(),
        host: "".into(),
        port: 80,
        path: "/".into(),
        is_stream: false,
        access_token: None,
        tls: None,
    };
    let delivery = DeliveryPolicy::ONCE;
    let (name, label) = (Box::default(), Box::default());
    let (reply, dead_letter, tally) = (ReplyTarget::Reenter, None, Arc::default());
    Arc::new(Subscriber {
        name,
        label,
        filter,
        target,
        reply,
        dead_letter,
        hold: HoldReason::Nothing,
        delivery,
        initial_offset: InitialOffset::Now,
        tally,
    })
}

/// One event against all the filters of a stream.
fn filters(c: &mut Criterion) {
    const SUBSCRIBERS: usize = 10_000;
    let event = binary::parse(HEADERS, b"").unwrap();
    let event = EventRecord::decode(record(&event)).unwrap();
    let of_type = |ty: &str| subscriber(EventFilter::Exact(vec![("type".into(), ty.into())]));
    let mut subscribers: Vec<_> = (1..SUBSCRIBERS).map(|n| of_type(&format!("com.example.{n}"))).collect();
    subscribers.push(of_type("com.example.order.created"));
    let index = FilterIndex::new(&subscribers);
    let five = cesql::parse(
        "type LIKE 'com.example.%' AND source = '/shops/berlin/orders' AND EXISTS subject \
         AND LENGTH(id) = 36 AND NOT (datacontenttype IN ('text/plain', 'text/html'))",
    )
    .unwrap();
    assert!(five.holds(&event, &Steps::default()));

    let mut group = c.benchmark_group("filters");
    group.bench_function("10,000 exact types, one match, index", |b| {
        b.iter(|| {
            let mut found = 0;
            index.visit(black_box(&event), |_| found += 1);
            assert_eq!(found, 1);
        });
    });
    group.bench_function("10,000 exact types, one match, one by one", |b| {
        b.iter(|| subscribers.iter().filter(|s| matches(&s.filter, black_box(&event), &Steps::default())).count());
    });
    group.bench_function("CESQL, five terms", |b| b.iter(|| five.holds(black_box(&event), &Steps::default())));
    group.bench_function("an index of 10,000 is built", |b| b.iter(|| FilterIndex::new(black_box(&subscribers))));
    group.finish();
}

/// A sender whose token this core has cached: the cost of authentication for a warm event.
fn tokens(c: &mut Criterion) {
    let admission = admission();
    let authorization = format!("Bearer {}", token());
    let headers: [(&str, &[u8]); 3] =
        [("ce-id", b"1"), ("Content-Type", b"text/plain"), ("Authorization", authorization.as_bytes())];
    let authenticator = Authenticator::default();
    let mut group = c.benchmark_group("tokens");
    group.bench_function("a known one of 700 B, identified and admitted", |b| {
        b.iter(|| {
            let bearer = authenticator.identify(&admission, black_box(&headers), 1).unwrap();
            admits(&admission, &bearer.subject, &[], &Steps::default())
        });
    });
    group.finish();
}

criterion_group!(benches, events, filters, tokens);
criterion_main!(benches);
