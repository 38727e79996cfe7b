//! Annotations that say how a Broker's or a Channel's events are kept.

use std::time::Duration;

use dataplane::table::{Durability, Keeping};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kind::Problems;
use crate::kinds::shared::annotation;
use crate::kinds::{duration, quantity};

/// What a 202 promises: `flush` (the default), `interval:MS` or `none`.
pub const DURABILITY: &str = "sluicegate.dev/durability";
/// The oldest events beyond so many bytes are dropped though somebody waits for them.
pub const RETENTION_BYTES: &str = "sluicegate.dev/retention-bytes";
/// Older events are dropped though somebody waits for them.
pub const RETENTION_TIME: &str = "sluicegate.dev/retention-time";
/// Events are kept for so long, for replay, though everybody has had them.
pub const HISTORY_TIME: &str = "sluicegate.dev/history-time";
/// All of them: a Channel hands them to what carries its events.
pub const KEYS: [&str; 4] = [DURABILITY, RETENTION_BYTES, RETENTION_TIME, HISTORY_TIME];

/// Longest interval between two flushes, in milliseconds: what a sender believes to be stored is lost for as
/// long, and the staging buffer is flushed sooner anyway when it grows.
pub const INTERVAL_MS_MAX: u64 = 60_000;

/// What the annotations say; one that says nothing sensible counts as absent, as in a cluster whose API takes
/// any.
#[must_use]
pub fn keeping(meta: &ObjectMeta) -> Keeping {
    let time = |key| annotation(meta, key).and_then(time).unwrap_or_default();
    Keeping {
        durability: annotation(meta, DURABILITY).and_then(durability).unwrap_or_default(),
        retention_bytes: annotation(meta, RETENTION_BYTES).and_then(quantity::bytes).unwrap_or_default(),
        retention_time: time(RETENTION_TIME),
        history_time: time(HISTORY_TIME),
    }
}

pub fn validate(meta: &ObjectMeta, problems: &mut Problems) {
    type Reads = fn(&str) -> bool;
    let rules: [(&str, Reads, &str); 4] = [
        (
            DURABILITY,
            |text| durability(text).is_some(),
            "flush, none, or interval:MS with MS from 1 to 60000",
        ),
        (RETENTION_BYTES, |text| quantity::bytes(text).is_some_and(|bytes| bytes > 0), "bytes, like 10Gi"),
        (RETENTION_TIME, |text| time(text).is_some_and(|time| !time.is_zero()), "a time, like 24h or P1D"),
        (HISTORY_TIME, |text| time(text).is_some_and(|time| !time.is_zero()), "a time, like 24h or P1D"),
    ];
    for (key, is_read, wanted) in rules {
        if let Some(value) = annotation(meta, key)
            && !is_read(value)
        {
            problems.add(
                format!("metadata.annotations[{key}]"),
                format!("invalid value: {value}: expected {wanted}"),
            );
        }
    }
}

fn durability(text: &str) -> Option<Durability> {
    match text {
        "flush" => Some(Durability::Flush),
        "none" => Some(Durability::None),
        other => {
            let ms = other.strip_prefix("interval:")?.parse::<u64>().ok()?;
            (1..=INTERVAL_MS_MAX).contains(&ms).then(|| Durability::Interval(Duration::from_millis(ms)))
        }
    }
}

/// In Go's notation or as an ISO 8601 period.
fn time(text: &str) -> Option<Duration> {
    duration::parse_go(text).or_else(|| duration::parse(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(annotations: &[(&str, &str)]) -> ObjectMeta {
        let map = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ObjectMeta { annotations: Some(map.collect()), ..ObjectMeta::default() }
    }

    fn problems(meta: &ObjectMeta) -> usize {
        let mut problems = Problems::default();
        validate(meta, &mut problems);
        problems.list.len()
    }

    #[test]
    fn annotations_become_a_policy_and_bad_ones_are_named() {
        assert_eq!((keeping(&with(&[])), problems(&with(&[]))), (Keeping::default(), 0));
        let all = with(&[
            (DURABILITY, "interval:250"),
            (RETENTION_BYTES, "64Mi"),
            (RETENTION_TIME, "24h"),
            (HISTORY_TIME, "P1D"),
        ]);
        let day = Duration::from_secs(86_400);
        let durability = Durability::Interval(Duration::from_millis(250));
        let wanted =
            Keeping { durability, retention_bytes: 64 << 20, retention_time: day, history_time: day };
        assert_eq!((keeping(&all), problems(&all)), (wanted, 0));
        for (key, value) in [
            (DURABILITY, "always"),
            (DURABILITY, "interval:0"),
            (DURABILITY, "interval:60001"),
            (DURABILITY, "interval:"),
            (RETENTION_BYTES, "lots"),
            (RETENTION_BYTES, "0"),
            (RETENTION_TIME, "-1h"),
            (RETENTION_TIME, "0"),
            (HISTORY_TIME, "soon"),
        ] {
            let meta = with(&[(key, value)]);
            assert_eq!((problems(&meta), keeping(&meta)), (1, Keeping::default()), "{key}: {value}");
        }
    }
}
