//! The containers of an instance beside the one that serves.
//!
//! Each is a process group of its own in the instance's control groups, with its own command, variables, mounts, probes
//! and output. One that ends is started again by itself, each time later than the last, and the instance gets no requests
//! meanwhile. One that fails again and again takes the instance with it: then the reason is told, and all of them start
//! anew.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use super::ending::{End, gone, not_started};
use super::environment::command;
use super::frost::Frost;
use super::launch::{Launcher, exited, signal_group};
use super::limits::{
    SIDECAR_FAILURES_MAX, SIDECAR_RESTART_MAX, SIDECAR_RESTART_MIN, SIDECAR_STEADY_AFTER, SIDECAR_WELL_AFTER,
};
use super::log::InstanceLog;
use super::output::{drain, watch};
use super::probe::{Pace, Patient, Wrong};
use super::{Beside, Gone, Reporter, Sidecar};

/// All of one instance.
pub(super) struct Sidecars {
    team: Rc<Team>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

struct Team {
    posts: Vec<Post>,
    /// Who ran before them.
    before: Vec<Beside>,
    reporter: Reporter,
    stopping: Cell<bool>,
    /// Why the instance cannot go on.
    failed: RefCell<Option<Gone>>,
    /// Something about it has changed.
    bell: Notify,
}

/// One of them, started as often as it takes.
pub(super) struct Post {
    pub(super) sidecar: Sidecar,
    pub(super) launcher: Launcher,
    pub(super) environment: Vec<(String, String)>,
    /// Where its probes ask.
    pub(super) address: SocketAddr,
    pub(super) log: Rc<RefCell<InstanceLog>>,
    pub(super) state: State,
}

#[derive(Default)]
pub(super) struct State {
    /// While its process runs.
    child: RefCell<Option<Child>>,
    frost: Frost,
    started: Cell<bool>,
    ready: Cell<bool>,
    restarts: Cell<u32>,
    /// In a row.
    failures: Cell<u32>,
    wrong: Wrong,
}

impl Sidecars {
    /// Starts all of them, after those `before`.
    pub(super) fn start(posts: Vec<Post>, before: Vec<Beside>, reporter: &Reporter) -> Self {
        let team = Rc::new(Team {
            posts,
            before,
            reporter: reporter.clone(),
            stopping: Cell::default(),
            failed: RefCell::default(),
            bell: Notify::new(),
        });
        let tasks = (0..team.posts.len()).map(|at| {
            let team = Rc::clone(&team);
            spawn_local(async move { team.man(at).await })
        });
        Self { tasks: RefCell::new(tasks.collect()), team }
    }

    /// Returns when all are ready.
    pub(super) async fn are_ready(&self) {
        self.until(|| self.team.are_ready()).await;
    }

    /// What is in the way of one that is not ready, as far as it is known.
    pub(super) fn hindrance(&self) -> Option<String> {
        let post = self.team.posts.iter().find(|post| !post.state.ready.get())?;
        let (name, wrong) = (&post.sidecar.name, post.state.wrong.borrow());
        Some(match wrong.as_str() {
            "" => format!("container {name} is not ready"),
            wrong => format!("container {name} is not ready: {wrong}"),
        })
    }

    /// Returns when one of them is not ready.
    pub(super) async fn lose_readiness(&self) {
        self.until(|| !self.team.are_ready()).await;
    }

    /// Returns why the instance cannot go on; never if it can.
    pub(super) async fn fail(&self) -> Gone {
        loop {
            let heard = self.team.bell.notified();
            if let Some(gone) = self.team.failed.borrow().clone() {
                return gone;
            }
            heard.await;
        }
    }

    pub(super) fn freeze(&self, frozen: bool) {
        for post in &self.team.posts {
            if let Some(child) = &*post.state.child.borrow() {
                post.state.frost.set(child, frozen);
            }
        }
    }

    /// SIGTERM, the grace period, SIGKILL.
    pub(super) async fn end(&self, grace: Duration) {
        self.team.stopping.set(true);
        self.team.signal_all(Signal::TERM);
        self.freeze(false); // a frozen one hears nothing
        let mut tasks = self.tasks.take();
        for (task, post) in tasks.iter().zip(&self.team.posts) {
            if post.state.child.borrow().is_none() {
                task.abort(); // it waits for its next start
            }
        }
        let all = async {
            for task in &mut tasks {
                let _ = task.await; // an error: it waited for its next start
            }
        };
        if timeout(grace, all).await.is_err() {
            self.team.signal_all(Signal::KILL);
            for task in tasks.iter_mut().filter(|task| !task.is_finished()) {
                let _ = task.await;
            }
        }
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let heard = self.team.bell.notified();
            if holds() {
                return;
            }
            heard.await;
        }
    }
}

impl Drop for Sidecars {
    /// The thread ends, or the instance could not be started: nobody waits for them any more.
    fn drop(&mut self) {
        self.tasks.borrow().iter().for_each(JoinHandle::abort);
        self.team.signal_all(Signal::KILL);
        for post in &self.team.posts {
            if let Some(mut child) = post.state.child.take() {
                let _ = child.wait(); // at once: nothing survives SIGKILL
            }
        }
    }
}

impl Team {
    /// Starts one again and again, as long as the instance lives.
    async fn man(&self, at: usize) {
        let post = &self.posts[at];
        let failures = &post.state.failures;
        loop {
            let began = Instant::now();
            let gone = match self.run(post).await {
                Ok(gone) => gone,
                Err(why) => not_started(&why),
            };
            self.say(post, false);
            if self.stopping.get() {
                return;
            }
            let name = &post.sidecar.name;
            tracing::warn!(revision = post.sidecar.spec.revision, sidecar = name, reason = %gone.cause, "sidecar failed");
            failures.set(if began.elapsed() >= SIDECAR_WELL_AFTER { 1 } else { failures.get() + 1 });
            if failures.get() == SIDECAR_FAILURES_MAX {
                let message = format!("container {name}: {}", gone.message);
                self.failed.borrow_mut().get_or_insert(Gone { message, ..gone });
                return self.bell.notify_waiters();
            }
            sleep(delay(failures.get())).await;
            post.state.restarts.update(|restarts| restarts.saturating_add(1));
        }
    }

    /// One process, from its start to its end.
    async fn run(&self, post: &Post) -> io::Result<Gone> {
        let spec = &post.sidecar.spec;
        let (child, pidfd, pumps) = post.begin()?;
        post.state.child.replace(Some(child));
        let end = tokio::select! {
            biased;
            () = exited(&pidfd) => if self.stopping.get() { End::Asked } else { End::Itself },
            end = self.attend(post) => {
                post.signal(Signal::TERM);
                let _ = timeout(spec.grace, exited(&pidfd)).await; // it had its time
                end
            }
        };
        let child = post.state.child.take();
        let Some(mut child) = child else { return Err(io::Error::other("its process is gone")) };
        // The leader is not reaped, so its number still means this group: nobody survives it.
        signal_group(&child, Signal::KILL);
        let status = child.wait()?;
        drain(pumps, &post.log).await;
        Ok(gone(&end, status, spec, ("", &post.log.borrow().tail()), false))
    }

    /// Asks, while the process runs; nobody is asked who stands still.
    async fn attend(&self, post: &Post) -> End {
        post.state.started.set(false);
        loop {
            tokio::select! {
                end = self.ask(post), if !post.state.frost.is_frozen() => return end,
                () = post.state.frost.turned() => {}
            }
        }
    }

    async fn ask(&self, post: &Post) -> End {
        let spec = &post.sidecar.spec;
        if let Some(startup) = spec.startup.as_ref().filter(|_| !post.state.started.get()) {
            if let Err(why) = post.patient().starts(startup).await {
                return End::Unhealthy(format!("startup probe failed: {why}"));
            }
            post.state.started.set(true);
        }
        let lives = async {
            let Some(liveness) = &spec.liveness else { return std::future::pending().await };
            sleep(liveness.delay).await;
            post.patient().fails(liveness).await
        };
        tokio::select! {
            () = self.keep_ready(post) => End::Asked, // never
            why = lives => End::Unhealthy(format!("liveness probe failed: {why}")),
        }
    }

    /// Never returns.
    async fn keep_ready(&self, post: &Post) {
        let probe = &post.sidecar.spec.readiness;
        let mut pace = Pace::Fast;
        match post.sidecar.is_probed {
            _ if post.state.ready.get() => {}
            true => sleep(probe.delay).await,
            // Nobody says that it is ready, and it was not the last time.
            false if post.state.failures.get() > 0 => sleep(SIDECAR_STEADY_AFTER).await,
            false => {}
        }
        loop {
            if post.sidecar.is_probed {
                post.patient().passes(probe, pace).await;
            }
            self.say(post, true);
            let later = probe.later().filter(|_| post.sidecar.is_probed);
            let Some(later) = later else { return std::future::pending().await };
            sleep(later.period).await;
            let why = post.patient().fails(&later).await;
            tracing::warn!(sidecar = post.sidecar.name, %why, "sidecar is not ready any more");
            self.say(post, false);
            pace = if probe.period.is_zero() { Pace::Fast } else { Pace::Period };
        }
    }

    fn say(&self, post: &Post, ready: bool) {
        if post.state.ready.replace(ready) != ready {
            self.bell.notify_waiters();
            let posts = self.posts.iter().map(Post::seen);
            self.reporter.beside(self.before.iter().cloned().chain(posts).collect());
        }
    }

    fn are_ready(&self) -> bool {
        self.posts.iter().all(|post| post.state.ready.get())
    }

    fn signal_all(&self, signal: Signal) {
        self.posts.iter().for_each(|post| post.signal(signal));
    }
}

/// A process, what tells its end, and those who read what it writes.
type Begun = (Child, AsyncFd<OwnedFd>, Vec<JoinHandle<()>>);

impl Post {
    /// Starts its process.
    pub(super) fn begin(&self) -> io::Result<Begun> {
        let words = command(&self.sidecar.spec, &self.environment);
        let mut starting = self.launcher.command(&words, &self.environment);
        let mut child = starting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        match watch(&mut child, &self.log) {
            Ok((pidfd, pumps)) => Ok((child, pidfd, pumps)),
            Err(why) => {
                signal_group(&child, Signal::KILL);
                child.wait()?;
                Err(why)
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.state.child.borrow() {
            signal_group(child, signal);
        }
    }

    fn patient(&self) -> Patient<'_> {
        let Self { address, launcher, environment, .. } = self;
        Patient { address: *address, launcher, environment, wrong: &self.state.wrong }
    }

    fn seen(&self) -> Beside {
        let State { ready, restarts, .. } = &self.state;
        let (ready, restarts) = (ready.get(), restarts.get());
        Beside { name: self.sidecar.name.clone(), ready, restarts, began: None, ended: None }
    }
}

/// Before the next start, after so many failures in a row.
fn delay(failures: u32) -> Duration {
    SIDECAR_RESTART_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(SIDECAR_RESTART_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_again_come_later_and_later_up_to_a_bound() {
        assert_eq!([0, 1, 2].map(delay), [SIDECAR_RESTART_MIN, SIDECAR_RESTART_MIN, SIDECAR_RESTART_MIN * 2]);
        assert_eq!(delay(u32::MAX), SIDECAR_RESTART_MAX);
    }
}
