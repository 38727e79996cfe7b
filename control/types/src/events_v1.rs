//! `events.k8s.io/v1`: the same events as the core group's, under newer names.
//!
//! One object, two representations: it is stored as a core Event, and read and written as either.

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::storage_only::{EVENT, check_event_namespace};
use crate::field_errors::{AdmissionError, FieldErrors};
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::printer_column::{PrinterColumn, column};
use crate::role_rules::{EDIT, VIEW};

/// Bytes of a note; Kubernetes' figure.
const NOTE_BYTES_MAX: usize = 1024;
/// Characters of an action, a reason and an instance; Kubernetes' figure.
const FIELD_CHARS_MAX: usize = 128;

pub const EVENTS_V1: KindMeta = KindMeta {
    group: "events.k8s.io",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    columns: &[
        PrinterColumn {
            name: "Last Seen",
            path: ".series.lastObservedTime|.deprecatedLastTimestamp|.eventTime",
            format: "date",
            priority: 0,
            custom: None,
        },
        column("Type", ".type"),
        column("Reason", ".reason"),
        column("Kind", ".regarding.kind"),
        column("Object", ".regarding.name"),
        column("Message", ".note"),
        PrinterColumn {
            name: "Count",
            path: ".series.count|.deprecatedCount",
            format: "integer",
            priority: 1,
            custom: None,
        },
    ],
    role_rules: &[VIEW, EDIT],
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

/// The row of the kind: events are kept, and owned, as the core group's, and judged by this group's rules.
#[must_use]
pub fn entry() -> KindEntry {
    static TRANSLATION: VersionConversion =
        VersionConversion { stored: &EVENT, to_stored: to_core_event, complete: |_| {}, from_stored: from_core_event };
    let entry = KindEntry::of::<Event>();
    KindEntry { admit, translation: Some(&TRANSLATION), ..entry }
}

/// Takes a kept event and gives one.
fn admit(mut event: Value, before: Option<&Value>, requester: &RequestContext) -> Result<Value, AdmissionError> {
    let mut before = before.cloned();
    for event in std::iter::once(&mut event).chain(&mut before) {
        from_core_event(event);
        event["apiVersion"] = EVENTS_V1.api_version().into();
    }
    let mut event = (KindEntry::of::<Event>().admit)(event, before.as_ref(), requester)?;
    to_core_event(&mut event);
    event["apiVersion"] = EVENT.api_version().into();
    Ok(event)
}

fn from_core_event(event: &mut Value) {
    rename(event, |name| NAMES.iter().find(|(core, _)| *core == name).map(|(_, new)| *new));
}

fn to_core_event(event: &mut Value) {
    // The other group's names mean nothing in this one.
    if let Some(fields) = event.as_object_mut() {
        fields.retain(|name, _| !NAMES.iter().any(|(core, _)| core == name));
    }
    rename(event, |name| NAMES.iter().find(|(_, new)| *new == name).map(|(core, _)| *core));
}

fn rename(event: &mut Value, other: impl Fn(&str) -> Option<&'static str>) {
    if let Value::Object(fields) = event {
        let old = std::mem::take(fields);
        fields.extend(old.into_iter().map(|(name, value)| (other(&name).map_or(name, str::to_owned), value)));
    }
}

impl ResourceStrategy for Event {
    const META: KindMeta = EVENTS_V1;

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    /// New ones have to be of the new kind; old ones may have been written in the core group.
    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        if before.is_some() {
            return;
        }
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let about = self.regarding.as_ref().and_then(|about| about.namespace.as_deref());
        check_event_namespace(&self.metadata, about, problems);
        if self.event_time.is_none() {
            problems.add("eventTime", "Required value");
        }
        if text(&self.reporting_controller).is_empty() {
            problems.add("reportingController", "Required value");
        }
        for (name, field) in
            [("reportingInstance", &self.reporting_instance), ("action", &self.action), ("reason", &self.reason)]
        {
            let field = text(field);
            if field.is_empty() {
                problems.add(name, "Required value");
            } else if field.chars().count() > FIELD_CHARS_MAX {
                let why = format!("Invalid value: \"\": can have at most {FIELD_CHARS_MAX} characters");
                problems.add(name, why);
            }
        }
        if text(&self.note).len() > NOTE_BYTES_MAX {
            problems.add("message", format!("Invalid value: \"\": can have at most {NOTE_BYTES_MAX} characters"));
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
        let entry = entry();
        let new = entry.from_stored(core.clone());
        assert_eq!((&new["note"], &new["regarding"]["name"]), (&json!("is ready"), &json!("b")));
        assert_eq!((&new["reportingController"], &new["deprecatedCount"]), (&json!("c"), &json!(2)));
        assert!(new.get("message").is_none() && new["apiVersion"] == "events.k8s.io/v1");
        let mut back = new;
        back["message"] = "of no meaning here".into();
        entry.to_stored(&mut back);
        assert_eq!(back, core);
    }

    #[test]
    fn what_a_new_event_lacks_is_named() {
        let mut problems = FieldErrors::default();
        let event = Event { deprecated_count: Some(1), ..Event::default() };
        event.validate(None, &mut problems);
        let fields: Vec<&str> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        let expected = ["eventTime", "reportingController", "reportingInstance", "action", "reason", "type", "count"];
        assert_eq!(fields, expected);
        let mut none = FieldErrors::default();
        event.validate(Some(&event), &mut none);
        assert!(none.list.is_empty());
    }
}
