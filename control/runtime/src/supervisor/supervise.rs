//! Supervises a running process until it ends: probes, readiness, freezing, the grace period.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::commands::{GracePeriod, InstanceCommand, ProbeInterrupt, next_interrupt, stop_requested};
use super::exit::TerminationCause;
use super::{InstanceProcess, InstanceRun};
use crate::limits::{NOT_READY_REPORT_DELAY_MAX, NOT_READY_REPORT_DELAY_MIN, VERIFY_TIMEOUT};
use crate::probes::http2;
use crate::probes::{ProbePace, ProbeTarget};
use crate::process::child::{exited, signal_group};
use crate::process::precise_sleep::precise_sleep;
use crate::{InstanceReporter, InstanceSpec};

/// Why a ready instance is probed again, or has ended.
enum ReadinessEnd {
    /// Its owner requested a check.
    Verify,
    /// It failed its readiness probe, or a sidecar did.
    Unready(ProbePace),
    Stopped,
}

impl InstanceProcess {
    /// Until something ends its program.
    pub(crate) async fn serve(&self, instance: &mut InstanceRun) -> TerminationCause {
        tokio::select! {
            biased;
            () = exited(&self.pidfd) => TerminationCause::Exited,
            gone = self.sidecars.until_failed() => TerminationCause::SidecarFailed(gone),
            end = self.supervise(instance) => end,
        }
    }

    /// Probes and handles commands while the process runs.
    async fn supervise(&self, instance: &mut InstanceRun) -> TerminationCause {
        let spec = Arc::clone(&instance.spec);
        tokio::select! {
            biased;
            () = self.launcher.until_started(&self.child) => {}
            () = stop_requested(&mut instance.commands) => return TerminationCause::Stopped,
            () = sleep_until(instance.began_at + spec.startup_timeout) => {
                return TerminationCause::NotReady("the container's root is not mounted yet".to_owned());
            }
        }
        if let Some(startup) = &spec.startup {
            tokio::select! {
                biased;
                () = stop_requested(&mut instance.commands) => return TerminationCause::Stopped,
                () = sleep_until(instance.began_at + spec.startup_timeout) => {
                    return TerminationCause::NotReady(self.not_ready_reason("startup").unwrap_or_default());
                }
                started = self.reporting(&instance.reporter, "startup", self.probe_target().until_started(startup)) => {
                    if let Err(why) = started {
                        return TerminationCause::Unhealthy(format!("startup probe failed: {why}"));
                    }
                }
            }
        }
        tokio::select! {
            biased;
            end = self.watch_readiness(instance) => end,
            why = self.until_unhealthy(&spec) => TerminationCause::Unhealthy(format!("liveness probe failed: {why}")),
        }
    }

    /// RT-PROBE: tells each change of readiness.
    async fn watch_readiness(&self, instance: &mut InstanceRun) -> TerminationCause {
        let spec = Arc::clone(&instance.spec);
        let until_deadline = instance.deadline().saturating_duration_since(Instant::now());
        let mut limit = Some((until_deadline, TerminationCause::NotReady(String::new())));
        let mut pace = ProbePace::Fast;
        let mut delay = spec.readiness.initial_delay;
        let later = spec.readiness.periodic();
        let mut protocol = None;
        loop {
            let passes = async {
                precise_sleep(std::mem::take(&mut delay)).await;
                let asked = later.as_ref().filter(|_| pace == ProbePace::Period);
                // The sidecars first: the instance may need them to answer.
                self.sidecars.are_ready().await;
                self.probe_target().until_success(asked.unwrap_or(&spec.readiness), pace).await;
                if spec.detect_http2 && protocol.is_none() {
                    protocol = Some(Box::pin(http2::detect(self.address)).await); // boxed: few are asked
                }
            };
            let passes = self.reporting(&instance.reporter, "readiness", passes);
            let within = limit.as_ref().map_or(Duration::MAX, |(within, _)| *within);
            tokio::select! {
                biased;
                reported = next_interrupt(&mut instance.commands) => match reported {
                    ProbeInterrupt::Freeze if self.wait_while_frozen(instance).await => {
                        // Thawed, it would count as ready again; it is not, until it passes.
                        instance.reporter.unready();
                        continue;
                    }
                    ProbeInterrupt::Freeze | ProbeInterrupt::Stop => return TerminationCause::Stopped,
                },
                passed = timeout(within, passes) => match (passed, limit.take()) {
                    (Err(_), Some((_, TerminationCause::NotReady(_)))) => {
                        return TerminationCause::NotReady(self.not_ready_reason("readiness").unwrap_or_default());
                    }
                    (Err(_), Some((_, end))) => return end,
                    _ => instance.reporter.ready(self.address, protocol),
                },
            }
            self.start_guard.take();
            match self.while_ready(instance, &spec).await {
                ReadinessEnd::Verify => {
                    (pace, limit) = (ProbePace::Fast, Some((VERIFY_TIMEOUT, TerminationCause::Unreachable)));
                }
                ReadinessEnd::Unready(next) => {
                    instance.reporter.unready();
                    pace = next;
                }
                ReadinessEnd::Stopped => return TerminationCause::Stopped,
            }
        }
    }

    /// Returns when it is no longer ready. A freeze does not count: requests and the next readiness probe detect whether it
    /// answers after its thaw.
    async fn while_ready(&self, instance: &mut InstanceRun, spec: &InstanceSpec) -> ReadinessEnd {
        loop {
            tokio::select! {
                biased;
                order = instance.commands.recv() => match order {
                    Some(InstanceCommand::Verify) => return ReadinessEnd::Verify,
                    Some(InstanceCommand::Freeze) if self.wait_while_frozen(instance).await => {}
                    Some(InstanceCommand::Freeze | InstanceCommand::Stop) | None => return ReadinessEnd::Stopped,
                    Some(InstanceCommand::Thaw) => {}
                },
                () = self.until_unready(spec) => return ReadinessEnd::Unready(ProbePace::Period),
                () = self.sidecars.until_unready() => return ReadinessEnd::Unready(ProbePace::Fast),
            }
        }
    }

    /// Awaits `passing`, and reports periodically why it has not passed.
    async fn reporting<T>(&self, reporter: &InstanceReporter, what: &str, passing: impl Future<Output = T>) -> T {
        tokio::pin!(passing);
        self.last_probe_error.borrow_mut().clear(); // that was another time
        let (mut reported, mut wait) = (None, NOT_READY_REPORT_DELAY_MIN);
        loop {
            tokio::select! {
                biased;
                passed = &mut passing => return passed,
                () = sleep(wait) => {}
            }
            wait = (wait * 2).min(NOT_READY_REPORT_DELAY_MAX);
            let now = self.not_ready_reason(what);
            if now != reported {
                now.iter().for_each(|why| reporter.not_ready_reason(why.clone()));
                reported = now;
            }
        }
    }

    /// Why the instance is not ready: because of a sidecar, or of the named probe.
    fn not_ready_reason(&self, what: &str) -> Option<String> {
        let wrong = self.last_probe_error.borrow();
        let own = || (!wrong.is_empty()).then(|| format!("{what} probe failed: {wrong}"));
        self.sidecars.not_ready_reason().or_else(own)
    }

    /// Frozen until it is thawed; `false`: until it must end. It runs while a client has a session, whose command would be
    /// frozen with it.
    async fn wait_while_frozen(&self, instance: &mut InstanceRun) -> bool {
        let thawed = loop {
            let frozen = self.sessions.freeze();
            self.set_frozen(frozen);
            tokio::select! {
                biased;
                command = instance.commands.recv() => match command {
                    Some(InstanceCommand::Thaw) => break true,
                    Some(InstanceCommand::Stop) | None => break false,
                    Some(InstanceCommand::Verify | InstanceCommand::Freeze) => {}
                },
                () = self.sessions.open_changed() => {}
            }
        };
        // One that is to end is thawed when it has its signal.
        if thawed {
            self.set_frozen(false);
        }
        thawed
    }

    fn set_frozen(&self, frozen: bool) {
        if frozen {
            self.freezer.set(&self.child, true);
            self.sidecars.freeze(true);
        } else {
            self.sidecars.freeze(false);
            self.freezer.set(&self.child, false);
            self.sessions.thaw();
        }
    }

    /// Never returns if the readiness probe only checks that the port is open: requests notice refused
    /// connections themselves.
    async fn until_unready(&self, spec: &InstanceSpec) {
        let Some(probe) = spec.readiness.periodic() else { return std::future::pending().await };
        tokio::time::sleep(probe.period).await;
        let why = self.probe_target().until_failure(&probe).await;
        tracing::warn!(revision = spec.revision, address = %self.address, %why, "instance is no longer ready");
    }

    /// Returns why the liveness probe failed; never without one.
    async fn until_unhealthy(&self, spec: &InstanceSpec) -> String {
        match &spec.liveness {
            Some(liveness) => {
                tokio::time::sleep(liveness.initial_delay).await;
                loop {
                    tokio::select! {
                        why = self.probe_target().until_failure(liveness), if !self.freezer.is_frozen() => return why,
                        () = self.freezer.changed() => {} // its failure count restarts
                    }
                }
            }
            None => std::future::pending().await,
        }
    }

    fn probe_target(&self) -> ProbeTarget<'_> {
        let Self { address, ports, launcher, environment, last_probe_error: wrong, .. } = self;
        ProbeTarget { address: *address, ports, launcher, environment, last_error: wrong }
    }

    /// RT-LIFE-05: SIGTERM, the grace period, SIGKILL.
    pub(crate) async fn terminate(&self, grace: GracePeriod) {
        self.launcher.terminate(&self.child);
        self.freezer.set(&self.child, false); // a frozen one hears nothing
        tokio::select! {
            biased;
            () = exited(&self.pidfd) => {}
            () = grace.elapsed() => {
                signal_group(&self.child, Signal::KILL);
                exited(&self.pidfd).await;
            }
        }
    }
}
