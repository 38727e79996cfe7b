//! Init containers: they run before the others, one after the other, each to its end.
//!
//! Each is a process group in the instance's control groups, with its own command, variables, mounts and output. One that
//! fails ends the instance: then the reason is reported, and all of them start again, each time later than the last. In a Pod
//! it is started again by itself, and those before it are not.

use std::io;

use jiff::Timestamp;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until};

use super::commands::{GracePeriod, InstanceCommand, stop_requested};
use super::exit::{TerminationCause, exit_of, not_started};
use super::sidecars::SidecarContainer;
use crate::logs::output_capture::drain;
use crate::process::child::{ChildGuard, exited, signal_group};
use crate::{InstanceExit, InstanceReporter, SidecarStatus};

/// All init containers of one instance.
pub(crate) struct InitContainers {
    containers: Vec<SidecarContainer>,
    /// The started ones.
    statuses: Vec<SidecarStatus>,
}

impl InitContainers {
    pub(crate) fn new(posts: Vec<SidecarContainer>) -> Self {
        Self { containers: posts, statuses: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.containers.is_empty()
    }

    /// The completed ones.
    pub(crate) fn statuses(self) -> Vec<SidecarStatus> {
        self.statuses
    }

    /// Runs all of them. An error is the end of the instance: one of them failed or was still running at `deadline`, or the
    /// instance was stopped. `starved`: whether it exceeded its memory limit.
    pub(crate) async fn run(
        &mut self,
        orders: &mut UnboundedReceiver<InstanceCommand>,
        reporter: &InstanceReporter,
        (deadline, grace): (Instant, GracePeriod),
        starved: impl Fn() -> bool,
    ) -> Result<(), InstanceExit> {
        for post in &self.containers {
            self.statuses.push(SidecarStatus { name: post.sidecar.name.clone(), ..SidecarStatus::default() });
            let mut progress = InitProgress { statuses: &mut self.statuses, reporter };
            until_succeeded(post, &mut progress, orders, (deadline, grace.clone()), &starved).await.map_err(
                |exit| {
                    let message = format!("init container {}: {}", post.sidecar.name, exit.message);
                    InstanceExit { message, ..exit }
                },
            )?;
        }
        if !self.statuses.is_empty() {
            reporter.sidecars(self.statuses.clone());
        }
        Ok(())
    }
}

/// The statuses, of which the last one is that of the container which runs.
struct InitProgress<'a> {
    statuses: &'a mut Vec<SidecarStatus>,
    reporter: &'a InstanceReporter,
}

impl InitProgress<'_> {
    fn update(&mut self, change: impl FnOnce(&mut SidecarStatus)) {
        if let Some(status) = self.statuses.last_mut() {
            change(status);
        }
        self.reporter.sidecars(self.statuses.clone());
    }
}

/// One init container, which is started again after a failure if the manifest says so.
async fn until_succeeded(
    post: &SidecarContainer,
    progress: &mut InitProgress<'_>,
    orders: &mut UnboundedReceiver<InstanceCommand>,
    times: (Instant, GracePeriod),
    starved: impl Fn() -> bool,
) -> Result<(), InstanceExit> {
    let (restart, mut failures) = (post.sidecar.spec.restart, 0);
    loop {
        let began = Instant::now();
        progress.update(|status| (status.is_running, status.started_at) = (true, Some(Timestamp::now())));
        let end = run(post, orders, times.clone(), &starved).await;
        let exit = match end.unwrap_or_else(|why| InitEnd::Failed(not_started(&why))) {
            InitEnd::Succeeded => {
                // The next one, or the end of the list, reports it.
                if let Some(status) = progress.statuses.last_mut() {
                    (status.ready, status.ended, status.is_running) = (true, true, false);
                    status.finished_at = Some(Timestamp::now());
                }
                return Ok(());
            }
            InitEnd::Failed(exit) if restart.restarts_after(false) => exit,
            InitEnd::Failed(exit) | InitEnd::Interrupted(exit) => return Err(exit),
        };
        failures = restart.failures_after(failures, began.elapsed());
        progress.update(|status| {
            status.is_running = false;
            (status.finished_at, status.last_exit) = (Some(Timestamp::now()), Some(exit.clone()));
        });
        tokio::select! {
            biased;
            () = stop_requested(orders) => return Err(exit),
            () = sleep(restart.delay(failures)) => {}
        }
        if let Some(status) = progress.statuses.last_mut() {
            status.restarts = status.restarts.saturating_add(1);
        }
        post.begin_again();
    }
}

/// How an init container ended.
enum InitEnd {
    Succeeded,
    Failed(InstanceExit),
    /// The instance is to end.
    Interrupted(InstanceExit),
}

/// One process of an init container, from its start to its end.
async fn run(
    post: &SidecarContainer,
    orders: &mut UnboundedReceiver<InstanceCommand>,
    (deadline, grace): (Instant, GracePeriod),
    starved: impl Fn() -> bool,
) -> io::Result<InitEnd> {
    let (child, pidfd, readers) = post.spawn()?;
    let mut child = ChildGuard(child);
    let spec = &post.sidecar.spec;
    let end = tokio::select! {
        biased;
        () = exited(&pidfd) => TerminationCause::Exited,
        () = stop_requested(orders) => TerminationCause::Stopped,
        () = sleep_until(deadline) => TerminationCause::NotReady(String::new()),
    };
    if !matches!(end, TerminationCause::Exited) {
        post.launcher.terminate(&child.0);
        tokio::select! {
            () = exited(&pidfd) => {}
            () = grace.elapsed() => {}
        }
    }
    // The leader is not reaped, so its process id still identifies this group.
    signal_group(&child.0, Signal::KILL);
    // A container has ended when the last of its processes has, and other instances must not wait for that.
    exited(&pidfd).await;
    let status = child.0.wait()?;
    drain(readers, &post.log).await;
    let has_ended = matches!(end, TerminationCause::Exited);
    if has_ended && status.success() {
        return Ok(InitEnd::Succeeded);
    }
    let exit = exit_of(&end, status, spec, ("", &post.log.borrow().tail()), starved());
    Ok(if has_ended { InitEnd::Failed(exit) } else { InitEnd::Interrupted(exit) })
}
