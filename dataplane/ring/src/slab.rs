//! Operations in flight, with everything they own.
//!
//! An operation enters with [`Slab::insert`], collects its completions, and leaves in one of two ways: its
//! ticket takes it out after the last completion, or, once orphaned, the last completion itself removes it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::chunk::Chunk;
use crate::executor::Executor;
use crate::limits::RingOptions;
use crate::op::{Completion, Op, OpKey, PendingCloses, SharedSocket, SocketHandle};
use crate::waiter::Waiter;

#[derive(Default)]
pub(crate) struct OpSlab {
    slots: Vec<OpSlot>,
    free: Vec<u32>,
    running: usize,
}

#[derive(Default)]
struct OpSlot {
    generation: u32,
    operation: Option<PendingOp>,
}

struct PendingOp {
    op: Op,
    waiter: Option<Waiter>,
    /// Results of a multishot operation that were not taken yet.
    arrived: CompletionQueue,
    /// The result of the last completion.
    outcome: Option<i32>,
    /// The completions are not needed any more.
    orphaned: bool,
    cancelled: bool,
    /// Received bytes leave the receive buffers at once.
    detached: bool,
}

/// In arrival order. The first is stored in the operation itself: most are taken before a second one
/// arrives, and the memory of a queue is another cache miss.
#[derive(Default)]
struct CompletionQueue {
    first: Option<QueuedCompletion>,
    later: VecDeque<QueuedCompletion>,
}

impl CompletionQueue {
    fn push(&mut self, arrived: QueuedCompletion) {
        match &self.first {
            None => self.first = Some(arrived),
            Some(_) => self.later.push_back(arrived),
        }
    }

    fn pop(&mut self) -> Option<QueuedCompletion> {
        let first = self.first.take();
        self.first = self.later.pop_front();
        first
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.later.len()
    }
}

pub(crate) enum QueuedCompletion {
    Chunk(Chunk),
    Socket(Rc<SharedSocket>),
}

/// A result of a multishot operation.
impl QueuedCompletion {
    /// The same bytes in memory of their own.
    fn detach(self) -> Self {
        match self {
            Self::Chunk(chunk) => Self::Chunk(Chunk::from(chunk.to_vec())),
            Self::Socket(socket) => Self::Socket(socket),
        }
    }
}

pub(crate) enum MultishotPoll {
    Arrived(QueuedCompletion),
    /// Everything was taken and no more will arrive.
    Ended(i32),
}

/// What the ring must do after a completion.
#[derive(Default)]
pub(crate) struct CompletionEffect {
    pub(crate) wake: Option<Waiter>,
    /// More results wait here than allowed: request the end of the operation.
    pub(crate) pause: bool,
}

impl OpSlab {
    pub(crate) fn insert(&mut self, op: Op) -> OpKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(OpSlot::default());
            u32::try_from(self.slots.len() - 1).expect("four billion operations do not fit in memory")
        });
        let OpSlot { generation, operation } = &mut self.slots[slot as usize];
        *operation = Some(PendingOp {
            op,
            waiter: None,
            arrived: CompletionQueue::default(),
            outcome: None,
            orphaned: false,
            cancelled: false,
            detached: false,
        });
        self.running += 1;
        OpKey(u64::from(*generation) << 32 | u64::from(slot))
    }

    pub(crate) fn op(&self, key: OpKey) -> &Op {
        &self.operation(key).op
    }

    /// Number of operations that the driver has not finished.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Keys of the unfinished operations.
    pub(crate) fn running_keys(&self) -> Vec<OpKey> {
        let unfinished = |slot: &OpSlot| slot.operation.as_ref().is_some_and(|o| o.outcome.is_none());
        let key = |(index, slot): (usize, &OpSlot)| OpKey(u64::from(slot.generation) << 32 | index as u64);
        self.slots.iter().enumerate().filter(|(_, slot)| unfinished(slot)).map(key).collect()
    }

    /// The result of an operation that completes once, with what it owned.
    pub(crate) fn poll_outcome(&mut self, key: OpKey, executor: &Executor, cx: &Context<'_>) -> Poll<(i32, Op)> {
        let operation = self.operation_mut(key);
        let Some(outcome) = operation.outcome else {
            Waiter::remember(&mut operation.waiter, executor, cx.waker());
            return Poll::Pending;
        };
        Poll::Ready((outcome, self.remove(key)))
    }

    /// The next result of a multishot operation. After `Ended` it is removed from the slab.
    pub(crate) fn poll_next(&mut self, key: OpKey, executor: &Executor, cx: &Context<'_>) -> Poll<MultishotPoll> {
        let operation = self.operation_mut(key);
        if let Some(arrived) = operation.arrived.pop() {
            return Poll::Ready(MultishotPoll::Arrived(arrived));
        }
        let Some(outcome) = operation.outcome else {
            Waiter::remember(&mut operation.waiter, executor, cx.waker());
            return Poll::Pending;
        };
        self.remove(key);
        Poll::Ready(MultishotPoll::Ended(outcome))
    }

    /// Polls the end of a detached send. It is removed from the slab then, or earlier when everything was
    /// sent.
    pub(crate) fn poll_posted(&mut self, key: OpKey, executor: &Executor, cx: &Context<'_>) -> Poll<i32> {
        if self.find(key).is_none() {
            return Poll::Ready(0);
        }
        self.poll_outcome(key, executor, cx).map(|(result, _)| result)
    }

    /// Whether a detached send has completed, as far as is known.
    pub(crate) fn is_removed(&self, key: OpKey) -> bool {
        self.find(key).is_none()
    }

    /// Queued results and outcome, without taking anything.
    pub(crate) fn peek(&self, key: OpKey) -> (usize, Option<i32>) {
        let operation = self.operation(key);
        (operation.arrived.len(), operation.outcome)
    }

    /// Marks for cancellation; `false` when it is done or marked already.
    pub(crate) fn cancel(&mut self, key: OpKey) -> bool {
        let operation = self.operation_mut(key);
        let first = operation.outcome.is_none() && !operation.cancelled;
        operation.cancelled |= first;
        first
    }

    /// Copies its received bytes, present and future, out of the receive buffers.
    pub(crate) fn detach(&mut self, key: OpKey) {
        let operation = self.operation_mut(key);
        operation.detached = true;
        let CompletionQueue { first, later } = std::mem::take(&mut operation.arrived);
        for arrived in first.into_iter().chain(later) {
            operation.arrived.push(arrived.detach());
        }
    }

    /// The ticket was dropped. Returns whether the driver should cancel the operation.
    pub(crate) fn abandon(&mut self, key: OpKey) -> bool {
        let operation = self.operation_mut(key);
        if operation.outcome.is_some() {
            self.remove(key);
            return false;
        }
        operation.orphaned = true;
        operation.waiter = None;
        operation.arrived = CompletionQueue::default();
        self.cancel(key)
    }

    /// The result is not needed, and the operation must still run to its end.
    pub(crate) fn orphan(&mut self, key: OpKey) {
        self.operation_mut(key).orphaned = true;
    }

    /// Handles one completion.
    pub(crate) fn answer(
        &mut self,
        answer: Completion,
        limits: &RingOptions,
        closing: &Rc<PendingCloses>,
    ) -> CompletionEffect {
        let Completion { key, result, more, chunk } = answer;
        let operation = self.operation_mut(key);
        let arrived = match (&mut operation.op, chunk) {
            (Op::Accept(_), _) if result >= 0 => {
                Some(QueuedCompletion::Socket(SharedSocket::new(SocketHandle(result), closing)))
            }
            (Op::ReceiveOnce(_, buffer), _) if result > 0 => {
                Some(QueuedCompletion::Chunk(buffer.take(result as usize)))
            }
            (Op::Receive(_), Some(chunk)) if !chunk.is_empty() => Some(QueuedCompletion::Chunk(chunk)),
            _ => None,
        };
        if let Some(arrived) = arrived
            && !operation.orphaned
        {
            operation.arrived.push(if operation.detached { arrived.detach() } else { arrived });
        }

        let mut effect = CompletionEffect { wake: operation.waiter.take(), pause: false };
        if more {
            let arrived_max = match operation.op {
                Op::Accept(_) => limits.accepted_max,
                _ => limits.recv_chunks_max,
            };
            effect.pause = operation.arrived.len() >= arrived_max && !operation.cancelled;
            operation.cancelled |= effect.pause;
        } else {
            operation.outcome = Some(result);
            let posted =
                matches!(&operation.op, Op::DetachedSend(_, chunk) if usize::try_from(result) == Ok(chunk.len()));
            let forgotten = operation.orphaned || posted;
            self.running -= 1;
            if forgotten {
                self.remove(key);
            }
        }
        effect
    }

    /// Removes an operation, and returns what it owned.
    fn remove(&mut self, key: OpKey) -> Op {
        let slot = self.slot_of(key);
        let OpSlot { generation, operation } = &mut self.slots[slot];
        // Taken apart in place: moving the whole would copy it twice.
        let Some(PendingOp { op, outcome: Some(_), .. }) = operation.take() else {
            panic!("an operation leaves after its last answer");
        };
        *generation = generation.wrapping_add(1);
        self.free.push(slot as u32);
        op
    }

    /// The slot of an operation that still exists.
    fn find(&self, key: OpKey) -> Option<usize> {
        let at = (key.0 & u64::from(u32::MAX)) as usize;
        let slot = self.slots.get(at)?;
        (u64::from(slot.generation) == key.0 >> 32 && slot.operation.is_some()).then_some(at)
    }

    fn slot_of(&self, key: OpKey) -> usize {
        self.find(key).expect("an operation is known until its last answer and its ticket are gone")
    }

    fn operation(&self, key: OpKey) -> &PendingOp {
        let slot = self.slot_of(key);
        self.slots[slot].operation.as_ref().expect("checked by slot_of")
    }

    fn operation_mut(&mut self, key: OpKey) -> &mut PendingOp {
        let slot = self.slot_of(key);
        self.slots[slot].operation.as_mut().expect("checked by slot_of")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SlabFixture {
        slab: OpSlab,
        closing: Rc<PendingCloses>,
        limits: RingOptions,
    }

    impl SlabFixture {
        fn new() -> Self {
            let limits = RingOptions { accepted_max: 2, ..RingOptions::default() };
            Self { slab: OpSlab::default(), closing: Rc::default(), limits }
        }

        fn accept(&mut self) -> OpKey {
            let listener = SharedSocket::new(SocketHandle(3), &self.closing);
            self.slab.insert(Op::Accept(listener))
        }

        fn answer(&mut self, key: OpKey, result: i32, more: bool) -> CompletionEffect {
            let answer = Completion { key, result, more, chunk: None };
            self.slab.answer(answer, &self.limits, &self.closing)
        }
    }

    #[test]
    fn orphan_stays_until_last_completion() {
        let mut f = SlabFixture::new();
        let key = f.accept();
        f.answer(key, 10, true);
        assert!(f.slab.abandon(key), "the driver is to cancel it");
        assert_eq!(f.closing.take(), [SocketHandle(10)]);
        f.answer(key, 11, true);
        assert_eq!(f.closing.take(), [SocketHandle(11)], "its result is not needed");
        assert_eq!(f.slab.running(), 1);
        f.answer(key, -libc::ECANCELED, false);
        assert_eq!(f.slab.running(), 0);
        assert_eq!(f.closing.take(), [SocketHandle(3)], "the listener, now that no operation holds it");
    }

    #[test]
    fn full_queue_is_paused_once() {
        let mut f = SlabFixture::new();
        let key = f.accept();
        assert!(!f.answer(key, 10, true).pause);
        assert!(f.answer(key, 11, true).pause);
        assert!(!f.answer(key, 12, true).pause, "it was asked for already");
        assert_eq!(f.slab.peek(key), (3, None));
    }

    #[test]
    fn reused_slot_has_new_key() {
        let mut f = SlabFixture::new();
        let first = f.slab.insert(Op::Close(SocketHandle(1)));
        f.slab.orphan(first);
        f.answer(first, 0, false);
        let second = f.slab.insert(Op::Close(SocketHandle(2)));
        assert_eq!(first.0 & 0xffff_ffff, second.0 & 0xffff_ffff);
        assert_ne!(first, second);
    }
}
