//! Allocations of filters for an event: none, neither for an index of ten thousand filters nor for an expression of
//! five terms.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use sluicegate_dataplane::broker::filter_index::FilterIndex;
use sluicegate_dataplane::cloudevent::binary;
use sluicegate_dataplane::filter::cesql;
use sluicegate_dataplane::record::{EventRecord, encode_head};
use sluicegate_dataplane::table::{
    DeliveryPolicy, DeliveryTarget, EventFilter, FilterRule, HoldReason, InitialOffset, ReplyTarget, Subscriber,
};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const EVENTS: usize = 1000;
const SUBSCRIBERS: usize = 10_000;
const FIVE_TERMS: &str = "type LIKE 'com.example.%' AND source = '/shops/berlin/orders' AND EXISTS subject \
    AND LENGTH(id) = 36 AND NOT (datacontenttype IN ('text/plain', 'text/html'))";

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
    Arc::new(Subscriber {
        name: Box::default(),
        label: Box::default(),
        filter,
        target,
        reply: ReplyTarget::Reenter,
        dead_letter: None,
        hold: HoldReason::Nothing,
        delivery: DeliveryPolicy::ONCE,
        initial_offset: InitialOffset::Now,
        tally: Arc::default(),
    })
}

fn event() -> EventRecord {
    let headers: [(&str, &[u8]); 6] = [
        ("ce-specversion", b"1.0"),
        ("ce-id", b"4a6f9c5e-6f0d-4d3a-9d57-0a1f0c5b9e21"),
        ("ce-source", b"/shops/berlin/orders"),
        ("ce-type", b"com.example.order.created"),
        ("ce-subject", b"orders/1234"),
        ("content-type", b"application/json"),
    ];
    EventRecord::decode(encode_head(&binary::parse(headers, b"").unwrap(), &[], 255).into()).unwrap()
}

#[test]
fn filter_does_not_allocate() {
    let of_type = |ty: String| subscriber(EventFilter::Exact(vec![("type".into(), ty.into())]));
    let mut subscribers: Vec<_> = (2..SUBSCRIBERS).map(|n| of_type(format!("com.example.{n}"))).collect();
    subscribers.push(of_type("com.example.order.created".to_owned()));
    let sql = FilterRule::Sql(cesql::parse(FIVE_TERMS).unwrap());
    subscribers.push(subscriber(EventFilter::Rules([sql].into())));
    let (index, event) = (FilterIndex::new(&subscribers), event());

    let _profile = dhat::Profiler::builder().testing().build();
    let before = dhat::HeapStats::get().total_blocks;
    let mut found = 0;
    for _ in 0..EVENTS {
        index.visit(&event, |_| found += 1);
    }
    let taken = dhat::HeapStats::get().total_blocks - before;
    assert_eq!((found, taken), (2 * EVENTS, 0), "matches, allocations");
}
