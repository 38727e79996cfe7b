//! What a process has to leave to its successor, and the order in which it lets go of it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;
use dataplane::core::{EVENTS_DRAIN_MAX, EVENTS_IDLE_MAX, Stop};
use dataplane::publish::Tables;

use super::super::control::{AdminPort, Reins};
use super::super::folder::Folder;
use super::super::sockets::Kept;
use super::{Request, Successor};
use crate::admin::Health;

/// API requests, controllers and the store's last commit end within a second or two.
const CONTROL_MAX: Duration = Duration::from_secs(10);

/// Beyond what a core gives its events, for the last flush and a segment that is being prepared.
const LOGS_EXTRA_MAX: Duration = Duration::from_secs(10);

pub(in crate::cli::run) struct Estate {
    pub(in crate::cli::run) sockets: Kept,
    /// `None` once a successor was given it.
    pub(in crate::cli::run) folder: Option<Folder>,
    pub(in crate::cli::run) cores: usize,
    pub(in crate::cli::run) stop: Arc<Stop>,
    pub(in crate::cli::run) tables: Arc<Tables>,
    /// Of those who were given everything, those of whom nothing is known yet.
    pub(in crate::cli::run) successors: usize,
    pub(in crate::cli::run) reins: Reins,
    pub(in crate::cli::run) health: Arc<Health>,
}

impl Estate {
    /// Gives everything but the requests to whoever asks. A second successor, after one that failed, finds most of
    /// it done.
    ///
    /// # Errors
    /// It does not fit and nothing has changed, or it is gone.
    pub(in crate::cli::run) fn hand_over(&mut self, request: Request) -> Result<Successor> {
        let successor = request.grant(&self.sockets)?;
        tracing::info!(version = successor.version, "another process takes over: API and events end here");
        self.reins.admin_port.send_replace(AdminPort::Lent);
        if let Some(folder) = self.folder.take() {
            self.reins.hand_over.send_replace(true);
            if self.reins.handed.recv_timeout(CONTROL_MAX).is_err() {
                tracing::warn!("the object store is still open");
            }
            self.stop.say_events(&self.tables);
            if !self.stop.wait_for_events(self.cores, EVENTS_IDLE_MAX + EVENTS_DRAIN_MAX + LOGS_EXTRA_MAX) {
                tracing::warn!("a log is still open");
            }
            drop(folder);
        }
        successor.leave_it_all()?;
        self.successors += 1;
        Ok(successor)
    }

    /// One that had everything does not serve.
    pub(in crate::cli::run) fn outlive(&mut self, why: &anyhow::Error, open_door: impl FnOnce()) {
        self.successors -= 1;
        self.keep(why, open_door);
    }

    /// Goes on with what is left, because nobody took over. `open_door` lets the next one knock: the last may have put a
    /// door of its own in the place of ours.
    pub(in crate::cli::run) fn keep(&self, why: &anyhow::Error, open_door: impl FnOnce()) {
        let why = format!("{why:#}");
        if self.successors > 0 || *self.reins.admin_port.borrow() == AdminPort::Served {
            tracing::warn!(why, "the takeover was not carried out");
            return;
        }
        open_door();
        self.health.orphaned.store(true, Relaxed);
        self.reins.admin_port.send_replace(AdminPort::Served);
        tracing::error!(
            why,
            "the process that took over does not serve: requests go on by the last table, \
             API and events wait for another `sluicegate run --hot-restart`, or for a restart; /healthz says so"
        );
    }
}
