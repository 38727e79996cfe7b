//! Runs PingSources: at each time of a schedule one event leaves for the sink, and is sent again until somebody takes it
//! or its attempts are used up.
//!
//! To a Broker or a channel of this appliance it goes by the listener that everybody's events come in by, so it is durable
//! once that has answered. Times that pass while the appliance is down do not come again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;

use super::send::{self, Outgoing};
use crate::controllers::world::World;
use crate::kinds::shared::{HasConditions as _, name, namespace};
use crate::kinds::sources::cron::Schedule;
use crate::kinds::sources::ping::{PingSource, TYPE};

/// Events that are on their way at once; one that comes due beyond is dropped, and told.
const SENDING_MAX: usize = 256;
/// How long nothing is looked at if nothing is due: clocks are set, and time zones change.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The source attribute of a PingSource's events.
#[must_use]
pub fn source_of(namespace: &str, name: &str) -> String {
    format!("/apis/v1/namespaces/{namespace}/pingsources/{name}")
}

/// When a source's next event is due, and by which schedule that was reckoned.
#[derive(Debug, Clone, PartialEq)]
struct Due {
    schedule: String,
    timezone: String,
    at: Option<Timestamp>,
}

impl Due {
    fn after(ping: &PingSource, now: Timestamp) -> Self {
        let spec = &ping.spec;
        let at = spec.zone().zip(Schedule::parse(&spec.schedule).ok());
        let at = at.and_then(|(zone, schedule)| schedule.next(now, &zone));
        Self { schedule: spec.schedule.clone(), timezone: spec.timezone.clone(), at }
    }

    fn is_of(&self, ping: &PingSource) -> bool {
        self.schedule == ping.spec.schedule && self.timezone == ping.spec.timezone
    }
}

/// Runs for ever.
pub async fn tend(world: &World) {
    let mut known: HashMap<String, Due> = HashMap::new();
    let mut sending = FuturesUnordered::new();
    loop {
        let now = Timestamp::now();
        let ready: Vec<_> = world.sources.pings.all().into_iter().filter(|ping| ping.is_ready()).collect();
        let uid = |ping: &PingSource| ping.metadata.uid.clone().unwrap_or_default();
        let there: HashSet<String> = ready.iter().map(|ping| uid(ping)).collect();
        known.retain(|known, _| there.contains(known));
        let mut wait = LOOK_EVERY;
        for ping in &ready {
            let due = known.entry(uid(ping)).or_insert_with(|| Due::after(ping, now));
            if !due.is_of(ping) {
                *due = Due::after(ping, now);
            }
            if due.at.is_some_and(|at| at <= now) {
                *due = Due::after(ping, now);
                if sending.len() < SENDING_MAX {
                    sending
                        .extend(event(ping, now).map(|event| send::send(event, world.config.domain.clone())));
                } else {
                    tracing::warn!(
                        source = source_of(namespace(&ping.metadata), name(&ping.metadata)),
                        "an event was dropped: {SENDING_MAX} are on their way already"
                    );
                }
            }
            if let Some(at) = due.at {
                wait = wait.min(Duration::try_from(at.duration_since(now)).unwrap_or_default());
            }
        }
        let pause = tokio::time::sleep(wait);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                () = world.sources.bell.notified() => break,
                // Many arrive at once, and none of them makes another one due.
                Some(()) = sending.next(), if !sending.is_empty() => {}
            }
        }
    }
}

/// The event of a source at this time.
fn event(ping: &PingSource, now: Timestamp) -> Option<Outgoing> {
    let spec = &ping.spec;
    let sink = ping.status.as_ref()?.sink_uri.clone()?;
    let body = if spec.data.is_empty() {
        STANDARD.decode(&spec.data_base64).ok()?
    } else {
        spec.data.clone().into_bytes()
    };
    let mut attributes = vec![
        ("specversion".to_owned(), "1.0".to_owned()),
        ("id".to_owned(), uuid::Uuid::new_v4().to_string()),
        ("source".to_owned(), source_of(namespace(&ping.metadata), name(&ping.metadata))),
        ("type".to_owned(), TYPE.to_owned()),
        ("time".to_owned(), now.to_string()),
    ];
    for (key, value) in spec.ce_overrides.iter().flat_map(|overrides| &overrides.extensions) {
        attributes.retain(|(known, _)| known != key);
        attributes.push((key.clone(), value.clone()));
    }
    let content_type = Some(spec.content_type.clone()).filter(|media| !media.is_empty());
    Some(Outgoing { sink, attributes, content_type, body })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ping(spec: serde_json::Value) -> PingSource {
        serde_json::from_value(
            json!({ "metadata": { "name": "p", "namespace": "ns", "uid": "u" }, "spec": spec,
            "status": { "sinkUri": "http://sink" } }),
        )
        .unwrap()
    }

    /// SRC-01, SRC-19: the event is upstream's, and the overrides replace what it has.
    #[test]
    fn an_event_has_its_data_and_the_overrides() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let event = event(
            &ping(json!({ "schedule": "* * * * *", "contentType": "text/plain", "data": "hi", "sink": {},
                "ceOverrides": { "extensions": { "type": "mine", "extra": "1" } } })),
            now,
        )
        .unwrap();
        let attribute = |name: &str| event.attributes.iter().find(|(key, _)| key == name).unwrap().1.clone();
        assert_eq!(attribute("source"), "/apis/v1/namespaces/ns/pingsources/p");
        assert_eq!((attribute("type").as_str(), attribute("extra").as_str()), ("mine", "1"));
        assert_eq!((event.body.as_slice(), event.content_type.as_deref()), (&b"hi"[..], Some("text/plain")));
    }

    #[test]
    fn a_changed_schedule_is_reckoned_anew() {
        let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
        let due = Due::after(&ping(json!({ "schedule": "* * * * *", "sink": {} })), now);
        assert_eq!(due.at.unwrap().to_string(), "2026-01-01T00:01:00Z");
        assert!(!due.is_of(&ping(json!({ "schedule": "@hourly", "sink": {} }))));
    }
}
