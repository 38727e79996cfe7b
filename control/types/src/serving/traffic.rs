//! TrafficTarget: the share of one Revision in a Route's requests.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field_errors::{FieldErrors, MUST_NOT_SET};
use support::names::is_dns1035_label;

/// All of the traffic.
pub const PERCENT_ALL: i64 = 100;

/// A share of the traffic, and its target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficTarget {
    /// A name for this target, with a URL of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The Revision that gets the traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
    /// The Configuration whose newest ready Revision gets the traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration_name: Option<String>,
    /// Whether the newest ready Revision is meant; false with `revisionName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_revision: Option<bool>,
    /// Share of the traffic; all shares make 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// The address of the tag. Status only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl TrafficTarget {
    /// Everything to the newest ready Revision.
    #[must_use]
    pub fn all_to_latest() -> Self {
        Self { latest_revision: Some(true), percent: Some(PERCENT_ALL), ..Self::default() }
    }

    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        self.revision_name.as_deref().filter(|name| !name.is_empty())
    }

    #[must_use]
    pub fn configuration(&self) -> Option<&str> {
        self.configuration_name.as_deref().filter(|name| !name.is_empty())
    }

    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref().filter(|tag| !tag.is_empty())
    }

    pub fn set_defaults(&mut self) {
        let latest = self.revision().is_none();
        self.latest_revision.get_or_insert(latest);
        self.percent.get_or_insert(0);
    }
}

/// The owner of a target list: a Service fills in its own Configuration, a Route has to name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficParent {
    Service,
    Route,
}

/// All rules of one list, at `spec.traffic`.
pub fn validate(targets: &[TrafficTarget], within: TrafficParent, problems: &mut FieldErrors) {
    let mut tags: HashMap<&str, usize> = HashMap::new();
    let mut sum = 0_i64;
    for (index, target) in targets.iter().enumerate() {
        let at = format!("spec.traffic[{index}]");
        validate_target(target, within, &at, problems);
        sum = sum.saturating_add(target.percent.unwrap_or(0));
        if let Some(tag) = target.tag()
            && let Some(first) = tags.insert(tag, index)
        {
            problems.add(
                format!("{at}.tag"),
                format!("Multiple definitions for \"{tag}\", also spec.traffic[{first}].tag"),
            );
        }
    }
    if sum != PERCENT_ALL {
        problems.add("spec.traffic", format!("Traffic targets sum to {sum}, want 100"));
    }
}

fn validate_target(target: &TrafficTarget, within: TrafficParent, at: &str, problems: &mut FieldErrors) {
    match (target.revision(), target.configuration(), within) {
        (_, Some(_), TrafficParent::Service) => {
            problems.add(format!("{at}.configurationName"), MUST_NOT_SET);
        }
        (Some(_), Some(_), TrafficParent::Route) => {
            problems
                .add(format!("{at}.revisionName"), "expected exactly one, got both: configurationName, revisionName");
        }
        (None, None, TrafficParent::Route) => problems
            .add(format!("{at}.revisionName"), "expected exactly one, got neither: configurationName, revisionName"),
        _ => {}
    }
    if let Some(latest) = target.latest_revision
        && latest == target.revision().is_some()
    {
        problems.add(format!("{at}.latestRevision"), format!("invalid value: {latest}"));
    }
    if let Some(percent) = target.percent
        && !(0..=PERCENT_ALL).contains(&percent)
    {
        problems.add(format!("{at}.percent"), format!("expected 0 <= {percent} <= 100"));
    }
    if let Some(tag) = target.tag()
        && !is_dns1035_label(tag)
    {
        problems.add(format!("{at}.tag"), format!("invalid value: {tag}: not a DNS 1035 label"));
    }
    if target.url.as_deref().is_some_and(|url| !url.is_empty()) {
        problems.add(format!("{at}.url"), MUST_NOT_SET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(percent: i64) -> TrafficTarget {
        TrafficTarget { percent: Some(percent), ..TrafficTarget::default() }
    }

    fn found(targets: &[TrafficTarget], within: TrafficParent) -> Vec<String> {
        let mut problems = FieldErrors::default();
        validate(targets, within, &mut problems);
        problems.list.into_iter().map(|p| format!("{}: {}", p.field, p.message)).collect()
    }

    /// SRV-TT-03, SRV-TT-05: what is left out is filled in.
    #[test]
    fn a_target_without_a_revision_follows_the_latest_one() {
        let mut latest = TrafficTarget::default();
        latest.set_defaults();
        assert_eq!((latest.latest_revision, latest.percent), (Some(true), Some(0)));

        let mut pinned = TrafficTarget { revision_name: Some("r".into()), ..target(100) };
        pinned.set_defaults();
        assert_eq!((pinned.latest_revision, pinned.percent), (Some(false), Some(100)));
    }

    /// SRV-TT-06 (AMB-04): the sum is named.
    #[test]
    fn percentages_that_do_not_sum_to_100_are_refused_with_their_sum() {
        assert_eq!(
            found(&[target(50), target(49)], TrafficParent::Service),
            ["spec.traffic: Traffic targets sum to 99, want 100"]
        );
        assert_eq!(found(&[target(0)], TrafficParent::Service), ["spec.traffic: Traffic targets sum to 0, want 100"]);
        assert_eq!(found(&[], TrafficParent::Route), ["spec.traffic: Traffic targets sum to 0, want 100"]);
        assert!(found(&[target(50), target(50)], TrafficParent::Service).is_empty());
    }

    /// SRV-TT-05: -1 and 101 are refused, whatever the sum.
    #[test]
    fn each_percentage_stays_between_0_and_100() {
        assert_eq!(
            found(&[target(101), target(-1)], TrafficParent::Service),
            ["spec.traffic[0].percent: expected 0 <= 101 <= 100", "spec.traffic[1].percent: expected 0 <= -1 <= 100"]
        );
        let huge = found(&[target(i64::MAX), target(i64::MAX)], TrafficParent::Service);
        assert_eq!(huge.len(), 3, "{huge:?}");
    }

    /// SRV-TT-01, SRV-TT-02: one name per target, and inside a Service no Configuration.
    #[test]
    fn a_route_target_names_exactly_one_thing() {
        let revision = TrafficTarget { revision_name: Some("r".into()), ..target(100) };
        let configuration = TrafficTarget { configuration_name: Some("c".into()), ..target(100) };
        let both = TrafficTarget { configuration_name: Some("c".into()), ..revision.clone() };

        assert!(found(std::slice::from_ref(&revision), TrafficParent::Route).is_empty());
        assert!(found(std::slice::from_ref(&configuration), TrafficParent::Route).is_empty());
        assert!(found(&[both], TrafficParent::Route)[0].contains("got both"));
        assert!(found(&[target(100)], TrafficParent::Route)[0].contains("got neither"));
        assert_eq!(
            found(&[configuration], TrafficParent::Service),
            ["spec.traffic[0].configurationName: must not set the field(s)"]
        );
    }

    /// SRV-TT-03: `latestRevision` may not contradict `revisionName`.
    #[test]
    fn latest_revision_contradicting_the_name_is_refused() {
        let pinned = TrafficTarget { revision_name: Some("r".into()), latest_revision: Some(true), ..target(100) };
        let floating = TrafficTarget { latest_revision: Some(false), ..target(100) };
        assert_eq!(found(&[pinned], TrafficParent::Service), ["spec.traffic[0].latestRevision: invalid value: true"]);
        assert_eq!(
            found(&[floating], TrafficParent::Service),
            ["spec.traffic[0].latestRevision: invalid value: false"]
        );
    }

    /// SRV-TT-04, SRV-TT-07: tags are unique DNS labels; `url` is the server's.
    #[test]
    fn tags_are_unique_labels_and_urls_are_not_taken() {
        let tagged = |tag: &str, percent| TrafficTarget { tag: Some(tag.into()), ..target(percent) };
        assert!(found(&[tagged("blue", 50), tagged("green", 50)], TrafficParent::Service).is_empty());
        assert!(
            found(&[tagged("blue", 50), tagged("blue", 50)], TrafficParent::Service)[0]
                .contains("Multiple definitions")
        );
        assert!(found(&[tagged("Blue.1", 100)], TrafficParent::Service)[0].contains("invalid value: Blue.1"));
        let with_url = TrafficTarget { url: Some("http://x".into()), ..target(100) };
        assert_eq!(found(&[with_url], TrafficParent::Service), ["spec.traffic[0].url: must not set the field(s)"]);
    }
}
