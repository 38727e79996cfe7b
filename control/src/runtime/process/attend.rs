//! What a running process is asked, and told, until it ends: probes, readiness, freezing, the grace period.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Life, Process};
use crate::runtime::ending::End;
use crate::runtime::launch::{exited, signal_group};
use crate::runtime::limits::{HINDRANCE_TOLD_AFTER_MAX, HINDRANCE_TOLD_AFTER_MIN, VERIFY_MAX};
use crate::runtime::orders::{Order, Told, heard, stop_ordered};
use crate::runtime::pause::pause;
use crate::runtime::probe::{Pace, Patient};
use crate::runtime::probe_http2;
use crate::runtime::{InstanceSpec, Reporter};

impl Process {
    /// Until something ends it.
    pub(super) async fn serve(&self, life: &mut Life) -> End {
        tokio::select! {
            biased;
            () = exited(&self.pidfd) => End::Itself,
            gone = self.sidecars.fail() => End::Sidecar(gone),
            end = self.attend(life) => end,
        }
    }

    /// Asks and listens, while the process runs.
    async fn attend(&self, life: &mut Life) -> End {
        let spec = Arc::clone(&life.spec);
        if let Some(startup) = &spec.startup {
            tokio::select! {
                biased;
                () = stop_ordered(&mut life.orders) => return End::Asked,
                () = sleep_until(life.began + spec.startup_max) => {
                    return End::NotReady(self.hindrance("startup").unwrap_or_default());
                }
                started = self.telling(&life.reporter, "startup", self.patient().starts(startup)) => {
                    if let Err(why) = started {
                        return End::Unhealthy(format!("startup probe failed: {why}"));
                    }
                }
            }
        }
        tokio::select! {
            biased;
            end = self.keep_ready(life) => end,
            why = self.dies(&spec) => End::Unhealthy(format!("liveness probe failed: {why}")),
        }
    }

    /// RT-PROBE: tells each change of readiness.
    async fn keep_ready(&self, life: &mut Life) -> End {
        let spec = Arc::clone(&life.spec);
        let until_deadline = life.deadline().saturating_duration_since(Instant::now());
        let mut limit = Some((until_deadline, End::NotReady(String::new())));
        let mut pace = Pace::Fast;
        let mut delay = spec.readiness.delay;
        let later = spec.readiness.later();
        let mut protocol = None;
        loop {
            let passes = async {
                pause(std::mem::take(&mut delay)).await;
                let asked = later.as_ref().filter(|_| pace == Pace::Period);
                // First those whom it may ask while it is asked.
                self.sidecars.are_ready().await;
                self.patient().passes(asked.unwrap_or(&spec.readiness), pace).await;
                if spec.detects_http2 && protocol.is_none() {
                    protocol = Some(Box::pin(probe_http2::spoken(self.address)).await); // boxed: few are asked
                }
            };
            let passes = self.telling(&life.reporter, "readiness", passes);
            let within = limit.as_ref().map_or(Duration::MAX, |(within, _)| *within);
            tokio::select! {
                biased;
                told = heard(&mut life.orders) => match told {
                    Told::Freeze if self.sleeps(life).await => continue,
                    Told::Freeze | Told::Stop => return End::Asked,
                },
                passed = timeout(within, passes) => match (passed, limit.take()) {
                    (Err(_), Some((_, End::NotReady(_)))) => {
                        return End::NotReady(self.hindrance("readiness").unwrap_or_default());
                    }
                    (Err(_), Some((_, end))) => return end,
                    _ => life.reporter.ready(self.address, protocol),
                },
            }
            self.underway.take();
            tokio::select! {
                biased;
                order = life.orders.recv() => match order {
                    Some(Order::Verify) => (pace, limit) = (Pace::Fast, Some((VERIFY_MAX, End::Unreachable))),
                    // It was ready and is ready again: that it answers is for its first request to see.
                    Some(Order::Freeze) if self.sleeps(life).await => {}
                    Some(Order::Freeze | Order::Stop) | None => return End::Asked,
                    Some(Order::Thaw) => {}
                },
                () = self.loses_readiness(&spec) => {
                    life.reporter.unready();
                    pace = Pace::Period;
                }
                () = self.sidecars.lose_readiness() => {
                    life.reporter.unready();
                    pace = Pace::Fast;
                }
            }
        }
    }

    /// Awaits `passing`, and tells what is in its way for as long as it takes.
    async fn telling<T>(&self, reporter: &Reporter, what: &str, passing: impl Future<Output = T>) -> T {
        tokio::pin!(passing);
        self.wrong.borrow_mut().clear(); // that was another time
        let (mut told, mut wait) = (None, HINDRANCE_TOLD_AFTER_MIN);
        loop {
            tokio::select! {
                biased;
                passed = &mut passing => return passed,
                () = sleep(wait) => {}
            }
            wait = (wait * 2).min(HINDRANCE_TOLD_AFTER_MAX);
            let now = self.hindrance(what);
            if now != told {
                now.iter().for_each(|why| reporter.hindered(why.clone()));
                told = now;
            }
        }
    }

    /// Why the instance is not ready: a sidecar is not, or it did not pass the probe that is called so.
    fn hindrance(&self, what: &str) -> Option<String> {
        let wrong = self.wrong.borrow();
        let own = || (!wrong.is_empty()).then(|| format!("{what} probe failed: {wrong}"));
        self.sidecars.hindrance().or_else(own)
    }

    /// Frozen until it is thawed; `false`: until it is to end.
    async fn sleeps(&self, life: &mut Life) -> bool {
        self.frost.set(&self.child, true);
        self.sidecars.freeze(true);
        let thawed = loop {
            match life.orders.recv().await {
                Some(Order::Thaw) => break true,
                Some(Order::Stop) | None => break false,
                Some(Order::Verify | Order::Freeze) => {}
            }
        };
        if thawed {
            self.sidecars.freeze(false);
            self.frost.set(&self.child, false);
        }
        thawed
    }

    /// Never returns if readiness is no more than to listen: who refuses a connection is noticed by the
    /// requests that it refuses.
    async fn loses_readiness(&self, spec: &InstanceSpec) {
        let Some(probe) = spec.readiness.later() else { return std::future::pending().await };
        tokio::time::sleep(probe.period).await;
        let why = self.patient().fails(&probe).await;
        tracing::warn!(revision = spec.revision, address = %self.address, %why, "instance is not ready any more");
    }

    /// Returns why the liveness probe failed; never without one.
    async fn dies(&self, spec: &InstanceSpec) -> String {
        match &spec.liveness {
            Some(liveness) => {
                tokio::time::sleep(liveness.delay).await;
                loop {
                    tokio::select! {
                        why = self.patient().fails(liveness), if !self.frost.is_frozen() => return why,
                        () = self.frost.turned() => {} // its failures count anew
                    }
                }
            }
            None => std::future::pending().await,
        }
    }

    fn patient(&self) -> Patient<'_> {
        let Self { address, launcher, environment, wrong, .. } = self;
        Patient { address: *address, launcher, environment, wrong }
    }

    /// RT-LIFE-05: SIGTERM, the grace period, SIGKILL.
    pub(super) async fn terminate(&self, spec: &InstanceSpec) {
        signal_group(&self.child, Signal::TERM);
        self.frost.set(&self.child, false); // a frozen one hears nothing
        if timeout(spec.grace, exited(&self.pidfd)).await.is_err() {
            signal_group(&self.child, Signal::KILL);
            exited(&self.pidfd).await;
        }
    }
}
