//! Kubernetes Events: what happened to an object, for `kubectl describe`.
//!
//! A repeated occurrence is counted, not reported again: an event's name is derived from its content,
//! so the second occurrence finds the first. A failure to write an event has no other effect.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::Patch;
use kube::{Api, Client, Resource};
use serde_json::json;

use crate::field_managers;
use types::shared::{Condition, ConditionStatus, HasConditions};

const REPORTER: &str = "sluicegate";
/// Bytes kept of a message; Kubernetes' figure for notes.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Characters kept of an object's name, so that the event's name with its suffix is a name.
const NAME_CHARS_MAX: usize = 236;

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSeverity {
    Normal,
    Warning,
}

/// The reason and the message of an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventMessage {
    pub level: EventSeverity,
    pub reason: String,
    pub message: String,
}

/// Writes events.
#[derive(Clone)]
pub struct EventRecorder {
    client: Client,
}

impl EventRecorder {
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Records an Event about `object`, or counts a repeated one.
    pub async fn record<K: Resource<DynamicType = ()>>(&self, object: &K, news: &EventMessage, now: Timestamp) {
        let event = event(object, news, now);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let outcome = match api.create(&field_managers::object_params::<Event>(), &event).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => increment_count(&api, &event, now).await,
            other => other.map(drop),
        };
        if let Err(why) = outcome {
            tracing::debug!(%why, reason = news.reason, "an event was not recorded");
        }
    }
}

async fn increment_count(api: &Api<Event>, event: &Event, now: Timestamp) -> Result<(), kube::Error> {
    let name = event.metadata.name.as_deref().unwrap_or_default();
    let count = api.get(name).await?.count.unwrap_or(1).saturating_add(1);
    let patch = json!({ "count": count, "lastTimestamp": Time(now) });
    api.patch(name, &field_managers::patch_params(), &Patch::Merge(patch)).await.map(drop)
}

fn event<K: Resource<DynamicType = ()>>(object: &K, news: &EventMessage, now: Timestamp) -> Event {
    let meta = object.meta();
    let mut message = news.message.clone();
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    let level = match news.level {
        EventSeverity::Normal => "Normal",
        EventSeverity::Warning => "Warning",
    };
    let mut said = DefaultHasher::new();
    (&meta.uid, level, &news.reason, &message).hash(&mut said);
    let owner: String = meta.name.as_deref().unwrap_or_default().chars().take(NAME_CHARS_MAX).collect();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{owner}.{:016x}", said.finish())),
            // Objects that live in no namespace have their events in the default one.
            namespace: Some(meta.namespace.clone().unwrap_or_else(|| "default".into())),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            resource_version: meta.resource_version.clone(),
            uid: meta.uid.clone(),
            field_path: None,
        },
        type_: Some(level.into()),
        reason: Some(news.reason.clone()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(REPORTER.into()), host: None }),
        reporting_component: Some(REPORTER.into()),
        reporting_instance: Some(REPORTER.into()),
        ..Event::default()
    }
}

/// The Event for a change of an object's readiness from `before` to `after`.
#[must_use]
pub fn readiness_change<K: HasConditions + Resource<DynamicType = ()>>(before: &K, after: &K) -> Option<EventMessage> {
    let new = after.condition("Ready")?;
    let state_of = |condition: &Condition| (condition.status, condition.reason.clone());
    if before.condition("Ready").map(state_of) == Some(state_of(new)) {
        return None;
    }
    let name = after.meta().name.as_deref().unwrap_or_default();
    match new.status {
        ConditionStatus::True => Some(EventMessage {
            level: EventSeverity::Normal,
            reason: "Ready".into(),
            message: format!("{} {name:?} is ready", K::kind(&())),
        }),
        ConditionStatus::False => Some(EventMessage {
            level: EventSeverity::Warning,
            reason: if new.reason.is_empty() { "NotReady".into() } else { new.reason.clone() },
            message: new.message.clone(),
        }),
        // On the way to one or the other.
        ConditionStatus::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::serving::service::{Service, ServiceStatus};
    use types::shared::Status;

    fn service(status: ConditionStatus, reason: &str) -> Service {
        let ready = Condition { kind: "Ready".into(), status, reason: reason.into(), ..Condition::default() };
        let base = Status { conditions: vec![ready], ..Status::default() };
        let mut service = Service::new("default", "hello", Default::default());
        service.status = Some(ServiceStatus { base, ..ServiceStatus::default() });
        service
    }

    #[test]
    fn only_a_change_of_readiness_is_news() {
        let (unknown, ready) = (service(ConditionStatus::Unknown, ""), service(ConditionStatus::True, ""));
        let failed = service(ConditionStatus::False, "RevisionFailed");
        let news = readiness_change(&unknown, &ready).unwrap();
        assert_eq!((news.level, news.message.as_str()), (EventSeverity::Normal, "Service \"hello\" is ready"));
        let news = readiness_change(&ready, &failed).unwrap();
        assert_eq!((news.level, news.reason.as_str()), (EventSeverity::Warning, "RevisionFailed"));
        assert_eq!(readiness_change(&failed, &failed), None);
        assert_eq!(readiness_change(&failed, &unknown), None);
        assert!(readiness_change(&failed, &service(ConditionStatus::False, "Other")).is_some());
    }

    #[test]
    fn the_same_news_of_the_same_object_has_the_same_name() {
        let news = |message: &str| EventMessage {
            level: EventSeverity::Normal,
            reason: "Ready".into(),
            message: message.into(),
        };
        let name = |object: &Service, news: &EventMessage, second: i64| {
            event(object, news, Timestamp::from_second(second).unwrap()).metadata.name.unwrap()
        };
        let one = service(ConditionStatus::True, "");
        assert_eq!(name(&one, &news("a"), 1), name(&one, &news("a"), 2));
        assert_ne!(name(&one, &news("a"), 1), name(&one, &news("b"), 1));
        let mut reborn = one.clone();
        reborn.metadata.uid = Some("other".into());
        assert_ne!(name(&one, &news("a"), 1), name(&reborn, &news("a"), 1));
        let long = news(&"ä".repeat(MESSAGE_BYTES_MAX));
        let event = event(&one, &long, Timestamp::UNIX_EPOCH);
        assert!(event.message.unwrap().len() <= MESSAGE_BYTES_MAX);
    }
}
