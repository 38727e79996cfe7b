//! What others may know of single instances: the list behind `kubectl get pods`.
//!
//! Who takes the place of an instance that failed is the same to its users, with one restart more: they
//! are one line. A line ends when its last instance ends as wanted.

use std::collections::HashMap;
use std::net::SocketAddr;

use jiff::Timestamp;

use crate::runtime::{Beside, Cause, Gone};

/// One instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its own number, which names its log. Of a line that waits for its next start: the last one's.
    pub id: u64,
    /// The number of the first in its line.
    pub line: u64,
    /// Of the line.
    pub began: Timestamp,
    pub restarts: u32,
    pub stage: Stage,
    /// Known once it was ready.
    pub address: Option<SocketAddr>,
    pub started: Timestamp,
    /// How the one before it in its line ended.
    pub last: Option<Last>,
    /// Its other containers, as far as they were started.
    pub beside: Vec<Beside>,
    /// Why it is not ready, as far as it is known.
    pub hindrance: Option<String>,
}

/// What an instance does now.
pub(super) struct Doing {
    pub(super) id: u64,
    pub(super) stage: Stage,
    pub(super) address: Option<SocketAddr>,
    pub(super) beside: Vec<Beside>,
    pub(super) hindrance: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Ready,
    /// It was ready and is no more.
    Unready,
    /// It stands still until it is wanted again.
    Frozen,
    Ending,
    /// It failed, and its successor is not started yet.
    Waiting,
}

/// An instance that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Last {
    pub id: u64,
    pub cause: Cause,
    pub message: String,
    pub started: Timestamp,
    pub ended: Timestamp,
}

#[derive(Debug, Clone)]
struct Place {
    line: u64,
    began: Timestamp,
    restarts: u32,
    started: Timestamp,
    last: Option<Last>,
}

/// The lines of one revision.
#[derive(Debug, Default)]
pub(super) struct Roll {
    taken: HashMap<u64, Place>,
    /// Of failed instances that have no successor yet.
    vacant: Vec<Place>,
}

impl Roll {
    /// The number of its line.
    pub(super) fn started(&mut self, id: u64) -> u64 {
        let now = now();
        let place = match self.vacant.pop() {
            Some(place) => Place { restarts: place.restarts + 1, started: now, ..place },
            None => Place { line: id, began: now, restarts: 0, started: now, last: None },
        };
        let line = place.line;
        self.taken.insert(id, place);
        line
    }

    /// It ended as wanted.
    pub(super) fn left(&mut self, id: u64) {
        self.take_out(id);
    }

    pub(super) fn failed(&mut self, id: u64, gone: &Gone) {
        let Some(place) = self.take_out(id) else { return };
        let last = Last {
            id,
            cause: gone.cause.clone(),
            message: gone.message.clone(),
            started: place.started,
            ended: now(),
        };
        self.vacant.push(Place { last: Some(last), ..place });
    }

    /// With the last one the room goes too: a revision that sleeps would keep 700 bytes for nobody.
    fn take_out(&mut self, id: u64) -> Option<Place> {
        let place = self.taken.remove(&id);
        if self.taken.is_empty() {
            self.taken.shrink_to_fit();
        }
        place
    }

    /// All instances, given what the members are doing. `missing` starts are still wanted: so many lines
    /// wait, the others are over.
    pub(super) fn seen(&mut self, members: impl Iterator<Item = Doing>, missing: u32) -> Vec<Seen> {
        self.vacant.truncate(usize::try_from(missing).unwrap_or(usize::MAX));
        let running = members.filter_map(|Doing { id, stage, address, beside, hindrance }| {
            let place = self.taken.get(&id)?;
            Some(Seen { beside, hindrance, ..place.shown(id, stage, address) })
        });
        let waiting = self.vacant.iter().filter_map(|place| {
            let id = place.last.as_ref()?.id;
            Some(place.shown(id, Stage::Waiting, None))
        });
        running.chain(waiting).collect()
    }
}

/// Whole seconds, as Kubernetes' times are.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

impl Place {
    fn shown(&self, id: u64, stage: Stage, address: Option<SocketAddr>) -> Seen {
        let Self { line, began, restarts, started, ref last } = *self;
        let (last, beside, hindrance) = (last.clone(), Vec::new(), None);
        Seen { id, line, began, restarts, stage, address, started, last, beside, hindrance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Gone {
        Gone { cause: Cause::Exited(1), message: "exited with 1".into() }
    }

    fn look(roll: &mut Roll, ids: &[u64], missing: u32) -> Vec<(u64, u64, u32, Stage)> {
        let doing = |id: &u64| Doing {
            id: *id,
            stage: Stage::Ready,
            address: None,
            beside: Vec::new(),
            hindrance: None,
        };
        let members: Vec<_> = ids.iter().map(doing).collect();
        let seen = roll.seen(members.into_iter(), missing);
        seen.iter().map(|one| (one.line, one.id, one.restarts, one.stage)).collect()
    }

    #[test]
    fn a_successor_continues_the_line_of_the_one_that_failed() {
        let mut roll = Roll::default();
        roll.started(7);
        assert_eq!(look(&mut roll, &[7], 0), [(7, 7, 0, Stage::Ready)]);
        roll.failed(7, &failure());
        assert_eq!(look(&mut roll, &[], 1), [(7, 7, 0, Stage::Waiting)]);
        roll.started(8);
        assert_eq!(look(&mut roll, &[8], 0), [(7, 8, 1, Stage::Ready)]);
        roll.left(8);
        roll.started(9);
        assert_eq!(look(&mut roll, &[9], 0), [(9, 9, 0, Stage::Ready)]);
    }

    #[test]
    fn a_line_that_nobody_wants_again_is_over() {
        let mut roll = Roll::default();
        roll.started(7);
        roll.failed(7, &failure());
        assert_eq!(look(&mut roll, &[], 0), []);
        roll.started(8);
        assert_eq!(look(&mut roll, &[8], 0), [(8, 8, 0, Stage::Ready)]);
    }
}
