//! The work queue: objects to reconcile, by name.
//!
//! An object is queued at most once, is processed at most once at a time, and is queued again if it was added
//! meanwhile. A failure requeues it with exponential backoff.
//!
//! Work that affects traffic goes before work that only updates statuses. While a thousand Services are created, a
//! state that lasts for a moment need not be written: a later reconcile writes its outcome.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// First and longest delay of a retry. The first is short, because most failures are a write that
/// crossed another one; the longest is what a person waits for without wondering.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(5);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// An item that is due later than in a day is looked at once a day: deadlines of clients may be centuries away, beyond any clock.
const DELAY_MAX: Duration = Duration::from_secs(86_400);

/// One of this many taken items is of the low priority, so that these do not starve.
const STATUS_TURN_EVERY: u64 = 8;
/// Items that wait to make something flow, from which on there is no time for states in between: more than can be in work at once.
const BUSY_AT: usize = 32;
/// Times that one item's state in between is not written.
const REQUEUES_MAX: u32 = 3;

/// The controller that reconciles an item, by its name; mostly that of the kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ControllerKind {
    name: &'static str,
    priority: WorkPriority,
}

impl ControllerKind {
    /// A controller whose work makes something flow.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, priority: WorkPriority::Traffic }
    }

    /// One that only shows how things are.
    #[must_use]
    pub const fn of_statuses(name: &'static str) -> Self {
        Self { name, priority: WorkPriority::Status }
    }
}

impl fmt::Debug for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// One object to reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkItem {
    pub kind: ControllerKind,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for WorkItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() { write!(f, "{kind:?} {name}") } else { write!(f, "{kind:?} {namespace}/{name}") }
    }
}

impl WorkItem {
    #[must_use]
    pub fn new(kind: ControllerKind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[derive(Debug, Default)]
pub struct WorkQueue {
    state: Mutex<WorkQueueState>,
    item_added: Notify,
    /// Notified when an item is taken, for tasks that wait until the queue is empty.
    item_taken: Notify,
    /// Notified when one is given back, for those that wait for its work.
    item_done: Notify,
}

#[derive(Debug, Default)]
struct WorkQueueState {
    /// In the order in which they came.
    ready: [BTreeMap<u64, WorkItem>; 2],
    /// The same items as in `ready`, and where they are there.
    queued: HashMap<WorkItem, (WorkPriority, u64)>,
    /// And how many had been added when each of them was.
    processing: HashMap<WorkItem, u64>,
    /// Added while in work, with what number.
    dirty: HashMap<WorkItem, (WorkPriority, u64)>,
    delayed: BTreeMap<(Instant, WorkItem), ()>,
    failures: HashMap<WorkItem, u32>,
    requeued: HashMap<WorkItem, u32>,
    /// Items that came, and that were taken.
    added: u64,
    taken: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum WorkPriority {
    /// Makes something flow.
    Traffic,
    /// Only updates a status.
    Status,
}

impl WorkQueue {
    pub fn add(&self, item: WorkItem) {
        let rank = item.kind.priority;
        self.lock().add(item, rank);
        self.item_added.notify_one();
    }

    /// Whether the item in work shall not write the state that it is in, because more urgent work waits and that state
    /// will soon be another; then it comes back behind that work.
    pub fn requeue(&self, item: &WorkItem) -> bool {
        let mut state = self.lock();
        let times = state.requeued.get(item).copied().unwrap_or(0);
        if state.ready[WorkPriority::Traffic as usize].len() < BUSY_AT || times == REQUEUES_MAX {
            return false;
        }
        state.requeued.insert(item.clone(), times + 1);
        state.add(item.clone(), WorkPriority::Status);
        true
    }

    /// Brings the item up again after `delay`, whatever happens to it until then.
    pub fn add_after(&self, item: WorkItem, delay: Duration) {
        self.lock().delayed.insert((Instant::now() + delay.min(DELAY_MAX), item), ());
        self.item_added.notify_one();
    }

    /// Brings the item up again after `delay`, unless that happens by then anyway.
    pub fn add_after_unless_sooner(&self, item: &WorkItem, delay: Duration) {
        let due = Instant::now() + delay.min(DELAY_MAX);
        let mut state = self.lock();
        if !state.delayed.keys().take_while(|(at, _)| *at <= due).any(|(_, known)| known == item) {
            state.delayed.insert((due, item.clone()), ());
            drop(state);
            self.item_added.notify_one();
        }
    }

    /// The next item; the caller gives it back with [`WorkQueue::done`] or [`WorkQueue::add_rate_limited`].
    pub async fn get(&self) -> WorkItem {
        loop {
            let next_due = {
                let mut state = self.lock();
                state.move_due(Instant::now());
                if let Some(item) = state.pop() {
                    self.item_taken.notify_one();
                    return item;
                }
                state.delayed.first_key_value().map(|((at, _), ())| *at)
            };
            match next_due {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.item_added.notified() => {}
                },
                None => self.item_added.notified().await,
            }
        }
    }

    /// Returns when all work that makes something flow, and was queued or in work before, is done.
    pub async fn barrier(&self) {
        let last = self.lock().added;
        loop {
            let done = self.item_done.notified();
            if self.lock().is_done_up_to(last) {
                return;
            }
            done.await;
        }
    }

    /// Returns when an item was taken since the last time.
    pub async fn activity(&self) {
        self.item_taken.notified().await;
    }

    /// Gives back the room of many items, when few are left.
    pub fn shrink(&self) {
        let mut state = self.lock();
        state.queued.shrink_to_fit();
        state.processing.shrink_to_fit();
        state.dirty.shrink_to_fit();
        state.failures.shrink_to_fit();
        state.requeued.shrink_to_fit();
    }

    pub fn done(&self, item: &WorkItem) {
        let mut state = self.lock();
        state.failures.remove(item);
        if !state.dirty.contains_key(item) {
            state.requeued.remove(item);
        }
        state.finish(item);
        drop(state);
        self.item_added.notify_one();
        self.item_done.notify_waiters();
    }

    /// Brings the item back after a while; returns how long.
    pub fn add_rate_limited(&self, item: &WorkItem) -> Duration {
        let mut state = self.lock();
        let failures = state.failures.entry(item.clone()).or_default();
        let delay = RETRY_DELAY_MIN.saturating_mul(1 << (*failures).min(16)).min(RETRY_DELAY_MAX);
        *failures = failures.saturating_add(1);
        state.delayed.insert((Instant::now() + delay, item.clone()), ());
        state.finish(item);
        drop(state);
        self.item_added.notify_one();
        self.item_done.notify_waiters();
        delay
    }

    fn lock(&self) -> MutexGuard<'_, WorkQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkQueueState {
    fn add(&mut self, item: WorkItem, rank: WorkPriority) {
        self.added += 1;
        self.add_numbered(item, rank, self.added);
    }

    fn add_numbered(&mut self, item: WorkItem, rank: WorkPriority, number: u64) {
        if self.processing.contains_key(&item) {
            let (again, _) = self.dirty.entry(item).or_insert((rank, number));
            *again = rank.min(*again);
            return;
        }
        if let Some((known, at)) = self.queued.get(&item) {
            if *known <= rank {
                return;
            }
            self.ready[*known as usize].remove(at);
        }
        self.queued.insert(item.clone(), (rank, number));
        self.ready[rank as usize].insert(number, item);
    }

    fn pop(&mut self) -> Option<WorkItem> {
        let first = if self.taken % STATUS_TURN_EVERY == STATUS_TURN_EVERY - 1 {
            WorkPriority::Status
        } else {
            WorkPriority::Traffic
        };
        let second = if first == WorkPriority::Traffic { WorkPriority::Status } else { WorkPriority::Traffic };
        let (number, item) = [first, second].iter().find_map(|rank| self.ready[*rank as usize].pop_first())?;
        self.taken += 1;
        self.queued.remove(&item);
        self.processing.insert(item.clone(), number);
        Some(item)
    }

    fn finish(&mut self, item: &WorkItem) {
        self.processing.remove(item);
        if let Some((rank, number)) = self.dirty.remove(item) {
            self.add_numbered(item.clone(), rank, number);
        }
    }

    /// Whether all work for traffic that was added until then is done.
    fn is_done_up_to(&self, last: u64) -> bool {
        let is_later = |number: &u64| *number > last;
        let mut in_work = self.processing.iter().filter(|(item, _)| item.kind.priority == WorkPriority::Traffic);
        self.ready[WorkPriority::Traffic as usize].keys().next().is_none_or(is_later)
            && in_work.all(|(_, number)| is_later(number))
    }

    fn move_due(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                return;
            }
            let ((_, item), ()) = first.remove_entry();
            let rank = item.kind.priority;
            self.add(item, rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn item(name: &str) -> WorkItem {
        WorkItem::new(ControllerKind::new("Service"), "ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn barrier_waits_for_work_that_was_added_before_it() {
        let queue = WorkQueue::default();
        queue.barrier().await;
        queue.add(item("a"));
        queue.add(WorkItem::new(ControllerKind::of_statuses("Pod"), "ns", "a"));
        let taken = queue.get().await;
        queue.add(item("a")); // while it is in work: it runs again
        let passed =
            async |queue: &WorkQueue| tokio::time::timeout(Duration::from_secs(1), queue.barrier()).await.is_ok();
        assert!(!passed(&queue).await, "in work");
        queue.done(&taken);
        assert!(!passed(&queue).await, "queued again");
        let again = queue.get().await;
        assert_eq!(again, taken);
        let waiting = queue.barrier();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        queue.add(item("later"));
        queue.done(&again);
        assert!(futures_util::poll!(&mut waiting).is_ready(), "neither later work nor that of statuses counts");
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_comes_up_anyway_is_not_brought_up_twice() {
        let queue = WorkQueue::default();
        let second = Duration::from_secs(1);
        queue.add_after_unless_sooner(&item("a"), second);
        queue.add_after_unless_sooner(&item("a"), second);
        queue.add_after_unless_sooner(&item("b"), second);
        let began = Instant::now();
        for name in ["a", "b"] {
            let taken = queue.get().await;
            assert_eq!((&taken, Instant::now() - began), (&item(name), second));
            queue.done(&taken);
        }
        queue.add_after_unless_sooner(&item("a"), second);
        assert_eq!(queue.get().await, item("a"));
        assert_eq!(Instant::now() - began, second * 2);
    }

    #[tokio::test]
    async fn an_item_named_twice_is_taken_once() {
        let queue = WorkQueue::default();
        queue.add(item("a"));
        queue.add(item("a"));
        queue.add(item("b"));
        assert_eq!(queue.get().await, item("a"));
        assert_eq!(queue.get().await, item("b"));
        assert!(queue.lock().queued.is_empty());
    }

    #[tokio::test]
    async fn an_item_named_while_in_work_comes_back_after_it() {
        let queue = WorkQueue::default();
        queue.add(item("a"));
        let first = queue.get().await;
        queue.add(item("a"));
        assert!(queue.lock().queued.is_empty());
        queue.done(&first);
        assert_eq!(queue.get().await, item("a"));
    }

    #[tokio::test]
    async fn what_makes_requests_flow_goes_first_and_the_rest_does_not_starve() {
        let queue = WorkQueue::default();
        let pods = |name: &str| WorkItem::new(ControllerKind::of_statuses("Pods"), "ns", name);
        queue.add(pods("a"));
        queue.add(pods("b"));
        let count = STATUS_TURN_EVERY + 2;
        (0..count).for_each(|n| queue.add(item(&n.to_string())));
        let mut taken = Vec::new();
        for _ in 0..count + 2 {
            taken.push(queue.get().await);
        }
        let mut expected: Vec<_> = (0..count).map(|n| item(&n.to_string())).collect();
        expected.insert(usize::try_from(STATUS_TURN_EVERY).unwrap() - 1, pods("a"));
        expected.push(pods("b"));
        assert_eq!(taken, expected);
    }

    #[tokio::test]
    async fn a_state_in_between_is_put_off_while_others_wait_and_so_many_times() {
        let queue = WorkQueue::default();
        queue.add(item("a"));
        let first = queue.get().await;
        assert!(!queue.requeue(&first), "no other item waits");
        (0..BUSY_AT * 2).for_each(|n| queue.add(item(&format!("other-{n}"))));
        for _ in 0..REQUEUES_MAX {
            assert!(queue.requeue(&first));
            queue.done(&first);
            while queue.get().await != first {}
            (0..BUSY_AT).for_each(|n| queue.add(item(&format!("more-{n}"))));
        }
        assert!(!queue.requeue(&first), "it has to be written some time");
        queue.done(&first);
        assert!(queue.lock().requeued.is_empty(), "what is written is forgotten");
    }

    #[tokio::test]
    async fn what_was_put_off_comes_at_once_when_something_happens_to_it() {
        let queue = WorkQueue::default();
        queue.add(item("a"));
        let first = queue.get().await;
        (0..BUSY_AT).for_each(|n| queue.add(item(&format!("other-{n}"))));
        assert!(queue.requeue(&first));
        queue.done(&first);
        queue.add(item("a"));
        let mut taken = HashSet::new();
        for _ in 0..=BUSY_AT {
            assert!(taken.insert(queue.get().await), "an item is taken twice");
        }
        assert!(taken.contains(&first));
        assert!(queue.lock().queued.is_empty() && queue.lock().ready.iter().all(BTreeMap::is_empty));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_later_and_later_until_one_success() {
        let queue = WorkQueue::default();
        queue.add(item("a"));
        let mut delays = Vec::new();
        for _ in 0..20 {
            let taken = queue.get().await;
            delays.push(queue.add_rate_limited(&taken));
        }
        assert_eq!(delays[0], RETRY_DELAY_MIN);
        assert_eq!(delays[1], RETRY_DELAY_MIN * 2);
        assert_eq!(delays[19], RETRY_DELAY_MAX);
        let taken = queue.get().await;
        queue.done(&taken);
        queue.add(item("a"));
        let taken = queue.get().await;
        assert_eq!(queue.add_rate_limited(&taken), RETRY_DELAY_MIN);
    }
}
