//! The waiting room of one core: requests whose backend has no instance with room.
//!
//! Bounded by bytes as well as by seats, because a burst of large requests to a sleeping backend must
//! cost the callers a 503 and never cost the process its memory. Each backend has a queue, and only
//! its front is ever called: when it finds a place it leaves and the next is called, when it finds
//! none it keeps its turn. So guests leave in the order in which they came, whether a table brought
//! new instances or a request gave one place back. Whose turn it is among the fronts of several cores
//! is known to the backend's [`Line`](crate::fair_queue::FairQueue), to which each queue shows its own.
//!
//! No I/O and no clock: a guest's own task holds its deadline and leaves.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::fair_queue::QueueHead;

/// How much may wait on one core.
#[derive(Debug, Clone, Copy)]
pub struct PendingQueueLimits {
    /// Guests of all backends; Knative's activator holds 10,000 for each revision.
    pub queued_max: usize,
    /// Bytes of heads and of what came with them.
    pub bytes_max: usize,
}

impl Default for PendingQueueLimits {
    fn default() -> Self {
        Self { queued_max: 10_000, bytes_max: 64 * 1024 * 1024 }
    }
}

/// Why a guest is turned away at the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRejection {
    Count,
    Bytes,
}

/// A guest's right to its seat. It has to be given back with [`PendingQueue::remove`].
#[derive(Debug)]
pub struct PendingTicket {
    key: Rc<str>,
    number: u64,
}

/// Who waits, by backend.
#[derive(Debug, Default)]
pub struct PendingQueue {
    limits: PendingQueueLimits,
    queues: HashMap<Rc<str>, BackendQueue, RandomState>,
    /// Sum of all queues' lengths, at most `limits.seats_max`.
    queued: usize,
    /// Sum of all guests' bytes, at most `limits.bytes_max`.
    queued_bytes: usize,
    next_number: u64,
}

#[derive(Debug)]
struct BackendQueue {
    /// In the order of arrival, so by rising number; never empty.
    requests: VecDeque<PendingRequest>,
    /// Control knows that an instance is wanted.
    demand_sent: bool,
    /// What other cores see of it.
    front: Arc<QueueHead>,
}

#[derive(Debug)]
struct PendingRequest {
    number: u64,
    /// ... among the guests of all cores.
    ticket: u64,
    bytes: usize,
    /// There may be a place: look, once you are woken.
    notified: bool,
    waker: Option<Waker>,
}

impl PendingQueue {
    #[must_use]
    pub fn new(limits: PendingQueueLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Sits a guest down at the end of its backend's queue, whose `front` shows whose turn it is there.
    pub fn enqueue(
        &mut self,
        backend: &str,
        bytes: usize,
        turn: u64,
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
        let guest = PendingRequest { number, ticket: turn, bytes, notified: false, waker: None };
        let new = || BackendQueue { requests: VecDeque::new(), demand_sent: false, front: Arc::clone(front) };
        let queue = self.queues.entry(Rc::clone(&key)).or_insert_with(new);
        queue.requests.push_back(guest);
        if !Arc::ptr_eq(&queue.front, front) {
            // A backend of the same name in place of one that was deleted; who came for that one goes when it looks.
            queue.front.show(None);
            queue.front = Arc::clone(front);
        }
        queue.show();
        Ok(PendingTicket { key, number })
    }

    /// Gives a seat back. If its guest had been called, the call goes to the next one, whose waker is
    /// returned.
    #[must_use]
    pub fn remove(&mut self, ticket: PendingTicket) -> Option<Waker> {
        let queue = self.queues.get_mut(&ticket.key)?;
        let at = queue.requests.binary_search_by_key(&ticket.number, |guest| guest.number).ok()?;
        let guest = queue.requests.remove(at)?;
        self.queued -= 1;
        self.queued_bytes -= guest.bytes;
        queue.show();
        if queue.requests.is_empty() {
            self.queues.remove(&ticket.key);
            return None;
        }
        if at == 0 { self.call(&ticket.key) } else { None }
    }

    /// There may be a place at `backend`: calls its first guest, whose waker is returned.
    #[must_use]
    pub fn call(&mut self, backend: &str) -> Option<Waker> {
        let guest = self.queues.get_mut(backend)?.requests.front_mut()?;
        guest.notified = true;
        guest.waker.take()
    }

    /// A new table, or a bell from another core: calls the first guest of every backend.
    #[must_use]
    pub fn call_all(&mut self) -> Vec<Waker> {
        let fronts = self.queues.values_mut().filter_map(|queue| queue.requests.front_mut());
        fronts
            .filter_map(|guest| {
                guest.notified = true;
                guest.waker.take()
            })
            .collect()
    }

    /// Whether control has been asked for an instance since somebody waits for `backend`, or since the
    /// last table.
    #[must_use]
    pub fn is_demand_sent(&self, backend: &str) -> bool {
        self.queues.get(backend).is_some_and(|queue| queue.demand_sent)
    }

    pub fn set_demand_sent(&mut self, backend: &str, asked: bool) {
        if let Some(queue) = self.queues.get_mut(backend) {
            queue.demand_sent = asked;
        }
    }

    /// A new table came: who still finds no place asks once more.
    pub fn resend_demand(&mut self) {
        for queue in self.queues.values_mut() {
            queue.demand_sent = false;
        }
    }

    /// Whether the ticket's guest has been called since it last asked; if not, `waker` is kept.
    #[must_use]
    pub fn take_call(&mut self, ticket: &PendingTicket, waker: &Waker) -> bool {
        let Some(BackendQueue { requests: queue, .. }) = self.queues.get_mut(&ticket.key) else {
            return true;
        };
        let Ok(at) = queue.binary_search_by_key(&ticket.number, |guest| guest.number) else { return true };
        let guest = &mut queue[at];
        if std::mem::take(&mut guest.notified) {
            return true;
        }
        if !guest.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            guest.waker = Some(waker.clone());
        }
        false
    }

    /// Whether somebody waits for `backend`, so that a newcomer has to sit down behind.
    #[must_use]
    pub fn anyone(&self, backend: &str) -> bool {
        self.queued > 0 && self.queues.contains_key(backend)
    }

    /// What other cores see of the queue for `backend`, if there is one.
    #[must_use]
    pub fn front(&self, backend: &str) -> Option<&QueueHead> {
        self.queues.get(backend).map(|queue| &*queue.front)
    }

    #[must_use]
    pub fn is_first(&self, ticket: &PendingTicket) -> bool {
        self.queues
            .get(&ticket.key)
            .and_then(|queue| queue.requests.front())
            .is_some_and(|guest| guest.number == ticket.number)
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
        self.front.show(self.requests.front().map(|guest| guest.ticket));
    }
}

#[cfg(test)]
mod tests {
    use ring::sim::{FaultProfile, Simulation};

    use super::*;
    use crate::fair_queue::FairQueue;

    fn seat(room: &mut PendingQueue, backend: &str, bytes: usize) -> Result<PendingTicket, QueueRejection> {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let front = FairQueue::default().front(0, &ring.wake_handle());
        ring.shutdown();
        room.enqueue(backend, bytes, 0, &front)
    }

    fn room(seats_max: usize, bytes_max: usize) -> PendingQueue {
        PendingQueue::new(PendingQueueLimits { queued_max: seats_max, bytes_max })
    }

    fn called(room: &mut PendingQueue, ticket: &PendingTicket) -> bool {
        room.take_call(ticket, Waker::noop())
    }

    #[test]
    fn a_refused_guest_leaves_the_room_as_it_was() {
        let mut room = room(2, 100);
        let first = seat(&mut room, "a", 60).unwrap();
        assert_eq!(seat(&mut room, "a", 41).unwrap_err(), QueueRejection::Bytes);
        assert_eq!((room.queued(), room.queued_bytes()), (1, 60));
        assert!(!room.anyone("b"));

        let second = seat(&mut room, "b", 40).unwrap();
        assert_eq!(seat(&mut room, "c", 0).unwrap_err(), QueueRejection::Count);
        assert_eq!((room.queued(), room.queued_bytes()), (2, 100));
        assert!(!room.anyone("c"));

        drop(room.remove(first));
        drop(room.remove(second));
        assert_eq!((room.queued(), room.queued_bytes()), (0, 0));
        assert!(!room.anyone("a") && room.queues.is_empty());
    }

    #[test]
    fn only_the_first_guest_is_called_and_hands_the_call_on() {
        let mut room = room(9, 9);
        let guests: Vec<_> = (0..3).map(|_| seat(&mut room, "a", 1).unwrap()).collect();
        let other = seat(&mut room, "b", 1).unwrap();
        let _ = room.call("a");
        assert_eq!(guests.iter().map(|g| called(&mut room, g)).collect::<Vec<_>>(), [true, false, false]);
        assert!(!called(&mut room, &other));
        // It found no place and keeps its turn.
        let _ = room.call("a");
        assert!(called(&mut room, &guests[0]));

        let mut guests = guests.into_iter();
        let _ = room.remove(guests.next().unwrap());
        let second = guests.next().unwrap();
        assert!(room.is_first(&second));
        assert!(called(&mut room, &second));
    }

    #[test]
    fn one_who_leaves_from_the_middle_calls_nobody() {
        let mut room = room(9, 9);
        let first = seat(&mut room, "a", 1).unwrap();
        let second = seat(&mut room, "a", 1).unwrap();
        let third = seat(&mut room, "a", 1).unwrap();
        let _ = room.remove(second);
        assert!(!called(&mut room, &first) && !called(&mut room, &third));
    }

    #[test]
    fn a_new_table_calls_the_first_of_every_backend() {
        let mut room = room(9, 9);
        let tickets: Vec<_> = ["a", "a", "b"].map(|key| seat(&mut room, key, 0).unwrap()).into();
        for ticket in &tickets {
            assert!(!called(&mut room, ticket));
        }
        assert_eq!(room.call_all().len(), 2);
        assert_eq!(tickets.iter().map(|t| called(&mut room, t)).collect::<Vec<_>>(), [true, false, true]);
    }
}
