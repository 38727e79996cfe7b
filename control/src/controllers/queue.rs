//! What has to be looked at: a queue of objects by name.
//!
//! An object waits at most once, is in work at most once, and comes back if it was named again meanwhile.
//! A failure brings it back later, each time twice as late.
//!
//! What makes requests flow goes before what only shows it. While a thousand Services are created, a state that lasts for a
//! moment need not be written: whoever looks at it later writes what came of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// First and longest delay of a retry. The first is short, because most failures are a write that
/// crossed another one; the longest is what a person waits for without wondering.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Of so many items that are taken, one is of those that only show: they wait, and do not starve.
const SHOWN_EVERY: u64 = 8;
/// Items that wait to make something flow, from which on there is no time for states in between: more than can be in work at once.
const PRESSED_AT: usize = 32;
/// Times that one item's state in between is not written.
const PUT_OFF_MAX: u32 = 3;

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
    Certificate,
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

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() {
            write!(f, "{kind:?} {name}")
        } else {
            write!(f, "{kind:?} {namespace}/{name}")
        }
    }
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
    /// Rung for whoever waits until nothing is looked at any more.
    worked: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they came.
    ready: [BTreeMap<u64, Item>; 2],
    /// The same items as in `ready`, and where they are there.
    waiting: HashMap<Item, (Rank, u64)>,
    busy: HashSet<Item>,
    /// Named while busy.
    again: HashMap<Item, Rank>,
    later: BTreeMap<(Instant, Item), ()>,
    failures: HashMap<Item, u32>,
    put_off: HashMap<Item, u32>,
    /// Items that came, and that were taken.
    added: u64,
    taken: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Makes something flow.
    Flow,
    /// Tells of it.
    Show,
}

impl Item {
    fn rank(&self) -> Rank {
        if matches!(self.kind, Kind::Pods | Kind::Scaling) { Rank::Show } else { Rank::Flow }
    }
}

impl Queue {
    pub fn add(&self, item: Item) {
        let rank = item.rank();
        self.lock().add(item, rank);
        self.bell.notify_one();
    }

    /// Whether the item in work shall not write the state that it is in, because more urgent work waits and that state
    /// will soon be another; then it comes back behind that work.
    pub fn put_off(&self, item: &Item) -> bool {
        let mut state = self.lock();
        let times = state.put_off.get(item).copied().unwrap_or(0);
        if state.ready[Rank::Flow as usize].len() < PRESSED_AT || times == PUT_OFF_MAX {
            return false;
        }
        state.put_off.insert(item.clone(), times + 1);
        state.add(item.clone(), Rank::Show);
        true
    }

    /// Brings the item up again after `delay`, whatever happens to it until then.
    pub fn add_later(&self, item: Item, delay: Duration) {
        self.lock().later.insert((Instant::now() + delay, item), ());
        self.bell.notify_one();
    }

    /// Brings the item up again after `delay`, unless that happens by then anyway.
    pub fn add_within(&self, item: &Item, delay: Duration) {
        let due = Instant::now() + delay;
        let mut state = self.lock();
        if !state.later.keys().take_while(|(at, _)| *at <= due).any(|(_, known)| known == item) {
            state.later.insert((due, item.clone()), ());
            drop(state);
            self.bell.notify_one();
        }
    }

    /// The next item; the caller gives it back with [`Queue::done`] or [`Queue::failed`].
    pub async fn take(&self) -> Item {
        loop {
            let next_due = {
                let mut state = self.lock();
                state.wake(Instant::now());
                if let Some(item) = state.pop() {
                    self.worked.notify_one();
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

    /// Returns when an item was taken since the last time.
    pub async fn worked(&self) {
        self.worked.notified().await;
    }

    /// Gives back the room of many items, when few are left.
    pub fn rest(&self) {
        let mut state = self.lock();
        state.waiting.shrink_to_fit();
        state.busy.shrink_to_fit();
        state.again.shrink_to_fit();
        state.failures.shrink_to_fit();
        state.put_off.shrink_to_fit();
    }

    pub fn done(&self, item: &Item) {
        let mut state = self.lock();
        state.failures.remove(item);
        if !state.again.contains_key(item) {
            state.put_off.remove(item);
        }
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
    fn add(&mut self, item: Item, rank: Rank) {
        if self.busy.contains(&item) {
            let again = self.again.entry(item).or_insert(rank);
            *again = rank.min(*again);
            return;
        }
        if let Some((known, at)) = self.waiting.get(&item) {
            if *known <= rank {
                return;
            }
            self.ready[*known as usize].remove(at);
        }
        self.added += 1;
        self.waiting.insert(item.clone(), (rank, self.added));
        self.ready[rank as usize].insert(self.added, item);
    }

    fn pop(&mut self) -> Option<Item> {
        let first = if self.taken % SHOWN_EVERY == SHOWN_EVERY - 1 { Rank::Show } else { Rank::Flow };
        let second = if first == Rank::Flow { Rank::Show } else { Rank::Flow };
        let item = [first, second].iter().find_map(|rank| self.ready[*rank as usize].pop_first())?.1;
        self.taken += 1;
        self.waiting.remove(&item);
        self.busy.insert(item.clone());
        Some(item)
    }

    fn release(&mut self, item: &Item) {
        self.busy.remove(item);
        if let Some(rank) = self.again.remove(item) {
            self.add(item.clone(), rank);
        }
    }

    fn wake(&mut self, now: Instant) {
        while let Some(first) = self.later.first_entry() {
            if first.key().0 > now {
                return;
            }
            let ((_, item), ()) = first.remove_entry();
            let rank = item.rank();
            self.add(item, rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str) -> Item {
        Item::new(Kind::Service, "ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_comes_up_anyway_is_not_brought_up_twice() {
        let queue = Queue::default();
        let second = Duration::from_secs(1);
        queue.add_within(&item("a"), second);
        queue.add_within(&item("a"), second);
        queue.add_within(&item("b"), second);
        let began = Instant::now();
        for name in ["a", "b"] {
            let taken = queue.take().await;
            assert_eq!((&taken, Instant::now() - began), (&item(name), second));
            queue.done(&taken);
        }
        queue.add_within(&item("a"), second);
        assert_eq!(queue.take().await, item("a"));
        assert_eq!(Instant::now() - began, second * 2);
    }

    #[tokio::test]
    async fn an_item_named_twice_is_taken_once() {
        let queue = Queue::default();
        queue.add(item("a"));
        queue.add(item("a"));
        queue.add(item("b"));
        assert_eq!(queue.take().await, item("a"));
        assert_eq!(queue.take().await, item("b"));
        assert!(queue.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn an_item_named_while_in_work_comes_back_after_it() {
        let queue = Queue::default();
        queue.add(item("a"));
        let first = queue.take().await;
        queue.add(item("a"));
        assert!(queue.lock().waiting.is_empty());
        queue.done(&first);
        assert_eq!(queue.take().await, item("a"));
    }

    #[tokio::test]
    async fn what_makes_requests_flow_goes_first_and_the_rest_does_not_starve() {
        let queue = Queue::default();
        let pods = |name: &str| Item::new(Kind::Pods, "ns", name);
        queue.add(pods("a"));
        queue.add(pods("b"));
        let count = SHOWN_EVERY + 2;
        (0..count).for_each(|n| queue.add(item(&n.to_string())));
        let mut taken = Vec::new();
        for _ in 0..count + 2 {
            taken.push(queue.take().await);
        }
        let mut expected: Vec<_> = (0..count).map(|n| item(&n.to_string())).collect();
        expected.insert(usize::try_from(SHOWN_EVERY).unwrap() - 1, pods("a"));
        expected.push(pods("b"));
        assert_eq!(taken, expected);
    }

    #[tokio::test]
    async fn a_state_in_between_is_put_off_while_others_wait_and_so_many_times() {
        let queue = Queue::default();
        queue.add(item("a"));
        let first = queue.take().await;
        assert!(!queue.put_off(&first), "nobody waits");
        (0..PRESSED_AT * 2).for_each(|n| queue.add(item(&format!("other-{n}"))));
        for _ in 0..PUT_OFF_MAX {
            assert!(queue.put_off(&first));
            queue.done(&first);
            while queue.take().await != first {}
            (0..PRESSED_AT).for_each(|n| queue.add(item(&format!("more-{n}"))));
        }
        assert!(!queue.put_off(&first), "it has to be written some time");
        queue.done(&first);
        assert!(queue.lock().put_off.is_empty(), "what is written is forgotten");
    }

    #[tokio::test]
    async fn what_was_put_off_comes_at_once_when_something_happens_to_it() {
        let queue = Queue::default();
        queue.add(item("a"));
        let first = queue.take().await;
        (0..PRESSED_AT).for_each(|n| queue.add(item(&format!("other-{n}"))));
        assert!(queue.put_off(&first));
        queue.done(&first);
        queue.add(item("a"));
        let mut taken = HashSet::new();
        for _ in 0..=PRESSED_AT {
            assert!(taken.insert(queue.take().await), "an item is taken twice");
        }
        assert!(taken.contains(&first));
        assert!(queue.lock().waiting.is_empty() && queue.lock().ready.iter().all(BTreeMap::is_empty));
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
