//! Computes a Configuration's status from its Revisions: values in, values out.

use std::sync::Arc;

use jiff::Timestamp;

use crate::latest_revision::LatestRevision;
use types::serving::annotations::CONFIGURATION_GENERATION;
use types::serving::configuration::{CONDITIONS, Configuration, ConfigurationStatus};
use types::serving::revision::Revision;
use types::shared::{ConditionStatus, HasConditions, Status, label, name};

/// `owned` are all Revisions of the Configuration, in any order.
#[must_use]
pub(crate) fn status(
    configuration: &Configuration,
    latest: &LatestRevision,
    owned: &[Arc<Revision>],
    now: Timestamp,
) -> ConfigurationStatus {
    let mut status = configuration.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match latest {
        LatestRevision::Failed(why) => conditions.mark_false(
            "Ready",
            "RevisionFailed",
            &with_full_stop(&format!("Revision creation failed with message: {why}")),
        ),
        LatestRevision::Revision(revision) => {
            let name = name(&revision.metadata);
            status.latest_created_revision_name = Some(name.to_owned());
            match revision.ready() {
                Some(ready) if ready.status == ConditionStatus::True => conditions.mark_true("Ready"),
                Some(ready) if ready.status == ConditionStatus::False => conditions.mark_false(
                    "Ready",
                    "RevisionFailed",
                    &with_full_stop(&format!("Revision \"{name}\" failed with message: {}", ready.message)),
                ),
                _ => conditions.mark_unknown("Ready", "Deploying", &format!("Revision \"{name}\" is not ready yet.")),
            }
        }
    }
    if let Some(ready) = latest_ready(&status, latest, owned) {
        status.latest_ready_revision_name = Some(ready);
    }
    status.base = Status {
        observed_generation: configuration.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

/// One full stop at the end, whether or not the last sentence has one.
fn with_full_stop(text: &str) -> String {
    let text = text.trim_end();
    if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// SRV-CFG-10: the newest ready Revision, and never one older than the one that was it before.
fn latest_ready(status: &ConfigurationStatus, latest: &LatestRevision, owned: &[Arc<Revision>]) -> Option<String> {
    // A Revision that was made for another generation and is wanted again counts as the newest.
    if let LatestRevision::Revision(revision) = latest
        && revision.is_ready()
    {
        return revision.metadata.name.clone();
    }
    let known = status.latest_ready_revision_name.as_deref();
    let floor = owned.iter().find(|r| r.metadata.name.as_deref() == known).map_or(0, |r| generation(r));
    owned
        .iter()
        .filter(|revision| revision.is_ready() && generation(revision) >= floor)
        .max_by_key(|revision| generation(revision))
        .and_then(|revision| revision.metadata.name.clone())
}

fn generation(revision: &Revision) -> u64 {
    label(&revision.metadata, CONFIGURATION_GENERATION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::configuration::children::{desired_revision, revision_name};
    use crate::latest_revision::adopt;

    fn configuration(generation: i64) -> Configuration {
        serde_json::from_value(json!({
            "metadata": {"name": "app", "namespace": "ns", "uid": "u1", "generation": generation,
                         "labels": {"own": "1"}, "annotations": {"serving.knative.dev/lastModifier": "alice"}},
            "spec": {"template": {"metadata": {"labels": {"from": "template"}},
                                  "spec": {"containers": [{"image": "a"}]}}}
        }))
        .unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1).unwrap()
    }

    /// The Revision of a generation, with Ready as given.
    fn revision(generation: i64, ready: &str) -> Arc<Revision> {
        let mut revision = desired_revision(&configuration(generation), false, now());
        revision.status = serde_json::from_value(json!({
            "conditions": [{"type": "Ready", "status": ready, "message": "said so"}]
        }))
        .unwrap();
        Arc::new(revision)
    }

    fn after(generation: i64, known: Option<&str>, owned: &[Arc<Revision>]) -> ConfigurationStatus {
        let mut configuration = configuration(generation);
        configuration.status =
            Some(ConfigurationStatus { latest_ready_revision_name: known.map(str::to_owned), ..Default::default() });
        let latest = LatestRevision::Revision(Arc::clone(owned.last().unwrap()));
        status(&configuration, &latest, owned, now())
    }

    #[test]
    fn a_quoted_sentence_keeps_its_one_full_stop() {
        for (quoted, shown) in [("no command", "no command."), ("no command.", "no command."), ("why?\n", "why?")] {
            assert_eq!(with_full_stop(quoted), shown);
        }
    }

    /// SRV-CFG-02..05, SRV-CFG-07, SRV-CFG-08: name, labels and annotations of a Revision.
    #[test]
    fn a_revision_is_named_by_generation_and_labelled_by_origin() {
        let revision = desired_revision(&configuration(7), false, now());
        assert_eq!(revision.metadata.name.as_deref(), Some("app-00007"));
        let labels = revision.metadata.labels.unwrap();
        assert_eq!(labels["serving.knative.dev/configuration"], "app");
        assert_eq!(labels["serving.knative.dev/configurationGeneration"], "7");
        assert_eq!(labels["serving.knative.dev/configurationUID"], "u1");
        assert_eq!(labels["serving.knative.dev/routingState"], "pending");
        assert_eq!(labels["from"], "template");
        assert!(!labels.contains_key("own"));
        assert_eq!(revision.metadata.annotations.unwrap()["serving.knative.dev/creator"], "alice");

        let mut own = configuration(7);
        own.spec.template.metadata.name = Some("app-mine".into());
        assert_eq!(revision_name(&own), "app-mine");
    }

    #[test]
    fn long_names_are_cut_to_a_label_and_stay_apart() {
        let named = |name: String| {
            let mut configuration = configuration(1);
            configuration.metadata.name = Some(name);
            revision_name(&configuration)
        };
        let (one, two) = (named(format!("{}a", "x".repeat(62))), named(format!("{}b", "x".repeat(62))));
        assert!(one.len() <= 63 && one != two && one.ends_with("-00001"), "{one} {two}");
    }

    /// SRV-CFG-10: r1 never ready, r2 ready, r3 never ready.
    #[test]
    fn the_newest_ready_revision_is_the_latest_ready() {
        let owned = [revision(1, "False"), revision(2, "True"), revision(3, "False")];
        let status = after(3, None, &owned);
        assert_eq!(status.latest_created_revision_name.as_deref(), Some("app-00003"));
        assert_eq!(status.latest_ready_revision_name.as_deref(), Some("app-00002"));
        let ready = &status.base.conditions[0];
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "RevisionFailed"));
        assert!(ready.message.contains("app-00003") && ready.message.contains("said so"));
    }

    #[test]
    fn the_latest_ready_revision_never_goes_back() {
        let owned = [revision(1, "True"), revision(2, "False"), revision(3, "Unknown")];
        let status = after(3, Some("app-00002"), &owned);
        assert_eq!(status.latest_ready_revision_name.as_deref(), Some("app-00002"));
    }

    /// SRV-CFG-09: a Revision of another owner, or with other content, is not adopted.
    #[test]
    fn a_revision_is_adopted_only_if_it_is_ours_and_the_same() {
        let configuration = configuration(1);
        let same = revision(1, "True");
        assert!(matches!(adopt(&configuration, Arc::clone(&same)), LatestRevision::Revision(_)));

        let mut foreign = (*same).clone();
        foreign.metadata.owner_references = None;
        let LatestRevision::Failed(why) = adopt(&configuration, Arc::new(foreign)) else { panic!("adopted") };
        assert!(why.contains("already exists"));
        let failed = status(&configuration, &LatestRevision::Failed(why), &[], now());
        assert_eq!(failed.base.conditions[0].reason, "RevisionFailed");

        let mut other = (*same).clone();
        other.spec.timeout_seconds = Some(1);
        assert!(matches!(adopt(&configuration, Arc::new(other)), LatestRevision::Failed(_)));
    }
}
