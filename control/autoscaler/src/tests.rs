//! The autoscaler with scripted instances, in a time that only the test advances.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, atomic::Ordering::Relaxed};
use std::time::Duration;

use contract::load::BackendLoad;
use contract::table::Endpoint;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::limits::{
    DRAIN_CHECK_INTERVAL, DRAIN_TIMEOUT, RESTART_DELAY_MIN, SAMPLE_INTERVAL, STARTING_MAX, WEBSOCKET_DRAIN_TIMEOUT,
};
use super::revision_scaler::{RevisionScaler, ScalerContext};
use super::{Autoscaler, EndpointSink, RevisionPlan, RevisionState, ScalingMetric};
use crate::scripted_runtime::{InstanceScript, ScriptedCall, ScriptedRuntime};

pub(super) const KEY: &str = "default/hello-00001";
pub(super) const MOMENT: Duration = Duration::from_micros(1);

/// One instance at most is wanted until a test says otherwise.
pub(super) fn plan() -> RevisionPlan {
    RevisionPlan {
        instance: Arc::new(crate::scripted_runtime::spec(&["true"])),
        min_scale: 0,
        max_scale: 0,
        initial_scale: 1,
        inherited_scale: 0,
        metric: ScalingMetric::Concurrency,
        target: 70.0,
        total: 100.0,
        target_burst_capacity: Some(211.0),
        concurrency_max: 0,
        idle_window: Duration::from_secs(60),
        stable_window: Duration::from_secs(60),
        weighted_average: false,
        panic_window: Duration::from_secs(6),
        panic_threshold: 2.0,
        activation_scale: 0,
        scale_down_delay: Duration::ZERO,
        scale_up_rate: 1000.0,
        scale_down_rate: 2.0,
        scale_to_zero_disabled: false,
        spare: super::SparePolicy::default(),
        reachable: true,
    }
}

#[derive(Default)]
pub(super) struct TestEndpointSink {
    endpoints: Mutex<HashMap<String, Vec<Arc<Endpoint>>>>,
    /// When the last endpoint of a key was taken out.
    emptied: Mutex<Vec<Instant>>,
    pub(super) load: Arc<BackendLoad>,
}

impl EndpointSink for TestEndpointSink {
    fn set_endpoints(&self, key: &str, endpoints: Vec<Arc<Endpoint>>) {
        if endpoints.is_empty() {
            self.emptied.lock().unwrap().push(Instant::now());
        }
        self.endpoints.lock().unwrap().insert(key.to_owned(), endpoints);
    }

    fn load(&self, _key: &str) -> Arc<BackendLoad> {
        Arc::clone(&self.load)
    }
}

pub(super) struct AutoscalerFixture {
    pub(super) autoscaler: Autoscaler,
    pub(super) runtime: Arc<ScriptedRuntime>,
    pub(super) sink: Arc<TestEndpointSink>,
}

impl AutoscalerFixture {
    fn new(script: impl Fn(u64) -> InstanceScript + Send + Sync + 'static) -> Self {
        let (runtime, sink) = (ScriptedRuntime::new(script), Arc::new(TestEndpointSink::default()));
        let (scaler, work) = Autoscaler::new(Arc::clone(&runtime) as _, Arc::clone(&sink) as _, 100);
        tokio::spawn(work);
        Self { autoscaler: scaler, runtime, sink }
    }

    pub(super) async fn with(
        plan: RevisionPlan,
        script: impl Fn(u64) -> InstanceScript + Send + Sync + 'static,
    ) -> Self {
        let stage = Self::new(script);
        stage.autoscaler.declare(KEY, plan);
        sleep(MOMENT).await;
        stage
    }

    pub(super) fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.sink.endpoints.lock().unwrap().get(KEY).cloned().unwrap_or_default()
    }

    pub(super) fn state(&self) -> RevisionState {
        self.autoscaler.status(KEY).state
    }
}

pub(super) fn at_once(_: u64) -> InstanceScript {
    InstanceScript::READY_AT_ONCE
}

/// SRV-REQ-09: demand starts an instance, and no timer has to pass for it.
#[tokio::test(start_paused = true)]
async fn demand_starts_a_sleeping_revision_without_any_delay() {
    let stage = AutoscalerFixture::with(RevisionPlan { initial_scale: 0, ..plan() }, at_once).await;
    assert_eq!(stage.state(), RevisionState::Idle);
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(stage.runtime.living(), 0);

    let before = Instant::now();
    stage.autoscaler.record_demand(KEY);
    for _ in 0..100 {
        tokio::task::yield_now().await; // never idle, so the paused clock stands still
    }
    assert_eq!(Instant::now(), before, "the clock had to move");
    assert_eq!(stage.state(), RevisionState::Ready);
    stage.autoscaler.record_demand(KEY);
    sleep(MOMENT).await;
    assert_eq!(stage.runtime.starts(), [before], "one start is enough for both");
}

/// SRV-REV-06: without demand the instances end, after their endpoint has left the table.
#[tokio::test(start_paused = true)]
async fn an_idle_revision_goes_to_zero_after_its_window_and_leaves_the_table_first() {
    let stage = AutoscalerFixture::with(plan(), at_once).await;
    let ready_at = Instant::now();
    assert_eq!(stage.state(), RevisionState::Ready);

    sleep(Duration::from_secs(59)).await;
    assert_eq!(stage.endpoints().len(), 1);
    sleep(SAMPLE_INTERVAL * 2).await;
    assert_eq!((stage.state(), stage.endpoints().len(), stage.runtime.living()), (RevisionState::Idle, 0, 0));
    let stopped = stage.runtime.call_times(|note| matches!(note, ScriptedCall::Stopped(_)))[0];
    let emptied = stage.sink.emptied.lock().unwrap()[0];
    assert!(emptied.duration_since(ready_at) >= Duration::from_secs(59));
    assert!(stopped.duration_since(emptied) >= DRAIN_CHECK_INTERVAL);
}

/// RT-LIFE-03: a long request holds its instance, counted by the backend or only by the endpoint.
#[tokio::test(start_paused = true)]
async fn a_request_inside_holds_its_instance() {
    let stage = AutoscalerFixture::with(plan(), at_once).await;
    let guard = stage.endpoints()[0].load.try_enter(0).unwrap();
    stage.sink.load.in_flight.store(1, Relaxed);
    sleep(Duration::from_secs(500)).await;
    assert_eq!(stage.endpoints().len(), 1, "in use, so not idle");

    // As if the core still counted it in the instance, but not for the backend.
    stage.sink.load.in_flight.store(0, Relaxed);
    sleep(Duration::from_secs(100)).await;
    assert_eq!((stage.endpoints().len(), stage.runtime.living()), (0, 1), "draining");
    drop(guard);
    sleep(DRAIN_CHECK_INTERVAL * 2).await;
    assert_eq!(stage.runtime.living(), 0);
}

/// X-QP-07: a program that has only WebSockets left gets SIGTERM, so that it can close them.
#[tokio::test(start_paused = true)]
async fn websockets_do_not_keep_the_end_from_their_instance() {
    let stage = AutoscalerFixture::with(plan(), at_once).await;
    let load = Arc::clone(&stage.endpoints()[0].load);
    let (mut tunnel, request) = (load.try_enter(0).unwrap(), load.try_enter(0).unwrap());
    tunnel.becomes_tunnel();
    stage.autoscaler.retire(KEY);
    sleep(WEBSOCKET_DRAIN_TIMEOUT + SAMPLE_INTERVAL).await;
    assert_eq!(stage.runtime.living(), 1, "there is a request yet");
    drop(request);
    sleep(DRAIN_CHECK_INTERVAL * 2).await;
    assert_eq!(stage.runtime.living(), 0);

    let stage = AutoscalerFixture::with(plan(), at_once).await;
    let mut tunnel = stage.endpoints()[0].load.try_enter(0).unwrap();
    tunnel.becomes_tunnel();
    stage.autoscaler.retire(KEY);
    sleep(WEBSOCKET_DRAIN_TIMEOUT - SAMPLE_INTERVAL).await;
    assert_eq!(stage.runtime.living(), 1);
    sleep(SAMPLE_INTERVAL * 2).await;
    assert_eq!(stage.runtime.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_ends_holds_a_retired_instance_for_a_bounded_time() {
    let stage = AutoscalerFixture::with(plan(), at_once).await;
    let guard = stage.endpoints()[0].load.try_enter(0).unwrap();
    stage.autoscaler.retire(KEY);
    sleep(DRAIN_TIMEOUT - SAMPLE_INTERVAL).await;
    assert_eq!(stage.runtime.living(), 1);
    sleep(SAMPLE_INTERVAL * 2).await;
    assert_eq!(stage.runtime.living(), 0);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn demand_brings_a_draining_instance_back_instead_of_starting_another() {
    let stage = AutoscalerFixture::with(plan(), at_once).await;
    let guard = stage.endpoints()[0].load.try_enter(0).unwrap();
    sleep(Duration::from_secs(62)).await;
    assert!(stage.endpoints().is_empty());
    stage.autoscaler.record_demand(KEY);
    sleep(MOMENT).await;
    assert_eq!((stage.endpoints().len(), stage.runtime.starts().len()), (1, 1));
    drop(guard);
}

/// RT-LIFE-03, X-QP-07: a deleted instance answers its requests in flight, gets no more, and does not come back.
#[tokio::test(start_paused = true)]
async fn a_deleted_instance_ends_when_its_last_request_has_and_another_takes_its_place() {
    let stage = AutoscalerFixture::with(
        RevisionPlan { min_scale: 1, spare: super::SparePolicy { warm: 0, frozen: 1 }, ..plan() },
        at_once,
    )
    .await;
    let guard = stage.endpoints()[0].load.try_enter(0).unwrap();
    let id = stage.endpoints()[0].id;
    stage.autoscaler.restart_instance(KEY, id);
    sleep(SAMPLE_INTERVAL * 5).await;
    let there = stage.endpoints();
    assert_eq!((there.len(), stage.runtime.living()), (1, 2), "the old one is still at work");
    assert_ne!(there[0].id, id);
    drop(guard);
    sleep(DRAIN_CHECK_INTERVAL * 2).await;
    assert_eq!(stage.runtime.living(), 1);

    stage.autoscaler.restart_instance(KEY, there[0].id); // nothing is inside
    sleep(DRAIN_CHECK_INTERVAL * 2).await;
    assert_eq!((stage.runtime.living(), stage.runtime.starts().len()), (1, 3));
}

/// RT-LIFE-03: an unready instance answers its requests in flight, and gets no more when instances are wanted again.
#[tokio::test(start_paused = true)]
async fn a_doubted_instance_that_drains_does_not_come_back() {
    let stage = AutoscalerFixture::with(RevisionPlan { min_scale: 1, ..plan() }, at_once).await;
    let guard = stage.endpoints()[0].load.try_enter(0).unwrap();
    let id = stage.endpoints()[0].id;
    stage.autoscaler.report_unreachable(KEY, id);
    stage.autoscaler.retire(KEY);
    sleep(MOMENT).await;
    assert_eq!((stage.endpoints().len(), stage.runtime.living()), (0, 1), "a request is inside");
    stage.autoscaler.declare(KEY, RevisionPlan { min_scale: 1, ..plan() });
    sleep(SAMPLE_INTERVAL * 5).await;
    let there = stage.endpoints();
    assert_eq!((there.len(), stage.runtime.living()), (1, 2));
    assert_ne!(there[0].id, id);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_revision_has_nothing_to_wake_for() {
    let (queue, _reports) = mpsc::unbounded_channel();
    let (runtime, sink) = (ScriptedRuntime::new(at_once), Arc::new(TestEndpointSink::default()));
    let now = Instant::now();
    let mut context = ScalerContext { runtime, sink, reports: queue, ids: 1.into(), started_at: now };
    let mut scaler = RevisionScaler::new(KEY.into(), RevisionPlan { initial_scale: 0, ..plan() }, &context, now);
    assert!(scaler.reconcile(now, &mut context).is_empty());
    assert_eq!(scaler.next_wakeup(), None);

    scaler.record_demand(now);
    assert_eq!(scaler.reconcile(now, &mut context), [1]);
    assert!(scaler.next_wakeup().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_minimum_is_kept_without_demand() {
    let stage = AutoscalerFixture::with(RevisionPlan { min_scale: 2, ..plan() }, at_once).await;
    sleep(Duration::from_secs(5000)).await;
    assert_eq!((stage.endpoints().len(), stage.runtime.starts().len()), (2, 2));
}

/// SRV-REV-06: the count rises with waiting requests and falls when they are gone.
#[tokio::test(start_paused = true)]
async fn the_count_rises_and_falls_with_the_demand() {
    let stage = AutoscalerFixture::with(RevisionPlan { target: 10.0, max_scale: 8, ..plan() }, at_once).await;
    stage.sink.load.in_flight.store(10, Relaxed);
    stage.sink.load.waiting.store(30, Relaxed);
    sleep(SAMPLE_INTERVAL).await;
    assert_eq!(stage.autoscaler.status(KEY).actual, 4);

    stage.sink.load.waiting.store(3000, Relaxed);
    stage.autoscaler.record_demand(KEY);
    sleep(MOMENT).await;
    assert_eq!(stage.autoscaler.status(KEY).actual, 8, "as far as the maximum");

    stage.sink.load.waiting.store(0, Relaxed);
    stage.sink.load.in_flight.store(1, Relaxed);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(stage.autoscaler.status(KEY).actual, 1);
}

#[tokio::test(start_paused = true)]
async fn a_burst_starts_a_bounded_number_at_once() {
    let slow = |_| InstanceScript { ready_after: Some(Duration::from_secs(3)), ..InstanceScript::READY_AT_ONCE };
    let stage = AutoscalerFixture::with(RevisionPlan { concurrency_max: 1, ..plan() }, slow).await;
    stage.sink.load.waiting.store(100, Relaxed);
    stage.autoscaler.record_demand(KEY);
    sleep(SAMPLE_INTERVAL).await;
    assert_eq!(stage.runtime.living(), STARTING_MAX);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(stage.runtime.living(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_crashing_program_is_restarted_ever_more_slowly_and_says_why() {
    let crash =
        |_| InstanceScript { ready_after: None, crash_after: Some(SAMPLE_INTERVAL), ..InstanceScript::READY_AT_ONCE };
    let stage = AutoscalerFixture::with(plan(), crash).await;
    assert_eq!(stage.state(), RevisionState::Starting);
    sleep(Duration::from_secs(20)).await;

    let starts = stage.runtime.starts();
    let rests: Vec<_> = starts.windows(2).map(|pair| pair[1].duration_since(pair[0]) - SAMPLE_INTERVAL).collect();
    assert!(rests.len() > 3);
    for (nth, rest) in (0..).zip(&rests) {
        let wanted = RESTART_DELAY_MIN * 2_u32.pow(nth);
        assert!(*rest >= wanted && *rest < wanted + Duration::from_millis(5), "{nth}: {rest:?}");
    }
    let RevisionState::Failed { reason, message } = stage.state() else { panic!("{:?}", stage.state()) };
    assert_eq!(reason, "ExitCode1");
    assert!(message.ends_with("is over"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_a_good_time_is_answered_at_once_and_is_no_failure() {
    let first_crashes = |id| match id {
        100 => InstanceScript { crash_after: Some(Duration::from_secs(30)), ..InstanceScript::READY_AT_ONCE },
        _ => InstanceScript::READY_AT_ONCE,
    };
    let stage = AutoscalerFixture::with(RevisionPlan { min_scale: 1, ..plan() }, first_crashes).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!((stage.runtime.starts().len(), stage.state()), (2, RevisionState::Ready));
}

#[tokio::test(start_paused = true)]
async fn a_failure_stays_visible_until_an_instance_is_ready() {
    let second_works = |id| match id {
        100 => {
            InstanceScript { ready_after: None, crash_after: Some(SAMPLE_INTERVAL), ..InstanceScript::READY_AT_ONCE }
        }
        _ => InstanceScript { ready_after: Some(SAMPLE_INTERVAL * 5), ..InstanceScript::READY_AT_ONCE },
    };
    let stage = AutoscalerFixture::with(plan(), second_works).await;
    sleep(SAMPLE_INTERVAL * 3).await;
    assert_eq!(stage.runtime.starts().len(), 2);
    assert!(matches!(stage.state(), RevisionState::Failed { .. }), "the second try has not succeeded yet");
    sleep(SAMPLE_INTERVAL * 5).await;
    assert_eq!(stage.state(), RevisionState::Ready);
}

#[tokio::test(start_paused = true)]
async fn the_revision_is_not_ready_before_its_initial_count_is() {
    let third_is_slow = |id| match id {
        102 => InstanceScript { ready_after: Some(SAMPLE_INTERVAL * 5), ..InstanceScript::READY_AT_ONCE },
        _ => InstanceScript::READY_AT_ONCE,
    };
    let stage = AutoscalerFixture::with(RevisionPlan { initial_scale: 3, ..plan() }, third_is_slow).await;
    sleep(SAMPLE_INTERVAL * 2).await;
    assert_eq!((stage.autoscaler.status(KEY).actual, stage.state()), (2, RevisionState::Starting));
    sleep(SAMPLE_INTERVAL * 5).await;
    assert_eq!(stage.state(), RevisionState::Ready);
}

/// Requests come only once all instances of the initial scale are ready, so they are kept for a stable window.
#[tokio::test(start_paused = true)]
async fn the_initial_count_is_kept_for_a_stable_window() {
    let several = RevisionPlan { initial_scale: 3, stable_window: SAMPLE_INTERVAL * 50, ..plan() };
    let stage = AutoscalerFixture::with(several, at_once).await;
    sleep(SAMPLE_INTERVAL * 45).await;
    assert_eq!((stage.autoscaler.status(KEY).actual, stage.state()), (3, RevisionState::Ready));
    sleep(SAMPLE_INTERVAL * 10).await;
    assert!(stage.autoscaler.status(KEY).actual < 3, "{:?}", stage.autoscaler.status(KEY));
}

#[tokio::test(start_paused = true)]
async fn a_retired_revision_ends_and_is_forgotten() {
    let stage = AutoscalerFixture::with(RevisionPlan { min_scale: 3, ..plan() }, at_once).await;
    let mut changes = stage.autoscaler.changes();
    stage.autoscaler.retire(KEY);
    sleep(SAMPLE_INTERVAL).await;
    assert_eq!((stage.endpoints().len(), stage.runtime.living()), (0, 0));
    assert_eq!(stage.autoscaler.status(KEY), super::ScaleStatus::NOTHING);
    assert_eq!(stage.runtime.call_times(|note| *note == ScriptedCall::Forgotten(KEY.into())).len(), 1);
    assert_eq!(&*changes.try_recv().unwrap(), KEY);
    stage.autoscaler.record_demand(KEY);
    sleep(SAMPLE_INTERVAL).await;
    assert_eq!(stage.runtime.living(), 0, "demand for what is gone starts nothing");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_refused_a_connection_gets_none_until_it_proved_well() {
    let stage = AutoscalerFixture::with(plan(), at_once).await;
    let id = stage.endpoints()[0].id;
    stage.autoscaler.report_unreachable(KEY, id + 7); // one that is long gone
    stage.autoscaler.report_unreachable(KEY, id);
    sleep(MOMENT).await;
    assert!(stage.endpoints().is_empty());
    sleep(SAMPLE_INTERVAL).await;
    assert_eq!(stage.endpoints()[0].id, id);
    assert_eq!(stage.runtime.call_times(|note| *note == ScriptedCall::Verified(id)).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutdown_returns_when_the_last_instance_is_gone_and_nothing_starts_after() {
    let slow_end = |_| InstanceScript { stop_takes: Duration::from_secs(7), ..InstanceScript::READY_AT_ONCE };
    let stage = AutoscalerFixture::with(RevisionPlan { min_scale: 3, ..plan() }, slow_end).await;
    let _request = stage.endpoints()[0].load.try_enter(0).unwrap();
    let before = Instant::now();
    let (autoscaler, other) = (stage.autoscaler.clone(), stage.autoscaler.clone());
    tokio::join!(autoscaler.shutdown(), other.shutdown());
    assert_eq!(stage.runtime.living(), 0);
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(7) && took < Duration::from_secs(8), "{took:?}");

    stage.autoscaler.declare("default/late", plan());
    stage.autoscaler.shutdown().await; // and a late one does not hang
    assert_eq!(stage.runtime.starts().len(), 3);
    assert_eq!(stage.runtime.call_times(|note| matches!(note, ScriptedCall::Forgotten(_))).len(), 0, "logs stay");
}

/// Random demand, slow starts and crashes: never more than the maximum runs, and once it is quiet all end.
#[tokio::test(start_paused = true)]
async fn whatever_happens_the_bounds_hold_and_quiet_ends_everything() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let script = move |id: u64| {
            let mut rng = fastrand::Rng::with_seed(seed ^ id);
            let mut some = |of: u64| Duration::from_millis(rng.u64(..of));
            InstanceScript {
                ready_after: Some(some(4000)),
                crash_after: id.is_multiple_of(3).then(|| some(20_000)),
                stop_takes: some(3000),
            }
        };
        let bounded = RevisionPlan { max_scale: 5, concurrency_max: 2, initial_scale: 0, ..plan() };
        let stage = AutoscalerFixture::with(bounded, script).await;
        for _ in 0..200 {
            stage.sink.load.waiting.store(rng.u32(..20), Relaxed);
            stage.autoscaler.record_demand(KEY);
            if let Some(endpoint) = stage.endpoints().first().filter(|_| rng.u8(..8) == 0) {
                stage.autoscaler.report_unreachable(KEY, endpoint.id);
            }
            sleep(Duration::from_millis(rng.u64(..1500))).await;
            let observed = stage.autoscaler.status(KEY);
            assert!(observed.actual <= 5 && observed.desired <= 5, "seed {seed}: {observed:?}");
            assert!(stage.endpoints().len() <= 5, "seed {seed}");
        }
        assert!(!stage.runtime.starts().is_empty());
        stage.sink.load.waiting.store(0, Relaxed);
        sleep(Duration::from_secs(400)).await;
        assert_eq!((stage.runtime.living(), stage.endpoints().len()), (0, 0), "seed {seed}");
    }
}

/// SRV-CFG-10: a successor is proven when it has the capacity of its predecessor, and keeps that while the requests
/// move over.
#[tokio::test(start_paused = true)]
async fn a_successor_is_ready_only_with_its_predecessors_strength() {
    let slow = |id| InstanceScript { ready_after: Some(Duration::from_secs(id - 99)), ..InstanceScript::READY_AT_ONCE };
    let successor = RevisionPlan { inherited_scale: 3, stable_window: Duration::from_secs(20), ..plan() };
    let stage = AutoscalerFixture::with(successor.clone(), slow).await;
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!((stage.endpoints().len(), stage.state()), (2, RevisionState::Starting));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((stage.endpoints().len(), stage.state()), (3, RevisionState::Ready));

    // Ready now, so it is declared without anything to carry.
    stage.autoscaler.declare(KEY, RevisionPlan { inherited_scale: 0, initial_scale: 0, ..successor });
    sleep(Duration::from_secs(15)).await;
    assert_eq!(stage.endpoints().len(), 3);
    sleep(Duration::from_secs(10)).await;
    assert!(stage.endpoints().len() < 3, "nobody came over, and they are kept for ever");
}

/// X-AS-03: a burst inside instances is answered within the panic window, and its instances stay until
/// the stable window has passed without another.
#[tokio::test(start_paused = true)]
async fn a_burst_panics_and_its_instances_outlast_it() {
    let bursty = RevisionPlan {
        target: 1.0,
        panic_window: Duration::from_secs(2),
        stable_window: Duration::from_secs(20),
        ..plan()
    };
    let stage = AutoscalerFixture::with(bursty, at_once).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(stage.endpoints().len(), 1);

    stage.sink.load.in_flight.store(6, Relaxed);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(stage.endpoints().len(), 6, "the stable window alone would want two");
    stage.sink.load.in_flight.store(0, Relaxed);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(stage.endpoints().len(), 6);
    sleep(Duration::from_secs(15)).await;
    assert!(stage.endpoints().len() < 6);
}
