//! Init containers: they run before the others, one after the other, each to its end.
//!
//! Each is a process group in the instance's control groups, with its own command, variables, mounts and output. One that
//! fails ends the instance: then the reason is reported, and all of them start again, each time later than the last.

use std::io;

use jiff::Timestamp;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

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
            let name = &post.sidecar.name;
            let began = Some(Timestamp::now());
            self.statuses.push(SidecarStatus {
                name: name.clone(),
                ready: false,
                restarts: 0,
                started_at: began,
                finished_at: None,
                last_exit: None,
                ended: false,
            });
            reporter.sidecars(self.statuses.clone());
            let ended = run(post, orders, (deadline, grace.clone()), &starved)
                .await
                .unwrap_or_else(|why| Err(not_started(&why)));
            ended
                .map_err(|gone| InstanceExit { message: format!("init container {name}: {}", gone.message), ..gone })?;
            if let Some(last) = self.statuses.last_mut() {
                (last.ready, last.ended, last.finished_at) = (true, true, Some(Timestamp::now()));
            }
        }
        if !self.statuses.is_empty() {
            reporter.sidecars(self.statuses.clone());
        }
        Ok(())
    }
}

/// One init container, from its start to its end.
async fn run(
    post: &SidecarContainer,
    orders: &mut UnboundedReceiver<InstanceCommand>,
    (deadline, grace): (Instant, GracePeriod),
    starved: impl Fn() -> bool,
) -> io::Result<Result<(), InstanceExit>> {
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
    if matches!(end, TerminationCause::Exited) && status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(exit_of(&end, status, spec, ("", &post.log.borrow().tail()), starved())))
}
