//! Runs Pods on the runtime: the only module of workloads that knows it.
//!
//! A Pod is one instance at a time. One task owns all of them, so no lock is held while it works; what others may know
//! is a snapshot ([`PodRunner::run`]). The instance starts each of its containers again as the Pod's restart policy says. One
//! that could not be started at all is started again as a whole. When a Pod is to start and to go is its controller's business.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::limits::{CHANGES_MAX, FORGOTTEN_GRACE};
use autoscaler::LastTermination;
use runtime::{ExitCause, InstanceExit, InstanceHandle, InstanceIds, InstancePorts, InstanceReport, InstanceReporter};
use runtime::{InstanceSpec, Runtime, SidecarStatus};

/// What a Pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPhase {
    Starting,
    Ready,
    /// It was ready, and is not.
    Unready,
    /// Its main container has ended and is started again. The others run on.
    Restarting,
    /// All of it ended, and is started again.
    BackOff,
    Stopping,
    /// It ended, and is not started again.
    Ended,
}

/// A Pod as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRun {
    pub namespace: String,
    pub name: String,
    /// The number of its instance, or of its last one.
    pub id: u64,
    pub phase: RunPhase,
    /// By container, the restarts before its present instance; the main container's in it too.
    pub restarts: BTreeMap<String, u32>,
    /// Known once it was ready.
    pub address: Option<SocketAddr>,
    /// Where its further container ports are.
    pub ports: InstancePorts,
    /// Of its main container.
    pub started_at: Timestamp,
    /// How the main container last ended.
    pub last: Option<LastTermination>,
    pub sidecars: Vec<SidecarStatus>,
    pub not_ready_reason: Option<String>,
    /// By container, the image that its tag stood for.
    pub images: Arc<BTreeMap<String, String>>,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct PodLaunch {
    pub spec: Arc<InstanceSpec>,
    /// The name of its main container.
    pub main: String,
    /// By container, the starts that an earlier run of the appliance made.
    pub restarts: BTreeMap<String, u32>,
    /// By container, the image that its tag stands for.
    pub images: Arc<BTreeMap<String, String>>,
}

enum RunnerCommand {
    Start(Arc<str>, Box<PodLaunch>),
    Refresh(Arc<InstanceSpec>),
    Stop(Arc<str>, Duration),
    /// And the namespace and the folder of its logs.
    Forget(Arc<str>, (String, String)),
    Shutdown(oneshot::Sender<()>),
}

/// The handle. All calls return at once; what they cause shows in [`PodRunner::run`].
#[derive(Clone)]
pub struct PodRunner {
    /// The sender is one controller, which is bounded by the Pods that there are.
    commands: mpsc::UnboundedSender<RunnerCommand>,
    snapshot: Arc<RunnerSnapshot>,
}

struct RunnerSnapshot {
    runs: Mutex<HashMap<Arc<str>, PodRun>>,
    changes: broadcast::Sender<Arc<str>>,
}

impl PodRunner {
    /// The handle, and the future that does the work. It ends after [`PodRunner::shutdown`].
    pub fn new(runtime: Arc<dyn Runtime>, ids: InstanceIds) -> (Self, impl Future<Output = ()>) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        let snapshot = Arc::new(RunnerSnapshot { runs: Mutex::default(), changes });
        let task = RunnerTask {
            runtime,
            ids,
            snapshot: Arc::clone(&snapshot),
            pods: HashMap::new(),
            owners: HashMap::new(),
            due: BTreeSet::new(),
            waiters: None,
        };
        (Self { commands, snapshot }, task.run(inbox))
    }

    /// Starts the Pod `uid`, unless it runs or has ended.
    pub fn start(&self, uid: &str, launch: PodLaunch) {
        self.send(RunnerCommand::Start(uid.into(), Box::new(launch)));
    }

    /// The files of its volumes have changed.
    pub fn refresh(&self, spec: Arc<InstanceSpec>) {
        self.send(RunnerCommand::Refresh(spec));
    }

    /// Ends it for good: SIGTERM and, after `grace`, SIGKILL. Called again, it ends the Pod sooner, and never later.
    pub fn stop(&self, uid: &str, grace: Duration) {
        self.send(RunnerCommand::Stop(uid.into(), grace));
    }

    /// The Pod is gone: ends it, and removes what was kept of it in this folder.
    pub fn forget(&self, uid: &str, namespace: &str, folder: &str) {
        self.send(RunnerCommand::Forget(uid.into(), (namespace.to_owned(), folder.to_owned())));
    }

    /// `None`: it was not started by this run of the appliance.
    #[must_use]
    pub fn run(&self, uid: &str) -> Option<PodRun> {
        self.snapshot.runs.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    /// Pods that run, or will again.
    #[must_use]
    pub fn count(&self) -> usize {
        let runs = self.snapshot.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.values().filter(|run| run.phase != RunPhase::Ended).count()
    }

    /// The uids of Pods whose [`PodRunner::run`] has changed. A receiver that lags should read all.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.snapshot.changes.subscribe()
    }

    /// Ends all Pods, each within its grace period, and returns when they are gone.
    pub async fn shutdown(&self) {
        let (done, wait) = oneshot::channel();
        self.send(RunnerCommand::Shutdown(done));
        let _ = wait.await; // an error: the work is over already
    }

    fn send(&self, command: RunnerCommand) {
        let _ = self.commands.send(command); // fails only after the shutdown
    }
}

impl fmt::Debug for PodRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodRunner").field("pods", &self.count()).finish()
    }
}

/// One Pod.
struct RunnerEntry {
    launch: PodLaunch,
    run: PodRun,
    /// While its instance lives.
    handle: Option<Box<dyn InstanceHandle>>,
    /// Ends in a row.
    failures: u32,
    began: Instant,
    /// When it is started again.
    restart_at: Option<Instant>,
    /// Its object is gone, so nothing of it stays.
    forgotten: bool,
}

struct RunnerTask {
    runtime: Arc<dyn Runtime>,
    ids: InstanceIds,
    snapshot: Arc<RunnerSnapshot>,
    pods: HashMap<Arc<str>, RunnerEntry>,
    /// The Pod of an instance.
    owners: HashMap<u64, Arc<str>>,
    /// Pods that are to be started again, and when.
    due: BTreeSet<(Instant, Arc<str>)>,
    /// Callers that wait for the end of a shutdown, once it has begun.
    waiters: Option<Vec<oneshot::Sender<()>>>,
}

impl RunnerTask {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<RunnerCommand>) {
        let (queue, mut reports) = mpsc::unbounded_channel();
        let mut closed = false;
        while !((self.waiters.is_some() || closed) && self.pods.values().all(|pod| pod.handle.is_none())) {
            let due = self.due.first().map(|(at, _)| *at);
            tokio::select! {
                command = inbox.recv(), if !closed => match command {
                    Some(command) => self.handle_command(command, &queue),
                    None => {
                        closed = true; // all handles are gone: the instances end with theirs
                        self.stop_all();
                    }
                },
                Some((id, report)) = reports.recv() => self.handle_report(id, report),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.restart_due(&queue),
            }
        }
        for done in self.waiters.into_iter().flatten() {
            let _ = done.send(()); // the caller may have gone
        }
    }

    fn handle_command(&mut self, command: RunnerCommand, queue: &mpsc::UnboundedSender<(u64, InstanceReport)>) {
        match command {
            RunnerCommand::Start(uid, launch) if self.waiters.is_none() && !self.pods.contains_key(&uid) => {
                let entry = RunnerEntry::new(*launch);
                self.pods.insert(Arc::clone(&uid), entry);
                self.start(&uid, queue);
            }
            RunnerCommand::Start(..) => {}
            RunnerCommand::Refresh(spec) => self.runtime.refresh(spec),
            RunnerCommand::Stop(uid, grace) => self.stop(&uid, grace),
            RunnerCommand::Forget(uid, (namespace, folder)) => match self.pods.get_mut(&uid) {
                Some(pod) => {
                    pod.forgotten = true;
                    // Its object is gone, so nothing waits for a graceful end.
                    self.stop(&uid, FORGOTTEN_GRACE);
                }
                // It ended with an earlier run of the appliance.
                None => self.runtime.remove_revision(&namespace, &folder),
            },
            RunnerCommand::Shutdown(done) => {
                self.waiters.get_or_insert_default().push(done);
                self.stop_all();
            }
        }
    }

    fn stop_all(&mut self) {
        let all: Vec<_> = self.pods.iter().map(|(uid, pod)| (Arc::clone(uid), pod.grace())).collect();
        all.into_iter().for_each(|(uid, grace)| self.stop(&uid, grace));
    }

    /// Starts an instance of the Pod.
    fn start(&mut self, uid: &Arc<str>, queue: &mpsc::UnboundedSender<(u64, InstanceReport)>) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        let id = self.ids.allocate();
        let reporter = InstanceReporter::new(id, queue.clone());
        (pod.run.id, pod.run.phase, pod.run.started_at) = (id, RunPhase::Starting, Timestamp::now());
        (pod.run.address, pod.run.not_ready_reason) = (None, None);
        pod.run.sidecars.clear();
        (pod.began, pod.restart_at) = (Instant::now(), None);
        pod.handle = Some(self.runtime.start(id, id, Arc::clone(&pod.launch.spec), reporter));
        self.owners.insert(id, Arc::clone(uid));
        self.publish(uid);
    }

    fn stop(&mut self, uid: &Arc<str>, grace: Duration) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        if let Some(at) = pod.restart_at.take() {
            self.due.remove(&(at, Arc::clone(uid)));
        }
        match &pod.handle {
            Some(handle) => {
                pod.run.phase = RunPhase::Stopping;
                handle.stop_within(grace);
            }
            None => pod.run.phase = RunPhase::Ended,
        }
        self.publish(uid);
        self.remove_forgotten(uid);
    }

    fn restart_due(&mut self, queue: &mpsc::UnboundedSender<(u64, InstanceReport)>) {
        let now = Instant::now();
        while let Some((at, uid)) = self.due.first().cloned().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, Arc::clone(&uid)));
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.count_restarts();
            }
            self.start(&uid, queue);
        }
    }

    fn handle_report(&mut self, id: u64, report: InstanceReport) {
        let owner = match report {
            InstanceReport::Exited(_) => self.owners.remove(&id),
            _ => self.owners.get(&id).cloned(),
        };
        let Some(uid) = owner else { return };
        let Some(pod) = self.pods.get_mut(&uid) else { return };
        let is_stopping = pod.run.phase == RunPhase::Stopping;
        match report {
            InstanceReport::Ready { address, .. } => {
                pod.run.address = Some(address);
                pod.run.not_ready_reason = None;
                if !is_stopping {
                    pod.run.phase = RunPhase::Ready;
                }
            }
            InstanceReport::Ports(ports) => pod.run.ports = ports,
            InstanceReport::Unready if !is_stopping => pod.run.phase = RunPhase::Unready,
            InstanceReport::Unready => {}
            InstanceReport::Sidecars(all) => pod.run.sidecars = all,
            InstanceReport::NotReadyReason(why) => pod.run.not_ready_reason = Some(why),
            InstanceReport::Restarting(exit) => pod.on_restarting(exit),
            InstanceReport::Restarted => pod.on_restarted(),
            InstanceReport::Exited(exit) => {
                if let Some(at) = pod.on_exit(exit) {
                    self.due.insert((at, Arc::clone(&uid)));
                }
            }
        }
        self.publish(&uid);
        self.remove_forgotten(&uid);
    }

    /// Nothing stays of a Pod whose object is gone.
    fn remove_forgotten(&mut self, uid: &Arc<str>) {
        let is_over = self.pods.get(uid).is_some_and(|pod| pod.forgotten && pod.handle.is_none());
        if let Some(pod) = is_over.then(|| self.pods.remove(uid)).flatten() {
            self.runtime.remove_revision(&pod.launch.spec.namespace, &pod.launch.spec.revision);
            self.snapshot.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
            let _ = self.snapshot.changes.send(Arc::clone(uid)); // fine without a receiver
        }
    }

    fn publish(&self, uid: &Arc<str>) {
        let Some(pod) = self.pods.get(uid) else { return };
        let mut runs = self.snapshot.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = runs.get(uid) == Some(&pod.run);
        if !is_same {
            runs.insert(Arc::clone(uid), pod.run.clone());
            drop(runs);
            let _ = self.snapshot.changes.send(Arc::clone(uid)); // fine without a receiver
        }
    }
}

impl RunnerEntry {
    fn new(launch: PodLaunch) -> Self {
        let spec = &launch.spec;
        let run = PodRun {
            namespace: spec.namespace.clone(),
            name: spec.pod.as_ref().map(|pod| pod.name.clone()).unwrap_or_default(),
            id: 0,
            phase: RunPhase::Starting,
            restarts: launch.restarts.clone(),
            address: None,
            ports: InstancePorts::default(),
            started_at: Timestamp::now(),
            last: None,
            sidecars: Vec::new(),
            not_ready_reason: None,
            images: Arc::clone(&launch.images),
        };
        Self { launch, run, handle: None, failures: 0, began: Instant::now(), restart_at: None, forgotten: false }
    }

    fn grace(&self) -> Duration {
        self.launch.spec.termination_grace_period
    }

    fn set_last_end(&mut self, exit: InstanceExit) {
        let InstanceExit { cause, message } = exit;
        let (id, started_at) = (self.run.id, self.run.started_at);
        self.run.last = Some(LastTermination { id, cause, message, started_at, finished_at: Timestamp::now() });
        self.run.address = None;
    }

    /// Its main container has ended, and is started again.
    fn on_restarting(&mut self, exit: InstanceExit) {
        self.set_last_end(exit);
        if self.run.phase != RunPhase::Stopping {
            self.run.phase = RunPhase::Restarting;
        }
    }

    fn on_restarted(&mut self) {
        add(&mut self.run.restarts, &self.launch.main, 1);
        self.run.started_at = Timestamp::now();
        if self.run.phase != RunPhase::Stopping {
            (self.run.phase, self.run.not_ready_reason) = (RunPhase::Starting, None);
        }
    }

    /// All of it is started again: what its last instance counted is kept.
    fn count_restarts(&mut self) {
        for one in &self.run.sidecars {
            add(&mut self.run.restarts, &one.name, one.restarts.saturating_add(1));
        }
        add(&mut self.run.restarts, &self.launch.main, 1);
    }

    /// Its instance has ended. Returns when it is to be started again.
    fn on_exit(&mut self, exit: InstanceExit) -> Option<Instant> {
        let restart = self.launch.spec.restart;
        let again = self.run.phase != RunPhase::Stopping && restart.restarts_after(exit.cause == ExitCause::Exited(0));
        self.set_last_end(exit);
        self.handle = None;
        if !again {
            self.run.phase = RunPhase::Ended;
            return None;
        }
        self.failures = restart.failures_after(self.failures, self.began.elapsed());
        self.run.phase = RunPhase::BackOff;
        let at = Instant::now() + restart.delay(self.failures);
        self.restart_at = Some(at);
        Some(at)
    }
}

fn add(restarts: &mut BTreeMap<String, u32>, container: &str, more: u32) {
    let count = restarts.entry(container.to_owned()).or_default();
    *count = count.saturating_add(more);
}
