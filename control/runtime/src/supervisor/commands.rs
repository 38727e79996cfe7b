//! What a running instance is told, and how its task hears it.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::InstanceHandle;

pub(crate) enum InstanceCommand {
    Stop,
    Verify,
    Freeze,
    Thaw,
}

pub(crate) struct ProcessHandle {
    pub(crate) commands: UnboundedSender<InstanceCommand>,
    /// When the process began to run, once it has.
    pub(crate) spawned: Arc<OnceLock<Instant>>,
}

impl InstanceHandle for ProcessHandle {
    fn stop(&self) {
        let _ = self.commands.send(InstanceCommand::Stop); // fails only when the instance is over
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

/// What an instance is told that is being probed.
pub(crate) enum ProbeInterrupt {
    Stop,
    Freeze,
}

/// A doubt about an instance that is being probed anyway is no news.
pub(crate) async fn next_interrupt(orders: &mut UnboundedReceiver<InstanceCommand>) -> ProbeInterrupt {
    loop {
        match orders.recv().await {
            Some(InstanceCommand::Stop) | None => return ProbeInterrupt::Stop,
            Some(InstanceCommand::Freeze) => return ProbeInterrupt::Freeze,
            Some(InstanceCommand::Verify | InstanceCommand::Thaw) => {}
        }
    }
}

/// Returns on the order to stop; a doubt about an instance that is being probed anyway is no news.
pub(crate) async fn stop_requested(orders: &mut UnboundedReceiver<InstanceCommand>) {
    while !matches!(orders.recv().await, Some(InstanceCommand::Stop) | None) {}
}
