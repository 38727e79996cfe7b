//! One subscriber's own loop: takes on events while its window has room, and waits when it has not.
//!
//! A retry is a position and a time, never a payload, so a subscriber that is dead costs its window,
//! [`UNFINISHED_MAX`] positions and disk, and nobody else anything.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ring::{Bell, Ring, Tick};
use wal::{AppendError, Bookmark, Position};

use super::aside::SetAside;
use super::end::End;
use super::lanes::{Lanes, lane};
use super::made::{Attempts, Made};
use super::pace::Pace;
use super::place::Place;
use super::post::Post;
use super::request::{Failure, Moment};
use super::sight::Sight;
use super::slot::Errand;
use super::sorter::{Line, Sorter};
use crate::events::feed::Feed;
use crate::events::journal::Journal;
use crate::events::keeper::Keeper;
use crate::events::limits::{RECORDS_PER_TURN_MAX, UNFINISHED_MAX};
use crate::events::record::Corrupt;
use crate::events::stalled::StalledEvent;
use crate::table::{Begin, Delivery, Hold, Sequence, Stream, Subscriber};

/// What all pumps of a log share.
pub(super) struct Shop<P> {
    pub(super) ring: Ring,
    /// Where the events are.
    pub(super) keeper: Rc<Keeper>,
    /// Where replies go: the core's own log, even if the events are in one that is running empty.
    pub(super) home: Rc<Keeper>,
    /// The flight recorder.
    pub(super) journal: Option<Rc<Journal>>,
    pub(super) post: P,
    pub(super) rng: RefCell<fastrand::Rng>,
    /// [`crate::table::Table::inside_key`] of the table that is running.
    pub(super) inside_key: RefCell<Arc<str>>,
    pub(super) moment: RefCell<Moment>,
    /// Before this process.
    pub(super) made: Made,
    pub(super) stalled: Vec<StalledEvent>,
}

pub(super) struct Pump<P> {
    pub(super) shop: Rc<Shop<P>>,
    pub(super) place: Rc<Place>,
    pub(super) feed: Rc<Feed>,
    pub(super) order: RefCell<Order>,
    pub(super) sorter: Rc<Sorter>,
    /// What the sorter has found for this subscriber.
    pub(super) line: Rc<Line>,
    /// Of the events that the sorter has passed, how many this pump knows of. Counts while in line.
    pub(super) known: Cell<u64>,
    /// ... and of the damaged ones.
    known_damaged: Cell<u64>,
    /// Rung by events that are wanted, ended attempts, a new order and a stop, and now and then.
    pub(super) bell: Rc<Bell>,
    pub(super) in_flight: Cell<u32>,
    pub(super) pace: Pace,
    /// Attempts that are due at their time: retries, and who waited for its turn in a lane.
    pub(super) retries: RefCell<BinaryHeap<Reverse<Retry>>>,
    /// Given up, and waiting for a dead letter sink.
    pub(super) letters: RefCell<Vec<Job>>,
    lanes: RefCell<Lanes>,
    /// Before this process, at events that it has not begun yet.
    made: RefCell<Attempts>,
    pub(super) aside: SetAside,
    pub(super) stopped: Cell<bool>,
    /// The core stops: nothing new is begun.
    pub(super) held: Cell<bool>,
    /// The newest table that names it, by its version.
    pub(super) named_in: Cell<u64>,
    /// Events of the feed that are counted as offered.
    counted: Cell<u64>,
    /// Events below were in the log before this pump.
    backlog_end: Position,
    /// Offered and not settled.
    pub(super) pending: Cell<u64>,
    /// What was read ahead for it: where records lie that a core may touch.
    pub(super) warm: RefCell<Range<Position>>,
    /// More is being read ahead.
    pub(super) paging: Cell<bool>,
}

/// What the table says about the subscriber now.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) stream: Arc<Stream>,
    pub(super) subscriber: Arc<Subscriber>,
}

/// One attempt to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) position: Position,
    /// Attempts before this one.
    pub(super) attempt: u32,
    pub(super) leg: Leg,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leg {
    Subscriber,
    DeadLetter(Rc<Failure>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Retry {
    pub(super) at: Tick,
    pub(super) job: Job,
}

impl Ord for Retry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.job.position).cmp(&(other.at, other.job.position))
    }
}

impl PartialOrd for Retry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

enum Next {
    /// More can be done, but others come first.
    Yield,
    Wait {
        until: Option<Tick>,
    },
}

impl<P: Post> Pump<P> {
    /// Goes on from the subscriber's bookmark; a new subscriber begins where it asks to, and its bookmark is in
    /// the log before any event that comes after.
    pub(super) fn start(
        shop: &Rc<Shop<P>>,
        feed: &Rc<Feed>,
        sorter: &Rc<Sorter>,
        order: Order,
    ) -> Result<Rc<Self>, AppendError> {
        let name = &*order.subscriber.name;
        let log = shop.keeper.log();
        let kept = log.how_far(feed.id, name).cloned();
        let (is_new, end) = (kept.is_none(), log.end(feed.id));
        let mark = kept.unwrap_or_else(|| {
            Bookmark::at(match order.subscriber.begin {
                Begin::Now => end,
                Begin::Earliest => Position::ORIGIN,
                Begin::At(time) => log.position_at_time(feed.id, time).min(end),
            })
        });
        let open = log.open_events(feed.id, &mark);
        drop(log);
        let made = shop.made.take(name);
        let aside = SetAside::of(&shop.stalled, &order.stream.name, name);
        let place = Place::new(feed.id, name, mark);
        if is_new {
            shop.keeper.register(&place)?;
        }
        let bell = Rc::new(Bell::default());
        let pump = Rc::new(Self {
            shop: Rc::clone(shop),
            place: Rc::new(place),
            feed: Rc::clone(feed),
            order: RefCell::new(order),
            sorter: Rc::clone(sorter),
            line: Line::new(&bell),
            known: Cell::new(0),
            known_damaged: Cell::new(0),
            bell,
            in_flight: Cell::new(0),
            pace: Pace::default(),
            retries: RefCell::default(),
            letters: RefCell::default(),
            lanes: RefCell::default(),
            made: RefCell::new(made),
            aside,
            stopped: Cell::new(false),
            held: Cell::new(false),
            named_in: Cell::new(0),
            counted: Cell::new(feed.appended()),
            backlog_end: end,
            pending: Cell::new(0),
            warm: RefCell::new(Position::ORIGIN..Position::ORIGIN),
            paging: Cell::new(false),
        });
        pump.offer(open);
        shop.ring.spawn(Rc::clone(&pump).run());
        Ok(pump)
    }

    /// Ends the pump. What is in flight is answered to nobody, and stays unfinished in the bookmark.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
        self.order.borrow().subscriber.tally.offered.fetch_sub(self.pending.take(), Relaxed);
        self.bell.ring();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    pub(super) fn order(&self) -> Order {
        self.order.borrow().clone()
    }

    /// Begins nothing new from here on.
    pub(super) fn hold(&self) {
        self.held.set(true);
        self.catch_up();
        self.bell.ring();
    }

    /// Resolves once nothing is in flight.
    pub(super) async fn idle(&self) {
        loop {
            let seen = self.bell.count();
            if self.in_flight.get() == 0 {
                return;
            }
            self.bell.after(seen).await;
        }
    }

    async fn run(self: Rc<Self>) {
        while !self.stopped.get() {
            let seen = self.bell.count();
            match self.turn() {
                Next::Yield => self.shop.ring.yield_now().await,
                Next::Wait { until: None } => self.bell.after(seen).await,
                Next::Wait { until: Some(tick) } => {
                    let wait = tick - self.shop.ring.now();
                    let _ = self.shop.ring.timeout(wait, self.bell.after(seen)).await; // either way: look again
                }
            }
        }
    }

    /// Starts what can be started now.
    fn turn(self: &Rc<Self>) -> Next {
        self.catch_up();
        if self.held.get() {
            return Next::Wait { until: None };
        }
        let (order, mut looks) = (self.order(), RECORDS_PER_TURN_MAX);
        while let Some(errand) = self.errand(&order, self.in_flight.get(), &mut looks) {
            self.begin(errand);
        }
        if looks == 0 { Next::Yield } else { self.wait() }
    }

    /// What may be begun beside those `in_flight`: what is due again, or else an event among so many of the next.
    pub(super) fn errand(
        self: &Rc<Self>,
        order: &Order,
        in_flight: u32,
        looks: &mut usize,
    ) -> Option<Errand> {
        if !self.has_window(order, in_flight) {
            return None;
        }
        if let Some(job) = self.due_retry() {
            return Some((job, None));
        }
        while *looks > 0 && self.has_room(order) {
            *looks -= 1;
            let (position, sight) = self.next()?;
            let errand = self.consider(order, position, sight, looks);
            if errand.is_some() {
                return errand;
            }
        }
        None
    }

    /// Whether one more event may be unfinished.
    fn has_room(&self, order: &Order) -> bool {
        self.place.unfinished() < room(&order.subscriber.delivery)
    }

    /// Whether one more request may be beside those `in_flight`. To a subscriber of ours as many as its instances take, and
    /// a window more: those wait for a place, and by them the scaler sees the backlog.
    fn has_window(&self, order: &Order, in_flight: u32) -> bool {
        if order.subscriber.hold == Hold::Everything {
            return false;
        }
        let (delivery, in_flight) = (&order.subscriber.delivery, in_flight as usize);
        if delivery.sequence == Sequence::Strict {
            return in_flight == 0;
        }
        let window = self.pace.window(delivery.window);
        let more = || self.shop.post.places(&order.subscriber.target);
        in_flight < window || in_flight < window.saturating_add(more()).min(UNFINISHED_MAX)
    }

    /// The next event that may be wanted.
    fn next(self: &Rc<Self>) -> Option<(Position, Result<Rc<Sight>, Corrupt>)> {
        let from = if self.line.is_in() { self.line.first()? } else { self.place.next() };
        if !self.is_at_hand(from) {
            return None; // the bell rings when it is
        }
        let log = self.shop.keeper.log();
        if !self.line.is_in() {
            let sorted = self.sorter.cursor();
            let record = self.place.read(&log, sorted);
            self.lose(self.place.take_damaged(), End::Damaged);
            if let Some(record) = record {
                return Some(self.see(record));
            }
            // What is left up to there cannot be read.
            self.lose(self.place.give_up(&log, sorted), End::Damaged);
            if !self.sorter.join(&self.line, self.place.cursor().max(self.backlog_end)) {
                return None;
            }
            self.known.set(self.sorter.passed());
            self.known_damaged.set(self.sorter.damaged());
        }
        loop {
            let found = self.line.take()?;
            self.pass_by(found.passed, found.damaged, found.position);
            self.known.set(found.passed + 1);
            if let Some(sight) = self.sorter.fresh(found.position)
                && self.place.take_on(sight.position, sight.next)
            {
                return Some((sight.position, Ok(sight)));
            }
            let after = Position::new(found.position.get() + 1);
            if let Some(record) = self.place.read(&log, after) {
                return Some(self.see(record));
            }
            self.place.skip_to(after); // damaged since it was sorted
            self.lose(1, End::Damaged);
        }
    }

    /// Counts what has come, and what of it went by unwanted.
    pub(super) fn catch_up(&self) {
        self.count_arrivals();
        if !self.stopped.get() && self.line.is_in() && self.line.is_empty() {
            self.pass_by(self.sorter.passed(), self.sorter.damaged(), self.sorter.cursor());
        }
    }

    /// None of the events up to here is wanted.
    pub(super) fn pass_by(&self, passed: u64, damaged: u64, position: Position) {
        let unwanted = passed - self.known.replace(passed);
        let lost = damaged - self.known_damaged.replace(damaged);
        self.lose(lost, End::Damaged);
        if unwanted + lost == 0 {
            return;
        }
        self.place.skip_to(position);
        self.shop.keeper.moved(&self.place);
        self.count(unwanted, End::Filtered);
    }

    fn wait(&self) -> Next {
        let full = !self.has_window(&self.order.borrow(), self.in_flight.get());
        let first = self.retries.borrow().peek().map(|Reverse(retry)| retry.at);
        Next::Wait { until: first.filter(|_| !full) } // a full window ends by its own bell
    }

    /// What to do at once about an event that was read. A filter that takes long uses up more of the `looks`.
    fn consider(
        &self,
        order: &Order,
        position: Position,
        sight: Result<Rc<Sight>, Corrupt>,
        looks: &mut usize,
    ) -> Option<Errand> {
        if let (Ok(sight), Some(job)) = (&sight, self.set_aside(order, position)) {
            return Some((job, Some(Rc::clone(sight))));
        }
        match sight {
            Ok(sight) if self.wants(&order.subscriber, &sight, looks) => {
                let by_key = order.subscriber.delivery.sequence == Sequence::ByKey;
                if !by_key || self.lanes.borrow_mut().enter(lane(&sight.record), position) {
                    return Some((self.job(position), Some(sight)));
                }
            }
            Ok(_) => self.settle(position, End::Filtered),
            Err(why) => {
                let subscriber = &*order.subscriber.label;
                tracing::error!(subscriber, %position, %why, "event dropped: not readable");
                let end = if why == Corrupt::Stalled { End::Stalled } else { End::Damaged };
                self.settle(position, end);
            }
        }
        None
    }

    /// The first attempt of this process. One is made in any case: how the last one failed is not known any more.
    fn job(&self, position: Position) -> Job {
        let made = self.made.borrow_mut().remove(&position).unwrap_or(0);
        Job { attempt: made.min(self.order.borrow().subscriber.delivery.retries_max), ..Job::first(position) }
    }

    fn due_retry(&self) -> Option<Job> {
        let mut retries = self.retries.borrow_mut();
        if retries.peek()?.0.at > self.shop.ring.now() {
            return None;
        }
        retries.pop().map(|Reverse(retry)| retry.job)
    }

    pub(super) fn retry(&self, at: Tick, job: Job) {
        self.order.borrow().subscriber.tally.retries.fetch_add(1, Relaxed);
        self.retries.borrow_mut().push(Reverse(Retry { at, job }));
        self.bell.ring();
    }

    /// The event as it is in the log; `None` if its stream was forgotten meanwhile.
    pub(super) fn look_up(&self, position: Position) -> Option<wal::Record> {
        let record = self.shop.keeper.log().read(self.feed.id, position)?;
        (record.position == position).then_some(record)
    }

    /// The event needs nothing more from this subscriber.
    pub(super) fn settle(&self, position: Position, end: End) {
        if self.stopped.get() || !self.place.finish(position) {
            return;
        }
        self.shop.keeper.moved(&self.place);
        let next = self.lanes.borrow_mut().leave(position);
        if let Some(next) = next {
            let job = self.job(next);
            self.retries.borrow_mut().push(Reverse(Retry { at: self.shop.ring.now(), job }));
            self.bell.ring();
        }
        if end == End::Delivered && self.place.unfinished() + 1 >= UNFINISHED_MAX {
            self.hasten();
        }
        self.count(1, end);
    }

    /// Events that were not taken on come to an end.
    pub(super) fn lose(&self, events: u64, end: End) {
        if events > 0 && !self.stopped.get() {
            self.shop.keeper.moved(&self.place);
            self.count(events, end);
        }
    }

    fn count(&self, events: u64, end: End) {
        end.count(events, &self.order.borrow().subscriber.tally);
        // A count that is off must show in tests, and must not end a subscriber's deliveries.
        debug_assert!(events <= self.pending.get(), "an event is offered before it is settled");
        self.pending.set(self.pending.get().saturating_sub(events));
    }

    /// The room for unfinished events is full, and the subscriber takes events again: those that wait for
    /// it need not wait out a back-off that grew while it was away (DP-RETRY-21).
    fn hasten(&self) {
        let now = self.shop.ring.now();
        let waiting = self.retries.take().into_iter();
        let hastened = waiting.map(|Reverse(retry)| Reverse(Retry { at: retry.at.min(now), ..retry }));
        self.retries.replace(hastened.collect());
        self.bell.ring();
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

impl Job {
    pub(super) const fn first(position: Position) -> Self {
        Self { position, attempt: 0, leg: Leg::Subscriber }
    }
}

/// Events that may be unfinished.
fn room(delivery: &Delivery) -> usize {
    match delivery.sequence {
        Sequence::Strict => 1,
        Sequence::Free | Sequence::ByKey => UNFINISHED_MAX,
    }
}
