//! Retention: what is dropped though somebody waits for it, because the stream's owner said so.
//!
//! A subscriber's bookmark is moved over what has become too old or too much, and everything that it had
//! not finished is counted as dropped. So accepted = delivered + filtered + dead-lettered + dropped +
//! pending still holds, space comes back the usual way, and a crash repeats at most the last second.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use wal::Position;

use super::Desk;
use super::end::End;
use super::post::Post;
use super::pump::{Job, Pump};
use crate::events::feed::Feed;
use crate::events::journal::What;
use crate::table::Stream;

impl<P: Post> Desk<P> {
    /// Carries out all streams' retention, as of `now_ms` (milliseconds since 1970).
    pub fn retain(&self, now_ms: u64) {
        let table = self.table.borrow();
        for stream in table.streams.values() {
            let Ok(feed) = self.shop.keeper.feed(&stream.name) else { continue }; // told at every sync
            let floor = self.floor(stream, &feed, now_ms);
            self.keep_history(stream, &feed, floor, now_ms);
            let Some(floor) = floor else { continue };
            let pumps = self.pumps.borrow();
            let Some(running) = pumps.get(&feed.id) else { continue };
            for subscriber in &stream.subscribers {
                let dropped = running.get(&subscriber.name).map_or(0, |pump| pump.expire(floor));
                if dropped > 0 {
                    let (stream, subscriber) = (&*stream.name, &*subscriber.label);
                    tracing::warn!(stream, subscriber, dropped, "events dropped undelivered: retention");
                }
            }
        }
    }

    /// Events before it are dropped. What the stream keeps beyond its size is shared out among the cores by
    /// what each of them keeps.
    fn floor(&self, stream: &Stream, feed: &Feed, now_ms: u64) -> Option<Position> {
        let log = self.shop.keeper.log();
        let keeping = &stream.keeping;
        let by_time = (!keeping.retention_time.is_zero())
            .then(|| log.position_at_time(feed.id, before(now_ms, keeping.retention_time)));
        let (max, all, own) =
            (keeping.retention_bytes, stream.tally.kept_bytes.load(Relaxed), feed.kept_bytes());
        let is_over = max > 0 && all > max && own > 0;
        let share = u128::from(own) * u128::from(max) / u128::from(all.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let by_size = if is_over { log.position_by_size(feed.id, share) } else { None };
        by_time.max(by_size)
    }

    fn keep_history(&self, stream: &Stream, feed: &Feed, floor: Option<Position>, now_ms: u64) {
        let time = stream.keeping.history_time;
        let from = (!time.is_zero()).then(|| {
            let from = self.shop.keeper.log().position_at_time(feed.id, before(now_ms, time));
            from.max(floor.unwrap_or_default())
        });
        self.shop.keeper.keep_history(feed, from);
    }
}

impl<P: Post> Pump<P> {
    /// Drops what is before `floor` and not under way; how many events that were.
    pub(super) fn expire(&self, floor: Position) -> u64 {
        if self.is_stopped() {
            return 0;
        }
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
                self.note(What::Dropped, &retry.job, None, Duration::ZERO);
                self.settle(retry.job.position, End::Expired); // in a lane the next one takes its place
            }
        }
        while let Some(found) = self.line.take_before(floor) {
            self.pass_by(found.passed, found.damaged, found.position);
            self.known.set(found.passed + 1);
            self.place.skip_to(Position::new(found.position.get() + 1));
            self.note(What::Dropped, &Job::first(found.position), None, Duration::ZERO);
            self.lose(1, End::Expired);
        }
        if !self.line.is_in() {
            let end = floor.min(self.sorter.cursor());
            let events = self.place.give_up(&self.shop.keeper.log(), end);
            self.lose(events, End::Expired);
            if events > 0 {
                self.note(What::Expired, &Job::first(end), None, Duration::ZERO);
            }
        }
        self.bell.ring();
        before - self.pending.get()
    }
}

fn before(now_ms: u64, time: Duration) -> u64 {
    now_ms.saturating_sub(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
