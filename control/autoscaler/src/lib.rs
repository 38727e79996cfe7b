#![forbid(unsafe_code)]
//! The autoscaler: all instances of all revisions, as many as their demand needs.
//!
//! [`Autoscaler`] is the handle; one task behind it (the future of [`Autoscaler::new`], run on the control thread)
//! owns everything, so no lock is needed. The number of instances is arithmetic ([`decide`]); the state of one
//! revision's instances is a `revision_scaler::RevisionScaler`; `task` carries it out. Out of scope: what a
//! Revision is (controllers), and how an instance runs (runtime).

mod activation;
#[cfg(test)]
mod activation_tests;
pub mod decide;
pub mod demand_window;
mod instance;
mod instance_labels;
mod instance_status;
pub mod limits;
mod metrics;
mod revision_scaler;
#[cfg(test)]
mod scripted_runtime;
mod spare_instances;
#[cfg(test)]
mod spare_instances_tests;
mod task;
#[cfg(test)]
mod tests;

pub use instance_status::{InstancePhase, InstanceStatus, LastTermination};
pub use metrics::{PodCounts, RevisionMetrics, ScalingFigures, ScalingSignals};

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract::allocator;
use contract::load::BackendLoad;
use contract::request_histograms::DurationHistogram;
use contract::table::Endpoint;
use tokio::sync::{broadcast, mpsc, oneshot};

use runtime::{InstanceIds, InstanceSpec, Runtime};

/// How a revision is run and scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct RevisionPlan {
    /// Shared with the instances that run by it.
    pub instance: Arc<InstanceSpec>,
    /// Instances that run even without demand.
    pub min_scale: u32,
    /// 0 = no limit.
    pub max_scale: u32,
    /// Instances that must be ready once before the revision counts as proven. 0: none is started before
    /// there is demand. More than one are kept as `carry` is.
    pub initial_scale: u32,
    /// Instances of the revision that served before: this many must be ready as well before the revision counts as
    /// proven, and are kept for one stable window after that, while the requests move over.
    pub inherited_scale: u32,
    /// The counted metric.
    pub metric: ScalingMetric,
    /// How much of it one instance is wanted to have on average.
    pub target: f64,
    /// How much of it one instance takes.
    pub total: f64,
    /// Spare capacity, beyond the current demand, that makes the Revision count as having burst capacity; `None`: it
    /// never does.
    pub target_burst_capacity: Option<f64>,
    /// Requests in one instance that are allowed; 0 = no limit.
    pub concurrency_max: u32,
    /// Without any demand for this long, all instances above `min` end.
    pub idle_window: Duration,
    /// Demand is averaged over this.
    pub stable_window: Duration,
    /// The newest demand counts most, instead of all of the window alike.
    pub weighted_average: bool,
    /// Demand over this is compared with what runs.
    pub panic_window: Duration,
    /// A panic begins when it needs this many times the instances that are ready.
    pub panic_threshold: f64,
    /// The fewest instances when there are any.
    pub activation_scale: u32,
    /// The largest count of this span is kept.
    pub scale_down_delay: Duration,
    /// The averages multiply or divide the ready instances at most by these in one step.
    pub scale_up_rate: f64,
    pub scale_down_rate: f64,
    /// Never to zero once there was one.
    pub scale_to_zero_disabled: bool,
    /// Spare instances beyond the desired count.
    pub spare: SparePolicy,
    /// Requests can come, or may once it is ready. A version that none can reach is not started, not kept and not restarted.
    pub reachable: bool,
}

impl RevisionPlan {
    /// The same in pieces of its own.
    fn deep_clone(&self) -> Self {
        Self { instance: Arc::new((*self.instance).clone()), ..self.clone() }
    }
}

/// Instances against cold starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SparePolicy {
    /// Run and take requests like all others.
    pub warm: u32,
    /// Instances that are not wanted any more and are frozen instead of ended, at most.
    pub frozen: u32,
}

/// The metric that the scaler counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ScalingMetric {
    /// Requests inside and waiting.
    #[default]
    Concurrency,
    /// Requests accepted per second.
    RequestsPerSecond,
}

impl ScalingMetric {
    /// As annotations name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::RequestsPerSecond => "rps",
        }
    }
}

/// Receives the ready instances, and provides the counters of their requests. Called on the autoscaler's task; must
/// not block.
pub trait EndpointSink: Send + Sync {
    /// The ready instances of `key`, all of them.
    fn set_endpoints(&self, key: &str, endpoints: Vec<Arc<Endpoint>>);
    /// The counters of `key`, the same ones each time.
    fn load(&self, key: &str) -> Arc<BackendLoad>;
}

/// The state of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleStatus {
    /// Ready instances.
    pub actual: u32,
    /// Wanted instances.
    pub desired: u32,
    /// Running instances have capacity for the plan's burst.
    pub has_burst_capacity: bool,
    /// Why one of its instances is not ready, if the reason is known.
    pub not_ready_reason: Option<String>,
    /// It was not ready within its progress deadline, and is not tried any more.
    pub deadline_exceeded: bool,
    pub state: RevisionState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevisionState {
    /// Nothing was started yet.
    Pending,
    Starting,
    Ready,
    /// It was never ready and is not started, because no request can reach it.
    Unreachable,
    /// At zero because there are no requests; it was ready before, or does not have to be (`initial` 0).
    Idle,
    /// The last instance failed, and none is ready. Stays until one is, also at zero.
    Failed {
        /// `ExitCode1`
        reason: String,
        /// One sentence and the last lines of output.
        message: String,
    },
}

impl ScaleStatus {
    const NOTHING: Self = Self {
        actual: 0,
        desired: 0,
        has_burst_capacity: false,
        not_ready_reason: None,
        deadline_exceeded: false,
        state: RevisionState::Pending,
    };
}

/// The handle. All calls return at once; what they cause shows in [`Autoscaler::status`].
#[derive(Clone)]
pub struct Autoscaler {
    /// Senders are the controllers and the signal queue, which are bounded by the objects there are and by
    /// `SIGNALS_MAX`.
    messages: mpsc::UnboundedSender<AutoscalerMessage>,
    snapshot: Arc<AutoscalerSnapshot>,
}

enum AutoscalerMessage {
    Declare(Arc<str>, Box<RevisionPlan>),
    Retire(Arc<str>),
    Restart(Arc<str>, u64),
    Demand(Arc<str>),
    Unreachable(Arc<str>, u64),
    Shutdown(oneshot::Sender<()>),
}

/// The published state of a revision.
struct RevisionSnapshot {
    status: ScaleStatus,
    instances: Vec<InstanceStatus>,
    /// Not announced as a change: the figures of a running revision change each second.
    figures: ScalingFigures,
}

/// The state that other threads may read at any time.
struct AutoscalerSnapshot {
    /// Boxed, because half of a map's places are empty.
    revisions: Mutex<HashMap<Arc<str>, Box<RevisionSnapshot>>>,
    changes: broadcast::Sender<Arc<str>>,
    /// How long it took to read the counters of one revision.
    sample_durations: DurationHistogram,
}

impl Autoscaler {
    /// The handle, and the future that does the work. It ends after [`Autoscaler::shutdown`], or when all handles
    /// are dropped. `ids` numbers the instances: they name log files, so a value above all of the
    /// last run's (the Unix time in milliseconds) keeps those apart.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        sink: Arc<dyn EndpointSink>,
        ids: impl Into<InstanceIds>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (mail, inbox) = mpsc::unbounded_channel();
        let (changes, _) = broadcast::channel(limits::CHANGES_MAX);
        let snapshot = Arc::new(AutoscalerSnapshot {
            revisions: Mutex::default(),
            changes,
            sample_durations: DurationHistogram::default(),
        });
        let work = task::run(runtime, sink, ids.into(), inbox, Arc::clone(&snapshot));
        (Self { messages: mail, snapshot }, work)
    }

    /// Runs the revision `key` (`NAMESPACE/REVISION`) by `plan` from now on. A changed plan rescales, and
    /// leaves running instances as they are.
    pub fn declare(&self, key: &str, plan: RevisionPlan) {
        self.send(AutoscalerMessage::Declare(key.into(), Box::new(plan)));
    }

    /// Ends the revision's instances, each after its requests, and forgets it.
    pub fn retire(&self, key: &str) {
        self.send(AutoscalerMessage::Retire(key.into()));
    }

    /// A request waits for an instance of `key`.
    pub fn record_demand(&self, key: &str) {
        self.send(AutoscalerMessage::Demand(key.into()));
    }

    /// An instance refused a connection.
    pub fn report_unreachable(&self, key: &str, endpoint: u64) {
        self.send(AutoscalerMessage::Unreachable(key.into(), endpoint));
    }

    /// The state of `key`; of one that was never declared, [`RevisionState::Pending`] with zeros.
    #[must_use]
    pub fn status(&self, key: &str) -> ScaleStatus {
        let known = self.snapshot.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).map_or(ScaleStatus::NOTHING, |known| known.status.clone())
    }

    /// The instances of `key`, those included that end or wait for their next start.
    #[must_use]
    pub fn instances(&self, key: &str) -> Vec<InstanceStatus> {
        let known = self.snapshot.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).map_or_else(Vec::new, |known| known.instances.clone())
    }

    /// Ends the instance `id` of `key`; another one takes its place if it is wanted.
    pub fn restart_instance(&self, key: &str, id: u64) {
        self.send(AutoscalerMessage::Restart(key.into(), id));
    }

    /// The keys whose [`Autoscaler::status`] or list of instances has changed. A receiver that lags misses some and
    /// should read all.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.snapshot.changes.subscribe()
    }

    /// Ends all instances (SIGTERM, grace, SIGKILL) and returns when they are gone. Does not wait for requests: the
    /// caller has stopped accepting them before.
    pub async fn shutdown(&self) {
        let (done, wait) = oneshot::channel();
        self.send(AutoscalerMessage::Shutdown(done));
        let _ = wait.await; // an error: the work is over already
    }

    fn send(&self, mail: AutoscalerMessage) {
        let _ = self.messages.send(mail); // fails only after the shutdown, when nothing is left to do
    }
}

impl fmt::Debug for Autoscaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.snapshot.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Fleet").field("revisions", &known.len()).finish()
    }
}

impl AutoscalerSnapshot {
    /// `None`: nothing is known of `key` any more.
    fn publish(&self, key: &Arc<str>, now: Option<RevisionSnapshot>) {
        let mut known = self.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = match (known.get(key), &now) {
            (Some(before), Some(now)) => (&before.status, &before.instances) == (&now.status, &now.instances),
            (before, now) => before.is_none() && now.is_none(),
        };
        match (known.get_mut(key), now) {
            (Some(place), Some(now)) => **place = now,
            (None, Some(now)) => {
                let _stays = allocator::long_lived();
                known.insert(Arc::clone(key), Box::new(now));
            }
            (_, None) => drop(known.remove(key)),
        }
        drop(known);
        if !is_same {
            let _ = self.changes.send(Arc::clone(key)); // fine without a receiver
        }
    }
}
