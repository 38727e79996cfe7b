//! Timers: a heap of moments in the executor, and no kernel operation per timer.
//!
//! Nearly all timers guard something that goes well, and are cleared long before their moment. So what happens often is
//! cheap: a moment later than all others goes to the heap's end, a timer that is set again finds who waits by number,
//! and one that is cleared only leaves its place; its moment stays in the heap until it comes up, or until the cleared
//! ones are more than the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::ring::RingState;
use crate::tick::Tick;
use crate::waiter::Waiter;

/// The time given to something is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

/// Resolves when its moment has come.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    core: Rc<RingState>,
    at: Tick,
    set: Option<TimerId>,
}

impl Sleep {
    pub(crate) fn new(core: Rc<RingState>, at: Tick) -> Self {
        Self { core, at, set: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.now() >= self.at {
            return Poll::Ready(());
        }
        let core = Rc::clone(&self.core);
        let mut timers = core.timers.borrow_mut();
        let (name, waiter) = timers.set(self.at, self.set);
        Waiter::remember(waiter, &core.executor, cx.waker());
        self.set = Some(name);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(name) = self.set {
            self.core.timers.borrow_mut().clear(name);
        }
    }
}

pin_project_lite::pin_project! {
    /// A future with an end to its time, after which it resolves to [`Elapsed`].
    ///
    /// A type of its own and not an `async fn`: that would keep its argument beside the copy that it awaits, and each
    /// level of waiting would double what a connection takes.
    #[must_use = "futures do nothing until they are awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Option<Sleep>,
    }
}

impl<F> Timeout<F> {
    pub(crate) fn new(future: F, sleep: Option<Sleep>) -> Self {
        Self { future, sleep }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        match this.sleep {
            Some(sleep) => Pin::new(sleep).poll(cx).map(|()| Err(Elapsed)),
            None => Poll::Pending,
        }
    }
}

/// Who is to be woken when; equal moments in the order in which they were set.
#[derive(Default)]
pub(crate) struct TimerHeap {
    /// The earliest on top. Some are cleared: nobody waits in their place, or for another timer.
    moments: BinaryHeap<Reverse<(Tick, TimerId)>>,
    positions: Vec<HeapEntry>,
    free: Vec<usize>,
    named: u64,
}

/// A timer that was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId {
    /// Counts up, so that names are in the order in which timers were set.
    id: u64,
    slot: usize,
}

struct HeapEntry {
    /// Whose it is, or was.
    id: u64,
    waiter: Option<Waiter>,
}

/// Cleared moments that are not worth looking for.
const CLEARED_FEW: usize = 64;

impl TimerHeap {
    /// Sets a timer, unless the one of that name is set; and the place for who waits for it, to be filled at once.
    pub(crate) fn set(&mut self, at: Tick, name: Option<TimerId>) -> (TimerId, &mut Option<Waiter>) {
        let name = name.filter(|name| is_set(&self.positions, *name)).unwrap_or_else(|| self.add(at));
        (name, &mut self.positions[name.slot].waiter)
    }

    fn add(&mut self, at: Tick) -> TimerId {
        self.named += 1;
        let mine = HeapEntry { id: self.named, waiter: None };
        let place = match self.free.pop() {
            Some(place) => {
                self.positions[place] = mine;
                place
            }
            None => {
                self.positions.push(mine);
                self.positions.len() - 1
            }
        };
        let name = TimerId { id: self.named, slot: place };
        self.moments.push(Reverse((at, name)));
        name
    }

    pub(crate) fn clear(&mut self, name: TimerId) {
        self.take(name);
        let (all, set) = (self.moments.len(), self.positions.len() - self.free.len());
        if all > 2 * set + CLEARED_FEW {
            // At most one step for each of as many that were cleared since the last time.
            let places = &self.positions;
            self.moments.retain(|Reverse((_, name))| is_set(places, *name));
        }
    }

    /// The earliest moment set.
    pub(crate) fn next(&mut self) -> Option<Tick> {
        while let Some(Reverse((at, name))) = self.moments.peek() {
            if is_set(&self.positions, *name) {
                return Some(*at);
            }
            self.moments.pop();
        }
        None
    }

    /// Takes one whose moment has come.
    pub(crate) fn pop_due(&mut self, now: Tick) -> Option<Waiter> {
        while self.moments.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Reverse((_, name)) = self.moments.pop()?;
            let due = self.take(name);
            if due.is_some() {
                return due;
            }
        }
        None
    }

    /// Frees the timer's place, if it is set still.
    fn take(&mut self, name: TimerId) -> Option<Waiter> {
        let place = self.positions.get_mut(name.slot).filter(|place| place.id == name.id)?;
        let waiter = place.waiter.take()?;
        self.free.push(name.slot);
        Some(waiter)
    }
}

fn is_set(places: &[HeapEntry], name: TimerId) -> bool {
    places.get(name.slot).is_some_and(|place| place.id == name.id && place.waiter.is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn begin(timers: &mut TimerHeap, at: Tick, name: Option<TimerId>, waker: &Waker) -> TimerId {
        let (name, waiter) = timers.set(at, name);
        *waiter = Some(Waiter::Other(waker.clone()));
        name
    }

    fn due(timers: &mut TimerHeap, now: Tick) -> Option<Waker> {
        timers.pop_due(now).map(|waiter| match waiter {
            Waiter::Other(waker) => waker,
            Waiter::Task(_) => unreachable!("nobody here is a task"),
        })
    }

    fn after(millis: u64) -> Tick {
        Tick::default() + Duration::from_millis(millis)
    }

    /// Against an ordered list: whatever is set, set again and cleared, in whatever order.
    #[test]
    fn each_timer_that_was_not_cleared_comes_once_at_its_moment() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut timers = TimerHeap::default();
        let counts: Vec<_> = (0..2000).map(|_| Arc::new(WakeCount::default())).collect();
        let mut set: Vec<(Tick, TimerId, usize)> = Vec::new();
        let mut expected = vec![0; counts.len()];
        let mut now = 0;
        for (nth, count) in counts.iter().enumerate() {
            let at = after(now + rng.u64(1..500));
            let name = begin(&mut timers, at, None, &Waker::from(Arc::clone(count)));
            assert_eq!(begin(&mut timers, at, Some(name), &Waker::from(Arc::clone(count))), name);
            set.push((at, name, nth));
            if rng.bool() {
                let (_, name, _) = set.swap_remove(rng.usize(..set.len()));
                timers.clear(name);
                timers.clear(name); // nobody else's place is freed
            }
            assert_eq!(timers.next(), set.iter().map(|(at, ..)| *at).min());
            assert!(timers.moments.len() <= 2 * set.len() + CLEARED_FEW + 1);
            now += rng.u64(..3);
            while let Some(waker) = due(&mut timers, after(now)) {
                waker.wake();
            }
            set.retain(|(at, _, nth)| {
                expected[*nth] += usize::from(*at <= after(now));
                *at > after(now)
            });
        }
        let came: Vec<_> = counts.iter().map(|count| count.0.load(Relaxed)).collect();
        assert_eq!(came, expected);
        assert!(expected.contains(&1) && timers.positions.len() < counts.len());
    }

    #[test]
    fn equal_moments_come_in_the_order_in_which_they_were_set() {
        let mut timers = TimerHeap::default();
        let wakers: Vec<_> = (0..20).map(|_| Waker::from(Arc::new(WakeCount::default()))).collect();
        let names: Vec<_> = wakers.iter().map(|waker| begin(&mut timers, after(1), None, waker)).collect();
        timers.clear(names[3]);
        begin(&mut timers, after(1), None, &wakers[3]); // in the place of the one before, and behind all
        let order = (0..20).filter(|nth| *nth != 3).chain([3]);
        for nth in order {
            assert!(due(&mut timers, after(1)).unwrap().will_wake(&wakers[nth]), "{nth}");
        }
        assert!(timers.pop_due(after(9)).is_none() && timers.next().is_none());
    }
}
