//! One subscriber's own loop: starts deliveries while its window has free slots, and waits otherwise.
//!
//! A retry is a position and a time, never a payload, so a dead subscriber costs its window, [`UNFINISHED_MAX`]
//! positions and disk space, and does not affect the others.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, atomic::Ordering::Relaxed};

use codec::record::CorruptRecord;
use contract::table::{DeliveryOrder, DeliveryPolicy, EventStream, HoldReason, InitialOffset, Subscriber};
use ring::{Notify, Ring, Tick};
use wal::{AppendError, Cursor, LogPosition};

use super::arrival::CachedTimestamp;
use super::delivery_attempt::{DeliveryAttempt, DeliveryTask, ScheduledRetry};
use super::fanout::{FanoutMatcher, MatchQueue};
use super::loaded_event::LoadedEvent;
use super::ordering_keys::{OrderingKeys, ordering_key};
use super::outcome::EventOutcome;
use super::recovered_attempts::{AttemptCounts, RecoveredAttempts};
use super::send::EventSender;
use super::set_aside::{SetAside, SetAsideAction};
use super::window::DeliveryWindow;
use crate::delivery_log_writer::DeliveryLogWriter;
use crate::feed::StreamFeed;
use crate::limits::{RECORDS_PER_TURN_MAX, UNFINISHED_MAX};
use crate::log_writer::LogWriter;
use crate::progress::SubscriberProgress;
use crate::stalled::StalledEvent;

/// Shared by all workers of a log.
pub(super) struct DispatchContext<P> {
    pub(super) ring: Ring,
    /// The log with the events.
    pub(super) writer: Rc<LogWriter>,
    /// The log for replies: the core's own, even if the events are in one that is being drained.
    pub(super) home_writer: Rc<LogWriter>,
    /// The delivery log.
    pub(super) delivery_log: Option<DeliveryLogWriter>,
    pub(super) sender: P,
    pub(super) rng: RefCell<fastrand::Rng>,
    /// [`contract::table::RoutingTable::internal_key`] of the running table.
    pub(super) internal_key: RefCell<Arc<str>>,
    pub(super) moment: RefCell<CachedTimestamp>,
    /// Attempts of earlier processes.
    pub(super) recovered_attempts: RecoveredAttempts,
    pub(super) stalled: Vec<StalledEvent>,
}

pub(super) struct SubscriptionWorker<P> {
    pub(super) context: Rc<DispatchContext<P>>,
    pub(super) progress: Rc<SubscriberProgress>,
    pub(super) feed: Rc<StreamFeed>,
    pub(super) order: RefCell<SubscriberConfig>,
    pub(super) fanout: Rc<FanoutMatcher>,
    /// The events matched for this subscriber.
    pub(super) queue: Rc<MatchQueue>,
    /// Number of matched events that this worker has processed. Counts while it has a match queue.
    pub(super) last_spec: Cell<u64>,
    /// The same for damaged ones.
    damaged_count: Cell<u64>,
    /// Notified of matched events, ended attempts, a new configuration and a stop, and from time to time.
    pub(super) notify: Rc<Notify>,
    pub(super) in_flight: Cell<u32>,
    pub(super) window: DeliveryWindow,
    /// Scheduled attempts: retries, and events that waited for their ordering key.
    pub(super) retries: RefCell<BinaryHeap<Reverse<ScheduledRetry>>>,
    /// Given up, and waiting for a dead letter sink.
    pub(super) held_dead_letters: RefCell<Vec<DeliveryAttempt>>,
    ordering_keys: RefCell<OrderingKeys>,
    /// Attempts of earlier processes, at events that are not started yet.
    recovered_attempts: RefCell<AttemptCounts>,
    pub(super) aside: SetAside,
    pub(super) stopped: Cell<bool>,
    /// The core stops: no new attempts.
    pub(super) on_hold: Cell<bool>,
    /// Version of the newest table that contains it.
    pub(super) named_in: Cell<u64>,
    /// Events of the feed that are counted as offered.
    counted: Cell<u64>,
    /// Events below were in the log before this worker.
    backlog_end: LogPosition,
    /// Offered and not settled.
    pub(super) pending: Cell<u64>,
    /// Positions read ahead, which a core may access.
    pub(super) warm: RefCell<Range<LogPosition>>,
    /// A readahead is in flight.
    pub(super) paging: Cell<bool>,
}

/// The subscriber in the current table.
#[derive(Clone)]
pub(super) struct SubscriberConfig {
    pub(super) stream: Arc<EventStream>,
    pub(super) subscriber: Arc<Subscriber>,
}

enum WorkerStep {
    /// More can be done, but others run first.
    Yield,
    Wait {
        until: Option<Tick>,
    },
}

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
        let aside = SetAside::of(&context.stalled, &order.stream.name, name);
        let progress = SubscriberProgress::new(feed.id, name, mark);
        if is_new {
            context.writer.register(&progress)?;
        }
        let notify = Rc::new(Notify::default());
        let worker = Rc::new(Self {
            context: Rc::clone(context),
            progress: Rc::new(progress),
            feed: Rc::clone(feed),
            order: RefCell::new(order),
            fanout: Rc::clone(matcher),
            queue: MatchQueue::new(&notify),
            last_spec: Cell::new(0),
            damaged_count: Cell::new(0),
            notify,
            in_flight: Cell::new(0),
            window: DeliveryWindow::default(),
            retries: RefCell::default(),
            held_dead_letters: RefCell::default(),
            ordering_keys: RefCell::default(),
            recovered_attempts: RefCell::new(made),
            aside,
            stopped: Cell::new(false),
            on_hold: Cell::new(false),
            named_in: Cell::new(0),
            counted: Cell::new(feed.appended()),
            backlog_end: end,
            pending: Cell::new(0),
            warm: RefCell::new(LogPosition::ORIGIN..LogPosition::ORIGIN),
            paging: Cell::new(false),
        });
        worker.offer(open);
        context.ring.spawn(Rc::clone(&worker).run());
        Ok(worker)
    }

    /// Stops the worker. Results of attempts in flight are discarded, and their events stay unfinished in the cursor.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
        self.order.borrow().subscriber.tally.offered.fetch_sub(self.pending.take(), Relaxed);
        self.notify.ring();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    pub(super) fn order(&self) -> SubscriberConfig {
        self.order.borrow().clone()
    }

    /// Starts nothing new from here on.
    pub(super) fn hold(&self) {
        self.on_hold.set(true);
        self.catch_up();
        self.notify.ring();
    }

    /// Resolves once nothing is in flight.
    pub(super) async fn idle(&self) {
        loop {
            let seen = self.notify.count();
            if self.in_flight.get() == 0 {
                return;
            }
            self.notify.after(seen).await;
        }
    }

    async fn run(self: Rc<Self>) {
        loop {
            let seen = self.notify.count();
            self.turn_budget().await;
            if self.stopped.get() {
                return;
            }
            match self.step() {
                WorkerStep::Yield => self.context.ring.yield_now().await,
                WorkerStep::Wait { until: None } => self.notify.after(seen).await,
                WorkerStep::Wait { until: Some(tick) } => {
                    let wait = tick - self.context.ring.now();
                    let _ = self.context.ring.timeout(wait, self.notify.after(seen)).await; // either way: check again
                }
            }
        }
    }

    /// Starts what can be started now.
    fn step(self: &Rc<Self>) -> WorkerStep {
        self.catch_up();
        if self.on_hold.get() {
            return WorkerStep::Wait { until: None };
        }
        let (order, mut looks) = (self.order(), RECORDS_PER_TURN_MAX);
        while let Some(task) = self.next_task(&order, self.in_flight.get(), &mut looks) {
            self.spawn_attempt(task);
        }
        if looks == 0 { WorkerStep::Yield } else { self.wait() }
    }

    /// The next attempt in addition to those `in_flight`: a scheduled one, or else one among the next few events.
    pub(super) fn next_task(
        self: &Rc<Self>,
        order: &SubscriberConfig,
        in_flight: u32,
        looks: &mut usize,
    ) -> Option<DeliveryTask> {
        if !self.has_window(order, in_flight) {
            return None;
        }
        if let Some(job) = self.due_retry() {
            return Some((job, None));
        }
        while *looks > 0 && self.has_capacity(order) {
            if !self.context.ring.has_budget_remaining() {
                *looks = 0; // continues in a later turn
                break;
            }
            *looks -= 1;
            let (position, loaded) = self.next()?;
            let task = self.consider(order, position, loaded);
            if task.is_some() {
                return task;
            }
        }
        None
    }

    /// Whether one more event may be unfinished.
    fn has_capacity(&self, order: &SubscriberConfig) -> bool {
        self.progress.unfinished() < unfinished_max(&order.subscriber.delivery)
    }

    /// Whether one more request may be in flight in addition to `in_flight`. Our own Services get as many as their
    /// instances take, plus a window: those wait for a permit, and show the backlog to the autoscaler.
    fn has_window(&self, order: &SubscriberConfig, in_flight: u32) -> bool {
        if order.subscriber.hold == HoldReason::Everything {
            return false;
        }
        let (delivery, in_flight) = (&order.subscriber.delivery, in_flight as usize);
        if delivery.sequence == DeliveryOrder::Strict {
            return in_flight == 0;
        }
        let window = self.window.window(delivery.window);
        let more = || self.context.sender.capacity(&order.subscriber.target);
        in_flight < window || in_flight < window.saturating_add(more()).min(UNFINISHED_MAX)
    }

    /// The next event that may match.
    fn next(self: &Rc<Self>) -> Option<(LogPosition, Result<Rc<LoadedEvent>, CorruptRecord>)> {
        let from = if self.queue.is_in() { self.queue.first()? } else { self.progress.next() };
        if !self.is_resident(from) {
            return None; // notified when it is
        }
        let log = self.context.writer.log();
        if !self.queue.is_in() {
            let sorted = self.fanout.cursor();
            let record = self.progress.read(&log, sorted);
            self.lose(self.progress.take_damaged(), EventOutcome::Damaged);
            if let Some(record) = record {
                return Some(self.see(record));
            }
            // The remaining events up to there cannot be read.
            self.lose(self.progress.give_up(&log, sorted), EventOutcome::Damaged);
            if !self.fanout.join(&self.queue, self.progress.cursor().max(self.backlog_end)) {
                return None;
            }
            self.last_spec.set(self.fanout.passed());
            self.damaged_count.set(self.fanout.damaged());
        }
        loop {
            let found = self.queue.take()?;
            self.skip(found.passed, found.damaged, found.position);
            self.last_spec.set(found.passed + 1);
            if let Some(loaded) = self.fanout.fresh(found.position)
                && self.progress.take_on(loaded.position, loaded.next)
            {
                return Some((loaded.position, Ok(loaded)));
            }
            let after = LogPosition::new(found.position.get() + 1);
            if let Some(record) = self.progress.read(&log, after) {
                return Some(self.see(record));
            }
            self.progress.skip_to(after); // damaged since it was matched
            self.lose(1, EventOutcome::Damaged);
        }
    }

    /// Counts new events, and those of them that did not match.
    pub(super) fn catch_up(&self) {
        self.count_arrivals();
        if !self.stopped.get() && self.queue.is_in() && self.queue.is_empty() {
            self.skip(self.fanout.passed(), self.fanout.damaged(), self.fanout.cursor());
        }
    }

    /// None of the events up to here matches.
    pub(super) fn skip(&self, passed: u64, damaged: u64, position: LogPosition) {
        let unwanted = passed - self.last_spec.replace(passed);
        let lost = damaged - self.damaged_count.replace(damaged);
        self.lose(lost, EventOutcome::Damaged);
        if unwanted + lost == 0 {
            return;
        }
        self.progress.skip_to(position);
        self.context.writer.moved(&self.progress);
        self.count(unwanted, EventOutcome::Filtered);
    }

    fn wait(&self) -> WorkerStep {
        let full = !self.has_window(&self.order.borrow(), self.in_flight.get());
        let first = self.retries.borrow().peek().map(|Reverse(retry)| retry.at);
        WorkerStep::Wait { until: first.filter(|_| !full) } // a full window ends by its own notification
    }

    /// Decides what to do at once with an event that was read.
    fn consider(
        &self,
        order: &SubscriberConfig,
        position: LogPosition,
        loaded: Result<Rc<LoadedEvent>, CorruptRecord>,
    ) -> Option<DeliveryTask> {
        let aside = self.aside.action(position);
        match loaded {
            Ok(loaded) if aside == Some(SetAsideAction::DeadLetter) => {
                return Some((self.set_aside(order, position), Some(loaded)));
            }
            Ok(loaded) if aside == Some(SetAsideAction::DropIfMatched) && self.wants(&order.subscriber, &loaded) => {
                self.note_set_aside(order, position);
                self.settle(position, EventOutcome::Stalled);
            }
            Ok(_) if aside.is_some() => self.settle(position, EventOutcome::Filtered),
            Ok(loaded) if self.wants(&order.subscriber, &loaded) => {
                let by_key = order.subscriber.delivery.sequence == DeliveryOrder::ByKey;
                if !by_key || self.ordering_keys.borrow_mut().enter(ordering_key(&loaded.record), position) {
                    return Some((self.job(position), Some(loaded)));
                }
            }
            Ok(_) => self.settle(position, EventOutcome::Filtered),
            Err(CorruptRecord::Stalled) => {
                self.note_set_aside(order, position);
                self.settle(position, EventOutcome::Stalled);
            }
            Err(why) => {
                let subscriber = &*order.subscriber.label;
                tracing::error!(subscriber, %position, %why, "event dropped: not readable");
                self.settle(position, EventOutcome::Damaged);
            }
        }
        None
    }

    /// The first attempt of this process. At least one is made: the result of the last one is not known any more.
    fn job(&self, position: LogPosition) -> DeliveryAttempt {
        let made = self.recovered_attempts.borrow_mut().remove(&position).unwrap_or(0);
        DeliveryAttempt {
            attempt: made.min(self.order.borrow().subscriber.delivery.retries_max),
            ..DeliveryAttempt::first(position)
        }
    }

    fn due_retry(&self) -> Option<DeliveryAttempt> {
        let mut retries = self.retries.borrow_mut();
        if retries.peek()?.0.at > self.context.ring.now() {
            return None;
        }
        retries.pop().map(|Reverse(retry)| retry.job)
    }

    pub(super) fn retry(&self, at: Tick, job: DeliveryAttempt) {
        self.order.borrow().subscriber.tally.retries.fetch_add(1, Relaxed);
        self.retries.borrow_mut().push(Reverse(ScheduledRetry { at, job }));
        self.notify.ring();
    }

    /// The event in the log; `None` if its stream was deleted meanwhile.
    pub(super) fn load(&self, position: LogPosition) -> Option<wal::LogRecord> {
        let record = self.context.writer.log().read(self.feed.id, position)?;
        (record.position == position).then_some(record)
    }

    /// The event is finished for this subscriber.
    pub(super) fn settle(&self, position: LogPosition, end: EventOutcome) {
        if self.stopped.get() || !self.progress.finish(position) {
            return;
        }
        self.context.writer.moved(&self.progress);
        let next = self.ordering_keys.borrow_mut().release(position);
        if let Some(next) = next {
            let job = self.job(next);
            self.retries.borrow_mut().push(Reverse(ScheduledRetry { at: self.context.ring.now(), job }));
            self.notify.ring();
        }
        if end == EventOutcome::Delivered && self.progress.unfinished() + 1 >= UNFINISHED_MAX {
            self.retry_now();
        }
        self.count(1, end);
    }

    /// Counts events that were never started as finished.
    pub(super) fn lose(&self, events: u64, end: EventOutcome) {
        if events > 0 && !self.stopped.get() {
            self.context.writer.moved(&self.progress);
            self.count(events, end);
        }
    }

    fn count(&self, events: u64, end: EventOutcome) {
        end.count(events, &self.order.borrow().subscriber.tally);
        // A wrong count must show in tests, and must not end a subscriber's deliveries.
        debug_assert!(events <= self.pending.get(), "an event is offered before it is settled");
        self.pending.set(self.pending.get().saturating_sub(events));
    }

    /// The limit of unfinished events is reached, and the subscriber accepts events again: scheduled retries skip the
    /// rest of a back-off that grew while it was away (DP-RETRY-21).
    fn retry_now(&self) {
        let now = self.context.ring.now();
        let waiting = self.retries.take().into_iter();
        let rescheduled = waiting.map(|Reverse(retry)| Reverse(ScheduledRetry { at: retry.at.min(now), ..retry }));
        self.retries.replace(rescheduled.collect());
        self.notify.ring();
    }

    fn count_arrivals(&self) {
        let appended = self.feed.appended();
        self.offer(appended - self.counted.replace(appended));
    }

    fn offer(&self, events: u64) {
        if events > 0 {
            self.order.borrow().subscriber.tally.offered.fetch_add(events, Relaxed);
            self.pending.set(self.pending.get() + events);
        }
    }
}

/// Maximum number of unfinished events.
fn unfinished_max(delivery: &DeliveryPolicy) -> usize {
    match delivery.sequence {
        DeliveryOrder::Strict => 1,
        DeliveryOrder::Free | DeliveryOrder::ByKey => UNFINISHED_MAX,
    }
}
