//! The pending queue of one core: requests whose backend has no instance with free capacity.
//!
//! Bounded by bytes as well as by count, because a burst of large requests to a scaled-to-zero backend must cost the
//! callers a 503 and never cost the process its memory. Each backend has its own queue, and only the first request of a
//! queue is notified. If it gets a permit it leaves and the next is notified; if not, it keeps its turn. So requests
//! leave in order of arrival, whether a new table brought instances or a request released a permit. The backend's
//! [`FairQueue`](contract::fair_queue::FairQueue), to which each core publishes its own head, decides which core's head
//! goes next.
//!
//! No I/O and no clock: the task of each request holds its deadline and leaves by itself.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use contract::fair_queue::QueueHead;

/// How much may wait on one core.
#[derive(Debug, Clone, Copy)]
pub struct PendingQueueLimits {
    /// Requests of all backends. Knative's activator queues 10,000 for each revision.
    pub queued_max: usize,
    /// Bytes of heads and of the body bytes that came with them.
    pub bytes_max: usize,
}

impl Default for PendingQueueLimits {
    fn default() -> Self {
        Self { queued_max: 10_000, bytes_max: 64 * 1024 * 1024 }
    }
}

/// Why a request cannot enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRejection {
    Count,
    Bytes,
}

/// A queued request's handle. It must be released with [`PendingQueue::remove`].
#[derive(Debug)]
pub struct PendingTicket {
    key: Rc<str>,
    number: u64,
}

/// The waiting requests, by backend.
#[derive(Debug, Default)]
pub struct PendingQueue {
    limits: PendingQueueLimits,
    queues: HashMap<Rc<str>, BackendQueue, RandomState>,
    /// Sum of all queues' lengths, at most `limits.queued_max`.
    queued: usize,
    /// Sum of all requests' bytes, at most `limits.bytes_max`.
    queued_bytes: usize,
    next_number: u64,
}

#[derive(Debug)]
struct BackendQueue {
    /// In order of arrival, so by rising number; never empty.
    requests: VecDeque<PendingRequest>,
    /// Control was asked for an instance.
    demand_sent: bool,
    /// The queue head that other cores see.
    front: Arc<QueueHead>,
}

#[derive(Debug)]
struct PendingRequest {
    number: u64,
    /// The number among the requests of all cores.
    ticket: u64,
    bytes: usize,
    /// A permit may be free: try again once woken.
    notified: bool,
    waker: Option<Waker>,
}

impl PendingQueue {
    #[must_use]
    pub fn new(limits: PendingQueueLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Appends a request to its backend's queue. `front` publishes the head of that queue.
    pub fn enqueue(
        &mut self,
        backend: &str,
        bytes: usize,
        ticket: u64,
        front: &Arc<QueueHead>,
    ) -> Result<PendingTicket, QueueRejection> {
        if self.queued == self.limits.queued_max {
            return Err(QueueRejection::Count);
        }
        if bytes > self.limits.bytes_max - self.queued_bytes {
            return Err(QueueRejection::Bytes);
        }

        let key = match self.queues.get_key_value(backend) {
            Some((key, _)) => Rc::clone(key),
            None => Rc::from(backend),
        };
        let number = self.next_number;
        self.next_number += 1;
        self.queued += 1;
        self.queued_bytes += bytes;
        let pending = PendingRequest { number, ticket, bytes, notified: false, waker: None };
        let new = || BackendQueue { requests: VecDeque::new(), demand_sent: false, front: Arc::clone(front) };
        let queue = self.queues.entry(Rc::clone(&key)).or_insert_with(new);
        queue.requests.push_back(pending);
        if !Arc::ptr_eq(&queue.front, front) {
            // A backend of the same name replaced one that was deleted; requests for the old one leave when they check.
            queue.front.show(None);
            queue.front = Arc::clone(front);
        }
        queue.show();
        Ok(PendingTicket { key, number })
    }

    /// Removes a request. If it had been notified, the notification passes to the next one, whose waker is returned.
    #[must_use]
    pub fn remove(&mut self, ticket: PendingTicket) -> Option<Waker> {
        let queue = self.queues.get_mut(&ticket.key)?;
        let at = queue.requests.binary_search_by_key(&ticket.number, |pending| pending.number).ok()?;
        let pending = queue.requests.remove(at)?;
        self.queued -= 1;
        self.queued_bytes -= pending.bytes;
        queue.show();
        if queue.requests.is_empty() {
            self.queues.remove(&ticket.key);
            return None;
        }
        if at == 0 { self.notify_first(&ticket.key) } else { None }
    }

    /// A permit of `backend` may be free: notifies its first request and returns its waker.
    #[must_use]
    pub fn notify_first(&mut self, backend: &str) -> Option<Waker> {
        let pending = self.queues.get_mut(backend)?.requests.front_mut()?;
        pending.notified = true;
        pending.waker.take()
    }

    /// A new table, or a wake-up from another core: notifies the first request of every backend.
    #[must_use]
    pub fn notify_all(&mut self) -> Vec<Waker> {
        let fronts = self.queues.values_mut().filter_map(|queue| queue.requests.front_mut());
        fronts
            .filter_map(|pending| {
                pending.notified = true;
                pending.waker.take()
            })
            .collect()
    }

    /// Whether control was asked for an instance since requests wait for `backend`, or since the last table.
    #[must_use]
    pub fn is_demand_sent(&self, backend: &str) -> bool {
        self.queues.get(backend).is_some_and(|queue| queue.demand_sent)
    }

    pub fn set_demand_sent(&mut self, backend: &str, asked: bool) {
        if let Some(queue) = self.queues.get_mut(backend) {
            queue.demand_sent = asked;
        }
    }

    /// A new table came: requests that still get no permit ask for an instance once more.
    pub fn resend_demand(&mut self) {
        for queue in self.queues.values_mut() {
            queue.demand_sent = false;
        }
    }

    /// Whether the ticket's request was notified since the last call; if not, `waker` is stored.
    #[must_use]
    pub fn take_notification(&mut self, ticket: &PendingTicket, waker: &Waker) -> bool {
        let Some(BackendQueue { requests: queue, .. }) = self.queues.get_mut(&ticket.key) else {
            return true;
        };
        let Ok(at) = queue.binary_search_by_key(&ticket.number, |pending| pending.number) else { return true };
        let pending = &mut queue[at];
        if std::mem::take(&mut pending.notified) {
            return true;
        }
        if !pending.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            pending.waker = Some(waker.clone());
        }
        false
    }

    /// Whether requests wait for `backend`, so that a new one has to queue behind them.
    #[must_use]
    pub fn has_pending(&self, backend: &str) -> bool {
        self.queued > 0 && self.queues.contains_key(backend)
    }

    /// The head that other cores see of the queue for `backend`, if there is one.
    #[must_use]
    pub fn front(&self, backend: &str) -> Option<&QueueHead> {
        self.queues.get(backend).map(|queue| &*queue.front)
    }

    #[must_use]
    pub fn is_first(&self, ticket: &PendingTicket) -> bool {
        self.queues
            .get(&ticket.key)
            .and_then(|queue| queue.requests.front())
            .is_some_and(|pending| pending.number == ticket.number)
    }

    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }

    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }
}

impl BackendQueue {
    fn show(&self) {
        self.front.show(self.requests.front().map(|pending| pending.ticket));
    }
}

#[cfg(test)]
mod tests {
    use ring::sim::{FaultProfile, Simulation};

    use super::*;
    use contract::fair_queue::FairQueue;

    fn guard(queue: &mut PendingQueue, backend: &str, bytes: usize) -> Result<PendingTicket, QueueRejection> {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let front = FairQueue::default().front(0, &ring.wake_handle());
        ring.shutdown();
        queue.enqueue(backend, bytes, 0, &front)
    }

    fn queue(queued_max: usize, bytes_max: usize) -> PendingQueue {
        PendingQueue::new(PendingQueueLimits { queued_max, bytes_max })
    }

    fn notified(queue: &mut PendingQueue, ticket: &PendingTicket) -> bool {
        queue.take_notification(ticket, Waker::noop())
    }

    #[test]
    fn rejected_request_leaves_queue_unchanged() {
        let mut queue = queue(2, 100);
        let first = guard(&mut queue, "a", 60).unwrap();
        assert_eq!(guard(&mut queue, "a", 41).unwrap_err(), QueueRejection::Bytes);
        assert_eq!((queue.queued(), queue.queued_bytes()), (1, 60));
        assert!(!queue.has_pending("b"));

        let second = guard(&mut queue, "b", 40).unwrap();
        assert_eq!(guard(&mut queue, "c", 0).unwrap_err(), QueueRejection::Count);
        assert_eq!((queue.queued(), queue.queued_bytes()), (2, 100));
        assert!(!queue.has_pending("c"));

        drop(queue.remove(first));
        drop(queue.remove(second));
        assert_eq!((queue.queued(), queue.queued_bytes()), (0, 0));
        assert!(!queue.has_pending("a") && queue.queues.is_empty());
    }

    #[test]
    fn only_first_request_is_notified_and_passes_it_on() {
        let mut queue = queue(9, 9);
        let tickets: Vec<_> = (0..3).map(|_| guard(&mut queue, "a", 1).unwrap()).collect();
        let other = guard(&mut queue, "b", 1).unwrap();
        let _ = queue.notify_first("a");
        assert_eq!(tickets.iter().map(|g| notified(&mut queue, g)).collect::<Vec<_>>(), [true, false, false]);
        assert!(!notified(&mut queue, &other));
        // It got no permit and keeps its turn.
        let _ = queue.notify_first("a");
        assert!(notified(&mut queue, &tickets[0]));

        let mut tickets = tickets.into_iter();
        let _ = queue.remove(tickets.next().unwrap());
        let second = tickets.next().unwrap();
        assert!(queue.is_first(&second));
        assert!(notified(&mut queue, &second));
    }

    #[test]
    fn removal_from_the_middle_notifies_no_request() {
        let mut queue = queue(9, 9);
        let first = guard(&mut queue, "a", 1).unwrap();
        let second = guard(&mut queue, "a", 1).unwrap();
        let third = guard(&mut queue, "a", 1).unwrap();
        let _ = queue.remove(second);
        assert!(!notified(&mut queue, &first) && !notified(&mut queue, &third));
    }

    #[test]
    fn new_table_notifies_first_request_of_each_backend() {
        let mut queue = queue(9, 9);
        let tickets: Vec<_> = ["a", "a", "b"].map(|key| guard(&mut queue, key, 0).unwrap()).into();
        for ticket in &tickets {
            assert!(!notified(&mut queue, ticket));
        }
        assert_eq!(queue.notify_all().len(), 2);
        assert_eq!(tickets.iter().map(|t| notified(&mut queue, t)).collect::<Vec<_>>(), [true, false, true]);
    }
}
