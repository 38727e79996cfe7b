//! The instances of one revision, and what each is doing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dataplane::load::{BackendLoad, EndpointLoad};
use dataplane::table::{Endpoint, Protocol};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::activation::Activation;
use super::decide::{Delay, View, decide, is_roomy, restart_delay};
use super::limits::{DRAIN_STEP, STARTING_MAX, TICK, WELL_AFTER};
use super::member::{Member, Phase};
use super::seen::{Roll, Seen};
use super::window::Window;
use super::{EndpointSink, Metric, Observed, Plan, Signs, State, birth};
use crate::runtime::{Beside, Gone, Report, Reporter, Runtime};

/// What a crew acts with.
pub(super) struct Hands {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) sink: Arc<dyn EndpointSink>,
    pub(super) queue: UnboundedSender<(u64, Report)>,
    pub(super) next_id: u64,
    /// When the fleet began.
    pub(super) epoch: Instant,
}

pub(super) struct Crew {
    pub(super) key: Arc<str>,
    pub(super) plan: Plan,
    pub(super) load: Arc<BackendLoad>,
    pub(super) members: Vec<Member>,
    roll: Roll,
    /// Ids of the endpoints that cores know of, in the members' order.
    published: Vec<u64>,
    pub(super) desired: u32,
    /// They have room for the plan's burst.
    roomy: bool,
    pub(super) signs: Signs,
    /// The instances that had to be ready once were.
    proven: bool,
    /// Instances kept for requests that are coming over; `None` as the time = until proven.
    carry: u32,
    carry_until: Option<Instant>,
    pub(super) retired: bool,

    window: Window,
    panic: Option<Panic>,
    delay: Delay,
    /// When the fleet began.
    epoch: Instant,
    next_sample: Instant,
    requests_seen: u64,
    asked_at: Option<Instant>,

    /// In a row, without an instance having been well in between.
    pub(super) failures: u32,
    /// No start before this.
    pub(super) rest_until: Instant,
    pub(super) failure: Option<Gone>,
    pub(super) activation: Activation,
    /// [`Crew::wake_at`] as the fleet knows it.
    pub(super) due: Option<Instant>,
}

/// Demand was far above what ran, not long ago.
#[derive(Clone, Copy)]
struct Panic {
    until: Instant,
    /// The largest count since it began.
    peak: u32,
}

impl Crew {
    pub(super) fn new(key: Arc<str>, plan: Plan, hands: &Hands, now: Instant) -> Self {
        let load = birth::load(&key, &plan.instance, hands);
        let requests_seen = load.requests.load(Relaxed);
        Self {
            key,
            carry: plan.carry,
            plan,
            load,
            members: Vec::new(),
            roll: Roll::default(),
            published: Vec::new(),
            desired: 0,
            roomy: false,
            signs: Signs::default(),
            proven: false,
            carry_until: None,
            retired: false,
            window: Window::default(),
            panic: None,
            delay: Delay::default(),
            epoch: hands.epoch,
            next_sample: now,
            requests_seen,
            asked_at: None,
            failures: 0,
            rest_until: now,
            failure: None,
            activation: Activation::default(),
            due: None,
        }
    }

    pub(super) fn replan(&mut self, mut plan: Plan, now: Instant, hands: &Hands) {
        self.retired = false;
        if plan.reachable && !self.plan.reachable {
            self.retry(now);
        }
        if self.plan.instance == plan.instance {
            plan.instance = Arc::clone(&self.plan.instance); // by which members know their program
        } else {
            if self.plan.instance.volumes != plan.instance.volumes {
                hands.runtime.refresh(Arc::clone(&plan.instance));
            }
            self.retry(now); // what failed was another program
        }
        // The predecessor may grow while we start; once it shrinks, its requests are ours.
        self.carry = self.carry.max(plan.carry);
        self.plan = plan;
    }

    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// Retires without waiting for requests.
    pub(super) fn dismiss(&mut self) {
        self.retired = true;
        self.members.iter_mut().for_each(Member::stop);
    }

    pub(super) fn asked(&mut self, now: Instant) {
        if self.activation.exceeded {
            self.retry(now);
        }
        self.asked_at = Some(now);
    }

    /// Looks at the demand, if it is time to.
    pub(super) fn sample(&mut self, now: Instant) {
        if now < self.next_sample {
            return;
        }
        // All crews tick together, so that a thousand of them wake the fleet once a second.
        let into_tick = now.duration_since(self.epoch).as_nanos() % TICK.as_nanos();
        self.next_sample = now + TICK - Duration::from_nanos(u64::try_from(into_tick).unwrap_or(0));
        let (demand, requests) = (self.load.demand(), self.load.requests.load(Relaxed));
        let since = requests.saturating_sub(self.requests_seen);
        if demand > 0 || since > 0 {
            self.requests_seen = requests;
            self.asked_at = Some(now);
        }
        let counted = match self.plan.metric {
            Metric::Concurrency => demand,
            Metric::Rps => u32::try_from(since).unwrap_or(u32::MAX), // a tick is a second
        };
        self.window.add(now, counted, self.plan.stable_window);
    }

    pub(super) fn ready(&mut self, id: u64, (address, found): (SocketAddr, Option<Protocol>), now: Instant) {
        let Some(member) = self.members.iter_mut().find(|m| m.id == id) else { return };
        member.hindrance = None;
        match member.phase {
            Phase::Starting => {
                let load = Arc::new(EndpointLoad::default());
                let born = Some(member.born(found, now));
                member.endpoint = Some(Arc::new(Endpoint { id, address, load, born, unrestricted: false }));
                member.phase = Phase::Ready { since: now };
                let took_ms = now.duration_since(member.started).as_millis();
                tracing::info!(revision = %self.key, instance = id, %address, took_ms, "instance ready");
                // A new instance stays for one idle window even if nobody comes.
                self.asked_at = Some(now);
            }
            Phase::Doubted { since } => member.phase = Phase::Ready { since },
            Phase::Ready { .. } | Phase::Draining { .. } | Phase::Frozen | Phase::Stopping => return,
        }
        self.failure = None;
        if !self.proven && self.ready_count() >= self.initial() {
            self.proven = true;
            self.activation.reset();
            // Who asks for several expects the requests that only come once the revision is ready. One is the default,
            // and the rules for the last instance keep it.
            if self.plan.initial > 1 {
                self.carry = self.carry.max(self.plan.initial);
            }
            self.carry_until = Some(now + self.plan.stable_window);
        }
    }

    pub(super) fn gone(&mut self, id: u64, gone: Gone, now: Instant) {
        let Some(at) = self.members.iter().position(|m| m.id == id) else { return };
        let member = self.members.remove(at);
        self.members.shrink_to_fit(); // who sleeps keeps no room for instances
        let was_ready_since = match member.phase {
            // As wanted, or missed by nobody.
            Phase::Draining { .. } | Phase::Stopping | Phase::Frozen => return self.roll.left(id),
            Phase::Starting => None,
            Phase::Ready { since } | Phase::Doubted { since } => Some(since),
        };
        tracing::warn!(revision = %self.key, instance = id, reason = %gone.cause, "instance failed");
        self.roll.failed(id, &gone);
        if now < self.rest_until {
            return; // several at once are one failure
        }
        if was_ready_since.is_some_and(|since| now.duration_since(since) >= WELL_AFTER) {
            self.failures = 0;
        }
        self.failures += 1;
        let delay = restart_delay(self.failures, was_ready_since.is_some());
        self.rest_until = now + delay;
        if !delay.is_zero() {
            self.failure = Some(gone);
        }
    }

    /// Ends it when its last request has; what is wanted then decides about another.
    pub(super) fn restart(&mut self, id: u64, now: Instant) {
        if let Some(member) = self.members.iter_mut().find(|m| m.id == id) {
            member.drain(now, true);
        }
    }

    pub(super) fn doubt(&mut self, id: u64) {
        let Some(member) = self.members.iter_mut().find(|m| m.id == id) else { return };
        if let Phase::Ready { since } = member.phase {
            member.phase = Phase::Doubted { since };
            member.instance.verify();
        }
    }

    pub(super) fn beside(&mut self, id: u64, others: Vec<Beside>) {
        if let Some(member) = self.members.iter_mut().find(|m| m.id == id) {
            member.beside = others;
        }
    }

    /// It is not ready yet, and its runtime goes on asking.
    pub(super) fn hindered(&mut self, id: u64, why: String) {
        if let Some(member) = self.members.iter_mut().find(|m| m.id == id) {
            member.hindrance = Some(why);
        }
    }

    /// It failed its readiness probe; its runtime goes on asking.
    pub(super) fn unready(&mut self, id: u64) {
        let Some(member) = self.members.iter_mut().find(|m| m.id == id) else { return };
        if let Phase::Ready { since } = member.phase {
            member.phase = Phase::Doubted { since };
        }
    }

    /// Brings the members to the number that is wanted now; returns the ids of new ones.
    pub(super) fn settle(&mut self, now: Instant, hands: &mut Hands) -> Vec<u64> {
        let decided = if self.retired { 0 } else { self.decide(now) };
        self.desired = self.with_warm(decided);
        let running = self.running();
        let frozen = self.count(|phase| phase == Phase::Frozen);
        let started = if running < self.desired {
            self.grow(self.desired - running, now, hands)
        } else {
            self.shrink(running - self.desired, now);
            Vec::new()
        };
        let thawed = frozen - self.count(|phase| phase == Phase::Frozen);
        self.finish_drains(now);
        self.let_spares_go();
        self.publish(hands);
        if self.desired == 0 && self.members.is_empty() {
            self.window.sleep();
        }
        if thawed > 0 {
            // Written when their requests are on their way: a line of the log takes as long as a thaw.
            tracing::info!(revision = %self.key, thawed, "instances thawed");
        }
        started
    }

    fn decide(&mut self, now: Instant) -> u32 {
        self.expire(now);
        self.panic = self.panic.filter(|panic| now < panic.until);
        let view = self.view(now);
        let decision = decide(&self.plan, &view);
        self.roomy = decision.count > 0 && is_roomy(&self.plan, &view);
        if decision.panics || self.panic.is_some() {
            let before = self.panic.unwrap_or(Panic { until: now, peak: 0 });
            if self.panic.is_none() {
                tracing::info!(revision = %self.key, wanted = decision.count, "panics: demand outgrows what runs");
            }
            let until = if decision.panics { now + self.plan.stable_window } else { before.until };
            self.panic = Some(Panic { until, peak: before.peak.max(decision.undelayed) });
        }
        self.signs = Signs::of(&self.plan, &view, &decision, self.panic.is_some());
        self.delay.add(now, decision.undelayed);
        decision.count
    }

    fn view(&mut self, now: Instant) -> View {
        View {
            stable: self.window.level(now, self.plan.stable_window, self.plan.weighted),
            panic: self.window.level(now, self.plan.panic_window, self.plan.weighted),
            panic_peak: self.panic.as_ref().map(|panic| panic.peak),
            delayed: self.delay.largest(now, self.plan.scale_down_delay),
            demand: self.load.demand(),
            waiting: self.load.waiting.load(Relaxed),
            ready: self.ready_count(),
            proven: self.proven,
            deadline_exceeded: self.activation.exceeded,
            carry: if self.carry_until.is_none_or(|until| now < until) { self.carry } else { 0 },
            idle_for: self.asked_at.map(|at| now.duration_since(at)),
        }
    }

    fn grow(&mut self, mut missing: u32, now: Instant, hands: &mut Hands) -> Vec<u64> {
        // One that is on its way out is back at once.
        for member in &mut self.members {
            if missing > 0 && matches!(member.phase, Phase::Draining { for_good: false, .. }) {
                member.phase = Phase::Ready { since: now };
                missing -= 1;
            }
        }
        missing -= self.thaw(missing, now);
        if now < self.rest_until {
            return Vec::new();
        }
        let room = STARTING_MAX.saturating_sub(self.count(|phase| phase == Phase::Starting));
        (0..missing.min(room)).map(|_| self.start(now, hands)).collect()
    }

    fn start(&mut self, now: Instant, hands: &mut Hands) -> u64 {
        if !self.proven {
            self.activation.started(now);
        }
        let id = hands.next_id;
        hands.next_id += 1;
        let reporter = Reporter::new(id, hands.queue.clone());
        let line = self.roll.started(id);
        let instance = hands.runtime.start(id, line, Arc::clone(&self.plan.instance), reporter);
        let spec = Arc::clone(&self.plan.instance);
        self.members.push(Member {
            id,
            line,
            spec,
            started: now,
            instance,
            phase: Phase::Starting,
            endpoint: None,
            beside: Vec::new(),
            hindrance: None,
        });
        id
    }

    /// Lets `surplus` members go, those first whose end costs least.
    fn shrink(&mut self, surplus: u32, now: Instant) {
        for _ in 0..surplus {
            let cheapest = self.members.iter_mut().filter(|m| m.is_running()).min_by_key(|m| m.cost());
            let Some(member) = cheapest else { return };
            member.drain(now, false);
        }
    }

    /// RT-LIFE-03: an instance with a request inside is not ended by scaling; one with nothing but WebSockets is told, and they
    /// go on while it says goodbye.
    fn finish_drains(&mut self, now: Instant) {
        let mut room = self.frozen_max().saturating_sub(self.count(|phase| phase == Phase::Frozen));
        for member in &mut self.members {
            let Phase::Draining { since, look_at, for_good } = member.phase else { continue };
            if now < look_at {
                continue;
            }
            if member.in_flight() == 0
                && room > 0
                && !for_good
                && Arc::ptr_eq(&member.spec, &self.plan.instance)
            {
                room -= 1;
                member.phase = Phase::Frozen;
                member.instance.freeze();
                tracing::info!(revision = %self.key, instance = member.id, "instance frozen");
            } else if member.has_drained(now.duration_since(since)) {
                member.stop();
            } else {
                member.phase = Phase::Draining { since, look_at: now + DRAIN_STEP, for_good };
            }
        }
    }

    fn publish(&mut self, hands: &Hands) {
        let takes_requests = |m: &&Member| matches!(m.phase, Phase::Ready { .. });
        let ready: Vec<_> =
            self.members.iter().filter(takes_requests).filter_map(|m| m.endpoint.clone()).collect();
        let ids: Vec<u64> = ready.iter().map(|endpoint| endpoint.id).collect();
        if ids != self.published {
            self.published = ids;
            hands.sink.set_endpoints(&self.key, ready);
        }
    }

    /// When this crew has to be looked at again without anything happening. `None`: it sleeps.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let drains = self.members.iter().filter_map(|m| match m.phase {
            Phase::Draining { look_at, .. } => Some(look_at),
            _ => None,
        });
        let restart = (self.running() < self.desired
            && self.count(|phase| phase == Phase::Starting) < STARTING_MAX)
            .then_some(self.rest_until);
        let awake = self.desired > 0 || self.running() > 0;
        drains.chain(restart).chain(awake.then_some(self.next_sample)).min()
    }

    pub(super) fn is_over(&self) -> bool {
        self.retired && self.members.is_empty()
    }

    pub(super) fn forget(&self, hands: &Hands) {
        hands.runtime.forget(&self.plan.instance.namespace, &self.plan.instance.revision);
    }

    pub(super) fn observed(&self) -> Observed {
        let actual = self.ready_count();
        let state = if actual > 0 && self.proven {
            State::Ready
        } else if let Some(failure) = &self.failure {
            State::Failed { reason: failure.cause.to_string(), message: failure.message.clone() }
        } else if self.running() > 0 {
            State::Starting
        } else if self.desired == 0 && (self.proven || self.plan.initial == 0) {
            State::Idle
        } else if self.desired == 0 && !self.plan.reachable {
            State::Unreachable
        } else {
            State::Pending
        };
        let hindrance = self.members.iter().find_map(|member| member.hindrance.clone());
        let (desired, roomy, deadline_exceeded) = (self.desired, self.roomy, self.activation.exceeded);
        Observed { actual, desired, roomy, hindrance, deadline_exceeded, state }
    }

    pub(super) fn seen(&mut self) -> Vec<Seen> {
        let missing = self.desired.saturating_sub(self.running());
        let members = self.members.iter().map(Member::doing);
        self.roll.seen(members, missing)
    }

    fn initial(&self) -> u32 {
        let most = if self.plan.max == 0 { u32::MAX } else { self.plan.max };
        self.plan.initial.max(self.carry).clamp(1, most)
    }

    pub(super) fn running(&self) -> u32 {
        self.count(|phase| !matches!(phase, Phase::Draining { .. } | Phase::Frozen | Phase::Stopping))
    }

    fn ready_count(&self) -> u32 {
        self.count(|phase| matches!(phase, Phase::Ready { .. }))
    }

    pub(super) fn count(&self, wanted: impl Fn(Phase) -> bool) -> u32 {
        u32::try_from(self.members.iter().filter(|m| wanted(m.phase)).count()).unwrap_or(u32::MAX)
    }
}
