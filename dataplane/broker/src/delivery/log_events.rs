//! Reads a worker's events from a log: matched ones from its queue, or, while it lags, all of them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use codec::record::CorruptRecord;
use contract::table::InitialOffset;
use ring::Notify;
use wal::{AppendError, Cursor, LogPosition};

use super::fanout::{FanoutMatcher, MatchQueue};
use super::loaded_event::LoadedEvent;
use super::outcome::EventOutcome;
use super::send::EventSender;
use super::source::{EventSource, LogReader};
use super::worker::{DispatchContext, SubscriberConfig, SubscriptionWorker};
use crate::feed::StreamFeed;
use crate::progress::SubscriberProgress;

impl<P: EventSender> SubscriptionWorker<P> {
    /// Continues from the subscriber's cursor; a new subscriber begins at its configured position, and its cursor is
    /// in the log before any later event.
    pub(super) fn start(
        context: &Rc<DispatchContext<P>>,
        feed: &Rc<StreamFeed>,
        matcher: &Rc<FanoutMatcher>,
        order: SubscriberConfig,
    ) -> Result<Rc<Self>, AppendError> {
        let name = &*order.subscriber.name;
        let log = context.writer.log();
        let kept = log.how_far(feed.id, name).cloned();
        let (is_new, end) = (kept.is_none(), log.end(feed.id));
        let mark = kept.unwrap_or_else(|| {
            Cursor::at(match order.subscriber.initial_offset {
                InitialOffset::Now => end,
                InitialOffset::Earliest => LogPosition::ORIGIN,
                InitialOffset::At(time) => log.position_at_time(feed.id, time).min(end),
            })
        });
        let open = log.open_events(feed.id, &mark);
        drop(log);
        let made = context.recovered_attempts.take(name);
        let progress = SubscriberProgress::new(feed.id, name, mark);
        if is_new {
            context.writer.register(&progress)?;
        }
        let notify = Rc::new(Notify::default());
        let reader = LogReader {
            progress: Rc::new(progress),
            feed: Rc::clone(feed),
            fanout: Rc::clone(matcher),
            queue: MatchQueue::new(&notify),
            last_spec: Cell::new(0),
            damaged_count: Cell::new(0),
            counted: Cell::new(feed.appended()),
            backlog_end: end,
            warm: RefCell::new(LogPosition::ORIGIN..LogPosition::ORIGIN),
            paging: Cell::new(false),
        };
        let worker = Self::spawn(context, EventSource::Log(reader), notify, order, made);
        worker.offer(open);
        Ok(worker)
    }

    /// The reader of a log; `None` if the events come from an external store.
    pub(super) fn log_reader(&self) -> Option<&LogReader> {
        match &self.source {
            EventSource::Log(reader) => Some(reader),
            EventSource::Store(_) => None,
        }
    }

    /// The next event that may match.
    pub(super) fn next_of_log(
        self: &Rc<Self>,
        reader: &LogReader,
    ) -> Option<(LogPosition, Result<Rc<LoadedEvent>, CorruptRecord>)> {
        let from = if reader.queue.is_in() { reader.queue.first()? } else { reader.progress.next() };
        if !self.is_resident(reader, from) {
            return None; // notified when it is
        }
        let log = self.context.writer.log();
        if !reader.queue.is_in() {
            let sorted = reader.fanout.cursor();
            let record = reader.progress.read(&log, sorted);
            self.lose(reader, reader.progress.take_damaged(), EventOutcome::Damaged);
            if let Some(record) = record {
                return Some(self.see(record));
            }
            // The remaining events up to there cannot be read.
            self.lose(reader, reader.progress.give_up(&log, sorted), EventOutcome::Damaged);
            if !reader.fanout.join(&reader.queue, reader.progress.cursor().max(reader.backlog_end)) {
                return None;
            }
            reader.last_spec.set(reader.fanout.passed());
            reader.damaged_count.set(reader.fanout.damaged());
        }
        loop {
            let found = reader.queue.take()?;
            self.skip(reader, found.passed, found.damaged, found.position);
            reader.last_spec.set(found.passed + 1);
            if let Some(loaded) = reader.fanout.fresh(found.position)
                && reader.progress.take_on(loaded.position, loaded.next)
            {
                return Some((loaded.position, Ok(loaded)));
            }
            let after = LogPosition::new(found.position.get() + 1);
            if let Some(record) = reader.progress.read(&log, after) {
                return Some(self.see(record));
            }
            reader.progress.skip_to(after); // damaged since it was matched
            self.lose(reader, 1, EventOutcome::Damaged);
        }
    }

    /// Counts new events of a log, and those of them that did not match.
    pub(super) fn catch_up(&self) {
        let Some(reader) = self.log_reader() else { return };
        self.count_arrivals(reader);
        if !self.stopped.get() && reader.queue.is_in() && reader.queue.is_empty() {
            self.skip(reader, reader.fanout.passed(), reader.fanout.damaged(), reader.fanout.cursor());
        }
    }

    /// None of the events up to here matches.
    pub(super) fn skip(&self, reader: &LogReader, passed: u64, damaged: u64, position: LogPosition) {
        let unwanted = passed - reader.last_spec.replace(passed);
        let lost = damaged - reader.damaged_count.replace(damaged);
        self.lose(reader, lost, EventOutcome::Damaged);
        if unwanted + lost == 0 {
            return;
        }
        reader.progress.skip_to(position);
        self.context.writer.moved(&reader.progress);
        self.count(unwanted, EventOutcome::Filtered);
    }

    /// Counts events that were never started as finished.
    pub(super) fn lose(&self, reader: &LogReader, events: u64, end: EventOutcome) {
        if events > 0 && !self.stopped.get() {
            self.context.writer.moved(&reader.progress);
            self.count(events, end);
        }
    }

    fn count_arrivals(&self, reader: &LogReader) {
        let appended = reader.feed.appended();
        self.offer(appended - reader.counted.replace(appended));
    }
}
