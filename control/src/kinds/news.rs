//! `events.k8s.io/v1`: the same events as the core group's, under newer names.
//!
//! One object, two views: it is kept as a core Event, and read and written as either.

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};

use super::column;
use super::core::CORE;
use crate::kind::{Column, KindMeta, Problems, Requester, Resource};

/// Bytes of a note; Kubernetes' figure.
const NOTE_BYTES_MAX: usize = 1024;
/// Characters of an action, a reason and an instance; Kubernetes' figure.
const WORD_CHARS_MAX: usize = 128;

pub const NEWS: KindMeta = KindMeta {
    group: "events.k8s.io",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    columns: &[
        Column {
            name: "Last Seen",
            path: ".series.lastObservedTime|.deprecatedLastTimestamp|.eventTime",
            format: "date",
            priority: 0,
        },
        column("Type", ".type"),
        column("Reason", ".reason"),
        column("Kind", ".regarding.kind"),
        column("Object", ".regarding.name"),
        column("Message", ".note"),
        Column { name: "Count", path: ".series.count|.deprecatedCount", format: "integer", priority: 1 },
    ],
    ..CORE
};

/// Names in the core group, and here.
const NAMES: [(&str, &str); 7] = [
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("involvedObject", "regarding"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
];
const VERSION: &str = "events.k8s.io/v1";

/// A kept event as this group shows it. One that is shown already stays as it is.
#[must_use]
pub fn shown(event: &Value) -> Value {
    turned(event, VERSION, |name| NAMES.iter().find(|(core, _)| *core == name).map(|(_, new)| *new))
}

/// An event of either group as it is kept.
#[must_use]
pub fn kept(event: &Value) -> Value {
    turned(event, "v1", |name| NAMES.iter().find(|(_, new)| *new == name).map(|(core, _)| *core))
}

fn turned(event: &Value, version: &str, other: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Some(fields) = event.as_object().filter(|_| event["apiVersion"] != version) else {
        return event.clone();
    };
    let renamed = fields.iter().map(|(name, value)| {
        let name = other(name).map_or_else(|| name.clone(), str::to_owned);
        (name, value.clone())
    });
    let mut turned: Map<String, Value> = renamed.collect();
    turned.insert("apiVersion".into(), version.into());
    Value::Object(turned)
}

impl Resource for Event {
    const META: KindMeta = NEWS;

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {}

    /// New ones have to be of the new kind; old ones may have been written in the core group.
    fn validate(&self, before: Option<&Self>, problems: &mut Problems) {
        if before.is_some() {
            return;
        }
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        if self.event_time.is_none() {
            problems.add("eventTime", "Required value");
        }
        if text(&self.reporting_controller).is_empty() {
            problems.add("reportingController", "Required value");
        }
        for (name, field) in [
            ("reportingInstance", &self.reporting_instance),
            ("action", &self.action),
            ("reason", &self.reason),
        ] {
            let field = text(field);
            if field.is_empty() {
                problems.add(name, "Required value");
            } else if field.chars().count() > WORD_CHARS_MAX {
                let why = format!("Invalid value: \"\": can have at most {WORD_CHARS_MAX} characters");
                problems.add(name, why);
            }
        }
        if text(&self.note).len() > NOTE_BYTES_MAX {
            problems
                .add("message", format!("Invalid value: \"\": can have at most {NOTE_BYTES_MAX} characters"));
        }
        let kind = text(&self.type_);
        if !matches!(kind.as_str(), "Normal" | "Warning") {
            problems.add("type", format!("Invalid value: {kind:?}: has invalid value: {kind}"));
        }
        let old = [
            ("firstTimestamp", self.deprecated_first_timestamp.is_some()),
            ("lastTimestamp", self.deprecated_last_timestamp.is_some()),
            ("count", self.deprecated_count.is_some_and(|count| count != 0)),
        ];
        for (name, _) in old.into_iter().filter(|(_, set)| *set) {
            problems.add(name, "Invalid value: \"\": needs to be unset");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_turned_round_and_back_without_a_loss() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "name": "a" }, "reason": "Ready", "type": "Normal",
            "involvedObject": { "name": "b" }, "message": "is ready", "count": 2, "source": { "component": "c" },
            "firstTimestamp": "1", "lastTimestamp": "2", "reportingComponent": "c", "reportingInstance": "i",
        });
        let new = shown(&core);
        assert_eq!((&new["note"], &new["regarding"]["name"]), (&json!("is ready"), &json!("b")));
        assert_eq!((&new["reportingController"], &new["deprecatedCount"]), (&json!("c"), &json!(2)));
        assert!(new.get("message").is_none() && new["apiVersion"] == VERSION);
        assert_eq!(shown(&new), new);
        assert_eq!(kept(&new), core);
        assert_eq!(kept(&core), core);
    }

    #[test]
    fn what_a_new_event_lacks_is_named() {
        let mut problems = Problems::default();
        let event = Event { deprecated_count: Some(1), ..Event::default() };
        event.validate(None, &mut problems);
        let fields: Vec<&str> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        let expected =
            ["eventTime", "reportingController", "reportingInstance", "action", "reason", "type", "count"];
        assert_eq!(fields, expected);
        let mut none = Problems::default();
        event.validate(Some(&event), &mut none);
        assert!(none.list.is_empty());
    }
}
