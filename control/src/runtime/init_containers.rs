//! The containers of an instance that run before the others: one after the other, each to its end.
//!
//! Each is a process group in the instance's control groups, with its own command, variables, mounts and output. One that
//! fails ends the instance: then the reason is told, and all of them start anew, each time later than the last.

use std::io;

use jiff::Timestamp;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until, timeout};

use super::ending::{End, gone, not_started};
use super::launch::{Leashed, exited, signal_group};
use super::orders::{Order, stop_ordered};
use super::output::drain;
use super::sidecars::Post;
use super::{Beside, Gone, Reporter};

/// All of one instance.
pub(super) struct InitContainers {
    posts: Vec<Post>,
    /// Those that were started.
    seen: Vec<Beside>,
}

impl InitContainers {
    pub(super) fn new(posts: Vec<Post>) -> Self {
        Self { posts, seen: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posts.is_empty()
    }

    /// Those that have run.
    pub(super) fn seen(self) -> Vec<Beside> {
        self.seen
    }

    /// Runs all of them. An error is the end of the instance: one of them failed, was not over at `deadline`, or somebody
    /// ordered it to stop. `starved` tells whether it wanted more memory than it may have.
    pub(super) async fn run(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        reporter: &Reporter,
        deadline: Instant,
        starved: impl Fn() -> bool,
    ) -> Result<(), Gone> {
        for post in &self.posts {
            let name = &post.sidecar.name;
            let began = Some(Timestamp::now());
            self.seen.push(Beside { name: name.clone(), ready: false, restarts: 0, began, ended: None });
            reporter.beside(self.seen.clone());
            let ended =
                run(post, orders, deadline, &starved).await.unwrap_or_else(|why| Err(not_started(&why)));
            ended.map_err(|gone| Gone {
                message: format!("init container {name}: {}", gone.message),
                ..gone
            })?;
            if let Some(last) = self.seen.last_mut() {
                (last.ready, last.ended) = (true, Some(Timestamp::now()));
            }
        }
        if !self.seen.is_empty() {
            reporter.beside(self.seen.clone());
        }
        Ok(())
    }
}

/// One of them, from its start to its end.
async fn run(
    post: &Post,
    orders: &mut UnboundedReceiver<Order>,
    deadline: Instant,
    starved: impl Fn() -> bool,
) -> io::Result<Result<(), Gone>> {
    let (child, pidfd, pumps) = post.begin()?;
    let mut child = Leashed(child);
    let spec = &post.sidecar.spec;
    let end = tokio::select! {
        biased;
        () = exited(&pidfd) => End::Itself,
        () = stop_ordered(orders) => End::Asked,
        () = sleep_until(deadline) => End::NotReady(String::new()),
    };
    if !matches!(end, End::Itself) {
        signal_group(&child.0, Signal::TERM);
        let _ = timeout(spec.grace, exited(&pidfd)).await; // it had its time
    }
    // The leader is not reaped, so its number still means this group: nobody survives it.
    signal_group(&child.0, Signal::KILL);
    let status = child.0.wait()?;
    drain(pumps, &post.log).await;
    if matches!(end, End::Itself) && status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(gone(&end, status, spec, ("", &post.log.borrow().tail()), starved())))
}
