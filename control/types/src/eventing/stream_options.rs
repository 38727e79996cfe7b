//! Annotations for the retention, durability and limits of a Broker's or a Channel's events.
//!
//! The ConfigMap that a Broker's `spec.config` names may hold the same keys without their prefix; an
//! annotation wins.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::table::{Durability, RetentionPolicy};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::shared::annotation;
use crate::{duration, quantity};

/// The prefix of annotations, which keys of a ConfigMap do not have.
const PREFIX: &str = "sluicegate.dev/";
/// The guarantee of a 202: `flush` (the default), `interval:MS` or `none`.
pub const DURABILITY: &str = "sluicegate.dev/durability";
/// The oldest events beyond so many bytes are dropped even if undelivered.
pub const RETENTION_BYTES: &str = "sluicegate.dev/retention-bytes";
/// Older events are dropped even if undelivered.
pub const RETENTION_TIME: &str = "sluicegate.dev/retention-time";
/// Events are retained for so long, for replay, even if all subscribers had them.
pub const HISTORY_TIME: &str = "sluicegate.dev/history-time";
/// An event with the `source` and `id` of an earlier one within this time is acknowledged and not stored again.
pub const DEDUPLICATION_WINDOW: &str = "sluicegate.dev/deduplication-window";
/// Largest event accepted, in bytes.
pub const EVENT_BYTES: &str = "sluicegate.dev/event-bytes-max";
/// The handling of a deleted Broker's backlog: `drop` (the default) or `drain`.
pub const ON_DELETE: &str = "sluicegate.dev/on-delete";
/// The annotations that a Channel copies to its backing channel.
pub const CHANNEL_KEYS: [&str; 6] =
    [DURABILITY, RETENTION_BYTES, RETENTION_TIME, HISTORY_TIME, DEDUPLICATION_WINDOW, EVENT_BYTES];
/// The keys that upstream's Brokers read from their ConfigMap. Here a log is behind all of them, so that it only has to
/// be valid.
const CHANNEL_TEMPLATE: &str = "channel-template-spec";

/// Longest interval between two flushes, in milliseconds: acknowledged events can be lost for as
/// long, and the staging buffer is flushed sooner anyway when it grows.
pub const INTERVAL_MS_MAX: u64 = 60_000;
/// The default maximum size of an event, in bytes: what upstream's receivers accept as well.
pub const EVENT_BYTES_DEFAULT: u32 = 1 << 20;
/// Largest event that can be configured, in bytes: with the headers, it has to fit into one record of
/// the log, which has 2 MiB.
pub const EVENT_BYTES_MAX: u32 = 1920 << 10;

/// Longest deduplication window: the log keeps the events of the window, and senders repeat what they have no answer for
/// within minutes.
pub const DEDUPLICATION_WINDOW_MAX: Duration = Duration::from_secs(24 * 3600);

/// The keys of a ConfigMap with their values.
pub type BrokerConfigMap = BTreeMap<String, String>;

/// The options in annotations and ConfigMap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    pub retention: RetentionPolicy,
    /// Largest event accepted, in bytes.
    pub event_bytes_max: u32,
    /// A deleted Broker stays until its events have ended.
    pub drain_on_delete: bool,
}

/// What holds for an object; a value that is invalid counts as absent, as in a cluster whose API
/// takes any.
#[must_use]
pub fn stream_options(meta: &ObjectMeta, config: &BrokerConfigMap) -> StreamOptions {
    let text = |key: &str| {
        let configured = || config.get(key.strip_prefix(PREFIX)?).map(String::as_str);
        annotation(meta, key).or_else(configured)
    };
    let period = |key| text(key).and_then(time).unwrap_or_default();
    StreamOptions {
        retention: RetentionPolicy {
            durability: text(DURABILITY).and_then(durability).unwrap_or_default(),
            retention_bytes: text(RETENTION_BYTES).and_then(quantity::bytes).unwrap_or_default(),
            retention_time: period(RETENTION_TIME),
            history_time: period(HISTORY_TIME),
            deduplication_window: text(DEDUPLICATION_WINDOW).and_then(deduplication_window).unwrap_or_default(),
        },
        event_bytes_max: text(EVENT_BYTES).and_then(event_bytes).unwrap_or(EVENT_BYTES_DEFAULT),
        drain_on_delete: text(ON_DELETE) == Some("drain"),
    }
}

type ValuePredicate = fn(&str) -> bool;

/// Each key, its valid values, and their description.
const RULES: [(&str, ValuePredicate, &str); 7] = [
    (DURABILITY, |text| durability(text).is_some(), "flush, none, or interval:MS with MS from 1 to 60000"),
    (RETENTION_BYTES, |text| quantity::bytes(text).is_some_and(|bytes| bytes > 0), "bytes, like 10Gi"),
    (RETENTION_TIME, |text| time(text).is_some_and(|time| !time.is_zero()), "a time, like 24h or P1D"),
    (HISTORY_TIME, |text| time(text).is_some_and(|time| !time.is_zero()), "a time, like 24h or P1D"),
    (DEDUPLICATION_WINDOW, |text| deduplication_window(text).is_some(), "a time up to 24h, like 10m or PT10M"),
    (EVENT_BYTES, |text| event_bytes(text).is_some(), "bytes from 1 to 1920Ki"),
    (ON_DELETE, |text| ["drop", "drain"].contains(&text), "drop or drain"),
];

pub fn validate(meta: &ObjectMeta, problems: &mut FieldErrors) {
    for (key, is_read, wanted) in RULES {
        if let Some(value) = annotation(meta, key)
            && !is_read(value)
        {
            problems.add(format!("metadata.annotations[{key}]"), format!("invalid value: {value}: expected {wanted}"));
        }
    }
}

/// The same for a Channel, which is never drained: its backing channel is deleted with it.
pub fn validate_channel(meta: &ObjectMeta, problems: &mut FieldErrors) {
    validate(meta, problems);
    if annotation(meta, ON_DELETE).is_some() {
        problems.add(format!("metadata.annotations[{ON_DELETE}]"), "must not set the field(s): only Brokers drain");
    }
}

/// Validates a Broker's ConfigMap. Unknown keys belong to other Broker classes.
pub fn check_config(config: &BrokerConfigMap) -> Result<(), String> {
    for (key, is_read, wanted) in RULES {
        let key = key.trim_start_matches(PREFIX);
        if let Some(value) = config.get(key)
            && !is_read(value)
        {
            return Err(format!("{key}: invalid value {value:?}: expected {wanted}"));
        }
    }
    let Some(template) = config.get(CHANNEL_TEMPLATE) else { return Ok(()) };
    let read: serde_json::Value =
        serde_norway::from_str(template).map_err(|why| format!("{CHANNEL_TEMPLATE}: {why}"))?;
    match ["apiVersion", "kind"].iter().find(|field| !read[**field].is_string()) {
        Some(field) => Err(format!("{CHANNEL_TEMPLATE}: {field} is missing")),
        None => Ok(()),
    }
}

fn event_bytes(text: &str) -> Option<u32> {
    let bytes = u32::try_from(quantity::bytes(text)?).ok()?;
    (1..=EVENT_BYTES_MAX).contains(&bytes).then_some(bytes)
}

fn deduplication_window(text: &str) -> Option<Duration> {
    time(text).filter(|time| !time.is_zero() && *time <= DEDUPLICATION_WINDOW_MAX)
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

    fn config(keys: &[(&str, &str)]) -> BrokerConfigMap {
        keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn problems(meta: &ObjectMeta) -> usize {
        let mut problems = FieldErrors::default();
        validate(meta, &mut problems);
        problems.list.len()
    }

    const AS_USUAL: RetentionPolicy = RetentionPolicy {
        durability: Durability::Flush,
        retention_bytes: 0,
        retention_time: Duration::ZERO,
        history_time: Duration::ZERO,
        deduplication_window: Duration::ZERO,
    };
    const PLAIN: StreamOptions =
        StreamOptions { retention: AS_USUAL, event_bytes_max: EVENT_BYTES_DEFAULT, drain_on_delete: false };

    #[test]
    fn annotations_become_a_policy_and_bad_ones_are_named() {
        let none = BrokerConfigMap::new();
        assert_eq!((stream_options(&with(&[]), &none), problems(&with(&[]))), (PLAIN, 0));
        let all = with(&[
            (DURABILITY, "interval:250"),
            (RETENTION_BYTES, "64Mi"),
            (RETENTION_TIME, "24h"),
            (HISTORY_TIME, "P1D"),
            (DEDUPLICATION_WINDOW, "10m"),
            (EVENT_BYTES, "256Ki"),
            (ON_DELETE, "drain"),
        ]);
        let day = Duration::from_secs(86_400);
        let durability = Durability::Interval(Duration::from_millis(250));
        let keeping = RetentionPolicy {
            durability,
            retention_bytes: 64 << 20,
            retention_time: day,
            history_time: day,
            deduplication_window: Duration::from_secs(600),
        };
        let wanted = StreamOptions { retention: keeping, event_bytes_max: 256 << 10, drain_on_delete: true };
        assert_eq!((stream_options(&all, &none), problems(&all)), (wanted, 0));
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
            (DEDUPLICATION_WINDOW, "0"),
            (DEDUPLICATION_WINDOW, "25h"),
            (EVENT_BYTES, "0"),
            (EVENT_BYTES, "2Mi"),
            (EVENT_BYTES, "8Gi"),
            (ON_DELETE, "keep"),
        ] {
            let meta = with(&[(key, value)]);
            assert_eq!((problems(&meta), stream_options(&meta, &none)), (1, PLAIN), "{key}: {value}");
        }
        let mut of_channel = FieldErrors::default();
        validate_channel(&all, &mut of_channel);
        assert_eq!(of_channel.list.len(), 1, "nobody drains a Channel");
    }

    /// EV-RTE-17
    #[test]
    fn a_config_map_says_the_same_and_an_annotation_wins() {
        let said = config(&[("event-bytes-max", "1Ki"), ("durability", "none"), ("bootstrap.servers", "x")]);
        assert_eq!(check_config(&said), Ok(()));
        let found = stream_options(&with(&[(EVENT_BYTES, "2Ki")]), &said);
        assert_eq!((found.event_bytes_max, found.retention.durability), (2 << 10, Durability::None));

        let template = "apiVersion: messaging.knative.dev/v1\nkind: InMemoryChannel\n";
        assert_eq!(check_config(&config(&[(CHANNEL_TEMPLATE, template)])), Ok(()));
        for (key, value, why) in [
            ("durability", "always", "interval:MS"),
            ("on-delete", "keep", "drop or drain"),
            (CHANNEL_TEMPLATE, "[", CHANNEL_TEMPLATE),
            (CHANNEL_TEMPLATE, "kind: InMemoryChannel", "apiVersion is missing"),
            (CHANNEL_TEMPLATE, "", "apiVersion is missing"),
        ] {
            let reported = check_config(&config(&[(key, value)])).unwrap_err();
            assert!(reported.contains(key) && reported.contains(why), "{reported}");
        }
    }
}
