//! Attempts that are to be made: a position and a time, never a payload.

use std::rc::Rc;

use ring::Tick;
use wal::Position;

use super::request::Failure;
use crate::events::record::Record;

/// One attempt to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) position: Position,
    /// Attempts before this one.
    pub(super) attempt: u32,
    pub(super) leg: Leg,
}

impl Job {
    pub(super) const fn first(position: Position) -> Self {
        Self { position, attempt: 0, leg: Leg::Subscriber }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leg {
    Subscriber,
    DeadLetter(Rc<Failure>),
}

/// An attempt, with the event and when it came if somebody has just looked at it.
pub(super) type Work = (Job, Option<(Record, u64)>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Retry {
    pub(super) at: Tick,
    pub(super) job: Job,
}

impl Ord for Retry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.job.position).cmp(&(other.at, other.job.position))
    }
}

impl PartialOrd for Retry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
