//! The instances of one revision, and the state of each.

mod figures;
mod progress_deadline;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use contract::load::{BackendLoad, EndpointLoad};
use contract::table::{Endpoint, Protocol};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::activation::Activation;
use super::decide::{ScaleDownDelay, ScalingInputs, backoff, decide, has_burst_capacity};
use super::demand_window::DemandWindow;
use super::instance::{Instance, LifecyclePhase};
use super::instance_status::{InstanceStatus, LineageTable};
use super::limits::{DRAIN_CHECK_INTERVAL, HEALTHY_AFTER, SAMPLE_INTERVAL, STARTING_MAX};
use super::{EndpointSink, RevisionPlan, RevisionState, ScaleStatus, ScalingMetric, ScalingSignals, instance_labels};
use runtime::{InstanceExit, InstanceIds, InstanceReport, InstanceReporter, Runtime, SidecarStatus};

/// The context that all revision scalers share.
pub(super) struct ScalerContext {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) sink: Arc<dyn EndpointSink>,
    pub(super) reports: UnboundedSender<(u64, InstanceReport)>,
    pub(super) ids: InstanceIds,
    /// When the autoscaler started.
    pub(super) started_at: Instant,
}

pub(super) struct RevisionScaler {
    pub(super) key: Arc<str>,
    pub(super) plan: RevisionPlan,
    pub(super) load: Arc<BackendLoad>,
    pub(super) instances: Vec<Instance>,
    lineages: LineageTable,
    /// Ids of the endpoints that cores know of, in the members' order.
    published_endpoint_ids: Vec<u64>,
    pub(super) desired: u32,
    /// They have capacity for the plan's burst.
    has_burst_capacity: bool,
    pub(super) signals: ScalingSignals,
    /// All instances of the initial scale have been ready once.
    reached_initial_scale: bool,
    /// Instances kept for requests that are coming over; `None` as the time = until proven.
    inherited_scale: u32,
    inherited_until: Option<Instant>,
    pub(super) retired: bool,

    window: DemandWindow,
    panic_mode: Option<PanicMode>,
    scale_down_delay: ScaleDownDelay,
    /// When the autoscaler started.
    autoscaler_started_at: Instant,
    next_sample: Instant,
    requests_seen: u64,
    last_demand_at: Option<Instant>,

    /// In a row, without an instance having been well in between.
    pub(super) failures: u32,
    /// No start before this.
    pub(super) backoff_until: Instant,
    pub(super) last_failure: Option<InstanceExit>,
    pub(super) activation: Activation,
    /// [`RevisionScaler::next_wakeup`] as the autoscaler's task has scheduled it.
    pub(super) wakes_at: Option<Instant>,
}

/// Demand was far above what ran, not long ago.
#[derive(Clone, Copy)]
struct PanicMode {
    until: Instant,
    /// The largest count since it began.
    peak: u32,
}

impl RevisionScaler {
    pub(super) fn new(key: Arc<str>, plan: RevisionPlan, context: &ScalerContext, now: Instant) -> Self {
        let load = instance_labels::backend_load(&key, &plan.instance, &*context.sink);
        let requests_seen = load.requests.load(Relaxed);
        Self {
            key,
            inherited_scale: plan.inherited_scale,
            plan,
            load,
            instances: Vec::new(),
            lineages: LineageTable::default(),
            published_endpoint_ids: Vec::new(),
            desired: 0,
            has_burst_capacity: false,
            signals: ScalingSignals::default(),
            reached_initial_scale: false,
            inherited_until: None,
            retired: false,
            window: DemandWindow::default(),
            panic_mode: None,
            scale_down_delay: ScaleDownDelay::default(),
            autoscaler_started_at: context.started_at,
            next_sample: now,
            requests_seen,
            last_demand_at: None,
            failures: 0,
            backoff_until: now,
            last_failure: None,
            activation: Activation::default(),
            wakes_at: None,
        }
    }

    pub(super) fn update_plan(&mut self, mut plan: RevisionPlan, now: Instant, context: &ScalerContext) {
        self.retired = false;
        if plan.reachable && !self.plan.reachable {
            self.retry(now);
        }
        if self.plan.instance == plan.instance {
            plan.instance = Arc::clone(&self.plan.instance); // by which members know their program
        } else {
            if self.plan.instance.volumes != plan.instance.volumes {
                context.runtime.refresh(Arc::clone(&plan.instance));
            }
            self.retry(now); // what failed was another program
        }
        // The predecessor may grow while the new revision starts; once it shrinks, its requests go to the new one.
        self.inherited_scale = self.inherited_scale.max(plan.inherited_scale);
        self.plan = plan;
    }

    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// Retires without waiting for requests.
    pub(super) fn stop_all(&mut self) {
        self.retired = true;
        self.instances.iter_mut().for_each(Instance::stop);
    }

    pub(super) fn record_demand(&mut self, now: Instant) {
        if self.activation.exceeded {
            self.retry(now);
        }
        self.last_demand_at = Some(now);
    }

    /// Samples the demand, if the interval has passed.
    pub(super) fn sample(&mut self, now: Instant) {
        if now < self.next_sample {
            return;
        }
        // All revision scalers sample together, so that a thousand of them wake the task once a second.
        let into_tick = now.duration_since(self.autoscaler_started_at).as_nanos() % SAMPLE_INTERVAL.as_nanos();
        self.next_sample = now + SAMPLE_INTERVAL - Duration::from_nanos(u64::try_from(into_tick).unwrap_or(0));
        let (demand, requests) = (self.load.demand(), self.load.requests.load(Relaxed));
        let since = requests.saturating_sub(self.requests_seen);
        if demand > 0 || since > 0 {
            self.requests_seen = requests;
            self.last_demand_at = Some(now);
        }
        let counted = match self.plan.metric {
            ScalingMetric::Concurrency => demand,
            ScalingMetric::RequestsPerSecond => u32::try_from(since).unwrap_or(u32::MAX), // a tick is a second
        };
        self.window.add(now, counted, self.plan.stable_window);
    }

    pub(super) fn on_ready(&mut self, id: u64, (address, found): (SocketAddr, Option<Protocol>), now: Instant) {
        let Some(member) = self.instances.iter_mut().find(|m| m.id == id) else { return };
        member.not_ready_reason = None;
        match member.phase {
            LifecyclePhase::Starting => {
                let load = Arc::new(EndpointLoad::default());
                let born = Some(member.endpoint_info(found, now));
                member.endpoint = Some(Arc::new(Endpoint { id, address: address.into(), load, start: born }));
                member.phase = LifecyclePhase::Ready { since: now };
                let took_ms = now.duration_since(member.started).as_millis();
                tracing::info!(revision = %self.key, instance = id, %address, took_ms, "instance ready");
                // A new instance stays for one idle window even without requests.
                self.last_demand_at = Some(now);
            }
            LifecyclePhase::Suspect { since } => member.phase = LifecyclePhase::Ready { since },
            LifecyclePhase::Ready { .. }
            | LifecyclePhase::Draining { .. }
            | LifecyclePhase::Frozen
            | LifecyclePhase::Stopping => return,
        }
        self.last_failure = None;
        if !self.reached_initial_scale && self.ready_count() >= self.initial_scale() {
            self.reached_initial_scale = true;
            self.activation.reset();
            // An initial scale above one expects the requests that only come once the revision is ready. One is the
            // default, and the rules for the last instance keep it.
            if self.plan.initial_scale > 1 {
                self.inherited_scale = self.inherited_scale.max(self.plan.initial_scale);
            }
            self.inherited_until = Some(now + self.plan.stable_window);
        }
    }

    pub(super) fn on_exit(&mut self, id: u64, gone: InstanceExit, now: Instant) {
        let Some(at) = self.instances.iter().position(|m| m.id == id) else { return };
        let member = self.instances.remove(at);
        self.instances.shrink_to_fit(); // a revision without instances keeps no memory for them
        let was_ready_since = match member.phase {
            // As wanted, or without effect on requests.
            LifecyclePhase::Draining { .. } | LifecyclePhase::Stopping | LifecyclePhase::Frozen => {
                return self.lineages.release(id);
            }
            LifecyclePhase::Starting => None,
            LifecyclePhase::Ready { since } | LifecyclePhase::Suspect { since } => Some(since),
        };
        tracing::warn!(revision = %self.key, instance = id, reason = %gone.cause, "instance failed");
        self.lineages.record_failure(id, &gone);
        if now < self.backoff_until {
            return; // several at once are one failure
        }
        if was_ready_since.is_some_and(|since| now.duration_since(since) >= HEALTHY_AFTER) {
            self.failures = 0;
        }
        self.failures += 1;
        let delay = backoff(self.failures, was_ready_since.is_some());
        self.backoff_until = now + delay;
        if !delay.is_zero() {
            self.last_failure = Some(gone);
        }
    }

    /// Ends it when its last request has; what is wanted then decides about another.
    pub(super) fn drain_instance(&mut self, id: u64, now: Instant) {
        if let Some(member) = self.instances.iter_mut().find(|m| m.id == id) {
            member.drain(now, true);
        }
    }

    pub(super) fn on_unreachable(&mut self, id: u64) {
        let Some(member) = self.instances.iter_mut().find(|m| m.id == id) else { return };
        if let LifecyclePhase::Ready { since } = member.phase {
            member.phase = LifecyclePhase::Suspect { since };
            member.handle.verify();
        }
    }

    pub(super) fn on_sidecars(&mut self, id: u64, others: Vec<SidecarStatus>) {
        if let Some(member) = self.instances.iter_mut().find(|m| m.id == id) {
            member.sidecars = others;
        }
    }

    /// It is not ready yet, and its runtime continues to probe it.
    pub(super) fn on_not_ready_reason(&mut self, id: u64, why: String) {
        if let Some(member) = self.instances.iter_mut().find(|m| m.id == id) {
            member.not_ready_reason = Some(why);
        }
    }

    /// It failed its readiness probe; its runtime continues to probe it.
    pub(super) fn on_unready(&mut self, id: u64) {
        let Some(member) = self.instances.iter_mut().find(|m| m.id == id) else { return };
        if let LifecyclePhase::Ready { since } = member.phase {
            member.phase = LifecyclePhase::Suspect { since };
        }
    }

    /// Brings the members to the number that is wanted now; returns the ids of new ones.
    pub(super) fn reconcile(&mut self, now: Instant, context: &mut ScalerContext) -> Vec<u64> {
        let decided = if self.retired { 0 } else { self.decide(now) };
        self.desired = self.add_warm_spares(decided);
        let running = self.running();
        let frozen = self.count(|phase| phase == LifecyclePhase::Frozen);
        let started = if running < self.desired {
            self.scale_up(self.desired - running, now, context)
        } else {
            self.scale_down(running - self.desired, now);
            Vec::new()
        };
        let thawed = frozen - self.count(|phase| phase == LifecyclePhase::Frozen);
        self.finish_drains(now);
        self.stop_unused_frozen();
        self.publish(context);
        if self.desired == 0 && self.instances.is_empty() {
            self.window.compact();
        }
        if thawed > 0 {
            // Written when their requests are on their way: a line of the log takes as long as a thaw.
            tracing::info!(revision = %self.key, thawed, "instances thawed");
        }
        started
    }

    fn decide(&mut self, now: Instant) -> u32 {
        self.expire(now);
        self.panic_mode = self.panic_mode.filter(|panic| now < panic.until);
        let view = self.inputs(now);
        let decision = decide(&self.plan, &view);
        self.has_burst_capacity = decision.count > 0 && has_burst_capacity(&self.plan, &view);
        if decision.is_panicking || self.panic_mode.is_some() {
            let before = self.panic_mode.unwrap_or(PanicMode { until: now, peak: 0 });
            if self.panic_mode.is_none() {
                tracing::info!(revision = %self.key, wanted = decision.count, "panics: demand outgrows what runs");
            }
            let until = if decision.is_panicking { now + self.plan.stable_window } else { before.until };
            self.panic_mode = Some(PanicMode { until, peak: before.peak.max(decision.count_without_delay) });
        }
        self.signals = ScalingSignals::of(&self.plan, &view, &decision, self.panic_mode.is_some());
        self.scale_down_delay.add(now, decision.count_without_delay);
        decision.count
    }

    fn inputs(&mut self, now: Instant) -> ScalingInputs {
        ScalingInputs {
            stable: self.window.level(now, self.plan.stable_window, self.plan.weighted_average),
            panic: self.window.level(now, self.plan.panic_window, self.plan.weighted_average),
            panic_peak_count: self.panic_mode.as_ref().map(|panic| panic.peak),
            scale_down_floor: self.scale_down_delay.max_within(now, self.plan.scale_down_delay),
            demand: self.load.demand(),
            queued: self.load.waiting.load(Relaxed),
            ready: self.ready_count(),
            reached_initial_scale: self.reached_initial_scale,
            deadline_exceeded: self.activation.exceeded,
            inherited_scale: if self.inherited_until.is_none_or(|until| now < until) {
                self.inherited_scale
            } else {
                0
            },
            idle_for: self.last_demand_at.map(|at| now.duration_since(at)),
        }
    }

    fn scale_up(&mut self, mut missing: u32, now: Instant, context: &mut ScalerContext) -> Vec<u64> {
        // A draining instance is back at once.
        for member in &mut self.instances {
            if missing > 0 && matches!(member.phase, LifecyclePhase::Draining { for_good: false, .. }) {
                member.phase = LifecyclePhase::Ready { since: now };
                missing -= 1;
            }
        }
        missing -= self.thaw(missing, now);
        if now < self.backoff_until {
            return Vec::new();
        }
        let capacity = STARTING_MAX.saturating_sub(self.count(|phase| phase == LifecyclePhase::Starting));
        (0..missing.min(capacity)).map(|_| self.start_instance(now, context)).collect()
    }

    fn start_instance(&mut self, now: Instant, context: &mut ScalerContext) -> u64 {
        if !self.reached_initial_scale {
            self.activation.started(now);
        }
        let id = context.ids.allocate();
        let reporter = InstanceReporter::new(id, context.reports.clone());
        let line = self.lineages.assign(id);
        let instance = context.runtime.start(id, line, Arc::clone(&self.plan.instance), reporter);
        let spec = Arc::clone(&self.plan.instance);
        self.instances.push(Instance {
            id,
            lineage: line,
            spec,
            started: now,
            handle: instance,
            phase: LifecyclePhase::Starting,
            endpoint: None,
            sidecars: Vec::new(),
            not_ready_reason: None,
        });
        id
    }

    /// Ends `surplus` instances, those first whose end costs least.
    fn scale_down(&mut self, surplus: u32, now: Instant) {
        for _ in 0..surplus {
            let cheapest = self.instances.iter_mut().filter(|m| m.is_running()).min_by_key(|m| m.removal_cost());
            let Some(member) = cheapest else { return };
            member.drain(now, false);
        }
    }

    /// RT-LIFE-03: scaling does not end an instance with requests in flight; one with WebSockets only gets SIGTERM,
    /// and they continue while it closes them.
    fn finish_drains(&mut self, now: Instant) {
        let mut capacity = self.frozen_max().saturating_sub(self.count(|phase| phase == LifecyclePhase::Frozen));
        for member in &mut self.instances {
            let LifecyclePhase::Draining { since, look_at, for_good } = member.phase else { continue };
            if now < look_at {
                continue;
            }
            if member.in_flight() == 0 && capacity > 0 && !for_good && Arc::ptr_eq(&member.spec, &self.plan.instance) {
                capacity -= 1;
                member.phase = LifecyclePhase::Frozen;
                member.handle.freeze();
                tracing::info!(revision = %self.key, instance = member.id, "instance frozen");
            } else if member.has_drained(now.duration_since(since)) {
                member.stop();
            } else {
                member.phase = LifecyclePhase::Draining { since, look_at: now + DRAIN_CHECK_INTERVAL, for_good };
            }
        }
    }

    fn publish(&mut self, context: &ScalerContext) {
        let takes_requests = |m: &&Instance| matches!(m.phase, LifecyclePhase::Ready { .. });
        let ready: Vec<_> = self.instances.iter().filter(takes_requests).filter_map(|m| m.endpoint.clone()).collect();
        let ids: Vec<u64> = ready.iter().map(|endpoint| endpoint.id).collect();
        if ids != self.published_endpoint_ids {
            self.published_endpoint_ids = ids;
            context.sink.set_endpoints(&self.key, ready);
        }
    }

    /// When this revision has to be checked again without an event. `None`: it waits for one.
    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let drains = self.instances.iter().filter_map(|m| match m.phase {
            LifecyclePhase::Draining { look_at, .. } => Some(look_at),
            _ => None,
        });
        let restart = (self.running() < self.desired
            && self.count(|phase| phase == LifecyclePhase::Starting) < STARTING_MAX)
            .then_some(self.backoff_until);
        let awake = self.desired > 0 || self.running() > 0;
        drains.chain(restart).chain(awake.then_some(self.next_sample)).min()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.retired && self.instances.is_empty()
    }

    pub(super) fn remove_from_runtime(&self, context: &ScalerContext) {
        context.runtime.remove_revision(&self.plan.instance.namespace, &self.plan.instance.revision);
    }

    pub(super) fn status(&self) -> ScaleStatus {
        let actual = self.ready_count();
        let state = if actual > 0 && self.reached_initial_scale {
            RevisionState::Ready
        } else if let Some(failure) = &self.last_failure {
            RevisionState::Failed { reason: failure.cause.to_string(), message: failure.message.clone() }
        } else if self.running() > 0 {
            RevisionState::Starting
        } else if self.desired == 0 && (self.reached_initial_scale || self.plan.initial_scale == 0) {
            RevisionState::Idle
        } else if self.desired == 0 && !self.plan.reachable {
            RevisionState::Unreachable
        } else {
            RevisionState::Pending
        };
        let not_ready_reason = self.instances.iter().find_map(|member| member.not_ready_reason.clone());
        let (desired, has_burst, deadline_exceeded) = (self.desired, self.has_burst_capacity, self.activation.exceeded);
        ScaleStatus { actual, desired, has_burst_capacity: has_burst, not_ready_reason, deadline_exceeded, state }
    }

    pub(super) fn instance_statuses(&mut self) -> Vec<InstanceStatus> {
        let missing = self.desired.saturating_sub(self.running());
        let members = self.instances.iter().map(Instance::snapshot);
        self.lineages.statuses(members, missing)
    }

    fn initial_scale(&self) -> u32 {
        let most = if self.plan.max_scale == 0 { u32::MAX } else { self.plan.max_scale };
        self.plan.initial_scale.max(self.inherited_scale).clamp(1, most)
    }

    pub(super) fn running(&self) -> u32 {
        self.count(|phase| {
            !matches!(phase, LifecyclePhase::Draining { .. } | LifecyclePhase::Frozen | LifecyclePhase::Stopping)
        })
    }

    fn ready_count(&self) -> u32 {
        self.count(|phase| matches!(phase, LifecyclePhase::Ready { .. }))
    }

    pub(super) fn count(&self, wanted: impl Fn(LifecyclePhase) -> bool) -> u32 {
        u32::try_from(self.instances.iter().filter(|m| wanted(m.phase)).count()).unwrap_or(u32::MAX)
    }
}
