//! What a process has to leave to its successor, and the order in which it lets go of it.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Result;
use dataplane::core::{EVENTS_DRAIN_MAX, EVENTS_IDLE_MAX, Stop};
use dataplane::publish::Tables;
use tokio::sync::watch;

use super::super::folder::Folder;
use super::super::sockets::Kept;
use super::{Request, Successor};

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
    /// Ends API, controllers and store.
    pub(in crate::cli::run) end_control: watch::Sender<bool>,
    /// Told when they have ended.
    pub(in crate::cli::run) control_ended: mpsc::Receiver<()>,
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
        if let Some(folder) = self.folder.take() {
            self.end_control.send_replace(true);
            if self.control_ended.recv_timeout(CONTROL_MAX).is_err() {
                tracing::warn!("the object store is still open");
            }
            self.stop.say_events(&self.tables);
            if !self.stop.wait_for_events(self.cores, EVENTS_IDLE_MAX + EVENTS_DRAIN_MAX + LOGS_EXTRA_MAX) {
                tracing::warn!("a log is still open");
            }
            drop(folder);
        }
        successor.leave_it_all()?;
        Ok(successor)
    }
}
