//! An attempt to deliver an event, before it is made.

use std::rc::Rc;

use ring::Tick;
use wal::LogPosition;

use super::loaded_event::LoadedEvent;
use super::request::DeliveryFailure;

/// One attempt to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeliveryAttempt {
    pub(super) position: LogPosition,
    /// Attempts before this one.
    pub(super) attempt: u32,
    pub(super) leg: AttemptTarget,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttemptTarget {
    Subscriber,
    DeadLetter(Rc<DeliveryFailure>),
}

impl DeliveryAttempt {
    pub(super) const fn first(position: LogPosition) -> Self {
        Self { position, attempt: 0, leg: AttemptTarget::Subscriber }
    }
}

/// An attempt to be made, and its event if it was just loaded: an immediate attempt does not read and
/// decode it again.
pub(super) type DeliveryTask = (DeliveryAttempt, Option<Rc<LoadedEvent>>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScheduledRetry {
    pub(super) at: Tick,
    pub(super) job: DeliveryAttempt,
}

impl Ord for ScheduledRetry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.job.position).cmp(&(other.at, other.job.position))
    }
}

impl PartialOrd for ScheduledRetry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
