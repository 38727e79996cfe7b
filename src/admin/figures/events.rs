//! Figures of Brokers, channels and their subscribers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use dataplane::load::{ByteQuota, SubscriberCounters};
use dataplane::table::{EventStream, HoldReason, RoutingTable, Subscriber};
use serde_json::{Value, json};

use super::limits::{STREAMS_LISTED_MAX, SUBSCRIBERS_MAX};

/// Streams by their paths, and how many are left out. Subscribers beyond the limit are counted at their stream.
pub(super) fn streams(table: &RoutingTable) -> (Vec<Value>, usize) {
    let mut all: Vec<_> = table.streams.iter().collect();
    all.sort_by_key(|(path, _)| *path);
    let omitted = all.len().saturating_sub(STREAMS_LISTED_MAX);
    let mut room = SUBSCRIBERS_MAX;
    let shown = all.into_iter().take(STREAMS_LISTED_MAX).map(|(path, stream)| {
        let listed = stream.subscribers.len().min(room);
        room -= listed;
        stream_figures(path, stream, listed)
    });
    (shown.collect(), omitted)
}

fn stream_figures(path: &str, stream: &EventStream, listed: usize) -> Value {
    let tally = &stream.tally;
    json!({
        "path": path,
        "accepted": tally.accepted.load(Relaxed),
        "rejected": tally.refused.load(Relaxed),
        "over_quota": tally.over_quota.load(Relaxed),
        "unauthorized": tally.unauthorized.load(Relaxed),
        "abandoned": tally.abandoned.load(Relaxed),
        "retained_bytes": tally.kept_bytes.load(Relaxed),
        "closed": stream.is_closed,
        "subscribers": stream.subscribers.iter().take(listed).map(|one| subscriber(one)).collect::<Vec<_>>(),
        "subscribers_omitted": stream.subscribers.len() - listed,
    })
}

fn subscriber(one: &Subscriber) -> Value {
    let tally = &one.tally;
    let ends = tally.ends();
    let reasons: BTreeMap<&str, u64> =
        SubscriberCounters::DROP_REASONS.into_iter().zip(ends.dropped_by).filter(|(_, count)| *count > 0).collect();
    json!({
        "label": one.label,
        "target": one.target.url,
        "dead_letter_target": one.dead_letter.as_ref().map(|target| &*target.url),
        "held": match one.hold {
            HoldReason::Nothing => None,
            HoldReason::DeadLetters => Some("dead letters"),
            HoldReason::Everything => Some("all events"),
        },
        "offered": ends.offered,
        "delivered": ends.delivered,
        "filtered": ends.filtered,
        "dead_lettered": ends.dead_lettered,
        "dropped": ends.dropped,
        "dropped_by": reasons,
        "pending": ends.pending,
        "retries": tally.retries.load(Relaxed),
        "replies_dropped": tally.replies_dropped.load(Relaxed),
    })
}

/// Quotas of bytes with their use, each once.
pub(super) fn quotas(table: &RoutingTable) -> Vec<Value> {
    let mut seen = BTreeMap::<&str, &ByteQuota>::new();
    for stream in table.streams.values() {
        if stream.quota.bytes_max > 0 {
            seen.insert(&stream.quota.name, &stream.quota);
        }
    }
    let shown = seen.values().take(STREAMS_LISTED_MAX);
    shown.map(|quota| json!({ "name": quota.name, "bytes_max": quota.bytes_max, "used": quota.used() })).collect()
}
