//! The deliveries of a core from external stores: every subscriber has one core that reads its consumer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use contract::event_store::ExternalStream;
use contract::table::RoutingTable;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::send::EventSender;
use super::store_events::consumer;
use super::worker::{DispatchContext, SubscriberConfig, SubscriptionWorker};

pub(crate) struct StoreDispatcher<P> {
    context: Rc<DispatchContext<P>>,
    /// Whether this core serves the subscriber of this name.
    owns: Box<dyn Fn(&str) -> bool>,
    /// By the subscriber's name.
    workers: RefCell<HashMap<Box<str>, StoreWorker<P>, RandomState>>,
    /// The version of the table that is running.
    version: Cell<u64>,
}

struct StoreWorker<P> {
    worker: Rc<SubscriptionWorker<P>>,
    stream: Arc<ExternalStream>,
    unfinished_max: usize,
}

impl<P: EventSender> StoreDispatcher<P> {
    pub(super) fn new(context: &Rc<DispatchContext<P>>, owns: impl Fn(&str) -> bool + 'static) -> Self {
        let context = Rc::clone(context);
        Self { context, owns: Box::new(owns), workers: RefCell::default(), version: Cell::new(0) }
    }

    /// Starts and stops subscribers to match the table. Costs one comparison when nothing has changed.
    pub(crate) fn sync(&self, table: &RoutingTable) {
        if table.version <= self.version.get() {
            return;
        }
        self.version.set(table.version);
        let mut workers = self.workers.borrow_mut();
        for stream in table.streams.values() {
            let Some(external) = &stream.external else { continue };
            for subscriber in stream.subscribers.iter().filter(|subscriber| (self.owns)(&subscriber.name)) {
                let order = SubscriberConfig { stream: Arc::clone(stream), subscriber: Arc::clone(subscriber) };
                let unfinished_max = consumer(subscriber).unfinished_max;
                let running = workers.get(&subscriber.name);
                let kept = running.filter(|one| one.stream == *external && one.unfinished_max == unfinished_max);
                if let Some(kept) = kept {
                    kept.worker.reorder(order);
                    kept.worker.named_in.set(table.version);
                    continue;
                }
                let worker = SubscriptionWorker::start_on_store(&self.context, external, order);
                worker.named_in.set(table.version);
                let started = StoreWorker { worker, stream: Arc::clone(external), unfinished_max };
                if let Some(before) = workers.insert(subscriber.name.clone(), started) {
                    before.worker.stop();
                }
            }
        }
        workers.retain(|_, one| {
            let stays = one.worker.named_in.get() == table.version;
            if !stays {
                one.worker.stop();
            }
            stays
        });
    }

    /// Starts no more deliveries, waits for those in flight, and gives the rest back to the stores.
    pub(crate) async fn drain(&self) {
        let workers: Vec<_> = self.workers.borrow().values().map(|one| Rc::clone(&one.worker)).collect();
        workers.iter().for_each(|worker| worker.hold());
        for worker in &workers {
            worker.idle().await;
            worker.release();
        }
    }
}
