//! Outcomes of events, by stream and by subscriber.
//!
//! With few streams and subscribers every count has a line. With many of them a count of 0 has no line, and
//! of the subscribers only [`SUBSCRIBERS_SHOWN_MAX`] and those with trouble have lines of their own: the
//! sum of the others is at `subscriber="(others)"`, so that all counts still add up.
//! `/metrics?subscribers=all` shows each.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dataplane::load::{StreamCounters, SubscriberCounters, SubscriberTotals};
use dataplane::table::{RoutingTable, Subscriber};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::histogram::OTHERS;
use super::{counter, gauge};

/// Number of streams, or subscribers, up to which zeros have lines too: a small dashboard finds every name.
const ZEROS_SHOWN_MAX: usize = 100;
/// Subscribers with lines of their own, unless they have trouble: some 5 lines each, 350 KiB together.
const SUBSCRIBERS_SHOWN_MAX: usize = 500;
/// ... and of those with trouble.
const FAILING_SHOWN_MAX: usize = 500;

/// Level of detail for subscribers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::admin) enum Detail {
    /// Many of them summed up.
    #[default]
    Bounded,
    /// Each, with all counts.
    All,
}

pub(super) fn streams(out: &mut DescriptorEncoder<'_>, table: &RoutingTable, detail: Detail) -> fmt::Result {
    let mut streams: Vec<_> = table.streams.iter().collect();
    streams.sort_by_key(|(path, _)| *path);
    let zeros = detail == Detail::All || streams.len() <= ZEROS_SHOWN_MAX;

    type Count = fn(&StreamCounters) -> &AtomicU64;
    let counts: [(&str, &str, Count); 8] = [
        ("stream_accepted", "Events acknowledged, including redriven ones", |t| &t.accepted),
        ("stream_accepted_before_flush", "Of the accepted: acknowledged before they were durable", |t| {
            &t.accepted_unflushed
        }),
        ("stream_deduplicated", "Events acknowledged and not stored again, because the stream had them", |t| {
            &t.deduplicated
        }),
        ("stream_refused", "Events rejected", |t| &t.refused),
        ("stream_over_quota", "Of the rejected: because a quota was exceeded", |t| &t.over_quota),
        ("stream_unauthorized", "Of the rejected: because the sender is not authorized", |t| &t.unauthorized),
        ("stream_latin1", "Events and replies whose headers were read as Latin-1 because they are not UTF-8", |t| {
            &t.latin1
        }),
        ("stream_abandoned", "Events that deleted subscribers had not received", |t| &t.abandoned),
    ];
    for (name, help, pick) in counts {
        let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (path, stream) in &streams {
            let value = pick(&stream.tally).load(Relaxed);
            if value > 0 || zeros {
                counter(&mut family, &[("stream", path)], value)?;
            }
        }
    }
    let help = "Bytes of events that are still needed";
    let mut family = out.encode_descriptor("stream_retained_bytes", help, None, MetricType::Gauge)?;
    for (path, stream) in &streams {
        let value = stream.tally.kept_bytes.load(Relaxed);
        if value > 0 || zeros {
            gauge(&mut family, &[("stream", path)], value)?;
        }
    }

    let help = "Events that deleted streams and subscribers had not received";
    let mut family = out.encode_descriptor("abandoned", help, None, MetricType::Counter)?;
    counter(&mut family, &[], table.abandoned.events())?;

    let each = streams
        .iter()
        .flat_map(|(path, stream)| stream.subscribers.iter().map(move |one| SubscriberRow::of(path, one)));
    Rows::new(each.collect(), detail).encode(out)
}

/// One subscriber's counts, read once, so that they add up.
struct SubscriberRow<'a> {
    stream: &'a str,
    subscriber: &'a str,
    ends: SubscriberTotals,
    rest: Rest,
}

/// Counts besides the outcomes.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    retries: u64,
    replies_dropped: u64,
    untrusted: u64,
    stalled: u64,
    over_budget: u64,
}

impl<'a> SubscriberRow<'a> {
    fn of(stream: &'a str, one: &'a Arc<Subscriber>) -> Self {
        let tally = &one.tally;
        let [retries, replies_dropped, untrusted, stalled, over_budget] =
            [&tally.retries, &tally.replies_dropped, &tally.untrusted, &tally.stalled, &tally.filter_over_budget]
                .map(|count| count.load(Relaxed));
        let rest = Rest { retries, replies_dropped, untrusted, stalled, over_budget };
        Self { stream, subscriber: &one.label, ends: tally.ends(), rest }
    }

    /// Once true, it stays true while the process runs: lines do not come and go.
    fn is_failing(&self) -> bool {
        let rest = &self.rest;
        self.ends.dropped + self.ends.dead_lettered + rest.retries + rest.stalled + rest.over_budget > 0
    }

    fn add(&mut self, other: &Self) {
        let (ours, theirs) = (&mut self.ends, &other.ends);
        for (sum, one) in [
            (&mut ours.offered, theirs.offered),
            (&mut ours.delivered, theirs.delivered),
            (&mut ours.filtered, theirs.filtered),
            (&mut ours.dead_lettered, theirs.dead_lettered),
            (&mut ours.dropped, theirs.dropped),
            (&mut ours.pending, theirs.pending),
            (&mut self.rest.retries, other.rest.retries),
            (&mut self.rest.replies_dropped, other.rest.replies_dropped),
            (&mut self.rest.untrusted, other.rest.untrusted),
            (&mut self.rest.stalled, other.rest.stalled),
            (&mut self.rest.over_budget, other.rest.over_budget),
        ] {
            *sum += one;
        }
        ours.dropped_by.iter_mut().zip(theirs.dropped_by).for_each(|(sum, one)| *sum += one);
    }
}

struct Rows<'a> {
    rows: Vec<SubscriberRow<'a>>,
    zeros: bool,
}

impl<'a> Rows<'a> {
    fn new(mut rows: Vec<SubscriberRow<'a>>, detail: Detail) -> Self {
        let zeros = detail == Detail::All || rows.len() <= ZEROS_SHOWN_MAX;
        if detail == Detail::Bounded && rows.len() > SUBSCRIBERS_SHOWN_MAX {
            let (mut failing, quiet): (Vec<_>, Vec<_>) =
                rows.split_off(SUBSCRIBERS_SHOWN_MAX).into_iter().partition(SubscriberRow::is_failing);
            let beyond = failing.split_off(failing.len().min(FAILING_SHOWN_MAX));
            rows.append(&mut failing);
            let mut others = SubscriberRow {
                stream: OTHERS,
                subscriber: OTHERS,
                ends: SubscriberCounters::default().ends(),
                rest: Rest::default(),
            };
            quiet.iter().chain(&beyond).for_each(|row| others.add(row));
            rows.push(others);
        }
        Self { rows, zeros }
    }

    fn encode(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type CounterSelector = fn(&SubscriberRow<'_>) -> u64;
        let counts: [(&str, &str, CounterSelector); 10] = [
            ("subscriber_offered", "Events offered to the subscriber's filter", |r| r.ends.offered),
            ("subscriber_delivered", "Events delivered", |r| r.ends.delivered),
            ("subscriber_filtered", "Events that the filter did not match", |r| r.ends.filtered),
            ("subscriber_dead_lettered", "Events sent to the dead letter sink", |r| r.ends.dead_lettered),
            ("subscriber_dropped", "Events dropped", |r| r.ends.dropped),
            ("subscriber_retries", "Delivery attempts after the first", |r| r.rest.retries),
            ("subscriber_replies_dropped", "Replies that were dropped", |r| r.rest.replies_dropped),
            ("subscriber_tls_verification_failures", "Attempts at which TLS verification of the target failed", |r| {
                r.rest.untrusted
            }),
            ("subscriber_stalled", "Events set aside at the start because a core had stalled on them", |r| {
                r.rest.stalled
            }),
            (
                "subscriber_filter_over_budget",
                "Events that the filter did not match because its step budget was exceeded",
                |r| r.rest.over_budget,
            ),
        ];
        for (name, help, pick) in counts {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            self.each(&mut family, pick, counter)?;
        }
        let help = "Events dropped, by reason";
        let mut family = out.encode_descriptor("subscriber_dropped_by", help, None, MetricType::Counter)?;
        for row in &self.rows {
            for (reason, count) in SubscriberCounters::DROP_REASONS.into_iter().zip(row.ends.dropped_by) {
                if count > 0 || self.zeros {
                    let labels = [("stream", row.stream), ("subscriber", row.subscriber), ("reason", reason)];
                    counter(&mut family, &labels, count)?;
                }
            }
        }
        let help = "Events in delivery";
        let mut family = out.encode_descriptor("subscriber_pending", help, None, MetricType::Gauge)?;
        self.each(&mut family, |row| row.ends.pending, gauge)
    }

    fn each(
        &self,
        family: &mut MetricEncoder<'_>,
        pick: impl Fn(&SubscriberRow<'_>) -> u64,
        write: impl Fn(&mut MetricEncoder<'_>, &[(&str, &str)], u64) -> fmt::Result,
    ) -> fmt::Result {
        for row in &self.rows {
            let value = pick(row);
            if value > 0 || self.zeros {
                write(family, &[("stream", row.stream), ("subscriber", row.subscriber)], value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(nth: usize, dropped: u64) -> SubscriberRow<'static> {
        let mut ends = SubscriberCounters::default().ends();
        (ends.offered, ends.delivered, ends.dropped) = (1 + dropped, 1, dropped);
        ends.dropped_by[0] = dropped;
        let subscriber = if nth.is_multiple_of(2) { "a" } else { "b" };
        SubscriberRow { stream: "/brokers/ns/b", subscriber, ends, rest: Rest::default() }
    }

    #[test]
    fn many_subscribers_are_summed_and_none_is_lost() {
        let all = SUBSCRIBERS_SHOWN_MAX + 500;
        let make = |detail| Rows::new((0..all).map(|nth| row(nth, u64::from(nth == all - 1))).collect(), detail);
        let sum = |rows: &Rows<'_>| {
            rows.rows
                .iter()
                .fold((0, 0), |(offered, dropped), row| (offered + row.ends.offered, dropped + row.ends.dropped_by[0]))
        };
        let bounded = make(Detail::Bounded);
        assert_eq!(bounded.rows.len(), SUBSCRIBERS_SHOWN_MAX + 2, "the one with trouble, and the others");
        assert_eq!(bounded.rows.last().map(|row| row.subscriber), Some(OTHERS));
        assert!(!bounded.zeros);
        let whole = make(Detail::All);
        assert_eq!((whole.rows.len(), whole.zeros), (all, true));
        assert_eq!(sum(&bounded), sum(&whole));
        assert!(Rows::new((0..ZEROS_SHOWN_MAX).map(|nth| row(nth, 0)).collect(), Detail::Bounded).zeros);
    }
}
