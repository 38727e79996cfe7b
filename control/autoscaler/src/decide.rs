//! How many instances a revision should have: arithmetic, with the time passed in.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::limits::{IDLE_WINDOW_MIN, RESTART_DELAY_MAX, RESTART_DELAY_MIN, SAMPLES_MAX};
use super::{RevisionPlan, ScalingMetric};

/// A target below this requires absurd numbers of instances (upstream X-AS-01).
const TARGET_MIN: f64 = 0.01;

/// The inputs of a decision, besides the plan.
#[derive(Debug, Clone, Copy)]
pub struct ScalingInputs {
    /// Demand (concurrency or requests per second), averaged over the stable window.
    pub stable: f64,
    /// The same over the panic window.
    pub panic: f64,
    /// The largest count since the panic began, if there is one.
    pub panic_peak_count: Option<u32>,
    /// The largest count that was wanted within the scale-down delay.
    pub scale_down_floor: u32,
    /// Requests inside instances and waiting, now.
    pub demand: u32,
    /// The waiting ones among them: the running instances are not enough.
    pub queued: u32,
    /// Instances that take requests.
    pub ready: u32,
    /// The plan's `initial` instances were ready once.
    pub reached_initial_scale: bool,
    /// They were not within the progress deadline.
    pub deadline_exceeded: bool,
    /// Instances kept for requests that come over from a predecessor.
    pub inherited_scale: u32,
    /// Since anything was last asked of the revision; `None` = never.
    pub idle_for: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalingDecision {
    /// The number of instances wanted.
    pub count: u32,
    /// The desired count without the scale-down delay.
    pub count_without_delay: u32,
    /// The panic window's demand is far above what runs: from now on, and for a stable window, the count
    /// never falls.
    pub is_panicking: bool,
}

/// X-AS-02..05: the averages decide within the rates; waiting requests start an instance without waiting for an
/// average.
#[must_use]
pub fn decide(plan: &RevisionPlan, view: &ScalingInputs) -> ScalingDecision {
    // What cannot start is restarted only for those that can reach it, and never beyond its deadline.
    let is_given_up = !plan.reachable && view.ready == 0 || view.deadline_exceeded;
    if is_given_up && view.demand == 0 {
        return ScalingDecision { count: 0, count_without_delay: 0, is_panicking: false };
    }
    let window = plan.idle_window.max(IDLE_WINDOW_MIN);
    let asked = view.idle_for.is_some_and(|idle| idle < window) || view.demand > 0;
    let (mut wanted, mut panics) = (0, false);
    if asked {
        let base = view.ready.max(1);
        let panic = instances_for(view.panic, plan);
        panics = f64::from(panic) / f64::from(base) >= plan.panic_threshold;
        let floor = if plan.reachable { floor(f64::from(view.ready) / plan.scale_down_rate.max(1.0)) } else { 0 };
        let ceiling = ceil(f64::from(base) * plan.scale_up_rate.max(1.0)).max(floor);
        wanted = instances_for(view.stable, plan).clamp(floor, ceiling).max(1);
        if panics || view.panic_peak_count.is_some() {
            wanted = wanted.max(panic.clamp(floor, ceiling)).max(view.panic_peak_count.unwrap_or(0));
        }
        if view.queued > 0 && plan.metric == ScalingMetric::Concurrency {
            wanted = wanted.max(instances_for(f64::from(view.demand), plan));
        }
    } else if plan.scale_to_zero_disabled && view.reached_initial_scale {
        wanted = 1;
    }
    if wanted > 0 {
        wanted = wanted.max(plan.activation_scale);
    }
    let undelayed = wanted;
    if plan.reachable {
        wanted = wanted.max(view.scale_down_floor);
    }
    if plan.reachable {
        wanted = wanted.max(view.inherited_scale).max(if view.reached_initial_scale { 0 } else { plan.initial_scale });
    }
    wanted = wanted.max(plan.min_scale);
    let count = if plan.max_scale == 0 { wanted } else { wanted.min(plan.max_scale) };
    ScalingDecision { count, count_without_delay: undelayed, is_panicking: panics }
}

/// X-AS-09: instances have capacity for the plan's burst, so no request has to wait in front of them.
#[must_use]
pub fn has_burst_capacity(plan: &RevisionPlan, view: &ScalingInputs) -> bool {
    view.ready > 0 && excess_burst_capacity(plan, view) >= 0.0
}

/// How far the capacity of running instances exceeds the plan's burst, as upstream computes it: a burst of 0 is
/// always met, and one without a bound never.
#[must_use]
pub fn excess_burst_capacity(plan: &RevisionPlan, view: &ScalingInputs) -> f64 {
    match plan.target_burst_capacity {
        None => -1.0,
        Some(0.0) => 0.0,
        Some(burst) => (f64::from(view.ready) * plan.total - view.panic - burst).floor(),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates; not negative")]
fn ceil(count: f64) -> u32 {
    count.ceil() as u32
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates; not negative")]
fn floor(count: f64) -> u32 {
    count.floor() as u32
}

/// Instances that carry `demand`.
fn instances_for(demand: f64, plan: &RevisionPlan) -> u32 {
    let hard = match plan.metric {
        ScalingMetric::Concurrency if plan.concurrency_max > 0 => f64::from(plan.concurrency_max),
        _ => f64::INFINITY,
    };
    // `max` and `min` also turn a NaN into the bound.
    ceil(demand / plan.target.max(TARGET_MIN).min(hard))
}

/// The largest of what was wanted within a span that moves on.
#[derive(Debug, Default)]
pub struct ScaleDownDelay {
    /// Each value held from its time until the next one's.
    values: VecDeque<(Instant, u32)>,
}

impl ScaleDownDelay {
    pub fn add(&mut self, now: Instant, value: u32) {
        // Nothing is what it is without a list: a thousand that sleep have none, of which each would hold a page of the heap.
        let last = self.values.back().map_or(0, |(_, last)| *last);
        if last != value {
            if self.values.len() == SAMPLES_MAX {
                self.values.pop_front();
            }
            self.values.push_back((now, value));
        }
    }

    /// Forgets what was over before `now - span`.
    pub fn max_within(&mut self, now: Instant, span: Duration) -> u32 {
        while self.values.get(1).is_some_and(|(next, _)| now.duration_since(*next) >= span) {
            self.values.pop_front();
        }
        let held = self.values.iter().map(|(_, value)| *value).max();
        let largest = held.filter(|_| !span.is_zero()).unwrap_or(0);
        if largest == 0 {
            self.values = VecDeque::new(); // an idle revision, or one without a scale-down delay, keeps no list
        }
        largest
    }
}

/// How long to wait before the next start after `failures` of them in a row.
#[must_use]
pub fn backoff(failures: u32, was_ready: bool) -> Duration {
    match failures {
        0 => Duration::ZERO,
        1 if was_ready => Duration::ZERO,
        _ => RESTART_DELAY_MIN.saturating_mul(1 << (failures - 1).min(16)).min(RESTART_DELAY_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::plan;

    const QUIET: ScalingInputs = ScalingInputs {
        stable: 0.0,
        panic: 0.0,
        panic_peak_count: None,
        scale_down_floor: 0,
        demand: 0,
        queued: 0,
        ready: 0,
        reached_initial_scale: true,
        deadline_exceeded: false,
        inherited_scale: 0,
        idle_for: None,
    };

    fn decide(plan: &RevisionPlan, view: &ScalingInputs) -> u32 {
        super::decide(plan, view).count
    }

    fn seconds(n: u64) -> Option<Duration> {
        Some(Duration::from_secs(n))
    }

    /// SRV-REV-06: the count follows the demand.
    #[test]
    fn the_count_follows_the_average_within_its_bounds() {
        let plan = RevisionPlan { target: 10.0, max_scale: 5, ..plan() };
        for (average, ready, wanted) in
            [(0.0, 1, 1), (10.0, 1, 1), (10.1, 1, 2), (35.0, 4, 4), (1000.0, 5, 5), (5.0, 5, 2)]
        {
            let view = ScalingInputs { stable: average, ready, idle_for: seconds(0), ..QUIET };
            assert_eq!(decide(&plan, &view), wanted, "average {average}, ready {ready}");
        }
    }

    #[test]
    fn waiting_requests_count_at_once_and_inside_ones_only_on_average() {
        let plan = RevisionPlan { target: 10.0, ..plan() };
        let burst = ScalingInputs { demand: 100, ready: 1, idle_for: seconds(0), ..QUIET };
        assert_eq!(decide(&plan, &burst), 1);
        assert_eq!(decide(&plan, &ScalingInputs { queued: 1, ..burst }), 10);
    }

    #[test]
    fn it_goes_to_zero_only_after_the_whole_idle_window() {
        let plan = RevisionPlan { idle_window: Duration::from_secs(30), ..plan() };
        let at = |idle| ScalingInputs { ready: 1, idle_for: seconds(idle), ..QUIET };
        assert_eq!(decide(&plan, &at(29)), 1);
        assert_eq!(decide(&plan, &at(30)), 0);
        assert_eq!(decide(&RevisionPlan { min_scale: 2, ..plan.clone() }, &at(30)), 2);
        // RT-LIFE-03: a request inside counts, however long ago it came.
        assert_eq!(decide(&plan, &ScalingInputs { demand: 1, ..at(300) }), 1);
    }

    #[test]
    fn demand_counts_whatever_the_idle_window() {
        let plan = RevisionPlan { idle_window: Duration::ZERO, ..plan() };
        assert_eq!(decide(&plan, &ScalingInputs { idle_for: seconds(0), ..QUIET }), 1);
        assert_eq!(decide(&plan, &ScalingInputs { idle_for: seconds(2), ..QUIET }), 0);
    }

    #[test]
    fn unreachable_revision_without_a_ready_instance_gets_none() {
        let plan = RevisionPlan { reachable: false, ..plan() };
        let failing = ScalingInputs { reached_initial_scale: false, inherited_scale: 2, idle_for: seconds(1), ..QUIET };
        for proven in [false, true] {
            assert_eq!(
                decide(&plan, &ScalingInputs { reached_initial_scale: proven, ..failing }),
                0,
                "proven {proven}"
            );
        }
        assert_eq!(decide(&plan, &ScalingInputs { demand: 1, queued: 1, ..failing }), 1, "a request waits");
        let partly = ScalingInputs { ready: 1, ..failing };
        assert_eq!(
            decide(&RevisionPlan { initial_scale: 3, ..plan.clone() }, &partly),
            1,
            "what runs stays for its window"
        );
        assert_eq!(decide(&plan, &ScalingInputs { idle_for: seconds(600), ..partly }), 0);
    }

    #[test]
    fn deadline_outweighs_minimum_and_initial_scale() {
        let late = ScalingInputs { reached_initial_scale: false, deadline_exceeded: true, ..QUIET };
        assert_eq!(decide(&RevisionPlan { min_scale: 2, initial_scale: 3, ..plan() }, &late), 0);
        assert_eq!(decide(&RevisionPlan { initial_scale: 3, ..plan() }, &ScalingInputs { ready: 2, ..late }), 0);
        assert_eq!(decide(&plan(), &ScalingInputs { demand: 1, queued: 1, ..late }), 1, "a request waits");
    }

    /// RT-PROBE-06, RT-PROBE-07: the first instances run without any request.
    #[test]
    fn an_unproven_revision_gets_its_initial_instances() {
        let new = ScalingInputs { reached_initial_scale: false, ..QUIET };
        assert_eq!(decide(&RevisionPlan { initial_scale: 3, ..plan() }, &new), 3);
        assert_eq!(decide(&RevisionPlan { initial_scale: 3, max_scale: 2, ..plan() }, &new), 2);
        assert_eq!(decide(&RevisionPlan { initial_scale: 0, ..plan() }, &new), 0);
    }

    #[test]
    fn what_a_predecessor_carried_is_kept_within_the_bounds() {
        let view = ScalingInputs { inherited_scale: 4, ..QUIET };
        assert_eq!(decide(&plan(), &view), 4);
        assert_eq!(decide(&RevisionPlan { max_scale: 3, ..plan() }, &view), 3);
        assert_eq!(decide(&plan(), &ScalingInputs { reached_initial_scale: false, ..view }), 4);
    }

    #[test]
    fn the_hard_limit_counts_when_it_is_below_the_target() {
        let plan = RevisionPlan { target: 100.0, concurrency_max: 1, ..plan() };
        let view = ScalingInputs { demand: 8, queued: 8, idle_for: seconds(0), ..QUIET };
        assert_eq!(decide(&plan, &view), 8);
    }

    #[test]
    fn odd_targets_give_bounded_answers() {
        for target in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE] {
            let plan = RevisionPlan { target, max_scale: 7, ..plan() };
            let view = ScalingInputs { stable: 1e9, panic: 1e9, idle_for: seconds(0), ..QUIET };
            assert!((1..=7).contains(&decide(&plan, &view)), "target {target}");
        }
    }

    /// X-AS-03: the panic window alone raises the count, and nothing lowers it until panic mode ends.
    #[test]
    fn a_panic_lifts_at_once_and_never_lowers() {
        let plan = RevisionPlan { target: 10.0, panic_threshold: 2.0, ..plan() };
        let calm = ScalingInputs { stable: 10.0, panic: 19.0, ready: 1, idle_for: seconds(0), ..QUIET };
        // 19 needs two instances where one runs: exactly the threshold of 200 percent.
        assert_eq!(
            super::decide(&plan, &calm),
            ScalingDecision { count: 2, count_without_delay: 2, is_panicking: true }
        );
        let two = ScalingInputs { ready: 2, ..calm };
        assert_eq!(
            super::decide(&plan, &two),
            ScalingDecision { count: 1, count_without_delay: 1, is_panicking: false }
        );
        let after = ScalingInputs { panic_peak_count: Some(7), ready: 7, panic: 0.0, ..calm };
        assert_eq!(
            super::decide(&plan, &after),
            ScalingDecision { count: 7, count_without_delay: 7, is_panicking: false }
        );
    }

    /// X-AS-02: neither window moves the count faster than the rates.
    #[test]
    fn the_rates_bound_each_step() {
        let plan = RevisionPlan { target: 1.0, scale_up_rate: 3.0, scale_down_rate: 2.0, ..plan() };
        let view = |stable, ready| ScalingInputs { stable, panic: stable, ready, idle_for: seconds(0), ..QUIET };
        for (stable, ready, wanted) in [(100.0, 2, 6), (100.0, 0, 3), (0.0, 9, 4), (0.0, 1, 1)] {
            assert_eq!(decide(&plan, &view(stable, ready)), wanted, "{stable} on {ready}");
        }
        let unreachable = RevisionPlan { reachable: false, ..plan };
        assert_eq!(decide(&unreachable, &view(0.0, 9)), 1);
    }

    /// X-AS-04, X-AS-05, X-AS-07: delay, activation and bounds, in this order.
    #[test]
    fn delay_activation_and_bounds_come_last() {
        let asked = ScalingInputs { stable: 1.0, ready: 1, idle_for: seconds(0), ..QUIET };
        let activated = RevisionPlan { activation_scale: 3, ..plan() };
        assert_eq!(decide(&activated, &asked), 3);
        assert_eq!(decide(&activated, &QUIET), 0);
        let delayed = ScalingInputs { scale_down_floor: 5, ..asked };
        let decision = super::decide(&plan(), &delayed);
        assert_eq!((decision.count, decision.count_without_delay), (5, 1));
        assert_eq!(decide(&RevisionPlan { reachable: false, ..plan() }, &delayed), 1);
        assert_eq!(decide(&RevisionPlan { max_scale: 4, ..plan() }, &delayed), 4);
        assert_eq!(decide(&RevisionPlan { scale_to_zero_disabled: true, ..plan() }, &QUIET), 1);
    }

    #[test]
    fn requests_per_second_are_divided_by_their_own_target() {
        let plan =
            RevisionPlan { metric: ScalingMetric::RequestsPerSecond, target: 150.0, concurrency_max: 1, ..plan() };
        let view = ScalingInputs { stable: 1500.0, ready: 10, demand: 40, queued: 40, idle_for: seconds(0), ..QUIET };
        assert_eq!(decide(&plan, &view), 10);
    }

    #[test]
    fn the_largest_wish_counts_until_its_span_is_over() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let span = Duration::from_secs(10);
        let mut delay = ScaleDownDelay::default();
        assert_eq!(delay.max_within(at(0), span), 0);
        for (second, value) in [(0, 2), (1, 5), (3, 5), (4, 1)] {
            delay.add(at(second), value);
        }
        // Five was wanted until second 4.
        for (second, largest) in [(4, 5), (13, 5), (14, 1), (100, 1)] {
            assert_eq!(delay.max_within(at(second), span), largest, "second {second}");
        }
        assert_eq!(delay.max_within(at(100), Duration::ZERO), 0);
        assert_eq!(delay.values.capacity(), 0, "nobody delays, so nothing is kept");
        delay.add(at(101), 0);
        assert_eq!((delay.max_within(at(102), span), delay.values.capacity()), (0, 0), "it sleeps");
        delay.add(at(102), 0);
        assert_eq!((delay.max_within(at(103), span), delay.values.capacity()), (0, 0), "and is looked at once more");
    }

    /// X-AS-02, X-AS-03 and X-AS-07 with the numbers of upstream's own documentation, as (stable, panic, ready,
    /// target, wanted).
    #[test]
    fn upstreams_examples_come_out_as_documented() {
        for (stable, panic, ready, target, wanted) in [
            // 100 requests at once, each instance taking 10, from nothing.
            (100.0, 100.0, 0, 10.0, 10),
            // containerConcurrency 10 at 70 percent: aimed at 7.
            (70.0, 70.0, 10, 7.0, 10),
            (71.0, 71.0, 10, 7.0, 11),
            // 200 requests a second for each by default, 70 percent of it.
            (1_400.0, 1_400.0, 10, 140.0, 10),
            // A burst of twice what fits is a panic: the short window decides.
            (10.0, 40.0, 2, 10.0, 4),
            // Less than twice is no panic: the long window decides.
            (20.0, 30.0, 2, 10.0, 2),
            // Down by half at most in one step.
            (1.0, 1.0, 100, 10.0, 50),
        ] {
            let plan = RevisionPlan { target, panic_threshold: 2.0, scale_down_rate: 2.0, ..plan() };
            let view = ScalingInputs { stable, panic, ready, idle_for: seconds(0), ..QUIET };
            assert_eq!(decide(&plan, &view), wanted, "{stable} {panic} on {ready}");
        }
    }

    #[test]
    fn restarts_back_off_up_to_the_bound() {
        assert_eq!(backoff(1, true), Duration::ZERO);
        assert_eq!(backoff(1, false), RESTART_DELAY_MIN);
        assert_eq!(backoff(2, true), RESTART_DELAY_MIN * 2);
        assert_eq!(backoff(3, false), RESTART_DELAY_MIN * 4);
        assert_eq!(backoff(u32::MAX, true), RESTART_DELAY_MAX);
    }

    /// X-AS-09: upstream's cases of its excess burst capacity.
    #[test]
    fn burst_capacity_is_capacity_beyond_demand() {
        for (total, burst, ready, panic, expected) in [
            (10.0, Some(7.0), 1, 7.0, false),
            (10.0, Some(7.0), 2, 12.0, true),
            (10.0, Some(7.0), 2, 13.0, true),
            (10.0, Some(7.0), 2, 13.5, false),
            (10.0, Some(0.0), 1, 50.0, true), // 0: whatever comes
            (10.0, Some(0.0), 0, 0.0, false), // but one instance has to serve it
            (10.0, None, 100, 0.0, false),
            (100.0, Some(211.0), 2, 0.0, false),
            (100.0, Some(211.0), 3, 0.0, true),
        ] {
            let plan = RevisionPlan { total, target_burst_capacity: burst, ..plan() };
            let view = ScalingInputs { ready, panic, ..QUIET };
            assert_eq!(has_burst_capacity(&plan, &view), expected, "{total} {burst:?} {ready} {panic}");
        }
    }
}
