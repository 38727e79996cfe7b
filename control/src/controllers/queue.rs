//! What has to be looked at: a queue of objects by name.
//!
//! An object waits at most once, is in work at most once, and comes back if it was named again meanwhile.
//! A failure brings it back later, each time twice as late.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// First and longest delay of a retry. The first is short, because most failures are a write that
/// crossed another one; the longest is what a person waits for without wondering.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// The kinds that have a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Service,
    Configuration,
    Revision,
    /// The instances of a Revision.
    Pods,
    /// How a Revision is scaled, as its objects say it.
    Scaling,
    Route,
    DomainMapping,
    Broker,
    Trigger,
    Channel,
    InMemoryChannel,
    Subscription,
    EventType,
    EventPolicy,
    Sequence,
    Parallel,
    Ingress,
    /// One that may get a Broker.
    Namespace,
    PingSource,
    ApiServerSource,
    ContainerSource,
    SinkBinding,
}

/// One object to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Item {
    #[must_use]
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Item>,
    /// The same items as in `ready`.
    waiting: HashSet<Item>,
    busy: HashSet<Item>,
    /// Named while busy.
    again: HashSet<Item>,
    later: BTreeMap<(Instant, Item), ()>,
    failures: HashMap<Item, u32>,
}

impl Queue {
    pub fn add(&self, item: Item) {
        self.lock().add(item);
        self.bell.notify_one();
    }

    /// Brings the item up again after `delay`, whatever happens to it until then.
    pub fn add_later(&self, item: Item, delay: Duration) {
        self.lock().later.insert((Instant::now() + delay, item), ());
        self.bell.notify_one();
    }

    /// The next item; the caller gives it back with [`Queue::done`] or [`Queue::failed`].
    pub async fn take(&self) -> Item {
        loop {
            let next_due = {
                let mut state = self.lock();
                state.wake(Instant::now());
                if let Some(item) = state.ready.pop_front() {
                    state.waiting.remove(&item);
                    state.busy.insert(item.clone());
                    return item;
                }
                state.later.first_key_value().map(|((at, _), ())| *at)
            };
            match next_due {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.bell.notified() => {}
                },
                None => self.bell.notified().await,
            }
        }
    }

    pub fn done(&self, item: &Item) {
        let mut state = self.lock();
        state.failures.remove(item);
        state.release(item);
        drop(state);
        self.bell.notify_one();
    }

    /// Brings the item back after a while; returns how long.
    pub fn failed(&self, item: &Item) -> Duration {
        let mut state = self.lock();
        let failures = state.failures.entry(item.clone()).or_default();
        let delay = RETRY_DELAY_MIN.saturating_mul(1 << (*failures).min(16)).min(RETRY_DELAY_MAX);
        *failures = failures.saturating_add(1);
        state.later.insert((Instant::now() + delay, item.clone()), ());
        state.release(item);
        drop(state);
        self.bell.notify_one();
        delay
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, item: Item) {
        if self.busy.contains(&item) {
            self.again.insert(item);
        } else if self.waiting.insert(item.clone()) {
            self.ready.push_back(item);
        }
    }

    fn release(&mut self, item: &Item) {
        self.busy.remove(item);
        if self.again.remove(item) {
            self.add(item.clone());
        }
    }

    fn wake(&mut self, now: Instant) {
        while let Some(first) = self.later.first_entry() {
            if first.key().0 > now {
                return;
            }
            let ((_, item), ()) = first.remove_entry();
            self.add(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str) -> Item {
        Item::new(Kind::Service, "ns", name)
    }

    #[tokio::test]
    async fn an_item_named_twice_is_taken_once() {
        let queue = Queue::default();
        queue.add(item("a"));
        queue.add(item("a"));
        queue.add(item("b"));
        assert_eq!(queue.take().await, item("a"));
        assert_eq!(queue.take().await, item("b"));
        assert!(queue.lock().ready.is_empty());
    }

    #[tokio::test]
    async fn an_item_named_while_in_work_comes_back_after_it() {
        let queue = Queue::default();
        queue.add(item("a"));
        let first = queue.take().await;
        queue.add(item("a"));
        assert!(queue.lock().ready.is_empty());
        queue.done(&first);
        assert_eq!(queue.take().await, item("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_later_and_later_until_one_success() {
        let queue = Queue::default();
        queue.add(item("a"));
        let mut delays = Vec::new();
        for _ in 0..20 {
            let taken = queue.take().await;
            delays.push(queue.failed(&taken));
        }
        assert_eq!(delays[0], RETRY_DELAY_MIN);
        assert_eq!(delays[1], RETRY_DELAY_MIN * 2);
        assert_eq!(delays[19], RETRY_DELAY_MAX);
        let taken = queue.take().await;
        queue.done(&taken);
        queue.add(item("a"));
        let taken = queue.take().await;
        assert_eq!(queue.failed(&taken), RETRY_DELAY_MIN);
    }
}
