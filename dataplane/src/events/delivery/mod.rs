//! Delivery: every subscriber of every stream of one log, each by itself.
//!
//! [`Desk::sync`] compares the table with what is running; `pump` is one subscriber's loop,
//! `attempt` one request and what its answer leads to, [`retry`] the arithmetic, `place` how far
//! a subscriber has come.

mod absent;
mod ahead;
mod aside;
mod attempt;
mod end;
mod hold;
mod lanes;
mod made;
mod pace;
mod place;
pub mod post;
mod pump;
pub mod request;
mod retention;
pub mod retry;
mod sight;
mod slot;
mod sorter;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::{Ring, Tick};
use wal::{AppendError, StreamId};

pub use place::Place;
pub use post::{Post, PostError};
pub use request::claims_reply;

use self::absent::{Absent, Ends};
use self::made::Made;
use self::pump::{Order, Pump, Shop};
use self::sorter::Sorter;
use super::feed::Feed;
use super::journal::Journal;
use super::keeper::Keeper;
use super::stalled;
use crate::table::{Stream, Table};

type Pumps<P> = HashMap<Box<str>, Rc<Pump<P>>, RandomState>;
type ByStream<V> = RefCell<HashMap<StreamId, V, RandomState>>;

/// The deliveries out of one log.
pub struct Desk<P> {
    shop: Rc<Shop<P>>,
    /// By stream and subscriber.
    pumps: ByStream<Pumps<P>>,
    sorters: ByStream<Rc<Sorter>>,
    /// What each stream was when all its subscribers were running.
    carried_out: ByStream<Arc<Stream>>,
    table: RefCell<Arc<Table>>,
    /// The table's version that is running.
    version: Cell<u64>,
    /// What the log knows and the table does not, and since when.
    absent: RefCell<HashMap<Absent, Tick, RandomState>>,
    ends: Ends,
}

impl<P: Post> Desk<P> {
    /// Delivers what is in `keeper`, and notes in `journal` how it went; replies go to `home`.
    pub fn new(
        ring: &Ring,
        keeper: &Rc<Keeper>,
        home: &Rc<Keeper>,
        journal: Option<Rc<Journal>>,
        post: P,
        seed: u64,
    ) -> Rc<Self> {
        let made = Made::read(&keeper.log());
        let ends = Ends::of(keeper.log().visible());
        let stalled = stalled::read(keeper.log().folder());
        let shop = Shop {
            made,
            stalled,
            ring: ring.clone(),
            keeper: Rc::clone(keeper),
            home: Rc::clone(home),
            journal,
            post,
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
            inside_key: RefCell::default(),
            moment: RefCell::default(),
        };
        Rc::new(Self {
            shop: Rc::new(shop),
            pumps: RefCell::default(),
            sorters: RefCell::default(),
            carried_out: RefCell::default(),
            table: RefCell::default(),
            version: Cell::new(0),
            absent: RefCell::default(),
            ends,
        })
    }

    /// Makes the running subscribers those of the table. Called before every append with the newest
    /// table, so that an event posted right after a publish reaches a new subscriber (EV-TRG-12); costs
    /// one comparison when nothing has changed, and one a stream for those that have not.
    pub fn sync(&self, table: &Arc<Table>) -> Result<(), AppendError> {
        if table.version == self.version.get() {
            return Ok(());
        }
        self.shop.inside_key.replace(Arc::clone(&table.inside_key));
        let mut named = HashSet::with_capacity_and_hasher(table.streams.len(), RandomState::default());
        let mut outcome = Ok(());
        for stream in table.streams.values() {
            let synced = self.shop.keeper.feed_of(stream).and_then(|feed| {
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

    fn end_others(&self, named: &HashSet<StreamId, RandomState>) {
        self.carried_out.borrow_mut().retain(|stream, _| named.contains(stream));
        let end = self.shop.keeper.log().visible();
        self.pumps.borrow_mut().retain(|stream, pumps| {
            let stays = named.contains(stream);
            if !stays {
                pumps.iter().for_each(|(name, pump)| {
                    pump.stop();
                    self.ends.note(*stream, name, end);
                });
            }
            stays
        });
        self.sorters.borrow_mut().retain(|stream, sorter| {
            let stays = named.contains(stream);
            if !stays {
                sorter.stop();
            }
            stays
        });
    }

    fn sync_stream(&self, stream: &Arc<Stream>, feed: &Rc<Feed>, version: u64) -> Result<(), AppendError> {
        if self.carried_out.borrow().get(&feed.id).is_some_and(|known| Arc::ptr_eq(known, stream)) {
            return Ok(());
        }
        self.shop.keeper.follow(feed, stream);
        let sorter = self.sorter(feed);
        let mut pumps = self.pumps.borrow_mut();
        let pumps = pumps.entry(feed.id).or_default();
        let (mut running, mut outcome) = (Vec::with_capacity(stream.subscribers.len()), Ok(()));
        for subscriber in &stream.subscribers {
            let order = Order { stream: Arc::clone(stream), subscriber: Arc::clone(subscriber) };
            let pump = match pumps.get(&subscriber.name) {
                Some(pump) => {
                    pump.reorder(order);
                    pump
                }
                None => match Pump::start(&self.shop, feed, &sorter, order) {
                    Ok(pump) => {
                        self.ends.take_back(feed.id, &subscriber.name);
                        pumps.entry(subscriber.name.clone()).insert(pump).into_mut()
                    }
                    Err(why) => {
                        outcome = Err(why); // the others still are
                        continue;
                    }
                },
            };
            pump.named_in.set(version);
            running.push((Arc::clone(subscriber), Rc::clone(&pump.line)));
        }
        let end = self.shop.keeper.log().visible();
        pumps.retain(|name, pump| {
            let stays = pump.named_in.get() == version;
            if !stays {
                pump.stop();
                self.ends.note(feed.id, name, end);
            }
            stays
        });
        sorter.enroll(running);
        if outcome.is_ok() {
            self.carried_out.borrow_mut().insert(feed.id, Arc::clone(stream));
        } else {
            self.carried_out.borrow_mut().remove(&feed.id);
        }
        outcome
    }

    fn sorter(&self, feed: &Rc<Feed>) -> Rc<Sorter> {
        let mut sorters = self.sorters.borrow_mut();
        let start = || Sorter::start(&self.shop.ring, &self.shop.keeper, feed);
        Rc::clone(sorters.entry(feed.id).or_insert_with(start))
    }

    /// Whether the newest table has been carried out, as far as this stream is concerned.
    pub fn serves(&self, stream: &Stream) -> bool {
        if self.table.borrow().version == self.version.get() {
            return true; // all of it has: the usual case
        }
        let Ok(feed) = self.shop.keeper.feed_of(stream) else { return false };
        let pumps = self.pumps.borrow();
        let running = pumps.get(&feed.id);
        stream
            .subscribers
            .iter()
            .all(|subscriber| running.is_some_and(|pumps| pumps.contains_key(&subscriber.name)))
    }

    /// What a subscriber has still to get, by its place in the log and by the counters: the same, always.
    #[cfg(test)]
    pub fn outstanding(&self, stream: &Stream, subscriber: &str) -> Option<(u64, u64)> {
        let feed = self.shop.keeper.feed_of(stream).ok()?;
        let pumps = self.pumps.borrow();
        let pump = pumps.get(&feed.id)?.get(subscriber).filter(|pump| !pump.is_stopped())?;
        pump.catch_up();
        Some((self.shop.keeper.log().open_events(feed.id, &pump.place.mark()), pump.pending.get()))
    }

    /// Starts no more deliveries and waits for those under way.
    pub async fn drain(&self) {
        let pumps: Vec<_> = self.pumps.borrow().values().flat_map(Pumps::values).map(Rc::clone).collect();
        for pump in &pumps {
            pump.hold();
        }
        for pump in &pumps {
            pump.idle().await;
        }
    }
}
