//! Commands to a running instance, and their receiver in its task.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::InstanceHandle;
use crate::limits::GRACE_PERIOD_MAX;

pub(crate) enum InstanceCommand {
    Stop,
    Verify,
    Freeze,
    Thaw,
}

/// From SIGTERM to SIGKILL.
#[derive(Clone)]
pub(crate) struct GracePeriod {
    pub(crate) manifest: Duration,
    /// When SIGKILL follows, if it is to be another time than the manifest's.
    pub(crate) kill_at: watch::Receiver<Option<Instant>>,
}

impl GracePeriod {
    /// Returns when a period that begins now is over. Another stop may end it sooner, and never later.
    pub(crate) async fn elapsed(mut self) {
        let requested = *self.kill_at.borrow_and_update();
        let mut kill_at = requested.unwrap_or_else(|| Instant::now() + self.manifest.min(GRACE_PERIOD_MAX));
        loop {
            tokio::select! {
                () = sleep_until(kill_at) => return,
                changed = self.kill_at.changed() => if changed.is_err() {
                    return sleep_until(kill_at).await; // the handle is dropped
                },
            }
            let requested = *self.kill_at.borrow_and_update();
            kill_at = requested.map_or(kill_at, |at| at.min(kill_at));
        }
    }
}

pub(crate) struct ProcessHandle {
    pub(crate) kill_at: watch::Sender<Option<Instant>>,
    pub(crate) commands: UnboundedSender<InstanceCommand>,
    /// When the process began to run, once it has.
    pub(crate) spawned: Arc<OnceLock<Instant>>,
}

impl InstanceHandle for ProcessHandle {
    fn stop(&self) {
        let _ = self.commands.send(InstanceCommand::Stop); // fails only when the instance is over
    }

    fn stop_within(&self, grace: Duration) {
        let wanted = Instant::now() + grace.min(GRACE_PERIOD_MAX);
        self.kill_at.send_if_modified(|kill_at| {
            let is_sooner = kill_at.is_none_or(|at| wanted < at);
            if is_sooner {
                *kill_at = Some(wanted);
            }
            is_sooner
        });
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn later_stop_shortens_the_grace_period_and_never_extends_it() {
        let ((commands, _inbox), (kill_at, requested)) = (unbounded_channel(), watch::channel(None));
        let handle = ProcessHandle { kill_at, commands, spawned: Arc::default() };
        let grace = GracePeriod { manifest: Duration::from_secs(30), kill_at: requested };
        let began = Instant::now();
        handle.stop_within(Duration::MAX);
        let elapsed = tokio::spawn(grace.elapsed());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!elapsed.is_finished());
        handle.stop_within(Duration::from_secs(2));
        handle.stop_within(Duration::from_secs(600));
        elapsed.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 62);

        // The first stop had the manifest's period.
        let ((commands, _inbox), (kill_at, requested)) = (unbounded_channel(), watch::channel(None));
        let handle = ProcessHandle { kill_at, commands, spawned: Arc::default() };
        let grace = GracePeriod { manifest: Duration::from_secs(30), kill_at: requested };
        let began = Instant::now();
        handle.stop();
        let elapsed = tokio::spawn(grace.elapsed());
        tokio::time::sleep(Duration::from_secs(10)).await;
        handle.stop_within(Duration::from_secs(600));
        elapsed.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 30);
    }
}
