//! Sidecar containers: the containers of an instance besides the one that serves.
//!
//! Each is a process group of its own in the instance's control groups, with its own command, variables, mounts, probes
//! and output. One that ends is restarted by itself, each time later than the last, and the instance gets no requests
//! meanwhile. One that fails repeatedly ends the instance: then the reason is reported, and all of them start
//! again.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::rc::Rc;

use jiff::Timestamp;
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use super::commands::GracePeriod;
use super::exit::{TerminationCause, exit_of, not_started};
use super::freezer::Freezer;
use crate::environment::command;
use crate::launch::launcher::Launcher;
use crate::limits::{SIDECAR_FAILURES_MAX, SIDECAR_STABLE_AFTER};
use crate::logs::instance_log::InstanceLog;
use crate::logs::output_capture::{capture, drain};
use crate::probes::{LastProbeError, ProbePace, ProbeTarget};
use crate::process::child::{exited, signal_group};
use crate::{ExitCause, InstanceExit, InstancePorts, InstanceReporter, RestartPolicy, Sidecar, SidecarStatus};

/// All sidecars of one instance.
pub(crate) struct Sidecars {
    supervisor: Rc<SidecarSupervisor>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

struct SidecarSupervisor {
    containers: Vec<SidecarContainer>,
    /// The init containers, which ran before them.
    init_containers: Vec<SidecarStatus>,
    reporter: InstanceReporter,
    stopping: Cell<bool>,
    frozen: Cell<bool>,
    /// Why the instance must end.
    failed: RefCell<Option<InstanceExit>>,
    /// A state has changed.
    state_changed: Notify,
}

/// One sidecar, restarted as often as necessary.
pub(crate) struct SidecarContainer {
    pub(crate) sidecar: Sidecar,
    pub(crate) launcher: Rc<Launcher>,
    pub(crate) environment: Rc<[(String, String)]>,
    /// The target of its probes.
    pub(crate) address: SocketAddr,
    /// The instance's.
    pub(crate) ports: Rc<InstancePorts>,
    pub(crate) log: Rc<RefCell<InstanceLog>>,
    pub(crate) state: SidecarState,
}

#[derive(Default)]
pub(crate) struct SidecarState {
    /// While its process runs.
    child: RefCell<Option<Child>>,
    freezer: Freezer,
    started: Cell<bool>,
    ready: Cell<bool>,
    restarts: Cell<u32>,
    /// Consecutive failures.
    failures: Cell<u32>,
    /// Of its last start.
    started_at: Cell<Option<Timestamp>>,
    /// How and when it last ended.
    last_exit: RefCell<Option<(InstanceExit, Timestamp)>>,
    /// It is not started again.
    ended: Cell<bool>,
    last_probe_error: LastProbeError,
}

impl Sidecars {
    /// Starts all of them, after the init containers `before`.
    pub(crate) fn start(posts: Vec<SidecarContainer>, before: Vec<SidecarStatus>, reporter: &InstanceReporter) -> Self {
        let team = Rc::new(SidecarSupervisor {
            containers: posts,
            init_containers: before,
            reporter: reporter.clone(),
            stopping: Cell::default(),
            frozen: Cell::default(),
            failed: RefCell::default(),
            state_changed: Notify::new(),
        });
        let tasks = (0..team.containers.len()).map(|at| {
            let team = Rc::clone(&team);
            spawn_local(async move { team.supervise(at).await })
        });
        Self { tasks: RefCell::new(tasks.collect()), supervisor: team }
    }

    /// Returns when all are ready.
    pub(crate) async fn are_ready(&self) {
        self.wait_until(|| self.supervisor.are_ready()).await;
    }

    /// Why one is not ready, as far as known.
    pub(crate) fn not_ready_reason(&self) -> Option<String> {
        let post = self.supervisor.containers.iter().find(|post| !post.state.ready.get())?;
        let (name, wrong) = (&post.sidecar.name, post.state.last_probe_error.borrow());
        Some(match wrong.as_str() {
            "" => format!("container {name} is not ready"),
            wrong => format!("container {name} is not ready: {wrong}"),
        })
    }

    /// Returns when one of them is not ready.
    pub(crate) async fn until_unready(&self) {
        self.wait_until(|| !self.supervisor.are_ready()).await;
    }

    /// Whether the instance goes on for them after its own program has ended: then each of them ends by itself too. One
    /// that `succeeded` does so in a Pod that starts again only what failed.
    pub(crate) fn outlive(&self, succeeded: bool) -> bool {
        let restart = self.supervisor.containers.first().map(|first| first.sidecar.spec.restart);
        match restart {
            None | Some(RestartPolicy::EndsInstance | RestartPolicy::Always) => false,
            Some(RestartPolicy::OnFailure) => succeeded,
            Some(RestartPolicy::Never) => true,
        }
    }

    /// Returns when all have ended that are not there for the others.
    pub(crate) async fn until_ended(&self) {
        let for_others = |post: &SidecarContainer| post.sidecar.spec.restart == RestartPolicy::Always;
        let all = || self.supervisor.containers.iter().all(|post| post.state.ended.get() || for_others(post));
        self.wait_until(all).await;
    }

    /// Returns why the instance must end; never if it need not.
    pub(crate) async fn until_failed(&self) -> InstanceExit {
        loop {
            let changed = self.supervisor.state_changed.notified();
            if let Some(gone) = self.supervisor.failed.borrow().clone() {
                return gone;
            }
            changed.await;
        }
    }

    pub(crate) fn freeze(&self, frozen: bool) {
        for post in &self.supervisor.containers {
            if let Some(child) = &*post.state.child.borrow() {
                post.state.freezer.set(child, frozen);
            }
        }
        self.supervisor.frozen.set(frozen);
        self.supervisor.state_changed.notify_waiters();
    }

    /// SIGTERM, the grace period, SIGKILL.
    pub(crate) async fn stop(&self, grace: GracePeriod) {
        self.supervisor.stopping.set(true);
        self.supervisor.containers.iter().for_each(SidecarContainer::terminate);
        self.freeze(false); // a frozen one hears nothing
        let mut tasks = self.tasks.take();
        for (task, post) in tasks.iter().zip(&self.supervisor.containers) {
            if post.state.child.borrow().is_none() {
                task.abort(); // it waits for its next start
            }
        }
        let all = async {
            for task in &mut tasks {
                let _ = task.await; // an error: it waited for its next start
            }
        };
        let ended_in_time = tokio::select! {
            biased;
            () = all => true,
            () = grace.elapsed() => false,
        };
        if !ended_in_time {
            self.supervisor.signal_all(Signal::KILL);
            for task in tasks.iter_mut().filter(|task| !task.is_finished()) {
                let _ = task.await;
            }
        }
    }

    async fn wait_until(&self, holds: impl Fn() -> bool) {
        loop {
            let changed = self.supervisor.state_changed.notified();
            if holds() {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Sidecars {
    /// The thread ends, or the instance could not be started: no task waits for them.
    fn drop(&mut self) {
        self.tasks.borrow().iter().for_each(JoinHandle::abort);
        self.supervisor.signal_all(Signal::KILL);
        for post in &self.supervisor.containers {
            if let Some(mut child) = post.state.child.take() {
                let _ = child.wait(); // at once: nothing survives SIGKILL
            }
        }
    }
}

impl SidecarSupervisor {
    /// Restarts a sidecar as long as the instance runs.
    async fn supervise(&self, at: usize) {
        let post = &self.containers[at];
        let failures = &post.state.failures;
        loop {
            // In a frozen control group a new process would not read its launch spec.
            while self.frozen.get() {
                self.state_changed.notified().await;
            }
            let began = Instant::now();
            let gone = match self.run(post).await {
                Ok(gone) => gone,
                Err(why) => not_started(&why),
            };
            post.state.last_exit.replace(Some((gone.clone(), Timestamp::now())));
            self.set_ready(post, false);
            if self.stopping.get() {
                return;
            }
            let restart = post.sidecar.spec.restart;
            let ends_instance = restart == RestartPolicy::EndsInstance;
            if !ends_instance && !restart.restarts_after(gone.cause == ExitCause::Exited(0)) {
                post.state.ended.set(true);
                self.report();
                return self.state_changed.notify_waiters();
            }
            let name = &post.sidecar.name;
            tracing::warn!(revision = post.sidecar.spec.revision, sidecar = name, reason = %gone.cause, "sidecar failed");
            failures.set(restart.failures_after(failures.get(), began.elapsed()));
            if failures.get() == SIDECAR_FAILURES_MAX && ends_instance {
                let message = format!("container {name}: {}", gone.message);
                self.failed.borrow_mut().get_or_insert(InstanceExit { message, ..gone });
                return self.state_changed.notify_waiters();
            }
            if !ends_instance {
                self.report();
            }
            sleep(restart.delay(failures.get())).await;
            post.state.restarts.update(|restarts| restarts.saturating_add(1));
            post.begin_again();
        }
    }

    /// One process, from its start to its end.
    async fn run(&self, post: &SidecarContainer) -> io::Result<InstanceExit> {
        let spec = &post.sidecar.spec;
        let (child, pidfd, readers) = post.spawn()?;
        post.state.child.replace(Some(child));
        post.state.started_at.set(Some(Timestamp::now()));
        post.state.freezer.reset();
        if post.state.restarts.get() > 0 && spec.restart != RestartPolicy::EndsInstance {
            self.report();
        }
        let end = tokio::select! {
            biased;
            () = exited(&pidfd) => if self.stopping.get() { TerminationCause::Stopped } else { TerminationCause::Exited },
            end = self.watch_process(post) => {
                post.terminate();
                let _ = timeout(spec.termination_grace_period, exited(&pidfd)).await; // it had its time
                end
            }
        };
        // The leader is not reaped, so its process id still identifies this group.
        post.signal(Signal::KILL);
        // A container has ended when the last of its processes has, and other instances must not wait for that.
        exited(&pidfd).await;
        let child = post.state.child.take();
        let Some(mut child) = child else { return Err(io::Error::other("its process has ended")) };
        let status = child.wait()?;
        drain(readers, &post.log).await;
        Ok(exit_of(&end, status, spec, ("", &post.log.borrow().tail()), false))
    }

    /// Probes the process while it runs and is not frozen.
    async fn watch_process(&self, post: &SidecarContainer) -> TerminationCause {
        post.state.started.set(false);
        post.until_started().await;
        loop {
            tokio::select! {
                end = self.probe(post), if !post.state.freezer.is_frozen() => return end,
                () = post.state.freezer.changed() => {}
            }
        }
    }

    async fn probe(&self, post: &SidecarContainer) -> TerminationCause {
        let spec = &post.sidecar.spec;
        if let Some(startup) = spec.startup.as_ref().filter(|_| !post.state.started.get()) {
            if let Err(why) = post.probe_target().until_started(startup).await {
                return TerminationCause::Unhealthy(format!("startup probe failed: {why}"));
            }
            post.state.started.set(true);
        }
        let lives = async {
            let Some(liveness) = &spec.liveness else { return std::future::pending().await };
            sleep(liveness.initial_delay).await;
            post.probe_target().until_failure(liveness).await
        };
        tokio::select! {
            () = self.watch_readiness(post) => TerminationCause::Stopped, // never
            why = lives => TerminationCause::Unhealthy(format!("liveness probe failed: {why}")),
        }
    }

    /// Never returns.
    async fn watch_readiness(&self, post: &SidecarContainer) {
        let probe = &post.sidecar.spec.readiness;
        let mut pace = ProbePace::Fast;
        match post.sidecar.has_readiness_probe {
            _ if post.state.ready.get() => {}
            true => sleep(probe.initial_delay).await,
            // Without a probe it counts as ready after it has run for a while: it failed the last time.
            false if post.state.failures.get() > 0 => sleep(SIDECAR_STABLE_AFTER).await,
            false => {}
        }
        loop {
            if post.sidecar.has_readiness_probe {
                post.probe_target().until_success(probe, pace).await;
            }
            self.set_ready(post, true);
            let later = probe.periodic().filter(|_| post.sidecar.has_readiness_probe);
            let Some(later) = later else { return std::future::pending().await };
            sleep(later.period).await;
            let why = post.probe_target().until_failure(&later).await;
            tracing::warn!(sidecar = post.sidecar.name, %why, "sidecar is no longer ready");
            self.set_ready(post, false);
            pace = if probe.period.is_zero() { ProbePace::Fast } else { ProbePace::Period };
        }
    }

    fn set_ready(&self, post: &SidecarContainer, ready: bool) {
        if post.state.ready.replace(ready) != ready {
            self.state_changed.notify_waiters();
            self.report();
        }
    }

    fn report(&self) {
        let posts = self.containers.iter().map(SidecarContainer::status);
        self.reporter.sidecars(self.init_containers.iter().cloned().chain(posts).collect());
    }

    fn are_ready(&self) -> bool {
        self.containers.iter().all(|post| post.state.ready.get())
    }

    fn signal_all(&self, signal: Signal) {
        self.containers.iter().for_each(|post| post.signal(signal));
    }
}

/// A process, its pidfd, and the tasks that read its output.
type CapturedProcess = (Child, AsyncFd<OwnedFd>, Vec<JoinHandle<()>>);

/// Starts a new process with these words and variables, whose output goes to `log`.
pub(super) fn start_captured(
    launcher: &Launcher,
    (words, environment): (&[String], &[(String, String)]),
    log: &Rc<RefCell<InstanceLog>>,
) -> io::Result<CapturedProcess> {
    let mut child = launcher.start_fresh(words, environment)?;
    match capture(&mut child, log) {
        Ok((pidfd, readers)) => Ok((child, pidfd, readers)),
        Err(why) => {
            signal_group(&child, Signal::KILL);
            child.wait()?;
            Err(why)
        }
    }
}

impl SidecarContainer {
    /// Starts its process.
    pub(crate) fn spawn(&self) -> io::Result<CapturedProcess> {
        let words = command(&self.sidecar.spec, &self.environment);
        start_captured(&self.launcher, (&words, &self.environment), &self.log)
    }

    /// Before another start. A container of a Pod has a log for each.
    pub(crate) fn begin_again(&self) {
        let mut log = self.log.borrow_mut();
        match self.sidecar.spec.restart {
            RestartPolicy::EndsInstance => log.resume(),
            _ => log.begin_again(),
        }
    }

    async fn until_started(&self) {
        let Some(container) = &self.launcher.container else { return };
        let first = self.state.child.borrow().as_ref().map(Child::id);
        if let Some(first) = first {
            container.until_started(first).await;
        }
    }

    pub(crate) fn terminate(&self) {
        if let Some(child) = &*self.state.child.borrow() {
            self.launcher.terminate(child);
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.state.child.borrow() {
            signal_group(child, signal);
        }
    }

    fn probe_target(&self) -> ProbeTarget<'_> {
        let Self { address, ports, launcher, environment, .. } = self;
        ProbeTarget { address: *address, ports, launcher, environment, last_error: &self.state.last_probe_error }
    }

    fn status(&self) -> SidecarStatus {
        let SidecarState { child, ready, restarts, started_at, last_exit, ended, .. } = &self.state;
        // A Revision shows its sidecars with the instance that they end with.
        let tells_each = self.sidecar.spec.restart != RestartPolicy::EndsInstance;
        let (last_exit, finished_at) = last_exit.borrow().clone().filter(|_| tells_each).unzip();
        SidecarStatus {
            name: self.sidecar.name.clone(),
            ready: ready.get(),
            restarts: restarts.get(),
            started_at: started_at.get().filter(|_| tells_each),
            finished_at,
            last_exit,
            is_running: child.borrow().is_some(),
            ended: ended.get(),
        }
    }
}
