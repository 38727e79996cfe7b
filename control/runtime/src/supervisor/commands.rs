//! Commands to a running instance, and their receiver in its task.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::InstanceHandle;

pub(crate) enum InstanceCommand {
    Stop,
    Verify,
    Freeze,
    Thaw,
}

/// From SIGTERM to SIGKILL, if it is to be another time than the manifest's.
pub(crate) type RequestedGrace = Arc<OnceLock<Duration>>;

pub(crate) struct ProcessHandle {
    pub(crate) grace: RequestedGrace,
    pub(crate) commands: UnboundedSender<InstanceCommand>,
    /// When the process began to run, once it has.
    pub(crate) spawned: Arc<OnceLock<Instant>>,
}

impl InstanceHandle for ProcessHandle {
    fn stop(&self) {
        let _ = self.commands.send(InstanceCommand::Stop); // fails only when the instance is over
    }

    fn stop_within(&self, grace: Duration) {
        let _ = self.grace.set(grace); // an error: it is stopped already
        self.stop();
    }

    fn verify(&self) {
        let _ = self.commands.send(InstanceCommand::Verify);
    }

    fn freeze(&self) {
        let _ = self.commands.send(InstanceCommand::Freeze);
    }

    fn thaw(&self) {
        let _ = self.commands.send(InstanceCommand::Thaw);
    }

    fn spawned(&self) -> Option<Instant> {
        self.spawned.get().copied()
    }
}

/// A command to an instance that is being probed.
pub(crate) enum ProbeInterrupt {
    Stop,
    Freeze,
}

/// A check request to an instance that is being probed anyway is ignored.
pub(crate) async fn next_interrupt(orders: &mut UnboundedReceiver<InstanceCommand>) -> ProbeInterrupt {
    loop {
        match orders.recv().await {
            Some(InstanceCommand::Stop) | None => return ProbeInterrupt::Stop,
            Some(InstanceCommand::Freeze) => return ProbeInterrupt::Freeze,
            Some(InstanceCommand::Verify | InstanceCommand::Thaw) => {}
        }
    }
}

/// Returns when a stop is requested; a check request to an instance that is being probed anyway is ignored.
pub(crate) async fn stop_requested(orders: &mut UnboundedReceiver<InstanceCommand>) {
    while !matches!(orders.recv().await, Some(InstanceCommand::Stop) | None) {}
}
