//! Promises of the budget that all tasks of a loop share in one turn.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use sluicegate_ring::TURN_STEPS_MAX;
use sluicegate_ring::sim::{FaultProfile, Simulation};

/// However many tasks have expensive work, a turn does no more than its budget, in order, and a task with none runs
/// between any two.
#[test]
fn expensive_tasks_take_one_turn_each() {
    const TASKS: usize = 200;
    let simulation = Simulation::new(1, FaultProfile::calm());
    let ring = simulation.ring();
    let (done, seen) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    ring.block_on(async {
        for n in 0..TASKS {
            let (ring, done) = (ring.clone(), Rc::clone(&done));
            ring.clone().spawn(async move {
                ring.budget_remaining().await;
                assert!(ring.has_budget_remaining());
                ring.charge(TURN_STEPS_MAX);
                done.borrow_mut().push(n);
            });
        }
        while done.borrow().len() < TASKS {
            let before = done.borrow().len();
            ring.yield_now().await;
            assert!(done.borrow().len() <= before + 1, "other tasks run between two of them");
            seen.set(seen.get() + 1);
        }
    });
    assert!(seen.get() >= TASKS - 1, "{} polls of the other task", seen.get());
    assert_eq!(*done.borrow(), (0..TASKS).collect::<Vec<_>>());
}

/// Cheap work of many tasks shares a turn: the heartbeat counts turns.
#[test]
fn cheap_tasks_share_turn_budget() {
    const TASKS: usize = 1000;
    let simulation = Simulation::new(1, FaultProfile::calm());
    let ring = simulation.ring();
    let done = Rc::new(Cell::new(0));
    ring.block_on(async {
        ring.charge(TURN_STEPS_MAX);
        for n in 0..TASKS {
            let (ring, done) = (ring.clone(), Rc::clone(&done));
            ring.clone().spawn(async move {
                // One in ten gives up while it waits.
                if n % 10 == 0 {
                    let _ = ring.timeout(Duration::ZERO, ring.budget_remaining()).await;
                    return done.set(done.get() + 1);
                }
                ring.budget_remaining().await;
                ring.charge(TURN_STEPS_MAX / TASKS);
                done.set(done.get() + 1);
            });
        }
        let before = ring.heartbeat().turns();
        while done.get() < TASKS {
            ring.sleep(Duration::from_millis(1)).await; // a task that is always ready would leave them one a turn
        }
        let turns = ring.heartbeat().turns() - before;
        assert!(turns < TASKS as u64 / 10, "{turns} turns");
    });
}

/// A task that gives up after its turn has come leaves the turn to the next one.
#[test]
fn dropped_waiter_leaves_budget_to_next_one() {
    let simulation = Simulation::new(1, FaultProfile::calm());
    let ring = simulation.ring();
    let done = Rc::new(Cell::new(false));
    ring.block_on(async {
        ring.charge(TURN_STEPS_MAX);
        let mut first = Box::pin(ring.budget_remaining());
        let polled = poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        let (next, is_done) = (ring.clone(), Rc::clone(&done));
        ring.spawn(async move {
            next.budget_remaining().await;
            is_done.set(true);
        });
        let before = ring.heartbeat().turns();
        while ring.heartbeat().turns() == before {
            ring.yield_now().await;
        }
        assert!(!done.get(), "the first one is served first");
        drop(first);
        let before = ring.heartbeat().turns();
        while !done.get() {
            ring.yield_now().await; // never idle
        }
        assert!(ring.heartbeat().turns() <= before + 1);
    });
}
