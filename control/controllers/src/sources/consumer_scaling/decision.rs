//! How many consumers a source needs: values in, values out.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use types::serving::annotations::autoscaling;
use types::sources::kafka::CONSUMERS_MAX;

/// Events of lag for which one consumer is there, unless the annotation `autoscaling.knative.dev/target` says otherwise.
const LAG_TARGET_DEFAULT: u64 = 100;
/// Consumers leave only after the lag was low for this time: each change of their number is a rebalance.
const SCALE_DOWN_DELAY: Duration = Duration::from_secs(60);

/// The bounds of a source, from its annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConsumerBounds {
    pub(super) min: u32,
    pub(super) max: u32,
    /// Events of lag for each consumer.
    pub(super) lag_target: u64,
}

/// What the consumers of a source report together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ConsumerLag {
    pub(super) events: u64,
    /// Partitions that have a consumer. More consumers than partitions would wait.
    pub(super) partitions: u32,
}

/// The state between two decisions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ScalingState {
    /// For how long fewer consumers would have been enough.
    low_for: Duration,
    /// The most of them that were needed in this time.
    needed: u32,
}

impl ConsumerBounds {
    /// `None`: the source has no `max-scale`, so that its consumers are as many as its spec says.
    pub(super) fn of(meta: &ObjectMeta) -> Option<Self> {
        let number = |key: &str| autoscaling(meta, key).and_then(|text| text.parse::<u32>().ok());
        let limit = CONSUMERS_MAX.unsigned_abs();
        let max = number("max-scale").filter(|max| *max > 0)?.min(limit);
        // A consumer measures the lag, so there is always one.
        let min = number("min-scale").unwrap_or(1).clamp(1, max);
        let target = autoscaling(meta, "target").and_then(|text| text.parse().ok()).filter(|target| *target > 0);
        Some(Self { min, max, lag_target: target.unwrap_or(LAG_TARGET_DEFAULT) })
    }
}

/// The number of consumers from now on. `passed`: since the last decision. `lag` is absent while no consumer is ready.
pub(super) fn decide(
    current: u32,
    lag: Option<ConsumerLag>,
    bounds: ConsumerBounds,
    state: &mut ScalingState,
    passed: Duration,
) -> u32 {
    let bounded = current.clamp(bounds.min, bounds.max);
    let Some(lag) = lag.filter(|_| bounded == current) else {
        *state = ScalingState::default();
        return bounded;
    };
    let wanted = u32::try_from(lag.events.div_ceil(bounds.lag_target)).unwrap_or(u32::MAX);
    let useful = lag.partitions.clamp(bounds.min, bounds.max);
    let wanted = wanted.clamp(bounds.min, useful);
    if wanted > current {
        *state = ScalingState::default();
        // Twice as many at most: a rebalance shows whether they are enough.
        return wanted.min(current.saturating_mul(2).max(1));
    }
    if wanted == current {
        *state = ScalingState::default();
        return current;
    }
    state.low_for += passed;
    state.needed = state.needed.max(wanted);
    if state.low_for < SCALE_DOWN_DELAY {
        return current;
    }
    let needed = state.needed;
    *state = ScalingState::default();
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ConsumerBounds = ConsumerBounds { min: 1, max: 8, lag_target: 100 };
    const MINUTE: Duration = Duration::from_secs(60);

    fn lag(events: u64, partitions: u32) -> Option<ConsumerLag> {
        Some(ConsumerLag { events, partitions })
    }

    #[test]
    fn consumers_follow_the_lag_within_their_bounds() {
        for (current, lag, wanted) in [
            (1, lag(0, 10), 1),
            (1, lag(100, 10), 1),
            (1, lag(101, 10), 2),
            (1, lag(u64::MAX, 10), 2),
            (2, lag(10_000, 10), 4),
            (6, lag(10_000, 10), 8),
            (2, lag(10_000, 3), 3),
            (3, lag(10_000, 3), 3),
            (1, lag(10_000, 0), 1),
            (4, None, 4),
            (12, lag(10_000, 20), 8),
            (0, None, 1),
        ] {
            let found = decide(current, lag, BOUNDS, &mut ScalingState::default(), MINUTE / 2);
            assert_eq!(found, wanted, "{current} consumers, {lag:?}");
        }
    }

    #[test]
    fn consumers_leave_after_a_minute_of_low_lag() {
        let mut state = ScalingState::default();
        let mut after = |events: u64, passed: Duration| decide(4, lag(events, 10), BOUNDS, &mut state, passed);
        assert_eq!(after(0, MINUTE / 2), 4);
        assert_eq!(after(150, MINUTE / 4), 4, "still low");
        assert_eq!(after(0, MINUTE / 4), 2, "the most that were needed");
        assert_eq!(after(0, MINUTE / 2), 4);
        assert_eq!(after(400, MINUTE / 2), 4, "the lag came back");
        assert_eq!(after(0, MINUTE / 2), 4);
    }

    #[test]
    fn bounds_are_those_of_the_annotations() {
        let bounds = |pairs: &[(&str, &str)]| {
            let annotations =
                pairs.iter().map(|(key, value)| (format!("autoscaling.knative.dev/{key}"), (*value).into()));
            let meta = ObjectMeta { annotations: Some(annotations.collect()), ..ObjectMeta::default() };
            ConsumerBounds::of(&meta).map(|bounds| (bounds.min, bounds.max, bounds.lag_target))
        };
        assert_eq!(bounds(&[]), None);
        assert_eq!(bounds(&[("min-scale", "2")]), None);
        assert_eq!(bounds(&[("max-scale", "0")]), None);
        assert_eq!(bounds(&[("max-scale", "5")]), Some((1, 5, LAG_TARGET_DEFAULT)));
        assert_eq!(bounds(&[("minScale", "2"), ("maxScale", "5"), ("target", "7")]), Some((2, 5, 7)));
        assert_eq!(bounds(&[("min-scale", "0"), ("max-scale", "1000")]), Some((1, 100, LAG_TARGET_DEFAULT)));
    }
}
