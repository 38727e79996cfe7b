//! Delivery: every subscriber of every stream of one log, independently of each other.
//!
//! [`Dispatcher::sync`] compares the table with what is running; `worker` is one subscriber's loop,
//! `attempt` one request and its consequences, [`retry`] the arithmetic, [`progress`](super::progress) how far a subscriber
//! has read.

mod arrival;
mod attempt;
mod delivery_attempt;
mod fanout;
mod hold;
mod loaded_event;
mod log_events;
mod ordering_keys;
mod outcome;
mod prefetch;
mod record_matching;
mod recovered_attempts;
mod removal;
pub mod request;
mod retention;
pub mod retry;
pub mod send;
mod set_aside;
mod source;
mod store_dispatcher;
mod store_events;
mod store_reader;
mod stored_request;
mod window;
mod window_slot;
mod worker;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{Ring, Tick};
use wal::{AppendError, StreamId};

pub use request::claims_reply;
pub use send::EventSender;
pub(super) use store_dispatcher::StoreDispatcher;

use contract::table::{EventStream, RoutingTable};

use self::fanout::FanoutMatcher;
use self::recovered_attempts::RecoveredAttempts;
use self::removal::{AbsentStreams, RemovalPositions};
use self::worker::{DispatchContext, SubscriberConfig, SubscriptionWorker};
use super::delivery_log_writer::DeliveryLogWriter;
use super::feed::StreamFeed;
use super::log_writer::LogWriter;
use super::request_scan;
use super::stalled;

type SubscriptionWorkers<P> = HashMap<Box<str>, Rc<SubscriptionWorker<P>>, RandomState>;
type StreamWorkers<V> = RefCell<HashMap<StreamId, V, RandomState>>;

/// The deliveries from one log.
pub struct Dispatcher<P> {
    context: Rc<DispatchContext<P>>,
    /// Workers by stream and subscriber.
    workers: StreamWorkers<SubscriptionWorkers<P>>,
    matchers: StreamWorkers<Rc<FanoutMatcher>>,
    /// The version of each stream for which all subscribers are running.
    carried_out: StreamWorkers<Arc<EventStream>>,
    table: RefCell<Arc<RoutingTable>>,
    /// The table's version that is running.
    version: Cell<u64>,
    /// Streams and subscribers that are in the log and not in the table, and since when.
    absent: RefCell<HashMap<AbsentStreams, Tick, RandomState>>,
    ends: RemovalPositions,
}

impl<P: EventSender> Dispatcher<P> {
    /// Delivers the events of `writer`, and records the outcomes in `delivery_log`; replies go to `home`.
    pub fn new(
        ring: &Ring,
        writer: &Rc<LogWriter>,
        home: &Rc<LogWriter>,
        delivery_log: Option<DeliveryLogWriter>,
        post: P,
        seed: u64,
    ) -> Rc<Self> {
        let made = RecoveredAttempts::read(&writer.log());
        let ends = RemovalPositions::of(writer.log().visible());
        let stalled = stalled::read(writer.log().folder());
        let context = DispatchContext {
            recovered_attempts: made,
            stalled,
            ring: ring.clone(),
            writer: Rc::clone(writer),
            home_writer: Rc::clone(home),
            delivery_log,
            sender: post,
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
            internal_key: RefCell::default(),
            moment: RefCell::default(),
        };
        Rc::new(Self {
            context: Rc::new(context),
            workers: RefCell::default(),
            matchers: RefCell::default(),
            carried_out: RefCell::default(),
            table: RefCell::default(),
            version: Cell::new(0),
            absent: RefCell::default(),
            ends,
        })
    }

    /// Starts and stops subscribers to match the table. Called before every append with the newest table,
    /// so that an event posted right after a publish reaches a new subscriber (EV-TRG-12); costs one
    /// comparison when nothing has changed, and one per stream for unchanged streams.
    pub fn sync(&self, table: &Arc<RoutingTable>) -> Result<(), AppendError> {
        // A request that waited may come with an older table than the one in effect.
        if table.version == self.version.get() || table.version < self.table.borrow().version {
            return Ok(());
        }
        self.context.internal_key.replace(Arc::clone(&table.internal_key));
        let mut named = HashSet::with_capacity_and_hasher(table.streams.len(), RandomState::default());
        let mut outcome = Ok(());
        for stream in table.streams.values().filter(|stream| stream.external.is_none()) {
            let synced = self.context.writer.feed_of(stream).and_then(|feed| {
                named.insert(feed.id);
                self.sync_stream(stream, &feed, table.version)
            });
            outcome = outcome.and(synced);
        }
        self.end_others(&named);
        self.table.replace(Arc::clone(table));
        outcome?; // the next call tries again
        self.version.set(table.version);
        Ok(())
    }

    /// The deliveries of this core from external stores; `owns` says of which subscribers.
    pub(super) fn store_dispatcher(&self, owns: impl Fn(&str) -> bool + 'static) -> StoreDispatcher<P> {
        StoreDispatcher::new(&self.context, owns)
    }

    fn end_others(&self, named: &HashSet<StreamId, RandomState>) {
        self.carried_out.borrow_mut().retain(|stream, _| named.contains(stream));
        let end = self.context.writer.log().visible();
        self.workers.borrow_mut().retain(|stream, workers| {
            let stays = named.contains(stream);
            if !stays {
                workers.iter().for_each(|(name, worker)| {
                    worker.stop();
                    self.ends.note(*stream, name, end);
                });
            }
            stays
        });
        self.matchers.borrow_mut().retain(|stream, matcher| {
            let stays = named.contains(stream);
            if !stays {
                matcher.stop();
            }
            stays
        });
    }

    fn sync_stream(&self, stream: &Arc<EventStream>, feed: &Rc<StreamFeed>, version: u64) -> Result<(), AppendError> {
        if self.carried_out.borrow().get(&feed.id).is_some_and(|known| Arc::ptr_eq(known, stream)) {
            return Ok(());
        }
        self.context.writer.follow(feed, stream);
        if stream.holds_requests() {
            request_scan::index_requests(&self.context.writer, feed);
        }
        let matcher = self.fanout(feed);
        let mut workers = self.workers.borrow_mut();
        let workers = workers.entry(feed.id).or_default();
        let (mut running, mut outcome) = (Vec::with_capacity(stream.subscribers.len()), Ok(()));
        for subscriber in &stream.subscribers {
            let order = SubscriberConfig { stream: Arc::clone(stream), subscriber: Arc::clone(subscriber) };
            let worker = match workers.get(&subscriber.name) {
                Some(worker) => {
                    worker.reorder(order);
                    worker
                }
                None => match SubscriptionWorker::start(&self.context, feed, &matcher, order) {
                    Ok(worker) => {
                        self.ends.take_back(feed.id, &subscriber.name);
                        workers.entry(subscriber.name.clone()).insert(worker).into_mut()
                    }
                    Err(why) => {
                        outcome = Err(why); // the other streams are still synced
                        continue;
                    }
                },
            };
            worker.named_in.set(version);
            if let Some(reader) = worker.log_reader() {
                running.push((Arc::clone(subscriber), Rc::clone(&reader.queue)));
            }
        }
        let end = self.context.writer.log().visible();
        workers.retain(|name, worker| {
            let stays = worker.named_in.get() == version;
            if !stays {
                worker.stop();
                self.ends.note(feed.id, name, end);
            }
            stays
        });
        matcher.enroll(running);
        if outcome.is_ok() {
            self.carried_out.borrow_mut().insert(feed.id, Arc::clone(stream));
        } else {
            self.carried_out.borrow_mut().remove(&feed.id);
        }
        outcome
    }

    fn fanout(&self, feed: &Rc<StreamFeed>) -> Rc<FanoutMatcher> {
        let mut matchers = self.matchers.borrow_mut();
        let start = || FanoutMatcher::start(&self.context.ring, &self.context.writer, feed);
        Rc::clone(matchers.entry(feed.id).or_insert_with(start))
    }

    /// Whether the newest table is in effect for this stream.
    pub fn serves(&self, stream: &EventStream) -> bool {
        if self.table.borrow().version == self.version.get() {
            return true; // all of it is: the usual case
        }
        let Ok(feed) = self.context.writer.feed_of(stream) else { return false };
        let workers = self.workers.borrow();
        let running = workers.get(&feed.id);
        stream
            .subscribers
            .iter()
            .all(|subscriber| running.is_some_and(|workers| workers.contains_key(&subscriber.name)))
    }

    /// The undelivered events of a subscriber, by its cursor in the log and by the counters: always the
    /// same.
    #[cfg(test)]
    pub fn outstanding(&self, stream: &EventStream, subscriber: &str) -> Option<(u64, u64)> {
        let feed = self.context.writer.feed_of(stream).ok()?;
        let workers = self.workers.borrow();
        let worker = workers.get(&feed.id)?.get(subscriber).filter(|worker| !worker.is_stopped())?;
        worker.catch_up();
        let mark = worker.log_reader()?.progress.mark();
        Some((self.context.writer.log().open_events(feed.id, &mark), worker.pending.get()))
    }

    /// Starts no more deliveries and waits for those in flight.
    pub async fn drain(&self) {
        let workers: Vec<_> =
            self.workers.borrow().values().flat_map(SubscriptionWorkers::values).map(Rc::clone).collect();
        for worker in &workers {
            worker.hold();
        }
        for worker in &workers {
            worker.idle().await;
        }
    }
}
