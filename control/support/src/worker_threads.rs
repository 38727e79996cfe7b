//! Parallel work on many items: on as many threads as there are processors, with results in order.
//!
//! For the start, which has to read all that is stored before it may answer, and has the processors to itself.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle, available_parallelism, scope};

/// More would not be quicker: one thread gives out the work and takes in what it comes to.
const THREADS_MAX: usize = 8;
/// Pieces that wait for a hand, and as many that wait to be accepted.
const BATCHES_QUEUED_MAX: usize = 2;

/// Does `work` on each piece, and gives what it comes to to `taken`, in the order of the pieces. `pieces` and `taken` run on the
/// calling thread. Panics if `work` does.
pub fn map_in_order<I: Send, O: Send>(
    pieces: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> O + Sync,
    mut taken: impl FnMut(O),
) {
    scope(|scope| {
        let count = available_parallelism().map_or(1, |count| count.get().min(THREADS_MAX));
        let hands: Vec<WorkerThread<I, O>> = (0..count).map_while(|_| WorkerThread::spawn(scope, &work)).collect();
        if hands.is_empty() {
            pieces.into_iter().for_each(|piece| taken(work(piece)));
            return;
        }
        let mut under_way = VecDeque::new();
        for (piece, hand) in pieces.into_iter().zip(hands.iter().cycle()) {
            if under_way.len() == count * BATCHES_QUEUED_MAX {
                under_way.pop_front().into_iter().for_each(|hand: &WorkerThread<I, O>| taken(hand.receive()));
            }
            hand.send(piece);
            under_way.push_back(hand);
        }
        under_way.into_iter().for_each(|hand| taken(hand.receive()));
    });
}

/// Does both, one of them on another thread.
pub fn join<A: Send, B>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    // Where the host gives us no thread it is still here.
    let one = Mutex::new(Some(one));
    let work = || one.lock().unwrap_or_else(PoisonError::into_inner).take().map(|one| one());
    scope(|scope| {
        let hand = Builder::new().name("hand".to_owned()).spawn_scoped(scope, work);
        let other = other();
        let done = hand.ok().and_then(|hand| hand.join().expect("both are done, or one panics"));
        (done.or_else(work).expect("it is done once"), other)
    })
}

/// One thread. What it is given first it is done with first.
struct WorkerThread<I, O> {
    inputs: SyncSender<I>,
    outputs: Receiver<O>,
}

impl<I: Send, O: Send> WorkerThread<I, O> {
    /// `None` where the host gives us no thread.
    fn spawn<'scope, 'env>(scope: &'scope Scope<'scope, 'env>, work: &'env (impl Fn(I) -> O + Sync)) -> Option<Self>
    where
        I: 'scope,
        O: 'scope,
    {
        let (pieces, waiting) = sync_channel(BATCHES_QUEUED_MAX);
        let (done, outcomes) = sync_channel(BATCHES_QUEUED_MAX);
        let live = move || waiting.iter().map(work).try_for_each(|outcome| done.send(outcome)).is_ok();
        let thread = Builder::new().name("hand".to_owned()).spawn_scoped(scope, live);
        thread.ok().map(|_: ScopedJoinHandle<'_, bool>| Self { inputs: pieces, outputs: outcomes })
    }

    fn send(&self, piece: I) {
        self.inputs.send(piece).expect("a hand works until there is no more work, or panics");
    }

    fn receive(&self) -> O {
        self.outputs.recv().expect("a hand answers for each piece, or panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_in_the_order_of_the_pieces() {
        for count in [0, 1, 2, 3, 7, 1000] {
            let mut taken = Vec::new();
            let work = |n: usize| {
                // Some take longer than others.
                (0..(n * 7919) % 501).for_each(|n| drop(std::hint::black_box(n.to_string())));
                n * 2
            };
            map_in_order(0..count, work, |n| taken.push(n));
            assert_eq!(taken, (0..count).map(|n| n * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn both_are_done() {
        assert_eq!(join(|| 1, || "2"), (1, "2"));
    }

    #[test]
    #[should_panic(expected = "hand")]
    fn work_that_panics_does_not_hang() {
        map_in_order(0..100, |n| assert!(n < 50), drop);
    }
}
