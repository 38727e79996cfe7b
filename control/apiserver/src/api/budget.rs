//! The memory and threads that all requests share.
//!
//! A request that finds too little of either waits briefly and is then rejected with 429, so that many large requests
//! cost their senders time and the process no memory. Large requests never delay small ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::errors::StatusError;
use super::weight::Weight;
use crate::request_memory::RequestMemory;

/// Bytes of bodies that are on their way or being worked on, in all, beyond the first [`BODY_FREE_BYTES`] of each.
const BODIES_BYTES_MAX: usize = 64 << 20;
/// Bytes of each body that are not counted: small requests pass whatever others send. There are at most some
/// hundred requests of one user at a time.
pub(super) const BODY_FREE_BYTES: usize = 64 * 1024;
/// Bytes of lists that are on their way to clients, in all. One that is longer goes out alone.
const ANSWERS_BYTES_MAX: usize = 256 << 20;
/// Lists up to so many bytes are not counted: they pass whatever others ask for.
const ANSWER_FREE_BYTES: usize = 1 << 20;
/// Memory that large requests may take together, in KiB.
const WORK_KIB_MAX: usize = 256 * 1024;
/// Memory of a request besides its tree, as a multiple of it: a typed copy, the owners of its fields, its texts.
const COPIES: usize = 4;
/// Large requests that are worked on at a time; more of them would only share the processors.
const LARGE_AT_A_TIME_MAX: usize = 2;
/// How long a large request waits for its share.
const WAIT_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Budget {
    memory: Arc<RequestMemory>,
    bodies: Arc<AtomicUsize>,
    answers: Arc<AtomicUsize>,
    work: Arc<Semaphore>,
    threads: Arc<Semaphore>,
}

impl Budget {
    /// Large requests that end are counted in `memory`.
    pub(super) fn new(memory: Arc<RequestMemory>) -> Self {
        Self {
            memory,
            bodies: Arc::default(),
            answers: Arc::default(),
            work: Arc::new(Semaphore::new(WORK_KIB_MAX)),
            threads: Arc::new(Semaphore::new(LARGE_AT_A_TIME_MAX)),
        }
    }
}

/// Bytes of one body; given back when dropped.
#[derive(Debug)]
pub(super) struct BodyShare {
    memory: Arc<RequestMemory>,
    bodies: Arc<AtomicUsize>,
    bytes: usize,
    counted: usize,
}

/// Bytes of one list; given back when dropped.
#[derive(Debug)]
pub(super) struct AnswerShare {
    memory: Arc<RequestMemory>,
    answers: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        self.answers.fetch_sub(self.bytes, Ordering::Relaxed);
        self.memory.give_back(self.bytes);
    }
}

/// A large request's memory and its turn; given back when dropped.
#[derive(Debug)]
pub(super) struct WorkShare {
    memory: Arc<RequestMemory>,
    bytes: usize,
    _kib: OwnedSemaphorePermit,
    _thread: OwnedSemaphorePermit,
}

impl Drop for WorkShare {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

impl Budget {
    pub(super) fn body(&self) -> BodyShare {
        BodyShare { memory: Arc::clone(&self.memory), bodies: Arc::clone(&self.bodies), bytes: 0, counted: 0 }
    }

    /// Counts a list before it is serialized; refused if those in progress leave no room for it.
    pub(super) fn answer(&self, bytes: usize) -> Result<AnswerShare, StatusError> {
        let bytes = if bytes <= ANSWER_FREE_BYTES { 0 } else { bytes };
        let share = AnswerShare { memory: Arc::clone(&self.memory), answers: Arc::clone(&self.answers), bytes };
        let others = self.answers.fetch_add(bytes, Ordering::Relaxed);
        if bytes > 0 && others > 0 && others + bytes > ANSWERS_BYTES_MAX {
            return Err(StatusError::busy(
                "lists on their way to clients take too much memory, please try again later, or ask for pages (limit)",
            ));
        }
        Ok(share)
    }

    /// Waits for what a large request needs.
    pub(super) async fn work(&self, weight: Weight) -> Result<WorkShare, StatusError> {
        let kib = (weight.tree_bytes() * COPIES / 1024).min(WORK_KIB_MAX);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let both = async {
            let share = Arc::clone(&self.work).acquire_many_owned(kib).await.ok()?;
            let thread = Arc::clone(&self.threads).acquire_owned().await.ok()?;
            let bytes = weight.tree_bytes() * COPIES;
            Some(WorkShare { memory: Arc::clone(&self.memory), bytes, _kib: share, _thread: thread })
        };
        tokio::time::timeout(WAIT_MAX, both)
            .await
            .ok()
            .flatten()
            .ok_or_else(|| StatusError::busy("the API server works on other large requests, please try again later"))
    }
}

impl BodyShare {
    /// Counts bytes that have come; refused if all bodies together have too many.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), StatusError> {
        self.bytes += bytes;
        let more = self.bytes.saturating_sub(BODY_FREE_BYTES) - self.counted;
        if more == 0 {
            return Ok(());
        }
        self.counted += more;
        if self.bodies.fetch_add(more, Ordering::Relaxed) + more > BODIES_BYTES_MAX {
            return Err(StatusError::busy(
                "the bodies of requests under way take too much memory, please try again later",
            ));
        }
        Ok(())
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.bodies.fetch_sub(self.counted, Ordering::Relaxed);
        self.memory.give_back(self.counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_are_refused_beyond_the_budget_and_small_ones_pass() {
        let budget = Budget::new(Arc::default());
        let mut shares: Vec<BodyShare> = Vec::new();
        let refused = (0..100).find_map(|_| {
            let mut share = budget.body();
            let grown = share.grow(3 << 20);
            shares.push(share);
            grown.err()
        });
        assert_eq!(refused.map(|why| why.code.as_u16()), Some(429));
        assert!((20..24).contains(&shares.len()), "{}", shares.len());
        assert!(budget.body().grow(BODY_FREE_BYTES).is_ok());
        shares.clear();
        assert_eq!(budget.bodies.load(Ordering::Relaxed), 0);
        assert!(budget.body().grow(3 << 20).is_ok());
    }

    #[test]
    fn long_list_goes_out_alone() {
        let budget = Budget::new(Arc::default());
        let half = ANSWERS_BYTES_MAX / 2;
        let long = budget.answer(ANSWERS_BYTES_MAX + 1).unwrap();
        assert_eq!(budget.answer(half).map(drop).unwrap_err().code, 429);
        assert!(budget.answer(ANSWER_FREE_BYTES).is_ok(), "a short list passes");
        drop(long);
        let _first = budget.answer(half).unwrap();
        assert!(budget.answer(half).is_ok() && budget.answer(half + 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn large_request_waits_for_its_turn_and_then_gets_429() {
        let budget = Budget::new(Arc::default());
        let body = format!("[{}]", vec!["{\"a\":1}"; 1000].join(","));
        let weight = Weight::of(None, body.as_bytes()).unwrap();
        let first = budget.work(weight).await.unwrap();
        let _second = budget.work(weight).await.unwrap();
        assert_eq!(budget.work(weight).await.map(drop).unwrap_err().code, 429);
        let returned = budget.memory.returned();
        drop(first);
        assert_eq!(*returned.borrow(), u64::try_from(weight.tree_bytes() * COPIES).unwrap());
        assert!(budget.work(weight).await.is_ok());
    }
}
