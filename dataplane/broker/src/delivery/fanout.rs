//! The fan-out matcher: evaluates the filters of all subscribers once for each new event of a stream.
//!
//! A subscriber that keeps up has a match queue: it gets the positions of its matching events, and wakes
//! for nothing else, so that the cost of an event depends on the number of matching subscribers. One that
//! lags, or has just started, reads the log by itself and evaluates its own filter until it has caught up.
//! The number of events that did not match is a difference of two counts, taken when the subscriber wakes.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use contract::filter::steps::Steps;
use contract::table::Subscriber;
use ring::{CurrentWork, Notify, Ring, Tick};
use wal::LogPosition;

use super::loaded_event::{LoadedEvent, RecentEvents};
use crate::feed::StreamFeed;
use crate::filter_index::{FilterIndex, FilterIndexEntry};
use crate::limits::{LOADED_BYTES_PER_STEP, MATCHES_MAX, RECORDS_PER_TURN_MAX, SWEEP_EVERY};
use crate::log_writer::LogWriter;
use crate::stalled::{CoreActivity, Phase};

/// The matcher of one stream.
pub(super) struct FanoutMatcher {
    ring: Ring,
    writer: Rc<LogWriter>,
    feed: Rc<StreamFeed>,
    /// Notified of new durable events while there are subscribers, and of a stop.
    notify: Rc<Notify>,
    listens: Cell<bool>,
    /// Replaced as a whole, because a filter may be evaluated for longer than one turn.
    roll: RefCell<Rc<FanoutIndex>>,
    /// Everything of the stream below is matched, and durable.
    cursor: Cell<LogPosition>,
    /// Events matched since this matcher started.
    passed: Cell<u64>,
    /// Damaged events that were skipped since then.
    damaged: Cell<u64>,
    /// Subscribers that have read everything below the cursor and cannot join yet.
    waiting: RefCell<Vec<Rc<MatchQueue>>>,
    stopped: Cell<bool>,
    fresh: RecentEvents,
}

#[derive(Default)]
struct FanoutIndex {
    /// Of the newest table, whose addresses the watchdog looks up.
    subscribers: RefCell<Vec<Arc<Subscriber>>>,
    /// The match queues of the same subscribers.
    lines: Vec<Rc<MatchQueue>>,
    /// Built when the first event comes: of many publishes in a row only the last pays for one.
    index: OnceCell<FilterIndex>,
}

impl FanoutIndex {
    fn index(&self) -> &FilterIndex {
        self.index.get_or_init(|| FilterIndex::new(&self.subscribers.borrow()))
    }

    fn subscriber(&self, entry: &FilterIndexEntry) -> usize {
        self.subscribers.borrow().get(entry.at).map_or(0, |subscriber| Arc::as_ptr(subscriber).addr())
    }

    /// The subscriber of a replay: rare, so that a linear search suffices.
    fn addressee(&self, addressee: Option<&str>) -> Option<usize> {
        self.subscribers.borrow().iter().position(|one| Some(&*one.name) == addressee)
    }
}

/// The matched events of one subscriber.
pub(super) struct MatchQueue {
    /// The subscriber's own.
    notify: Rc<Notify>,
    is_in: Cell<bool>,
    waits: Cell<bool>,
    matches: RefCell<VecDeque<MatchedEvent>>,
}

/// An event that matches the subscriber's filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MatchedEvent {
    pub(super) position: LogPosition,
    /// Events that were matched before this one, and damaged ones that were skipped.
    pub(super) passed: u64,
    pub(super) damaged: u64,
}

impl MatchQueue {
    pub(super) fn new(notify: &Rc<Notify>) -> Rc<Self> {
        Rc::new(Self {
            notify: Rc::clone(notify),
            is_in: Cell::new(false),
            waits: Cell::new(false),
            matches: RefCell::default(),
        })
    }

    /// Whether the subscriber gets matched events; otherwise it must read the log by itself.
    pub(super) fn is_in(&self) -> bool {
        self.is_in.get()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.matches.borrow().is_empty()
    }

    /// The position of the next one.
    pub(super) fn first(&self) -> Option<LogPosition> {
        self.matches.borrow().front().map(|found| found.position)
    }

    pub(super) fn take(&self) -> Option<MatchedEvent> {
        self.matches.borrow_mut().pop_front()
    }

    /// The next one, if it is before `end`.
    pub(super) fn take_before(&self, end: LogPosition) -> Option<MatchedEvent> {
        self.matches.borrow_mut().pop_front_if(|found| found.position < end)
    }

    /// Too many: the subscriber leaves and reads the log from its cursor.
    fn push(&self, found: MatchedEvent) {
        if !self.is_in.get() {
            return;
        }
        let mut waiting = self.matches.borrow_mut();
        if waiting.len() < MATCHES_MAX {
            waiting.push_back(found);
        } else {
            waiting.clear();
            self.is_in.set(false);
        }
        self.notify.ring();
    }
}

impl FanoutMatcher {
    pub(super) fn start(ring: &Ring, writer: &Rc<LogWriter>, feed: &Rc<StreamFeed>) -> Rc<Self> {
        let matcher = Rc::new(Self {
            ring: ring.clone(),
            writer: Rc::clone(writer),
            feed: Rc::clone(feed),
            notify: Rc::default(),
            listens: Cell::new(false),
            roll: RefCell::default(),
            cursor: Cell::new(writer.log().durable()),
            passed: Cell::new(0),
            damaged: Cell::new(0),
            waiting: RefCell::default(),
            stopped: Cell::new(false),
            fresh: RecentEvents::default(),
        });
        ring.spawn(Rc::clone(&matcher).run());
        matcher
    }

    pub(super) fn stop(&self) {
        self.stopped.set(true);
        self.feed.unsubscribe(&self.notify);
        self.notify.ring();
    }

    /// Sets the subscribers from now on, each with its match queue.
    pub(super) fn enroll(&self, running: Vec<(Arc<Subscriber>, Rc<MatchQueue>)>) {
        let (subscribers, lines): (Vec<_>, Vec<_>) = running.into_iter().unzip();
        self.listen(!lines.is_empty());
        let roll = Rc::clone(&self.roll.borrow());
        let is_same = roll.lines.len() == lines.len()
            && roll.lines.iter().zip(&lines).all(|(old, new)| Rc::ptr_eq(old, new))
            && roll
                .subscribers
                .borrow()
                .iter()
                .zip(&subscribers)
                .all(|(old, new)| Arc::ptr_eq(old, new) || old.filter == new.filter);
        if is_same {
            roll.subscribers.replace(subscribers);
        } else {
            let subscribers = RefCell::new(subscribers);
            self.roll.replace(Rc::new(FanoutIndex { subscribers, lines, index: OnceCell::new() }));
        }
    }

    /// A stream without subscribers is not read: no subscriber misses its events, and a later one begins
    /// behind what is durable, or reads the log by itself up to there.
    fn listen(&self, to_new: bool) {
        if self.listens.replace(to_new) == to_new {
            return;
        }
        if to_new {
            self.cursor.set(self.writer.log().durable());
            self.feed.subscribe(&self.notify);
        } else {
            self.feed.unsubscribe(&self.notify);
        }
    }

    pub(super) fn cursor(&self) -> LogPosition {
        self.cursor.get()
    }

    pub(super) fn passed(&self) -> u64 {
        self.passed.get()
    }

    pub(super) fn damaged(&self) -> u64 {
        self.damaged.get()
    }

    /// The event at this position, if it was matched recently.
    pub(super) fn fresh(&self, position: LogPosition) -> Option<Rc<LoadedEvent>> {
        self.fresh.find(position)
    }

    /// Adds the match queue of a subscriber that has read all events below the cursor. `false` if it is
    /// ahead of the cursor: then it is notified when the cursor has moved.
    pub(super) fn join(&self, line: &Rc<MatchQueue>, from: LogPosition) -> bool {
        let can_join = from <= self.cursor.get();
        line.is_in.set(can_join);
        if !can_join && !line.waits.replace(true) {
            self.waiting.borrow_mut().push(Rc::clone(line));
        }
        can_join
    }

    async fn run(self: Rc<Self>) {
        let (mut unswept_since, mut wanted) = (None::<Tick>, Vec::new());
        while !self.stopped.get() {
            let seen = self.notify.count();
            let sorted = self.sort(&mut wanted).await;
            if sorted > 0 {
                unswept_since.get_or_insert(self.ring.now());
            }
            // By time alone: if events triggered it too, a busy stream would wake subscribers without
            // matches all the time.
            if unswept_since.is_some_and(|since| since + SWEEP_EVERY <= self.ring.now()) {
                self.sweep();
                unswept_since = None;
            }
            if sorted > 0 {
                self.ring.yield_now().await; // the notified subscribers run first
            }
            if unswept_since.is_none() {
                self.fresh.clear();
            }
            match unswept_since {
                _ if sorted == RECORDS_PER_TURN_MAX => {}
                None => self.notify.after(seen).await,
                Some(since) => {
                    let wait = (since + SWEEP_EVERY) - self.ring.now();
                    let _ = self.ring.timeout(wait, self.notify.after(seen)).await; // either way: check again
                }
            }
        }
        self.fresh.clear();
    }

    /// Distributes some of the new events; returns how many it read. `wanted` is kept for its allocation.
    async fn sort(&self, wanted: &mut Vec<usize>) -> usize {
        let arrives = self.feed.stream.borrow().as_ref().is_some_and(|stream| stream.guards_loops);
        let mut sorted = 0;
        while sorted < RECORDS_PER_TURN_MAX {
            if !self.has_budget().await {
                break;
            }
            let from = self.cursor.get();
            let Some(record) = self.writer.log().read(self.feed.id, from) else { break };
            let (position, next, lost) = (record.position, record.next, record.damaged);
            let working = self.ring.heartbeat().begin(self.work(position, 0));
            self.ring.charge(record.payload.len() / LOADED_BYTES_PER_STEP);
            let loaded = LoadedEvent::of(record, arrives);
            drop(working);
            let roll = Rc::clone(&self.roll.borrow());
            let all = match &loaded {
                Ok(loaded) => !self.judge(&roll, loaded, wanted).await,
                // Each subscriber finds that it cannot be read, and counts it as dropped.
                Err(_) => true,
            };
            if self.stopped.get() || self.cursor.get() != from {
                break; // while the filters were evaluated
            }
            self.damaged.set(self.damaged.get() + lost);
            let (passed, damaged) = (self.passed.get(), self.damaged.get());
            let found = MatchedEvent { position, passed, damaged };
            if all {
                self.roll.borrow().lines.iter().for_each(|line| line.push(found));
            } else if let Ok(loaded) = loaded
                && !wanted.is_empty()
            {
                wanted.iter().filter_map(|at| roll.lines.get(*at)).for_each(|line| line.push(found));
                self.fresh.push(loaded);
            }
            self.cursor.set(next);
            self.passed.set(passed + 1);
            sorted += 1;
        }
        if sorted > 0 {
            for line in self.waiting.take() {
                line.waits.set(false);
                line.notify.ring();
            }
        }
        sorted
    }

    /// Evaluates the filters of all candidates; `wanted` then lists those that match. Continues in a later
    /// turn whenever this one's budget is used up. `false` if the subscribers have changed meanwhile: then
    /// each must evaluate its own filter.
    async fn judge(&self, roll: &Rc<FanoutIndex>, loaded: &LoadedEvent, wanted: &mut Vec<usize>) -> bool {
        wanted.clear();
        let event = &loaded.record;
        if event.is_addressed {
            wanted.extend(roll.addressee(event.addressee().as_deref()));
            return true;
        }
        for entry in roll.index().candidates(event) {
            let Some(subscriber) = &entry.attributes else {
                wanted.push(entry.at);
                continue;
            };
            if !self.has_budget().await {
                return true;
            }
            let steps = Steps::default();
            let working = self.ring.heartbeat().begin(self.work(loaded.position, roll.subscriber(entry)));
            let wants = entry.wants(event, &steps);
            drop(working);
            if wants {
                wanted.push(entry.at);
            }
            if steps.is_over() {
                subscriber.tally.filter_over_budget.fetch_add(1, Relaxed);
            }
            self.ring.charge(steps.used());
        }
        Rc::ptr_eq(roll, &self.roll.borrow())
    }

    /// Waits until the turn has budget for a filter. `false` if the matcher was stopped meanwhile.
    async fn has_budget(&self) -> bool {
        if !self.ring.has_budget_remaining() {
            self.ring.budget_remaining().await;
        }
        !self.stopped.get()
    }

    fn work(&self, position: LogPosition, subscriber: usize) -> CurrentWork {
        let stream = self.feed.stream.borrow().as_ref().map_or(0, |stream| Arc::as_ptr(stream).addr());
        CoreActivity { phase: Phase::Filter, log: self.writer.number(), stream, subscriber, position }.encode()
    }

    /// Wakes all subscribers, so that counts and cursors include the events that did not match.
    fn sweep(&self) {
        for line in &self.roll.borrow().lines {
            line.notify.ring();
        }
    }
}
