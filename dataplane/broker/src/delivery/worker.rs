//! One subscriber's own loop: starts deliveries while its window has free slots, and waits otherwise.
//!
//! A retry is a position and a time, never a payload, so a dead subscriber costs its window, [`UNFINISHED_MAX`]
//! positions and disk space, and does not affect the others.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::{Arc, atomic::Ordering::Relaxed};

use codec::record::CorruptRecord;
use contract::table::{DeliveryOrder, DeliveryPolicy, EventStream, HoldReason, Subscriber};
use ring::{Notify, Ring, Tick};
use wal::LogPosition;

use super::arrival::CachedTimestamp;
use super::delivery_attempt::{DeliveryAttempt, DeliveryTask, ScheduledRetry};
use super::loaded_event::LoadedEvent;
use super::ordering_keys::{OrderingKeys, ordering_key};
use super::outcome::EventOutcome;
use super::recovered_attempts::{AttemptCounts, RecoveredAttempts};
use super::send::EventSender;
use super::set_aside::{SetAside, SetAsideAction};
use super::source::EventSource;
use super::window::DeliveryWindow;
use crate::delivery_log_writer::DeliveryLogWriter;
use crate::limits::{RECORDS_PER_TURN_MAX, UNFINISHED_MAX};
use crate::log_writer::LogWriter;
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
    /// [`Subscriber::name`]
    pub(super) name: Box<str>,
    pub(super) source: EventSource,
    pub(super) order: RefCell<SubscriberConfig>,
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
    /// Offered and not settled.
    pub(super) pending: Cell<u64>,
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
    /// Starts a worker without events.
    pub(super) fn spawn(
        context: &Rc<DispatchContext<P>>,
        source: EventSource,
        notify: Rc<Notify>,
        order: SubscriberConfig,
        recovered_attempts: AttemptCounts,
    ) -> Rc<Self> {
        let name = order.subscriber.name.clone();
        let aside = SetAside::of(&context.stalled, &order.stream.name, &name);
        let worker = Rc::new(Self {
            context: Rc::clone(context),
            name,
            source,
            order: RefCell::new(order),
            notify,
            in_flight: Cell::new(0),
            window: DeliveryWindow::default(),
            retries: RefCell::default(),
            held_dead_letters: RefCell::default(),
            ordering_keys: RefCell::default(),
            recovered_attempts: RefCell::new(recovered_attempts),
            aside,
            stopped: Cell::new(false),
            on_hold: Cell::new(false),
            named_in: Cell::new(0),
            pending: Cell::new(0),
        });
        context.ring.spawn(Rc::clone(&worker).run());
        worker
    }

    /// Stops the worker. Results of attempts in flight are discarded, and their events stay unfinished in the cursor.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
        self.order.borrow().subscriber.tally.offered.fetch_sub(self.pending.take(), Relaxed);
        self.release();
        self.notify.ring();
    }

    /// Lets other readers of an external store have what is unfinished. A cursor in a log keeps it anyway.
    pub(super) fn release(&self) {
        if let EventSource::Store(reader) = &self.source {
            reader.release();
        }
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
        self.unfinished() < unfinished_max(&order.subscriber.delivery)
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
        match &self.source {
            EventSource::Log(reader) => self.next_of_log(reader),
            EventSource::Store(reader) => Some(self.see(reader.next()?)),
        }
    }

    /// Events that are started and not done.
    fn unfinished(&self) -> usize {
        match &self.source {
            EventSource::Log(reader) => reader.progress.unfinished(),
            EventSource::Store(reader) => reader.unfinished(),
        }
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

    /// The event again; `None` if its stream was deleted meanwhile.
    pub(super) fn load(&self, position: LogPosition) -> Option<wal::LogRecord> {
        match &self.source {
            EventSource::Log(reader) => {
                let record = self.context.writer.log().read(reader.feed.id, position)?;
                (record.position == position).then_some(record)
            }
            EventSource::Store(reader) => reader.load(position),
        }
    }

    /// The event is finished for this subscriber.
    pub(super) fn settle(&self, position: LogPosition, end: EventOutcome) {
        if self.stopped.get() || !self.finish(position) {
            return;
        }
        let next = self.ordering_keys.borrow_mut().release(position);
        if let Some(next) = next {
            let job = self.job(next);
            self.retries.borrow_mut().push(Reverse(ScheduledRetry { at: self.context.ring.now(), job }));
            self.notify.ring();
        }
        if end == EventOutcome::Delivered && self.unfinished() + 1 >= UNFINISHED_MAX {
            self.retry_now();
        }
        self.count(1, end);
    }

    /// `false` if it was not unfinished.
    fn finish(&self, position: LogPosition) -> bool {
        match &self.source {
            EventSource::Log(reader) => {
                let is_finished = reader.progress.finish(position);
                if is_finished {
                    self.context.writer.moved(&reader.progress);
                }
                is_finished
            }
            EventSource::Store(reader) => reader.finish(position),
        }
    }

    pub(super) fn count(&self, events: u64, end: EventOutcome) {
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

    pub(super) fn offer(&self, events: u64) {
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
