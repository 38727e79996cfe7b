//! Gradual rollout: the newest ready Revision takes its share in steps. Values in, values out.
//!
//! The Revisions that still share a Configuration's traffic are stored in the Route's status, in an
//! annotation, while a rollout is in progress (X-RTE-10, X-RTE-11).

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use types::serving::route::Route;
use types::serving::traffic::TrafficTarget;

/// Where a rollout in progress is kept; upstream's name for the same.
pub const STATE: &str = "networking.internal.knative.dev/rollout";
/// A step takes at least this long: routes are programmed well within it.
const STEP_MIN: Duration = Duration::from_secs(1);
/// The initial share of a new Revision.
const FIRST_PERCENT: i64 = 1;

/// The share of one Configuration during a rollout to a new Revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationRollout {
    /// Which target of the Route it is.
    pub target: usize,
    /// Revisions and their percentages, none of them zero; the newest is the last.
    pub revisions: Vec<(String, i64)>,
    pub step_percent: i64,
    pub step_ms: i64,
    /// Unix time.
    pub next_step_ms: i64,
}

/// How traffic is divided now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficDivision<T> {
    pub targets: Vec<T>,
    /// The shares on their way; none: all is where it shall be.
    pub shares: Vec<ConfigurationRollout>,
}

impl<T> TrafficDivision<T> {
    /// How long until the next step.
    #[must_use]
    pub fn next_step(&self, now: Timestamp) -> Option<Duration> {
        let next = self.shares.iter().map(|share| share.next_step_ms).min()?;
        Some(Duration::from_millis(u64::try_from(next - now.as_millisecond()).unwrap_or(0)))
    }
}

/// The rollout in the last status.
#[must_use]
pub fn in_progress(route: &Route) -> Vec<ConfigurationRollout> {
    let state = route.status.as_ref().and_then(|status| status.base.annotations.get(STATE));
    state.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Splits `goal`, the targets with their newest ready Revisions, by the progress of the rollout. `is_of` returns
/// whether a Revision exists and belongs to a Configuration: targets in another order share nothing.
#[must_use]
pub fn divide_traffic(
    route: &Route,
    goal: Vec<TrafficTarget>,
    duration: Duration,
    is_of: impl Fn(&str, &str) -> bool,
    now: Timestamp,
) -> TrafficDivision<TrafficTarget> {
    let known = in_progress(route);
    let shown = route.status.as_ref().map(|status| status.traffic.as_slice()).unwrap_or_default();
    let follows_at = |index: usize| route.spec.traffic.get(index).and_then(TrafficTarget::configuration);
    let mut division = TrafficDivision { targets: Vec::with_capacity(goal.len()), shares: Vec::new() };
    let count = goal.len();
    for (index, target) in goal.into_iter().enumerate() {
        let percent = target.percent.unwrap_or(0);
        let follows = follows_at(index);
        let newest = target.revision_name.clone().unwrap_or_default();
        let before = follows.and_then(|parent| {
            let under_way = known.iter().filter(|share| share.revisions.iter().any(|(name, _)| is_of(name, parent)));
            let moved = |share: &&ConfigurationRollout| follows_at(share.target).is_none();
            let own = under_way.clone().find(|share| share.target == index);
            own.or_else(|| under_way.clone().find(moved)).cloned().or_else(|| {
                let settled = settled(shown, &known, (index, count))?;
                let old = settled.revision().filter(|_| settled.latest_revision == Some(true))?;
                Some(ConfigurationRollout::settled(index, old, settled.percent.unwrap_or(0)))
            })
        });
        let share = before.zip(follows).filter(|_| !duration.is_zero()).and_then(|(before, parent)| {
            let mut share = ConfigurationRollout { target: index, ..before };
            share.revisions.retain(|(name, percent)| *percent > 0 && (*name == newest || is_of(name, parent)));
            share.set_goal(&newest, percent, duration, now);
            share.step(now);
            (share.revisions.len() > 1).then_some(share)
        });
        match share {
            None => division.targets.push(target),
            Some(share) => {
                for (name, percent) in &share.revisions {
                    let is_newest = *name == newest;
                    division.targets.push(TrafficTarget {
                        revision_name: Some(name.clone()),
                        percent: Some(*percent),
                        // The tag's URL leads to the newest alone.
                        tag: target.tag.clone().filter(|_| is_newest),
                        url: target.url.clone().filter(|_| is_newest),
                        ..target.clone()
                    });
                }
                division.shares.push(share);
            }
        }
    }
    division
}

/// The shown entry of the target `index` of `count`; `None` if it was in a rollout and had several.
fn settled<'a>(
    shown: &'a [TrafficTarget],
    known: &[ConfigurationRollout],
    (index, count): (usize, usize),
) -> Option<&'a TrafficTarget> {
    let share = |target: usize| known.iter().find(|share| share.target == target);
    let entries = |targets: usize| -> usize {
        (0..targets).map(|target| share(target).map_or(1, |share| share.revisions.len())).sum()
    };
    (share(index).is_none() && entries(count) == shown.len()).then(|| shown.get(entries(index)))?
}

impl ConfigurationRollout {
    fn settled(target: usize, revision: &str, percent: i64) -> Self {
        Self {
            target,
            revisions: vec![(revision.to_owned(), percent)],
            step_percent: 0,
            step_ms: 0,
            next_step_ms: i64::MAX,
        }
    }

    /// Brings in a new Revision, and a changed percentage.
    fn set_goal(&mut self, newest: &str, percent: i64, duration: Duration, now: Timestamp) {
        let sum: i64 = self.revisions.iter().map(|(_, percent)| percent).sum();
        let is_new = self.revisions.last().is_none_or(|(name, _)| name != newest);
        // An increase goes to the newest Revision, a decrease comes off the oldest.
        match self.revisions.last_mut() {
            Some((_, last)) if percent > sum => *last += percent - sum,
            _ => self.take_percent(sum - percent, false),
        }
        if !is_new {
            return;
        }
        // One that comes back after a newer one is the newest again.
        let had = self.revisions.iter().position(|(name, _)| name == newest);
        let had = had.map_or(0, |at| self.revisions.remove(at).1);
        if percent <= FIRST_PERCENT || self.revisions.is_empty() {
            self.revisions = vec![(newest.to_owned(), percent)];
            return;
        }
        let first = FIRST_PERCENT.max(had);
        self.take_percent(first - had, true);
        self.revisions.push((newest.to_owned(), first));
        let spent = duration.saturating_sub(STEP_MIN).max(STEP_MIN);
        let steps = i64::try_from(spent.as_secs() / STEP_MIN.as_secs()).unwrap_or(i64::MAX);
        let steps = steps.clamp(1, percent - FIRST_PERCENT);
        // Rounded to the nearest, as upstream does.
        self.step_percent = ((percent - FIRST_PERCENT) * 2 + steps) / (steps * 2);
        self.step_ms = i64::try_from(spent.as_millis()).unwrap_or(i64::MAX) / steps;
        self.next_step_ms = now.as_millisecond().saturating_add(self.step_ms);
    }

    /// All steps that are due.
    fn step(&mut self, now: Timestamp) {
        while self.revisions.len() > 1 && self.next_step_ms <= now.as_millisecond() {
            let Some((newest, had)) = self.revisions.pop() else { return };
            let before: i64 = self.revisions.iter().map(|(_, percent)| percent).sum();
            self.take_percent(self.step_percent.max(1), true);
            let after: i64 = self.revisions.iter().map(|(_, percent)| percent).sum();
            self.revisions.push((newest, had + before - after));
            self.next_step_ms = self.next_step_ms.saturating_add(self.step_ms.max(1));
        }
    }

    /// Takes this many percent away, from the newest or the oldest on; a Revision with none left is removed.
    fn take_percent(&mut self, mut percent: i64, newest_first: bool) {
        while percent > 0 && !self.revisions.is_empty() {
            let at = if newest_first { self.revisions.len() - 1 } else { 0 };
            let taken = percent.min(self.revisions[at].1);
            self.revisions[at].1 -= taken;
            percent -= taken;
            if self.revisions[at].1 <= 0 {
                self.revisions.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A Route of one Configuration, or of a Configuration and a pinned Revision.
    fn route(percent: i64) -> Route {
        let mut traffic = vec![json!({"configurationName": "c", "percent": percent, "tag": "now"})];
        if percent < 100 {
            traffic.push(json!({"revisionName": "pinned", "percent": 100 - percent}));
        }
        serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {"traffic": traffic}})).unwrap()
    }

    fn goal(route: &Route, newest: &str) -> Vec<TrafficTarget> {
        let of_one = |target: &TrafficTarget| TrafficTarget {
            configuration_name: None,
            revision_name: Some(target.revision().unwrap_or(newest).to_owned()),
            latest_revision: Some(target.configuration().is_some()),
            url: target.tag().map(|tag| format!("http://{tag}")),
            ..target.clone()
        };
        route.spec.traffic.iter().map(of_one).collect()
    }

    /// One look, remembered in the Route; what it showed as `revision=percent`.
    fn look(route: &mut Route, newest: &str, seconds: u64, now: i64) -> String {
        let goal = goal(route, newest);
        let is_of = |name: &str, parent: &str| name != "deleted" && parent != "other";
        let division = divide_traffic(route, goal, Duration::from_secs(seconds), is_of, at(now));
        let status = route.status.get_or_insert_default();
        status.traffic.clone_from(&division.targets);
        status.base.annotations.clear();
        if !division.shares.is_empty() {
            let state = serde_json::to_string(&division.shares).unwrap();
            status.base.annotations.insert(STATE.to_owned(), state);
        }
        let sum: i64 = division.targets.iter().filter_map(|target| target.percent).sum();
        assert_eq!(sum, 100, "{division:?}");
        let shown = |t: &TrafficTarget| format!("{}={}", t.revision().unwrap(), t.percent.unwrap());
        division.targets.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_first_revision_and_a_route_without_duration_move_at_once() {
        let mut fresh = route(100);
        assert_eq!(look(&mut fresh, "a", 60, 0), "a=100");
        assert_eq!(look(&mut fresh, "b", 0, 1), "b=100");
        assert_eq!(look(&mut fresh, "c", 60, 2), "b=99 c=1");
        assert_eq!(look(&mut fresh, "c", 0, 3), "c=100");
    }

    /// X-RTE-11: 1 percent first, then equal steps until all is with the new one at the end of the duration.
    #[test]
    fn a_rollout_goes_by_steps_and_ends_in_time() {
        let mut route = route(100);
        look(&mut route, "a", 12, 0);
        assert_eq!(look(&mut route, "b", 12, 100), "a=99 b=1");
        assert_eq!(look(&mut route, "b", 12, 100), "a=99 b=1", "no step before its time");
        // 11 s in 11 steps of 9 percent.
        assert_eq!(look(&mut route, "b", 12, 101), "a=90 b=10");
        assert_eq!(look(&mut route, "b", 12, 105), "a=54 b=46");
        assert_eq!(look(&mut route, "b", 12, 111), "b=100");
        assert!(in_progress(&route).is_empty());
    }

    #[test]
    fn a_third_revision_takes_from_the_newest_first() {
        let mut route = route(100);
        look(&mut route, "a", 101, 0);
        look(&mut route, "b", 101, 0);
        assert_eq!(look(&mut route, "b", 101, 9), "a=91 b=9");
        assert_eq!(look(&mut route, "c", 101, 10), "a=91 b=8 c=1");
        assert_eq!(look(&mut route, "c", 101, 15), "a=91 b=4 c=5");
        assert_eq!(look(&mut route, "c", 101, 25), "a=85 c=15");
    }

    #[test]
    fn a_changed_percentage_and_a_deleted_revision_are_made_up_for() {
        let mut route = route(50);
        assert_eq!(look(&mut route, "deleted", 60, 0), "deleted=50 pinned=50");
        assert_eq!(look(&mut route, "b", 60, 0), "b=50 pinned=50", "nobody is left to share with");
        assert_eq!(look(&mut route, "c", 60, 1), "b=49 c=1 pinned=50");
        route.spec.traffic[0].percent = Some(70);
        route.spec.traffic[1].percent = Some(30);
        assert_eq!(look(&mut route, "c", 60, 1), "b=49 c=21 pinned=30");
        route.spec.traffic[0].percent = Some(10);
        route.spec.traffic[1].percent = Some(90);
        assert_eq!(look(&mut route, "c", 60, 1), "c=10 pinned=90");
    }

    /// A share that moved to another Configuration was still divided among the old one's Revisions.
    #[test]
    fn a_target_that_follows_another_configuration_moves_at_once() {
        let mut moved = route(100);
        look(&mut moved, "a", 60, 0);
        look(&mut moved, "b", 60, 0);
        moved.spec.traffic[0].configuration_name = Some("other".into());
        assert_eq!(look(&mut moved, "z", 60, 1), "z=100");
    }

    /// A target that changed its position lost the rest of its rollout, and one next to a rollout had none.
    #[test]
    fn each_configuration_rolls_on_its_own_wherever_it_is_written() {
        let traffic = json!([{"configurationName": "a", "percent": 50}, {"configurationName": "b", "percent": 50}]);
        let mut route: Route =
            serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {"traffic": traffic}})).unwrap();
        let mut look = |newest: [&str; 2], pinned: bool, now: i64| {
            if pinned {
                let mut target = route.spec.traffic[0].clone();
                (target.configuration_name, target.revision_name) = (None, Some("p".into()));
                route.spec.traffic = vec![target, route.spec.traffic[0].clone()];
            }
            let goal = goal(&route, newest[0]).into_iter().zip(&route.spec.traffic).map(|(mut goal, written)| {
                if written.configuration() == Some("b") {
                    goal.revision_name = Some(newest[1].to_owned());
                }
                goal
            });
            let is_of = |name: &str, parent: &str| name.starts_with(parent);
            let division = divide_traffic(&route, goal.collect(), Duration::from_secs(60), is_of, at(now));
            let shown = |t: &TrafficTarget| format!("{}={}", t.revision().unwrap(), t.percent.unwrap());
            let words = division.targets.iter().map(shown).collect::<Vec<_>>().join(" ");
            let status = route.status.get_or_insert_default();
            status.traffic = division.targets;
            let state = serde_json::to_string(&division.shares).unwrap();
            status.base.annotations.insert(STATE.to_owned(), state);
            words
        };
        assert_eq!(look(["a1", "b1"], false, 0), "a1=50 b1=50");
        assert_eq!(look(["a2", "b1"], false, 0), "a1=49 a2=1 b1=50");
        assert_eq!(look(["a2", "b2"], false, 0), "a1=49 a2=1 b1=49 b2=1");
        assert_eq!(look(["a2", "-"], true, 0), "p=50 a1=49 a2=1");
    }

    #[test]
    fn the_tag_leads_to_the_newest_alone() {
        let mut route = route(100);
        look(&mut route, "a", 60, 0);
        look(&mut route, "b", 60, 0);
        let tags: Vec<_> = route.status.unwrap().traffic.iter().map(|t| t.tag().map(str::to_owned)).collect();
        assert_eq!(tags, [None, Some("now".to_owned())]);
    }

    #[test]
    fn next_step_is_reported() {
        let mut route = route(100);
        look(&mut route, "a", 12, 0);
        let division = divide_traffic(&route, goal(&route, "b"), Duration::from_secs(12), |_, _| true, at(0));
        assert_eq!(division.next_step(at(0)), Some(Duration::from_secs(1)));
        assert_eq!(division.next_step(at(5)), Some(Duration::ZERO));
    }
}
