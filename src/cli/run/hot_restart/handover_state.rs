//! The resources that a process hands over to its successor, and the order in which it releases them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;
use dataplane::core::{EVENTS_DRAIN_MAX, EVENTS_IDLE_MAX, StopSignal};
use dataplane::table_publisher::TablePublisher;

use super::super::control::{AdminPort, ControlHandle};
use super::super::data_folder::DataFolder;
use super::super::gateway_sockets::GatewaySockets;
use super::super::sockets::SocketDescriptors;
use super::{PendingHandover, Successor};
use crate::admin::Health;

/// API requests, controllers and the store's last commit end within a second or two.
const CONTROL_MAX: Duration = Duration::from_secs(10);

/// In addition to the drain time of a core's events, for the last flush and a segment that is being
/// prepared.
const LOGS_EXTRA_MAX: Duration = Duration::from_secs(10);

pub(in crate::cli::run) struct HandoverState {
    pub(in crate::cli::run) sockets: SocketDescriptors,
    pub(in crate::cli::run) gateway_sockets: Arc<GatewaySockets>,
    /// `None` once a successor has it.
    pub(in crate::cli::run) folder: Option<DataFolder>,
    pub(in crate::cli::run) cores: usize,
    pub(in crate::cli::run) stop: Arc<StopSignal>,
    pub(in crate::cli::run) tables: Arc<TablePublisher>,
    /// The number of successors that got everything, and whose result is unknown.
    pub(in crate::cli::run) successors: usize,
    pub(in crate::cli::run) control_handle: ControlHandle,
    pub(in crate::cli::run) health: Arc<Health>,
}

impl HandoverState {
    /// Hands over everything but the requests. A second successor, after one that failed, finds most of it
    /// done.
    ///
    /// # Errors It does not fit and nothing has changed, or it is gone.
    pub(in crate::cli::run) fn hand_over(&mut self, request: PendingHandover) -> Result<Successor> {
        let successor = request.grant(&self.sockets, &self.gateway_sockets)?;
        tracing::info!(version = successor.version, "another process takes over: API and events end here");
        self.control_handle.admin_port.send_replace(AdminPort::Lent);
        if let Some(folder) = self.folder.take() {
            self.control_handle.hand_over.send_replace(true);
            if self.control_handle.handed.recv_timeout(CONTROL_MAX).is_err() {
                tracing::warn!("the object store is still open");
            }
            self.stop.signal_events(&self.tables);
            if !self.stop.wait_for_events(self.cores, EVENTS_IDLE_MAX + EVENTS_DRAIN_MAX + LOGS_EXTRA_MAX) {
                tracing::warn!("a log is still open");
            }
            drop(folder);
        }
        successor.release_state()?;
        self.successors += 1;
        Ok(successor)
    }

    /// A successor that got everything does not serve.
    pub(in crate::cli::run) fn outlive(&mut self, why: &anyhow::Error, listen: impl FnOnce()) {
        self.successors -= 1;
        self.keep(why, listen);
    }

    /// Continues with the rest, because the successor failed. `listen` listens for the next one: the
    /// last may have replaced our socket by its own.
    pub(in crate::cli::run) fn keep(&self, why: &anyhow::Error, listen: impl FnOnce()) {
        let why = format!("{why:#}");
        if self.successors > 0 || *self.control_handle.admin_port.borrow() == AdminPort::Served {
            tracing::warn!(why, "the hot restart failed");
            return;
        }
        listen();
        self.health.orphaned.store(true, Relaxed);
        self.control_handle.admin_port.send_replace(AdminPort::Served);
        tracing::error!(
            why,
            "the successor does not serve: requests continue with the last table, \
             API and events wait for another `sluicegate run --hot-restart`, or for a restart; /healthz says so"
        );
    }
}
