//! Which Revisions of a Configuration can be garbage-collected: values in, values out.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use types::serving::annotations::{NO_GC, ROUTING_STATE_MODIFIED};
use types::serving::revision::Revision;
use types::settings::RevisionGcSettings;
use types::shared::annotation;

/// Of the `unused` Revisions (no Route sends to them, and they are neither the newest nor the newest ready), those to be
/// deleted.
#[must_use]
pub(super) fn collectable(
    mut unused: Vec<Arc<Revision>>,
    config: &RevisionGcSettings,
    now: Timestamp,
) -> Vec<Arc<Revision>> {
    unused.retain(|revision| annotation(&revision.metadata, NO_GC) != Some("true"));
    unused.sort_by_key(|revision| last_active(revision));
    let mut left = unused.len();
    let mut gone = Vec::new();
    for revision in unused {
        let is_over_max = config.retained_max.is_some_and(|max| left > max);
        if left > config.retained_min && (is_over_max || is_stale(&revision, config, now)) {
            left -= 1;
            gone.push(revision);
        }
    }
    gone
}

fn is_stale(revision: &Revision, config: &RevisionGcSettings, now: Timestamp) -> bool {
    let spans = [(created(revision), config.since_created), (last_active(revision), config.since_active)];
    let is_over = |(since, span): &(Timestamp, Option<Duration>)| {
        span.is_none_or(|span| Duration::try_from(now.duration_since(*since)).is_ok_and(|age| age >= span))
    };
    // With both disabled age is no reason.
    spans.iter().any(|(_, span)| span.is_some()) && spans.iter().all(is_over)
}

fn created(revision: &Revision) -> Timestamp {
    revision.metadata.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0)
}

fn last_active(revision: &Revision) -> Timestamp {
    let marked = annotation(&revision.metadata, ROUTING_STATE_MODIFIED).and_then(|text| text.parse().ok());
    marked.unwrap_or_else(|| created(revision))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HOUR: i64 = 3_600;

    fn revision(name: &str, created_hour: i64, active_hour: i64, keep: bool) -> Arc<Revision> {
        let at = |hour: i64| Timestamp::from_second(hour * HOUR).unwrap().to_string();
        let mut annotations = json!({ROUTING_STATE_MODIFIED: at(active_hour)});
        if keep {
            annotations[NO_GC] = json!("true");
        }
        let object =
            json!({"metadata": {"name": name, "creationTimestamp": at(created_hour), "annotations": annotations}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn names(unused: Vec<Arc<Revision>>, config: &RevisionGcSettings, hour: i64) -> Vec<String> {
        let gone = collectable(unused, config, Timestamp::from_second(hour * HOUR).unwrap());
        gone.iter().filter_map(|r| r.metadata.name.clone()).collect()
    }

    /// Upstream's defaults: 48 h since creation and 15 h since the last use, both.
    #[test]
    fn old_ones_go_and_the_latest_in_use_stay() {
        let config = RevisionGcSettings { retained_min: 0, ..RevisionGcSettings::default() };
        let all = || {
            vec![
                revision("used-lately", 0, 90, false),
                revision("made-lately", 60, 60, false),
                revision("old", 0, 50, false),
                revision("kept", 0, 0, true),
            ]
        };
        assert_eq!(names(all(), &config, 100), ["old"]);
        assert_eq!(names(all(), &config, 108), ["old", "made-lately", "used-lately"]);
        assert_eq!(names(all(), &RevisionGcSettings { retained_min: 2, ..config.clone() }, 108), ["old"]);
        let never = RevisionGcSettings { since_created: None, since_active: None, ..config };
        assert_eq!(names(all(), &never, 1_000), [] as [&str; 0]);
    }

    #[test]
    fn above_the_most_that_are_kept_the_longest_unused_go_whatever_their_age() {
        let config =
            RevisionGcSettings { retained_min: 0, retained_max: Some(1), since_created: None, since_active: None };
        let all = vec![revision("b", 0, 2, false), revision("a", 0, 1, false), revision("c", 0, 3, false)];
        assert_eq!(names(all, &config, 4), ["a", "b"]);
    }
}
