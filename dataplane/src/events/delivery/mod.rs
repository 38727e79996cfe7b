//! Delivery: every subscriber of every stream of one log, each by itself.
//!
//! [`Desk::sync`] compares the table with what is running; `pump` is one subscriber's loop,
//! `attempt` one request and what its answer leads to, [`retry`] the arithmetic, `place` how far
//! a subscriber has come.

mod ahead;
mod attempt;
mod place;
pub mod post;
mod pump;
pub mod request;
mod retention;
pub mod retry;
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

use self::pump::{Order, Pump, Shop};
use self::sorter::Sorter;
use super::keeper::{Feed, HISTORY, Keeper};
use super::limits::{ABSENT_PATIENCE, TIDY_EVERY};
use crate::table::{Stream, Table};

type Key = (StreamId, Box<str>);

/// The deliveries out of one log.
pub struct Desk<P> {
    shop: Rc<Shop<P>>,
    pumps: RefCell<HashMap<Key, Rc<Pump<P>>, RandomState>>,
    sorters: RefCell<HashMap<StreamId, Rc<Sorter>, RandomState>>,
    table: RefCell<Arc<Table>>,
    /// The table's version that is running.
    version: Cell<u64>,
    /// What the log knows and the table does not, and since when.
    absent: RefCell<HashMap<Absent, Tick, RandomState>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Absent {
    Stream(Box<str>),
    Subscriber(StreamId, Box<str>),
}

impl<P: Post> Desk<P> {
    /// Delivers what is in `keeper`; replies go to `home`.
    pub fn new(ring: &Ring, keeper: &Rc<Keeper>, home: &Rc<Keeper>, post: P, seed: u64) -> Rc<Self> {
        let shop = Shop {
            ring: ring.clone(),
            keeper: Rc::clone(keeper),
            home: Rc::clone(home),
            post,
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
        };
        Rc::new(Self {
            shop: Rc::new(shop),
            pumps: RefCell::default(),
            sorters: RefCell::default(),
            table: RefCell::default(),
            version: Cell::new(0),
            absent: RefCell::default(),
        })
    }

    /// Makes the running subscribers those of the table. Called before every append with the newest
    /// table, so that an event posted right after a publish reaches a new subscriber (EV-TRG-12); costs
    /// one comparison when nothing has changed.
    pub fn sync(&self, table: &Arc<Table>) -> Result<(), AppendError> {
        if table.version == self.version.get() {
            return Ok(());
        }
        let mut named = HashSet::with_capacity_and_hasher(self.pumps.borrow().len(), RandomState::default());
        let synced = table
            .streams
            .values()
            .map(|stream| self.sync_stream(stream, &mut named))
            .fold(Ok(()), Result::and);
        self.pumps.borrow_mut().retain(|key, pump| {
            let stays = named.contains(key);
            if !stays {
                pump.stop();
            }
            stays
        });
        let streams: HashSet<StreamId> = named.iter().map(|(stream, _)| *stream).collect();
        self.sorters.borrow_mut().retain(|stream, sorter| {
            let stays = streams.contains(stream);
            if !stays {
                sorter.stop();
            }
            stays
        });
        self.table.replace(Arc::clone(table));
        synced?; // the next call tries again
        self.version.set(table.version);
        Ok(())
    }

    fn sync_stream(
        &self,
        stream: &Arc<Stream>,
        named: &mut HashSet<Key, RandomState>,
    ) -> Result<(), AppendError> {
        let feed = self.shop.keeper.feed(&stream.name)?;
        feed.follow(stream);
        let sorter = self.sorter(&feed);
        let (mut running, mut outcome) = (Vec::with_capacity(stream.subscribers.len()), Ok(()));
        for subscriber in &stream.subscribers {
            let key = (feed.id, subscriber.name.clone());
            named.insert(key.clone());
            let order = Order { stream: Arc::clone(stream), subscriber: Arc::clone(subscriber) };
            let found = self.pumps.borrow().get(&key).map(Rc::clone);
            if let Some(pump) = found {
                running.push((Arc::clone(subscriber), Rc::clone(&pump.line)));
                pump.reorder(order);
                continue;
            }
            match Pump::start(&self.shop, &feed, &sorter, order) {
                Ok(pump) => {
                    running.push((Arc::clone(subscriber), Rc::clone(&pump.line)));
                    self.pumps.borrow_mut().insert(key, pump);
                }
                Err(why) => outcome = Err(why), // the others still are
            }
        }
        sorter.enroll(running);
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
        let Ok(feed) = self.shop.keeper.feed(&stream.name) else { return false };
        let pumps = self.pumps.borrow();
        stream.subscribers.iter().all(|subscriber| pumps.contains_key(&(feed.id, subscriber.name.clone())))
    }

    /// Starts no more deliveries and waits for those under way.
    pub async fn drain(&self) {
        let pumps: Vec<_> = self.pumps.borrow().values().map(Rc::clone).collect();
        for pump in &pumps {
            pump.hold();
        }
        for pump in &pumps {
            pump.idle().await;
        }
    }

    /// Forgets what nobody names any more. Runs for ever.
    pub async fn tidy(&self) {
        loop {
            self.shop.ring.sleep(TIDY_EVERY).await;
            if self.version.get() > 0 {
                self.forget_absent(self.shop.ring.now());
            }
        }
    }

    fn forget_absent(&self, now: Tick) {
        let mut since = std::mem::take(&mut *self.absent.borrow_mut());
        let mut still = HashMap::default();
        for absent in self.find_absent() {
            let from = since.remove(&absent).unwrap_or(now);
            if now - from < ABSENT_PATIENCE {
                still.insert(absent, from);
                continue;
            }
            tracing::info!(?absent, "forgotten: the table has not named it for {ABSENT_PATIENCE:?}");
            match absent {
                Absent::Stream(name) => self.shop.keeper.forget_stream(&name),
                Absent::Subscriber(stream, name) => self.shop.keeper.forget_subscriber(stream, &name),
            }
        }
        self.absent.replace(still);
    }

    fn find_absent(&self) -> Vec<Absent> {
        let table = self.table.borrow();
        let named: HashSet<&str> = table.streams.values().map(|stream| &*stream.name).collect();
        let pumps = self.pumps.borrow();
        let log = self.shop.keeper.log();
        let mut absent = Vec::new();
        for (id, name) in log.streams() {
            if !named.contains(name) {
                absent.push(Absent::Stream(name.into()));
                continue;
            }
            let lost = log.bookmarks(id).filter(|(subscriber, _)| {
                *subscriber != HISTORY && !pumps.contains_key(&(id, (*subscriber).into()))
            });
            absent.extend(lost.map(|(subscriber, _)| Absent::Subscriber(id, subscriber.into())));
        }
        absent
    }
}
