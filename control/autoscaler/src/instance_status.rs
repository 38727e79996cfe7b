//! The published status of single instances: the list behind `kubectl get pods`.
//!
//! The replacement of a failed instance is shown as the same instance with one restart more: both
//! are one row. A row ends when its last instance ends as wanted.

use std::collections::HashMap;
use std::net::SocketAddr;

use jiff::Timestamp;

use runtime::{ExitCause, InstanceExit, SidecarStatus};

/// One instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceStatus {
    /// Its own number, which names its log. Of a line that waits for its next start: the last one's.
    pub id: u64,
    /// The number of the first in its line.
    pub lineage: u64,
    /// The id of the row.
    pub created_at: Timestamp,
    pub restarts: u32,
    pub phase: InstancePhase,
    /// Known once it was ready.
    pub address: Option<SocketAddr>,
    pub started_at: Timestamp,
    /// How the one before it in its line ended.
    pub last_termination: Option<LastTermination>,
    /// Its other containers, as far as they were started.
    pub sidecars: Vec<SidecarStatus>,
    /// Why it is not ready, as far as it is known.
    pub not_ready_reason: Option<String>,
}

/// The current state of an instance.
pub(super) struct InstanceSnapshot {
    pub(super) id: u64,
    pub(super) phase: InstancePhase,
    pub(super) address: Option<SocketAddr>,
    pub(super) sidecars: Vec<SidecarStatus>,
    pub(super) not_ready_reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstancePhase {
    Starting,
    Ready,
    /// It was ready and is no more.
    Unready,
    /// It stands still until it is wanted again.
    Frozen,
    Terminating,
    /// It failed, and its successor is not started yet.
    BackOff,
}

/// An instance that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastTermination {
    pub id: u64,
    pub cause: ExitCause,
    pub message: String,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
}

#[derive(Debug, Clone)]
struct InstanceLineage {
    lineage: u64,
    created_at: Timestamp,
    restarts: u32,
    started_at: Timestamp,
    last_termination: Option<LastTermination>,
}

/// The lines of one revision.
#[derive(Debug, Default)]
pub(super) struct LineageTable {
    active: HashMap<u64, InstanceLineage>,
    /// The rows of failed instances that have no successor yet.
    waiting: Vec<InstanceLineage>,
}

impl LineageTable {
    /// The number of its line.
    pub(super) fn assign(&mut self, id: u64) -> u64 {
        let now = now();
        let place = match self.waiting.pop() {
            Some(place) => InstanceLineage { restarts: place.restarts + 1, started_at: now, ..place },
            None => {
                InstanceLineage { lineage: id, created_at: now, restarts: 0, started_at: now, last_termination: None }
            }
        };
        let line = place.lineage;
        self.active.insert(id, place);
        line
    }

    /// It ended as wanted.
    pub(super) fn release(&mut self, id: u64) {
        self.remove(id);
    }

    pub(super) fn record_failure(&mut self, id: u64, gone: &InstanceExit) {
        let Some(place) = self.remove(id) else { return };
        let last = LastTermination {
            id,
            cause: gone.cause.clone(),
            message: gone.message.clone(),
            started_at: place.started_at,
            finished_at: now(),
        };
        self.waiting.push(InstanceLineage { last_termination: Some(last), ..place });
    }

    /// Frees the memory with the last one: a revision without instances would keep 700 unused bytes.
    fn remove(&mut self, id: u64) -> Option<InstanceLineage> {
        let place = self.active.remove(&id);
        if self.active.is_empty() {
            self.active.shrink_to_fit();
        }
        place
    }

    /// All instances, given what the members are doing. `missing` starts are still wanted: so many lines
    /// wait, the others are over.
    pub(super) fn statuses(
        &mut self,
        members: impl Iterator<Item = InstanceSnapshot>,
        missing: u32,
    ) -> Vec<InstanceStatus> {
        self.waiting.truncate(usize::try_from(missing).unwrap_or(usize::MAX));
        let running = members.filter_map(
            |InstanceSnapshot { id, phase: stage, address, sidecars: other_sidecars, not_ready_reason }| {
                let place = self.active.get(&id)?;
                Some(InstanceStatus { sidecars: other_sidecars, not_ready_reason, ..place.status(id, stage, address) })
            },
        );
        let waiting = self.waiting.iter().filter_map(|place| {
            let id = place.last_termination.as_ref()?.id;
            Some(place.status(id, InstancePhase::BackOff, None))
        });
        running.chain(waiting).collect()
    }
}

/// Whole seconds, as Kubernetes' times are.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

impl InstanceLineage {
    fn status(&self, id: u64, stage: InstancePhase, address: Option<SocketAddr>) -> InstanceStatus {
        let Self { lineage: line, created_at: began, restarts, started_at: started, last_termination: ref last } =
            *self;
        let (last, other_sidecars, not_ready_reason) = (last.clone(), Vec::new(), None);
        InstanceStatus {
            id,
            lineage: line,
            created_at: began,
            restarts,
            phase: stage,
            address,
            started_at: started,
            last_termination: last,
            sidecars: other_sidecars,
            not_ready_reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> InstanceExit {
        InstanceExit { cause: ExitCause::Exited(1), message: "exited with 1".into() }
    }

    fn look(roll: &mut LineageTable, ids: &[u64], missing: u32) -> Vec<(u64, u64, u32, InstancePhase)> {
        let doing = |id: &u64| InstanceSnapshot {
            id: *id,
            phase: InstancePhase::Ready,
            address: None,
            sidecars: Vec::new(),
            not_ready_reason: None,
        };
        let members: Vec<_> = ids.iter().map(doing).collect();
        let seen = roll.statuses(members.into_iter(), missing);
        seen.iter().map(|one| (one.lineage, one.id, one.restarts, one.phase)).collect()
    }

    #[test]
    fn a_successor_continues_the_line_of_the_one_that_failed() {
        let mut roll = LineageTable::default();
        roll.assign(7);
        assert_eq!(look(&mut roll, &[7], 0), [(7, 7, 0, InstancePhase::Ready)]);
        roll.record_failure(7, &failure());
        assert_eq!(look(&mut roll, &[], 1), [(7, 7, 0, InstancePhase::BackOff)]);
        roll.assign(8);
        assert_eq!(look(&mut roll, &[8], 0), [(7, 8, 1, InstancePhase::Ready)]);
        roll.release(8);
        roll.assign(9);
        assert_eq!(look(&mut roll, &[9], 0), [(9, 9, 0, InstancePhase::Ready)]);
    }

    #[test]
    fn a_line_that_nobody_wants_again_is_over() {
        let mut roll = LineageTable::default();
        roll.assign(7);
        roll.record_failure(7, &failure());
        assert_eq!(look(&mut roll, &[], 0), []);
        roll.assign(8);
        assert_eq!(look(&mut roll, &[8], 0), [(8, 8, 0, InstancePhase::Ready)]);
    }
}
