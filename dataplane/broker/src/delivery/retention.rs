//! Retention: events that are dropped before delivery, because the stream is configured so.
//!
//! A subscriber's cursor is moved past what has become too old or too much, and all its unfinished events
//! before that are counted as dropped. So accepted = delivered + filtered + dead-lettered + dropped +
//! pending still holds, space is reclaimed the usual way, and a crash repeats at most the last second.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use contract::table::EventStream;
use wal::LogPosition;

use super::Dispatcher;
use super::delivery_attempt::DeliveryAttempt;
use super::outcome::EventOutcome;
use super::send::EventSender;
use super::worker::SubscriptionWorker;
use crate::delivery_log::DeliveryOutcome;
use crate::feed::StreamFeed;

impl<P: EventSender> Dispatcher<P> {
    /// Applies the retention of all streams, as of `now_ms` (milliseconds since 1970).
    pub fn retain(&self, now_ms: u64) {
        let table = self.table.borrow();
        for stream in table.streams.values().filter(|stream| stream.external.is_none()) {
            let Ok(feed) = self.context.writer.feed(&stream.name) else { continue }; // reported at every sync
            let floor = self.floor(stream, &feed, now_ms);
            self.retain_history(stream, &feed, floor, now_ms);
            let Some(floor) = floor else { continue };
            let workers = self.workers.borrow();
            let Some(running) = workers.get(&feed.id) else { continue };
            for subscriber in &stream.subscribers {
                let dropped = running.get(&subscriber.name).map_or(0, |worker| worker.expire(floor));
                if dropped > 0 {
                    let (stream, subscriber) = (&*stream.name, &*subscriber.label);
                    tracing::warn!(stream, subscriber, dropped, "events dropped undelivered: retention");
                }
            }
        }
    }

    /// Events before it are dropped. The size limit of the stream is divided among the cores in proportion
    /// to what each of them retains.
    fn floor(&self, stream: &EventStream, feed: &StreamFeed, now_ms: u64) -> Option<LogPosition> {
        let log = self.context.writer.log();
        let keeping = &stream.keeping;
        let by_time = (!keeping.retention_time.is_zero())
            .then(|| log.position_at_time(feed.id, before(now_ms, keeping.retention_time)));
        let (max, all, own) = (keeping.retention_bytes, stream.tally.kept_bytes.load(Relaxed), feed.kept_bytes());
        let is_over = max > 0 && all > max && own > 0;
        let share = u128::from(own) * u128::from(max) / u128::from(all.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let by_size = if is_over { log.position_by_size(feed.id, share) } else { None };
        by_time.max(by_size)
    }

    fn retain_history(&self, stream: &EventStream, feed: &StreamFeed, floor: Option<LogPosition>, now_ms: u64) {
        let time = stream.keeping.kept_time();
        let from = (!time.is_zero()).then(|| {
            let from = self.context.writer.log().position_at_time(feed.id, before(now_ms, time));
            from.max(floor.unwrap_or_default())
        });
        self.context.writer.retain_history(feed, from);
    }
}

impl<P: EventSender> SubscriptionWorker<P> {
    /// Drops events before `floor` that are not in flight; returns their number.
    pub(super) fn expire(&self, floor: LogPosition) -> u64 {
        let Some(reader) = self.log_reader().filter(|_| !self.is_stopped()) else { return 0 };
        self.catch_up();
        let before = self.pending.get();
        loop {
            let (old, young): (Vec<_>, Vec<_>) =
                self.retries.take().into_iter().partition(|Reverse(retry)| retry.job.position < floor);
            self.retries.replace(young.into());
            if old.is_empty() {
                break;
            }
            for Reverse(retry) in old {
                self.note(DeliveryOutcome::Dropped, &retry.job, None, Duration::ZERO);
                // the next event of its ordering key is released
                self.settle(retry.job.position, EventOutcome::Expired);
            }
        }
        while let Some(found) = reader.queue.take_before(floor) {
            self.skip(reader, found.passed, found.damaged, found.position);
            reader.last_spec.set(found.passed + 1);
            reader.progress.skip_to(LogPosition::new(found.position.get() + 1));
            self.note(DeliveryOutcome::Dropped, &DeliveryAttempt::first(found.position), None, Duration::ZERO);
            self.lose(reader, 1, EventOutcome::Expired);
        }
        if !reader.queue.is_in() {
            let end = floor.min(reader.fanout.cursor());
            let events = reader.progress.give_up(&self.context.writer.log(), end);
            self.lose(reader, events, EventOutcome::Expired);
            if events > 0 {
                self.note(DeliveryOutcome::Expired, &DeliveryAttempt::first(end), None, Duration::ZERO);
            }
        }
        self.notify.ring();
        before - self.pending.get()
    }
}

fn before(now_ms: u64, time: Duration) -> u64 {
    now_ms.saturating_sub(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
