//! Events do not stay: they are news, and there are at most so many of them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{Change, Key, Store, StoreError, Stored, View};

/// How long an event stays after it was last seen; Kubernetes' figure.
pub const EVENT_SECONDS_MAX: i64 = 3600;
/// Events of one namespace. The oldest go first, so that one noisy object cannot fill the store.
pub const EVENTS_PER_NAMESPACE_MAX: usize = 1000;
/// How often expired events are looked for. Short against an hour, long against the cost of a look.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

const EVENTS: &str = "/events";

/// Whether the number of objects of this kind has a limit.
#[must_use]
pub fn is_event(key: &Key) -> bool {
    &*key.resource == EVENTS
}

/// Deletes expired events until the store is shut.
pub async fn run(store: Arc<Store>) {
    let weak = Arc::downgrade(&store);
    drop(store);
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        let Some(store) = weak.upgrade() else { return };
        match trim(&store, None, Timestamp::now()).await {
            Ok(()) | Err(StoreError::Full { .. }) => {}
            Err(why) => {
                tracing::error!(error = %why, "no more events are cleared away");
                return;
            }
        }
    }
}

/// Deletes what is expired or too many, in one namespace or in all.
pub async fn trim(store: &Store, namespace: Option<&str>, now: Timestamp) -> Result<(), StoreError> {
    let events = store.read().list(&Arc::from(EVENTS), namespace).items;
    for object in doomed(&events, now) {
        let decide = move |view: &View| {
            let there = view.get(&object.key);
            Ok::<_, StoreError>(match there.filter(|now| now.resource_version == object.resource_version) {
                Some(there) => Change::Delete(there.key.clone(), there.value()),
                // Gone already, or seen again meanwhile.
                None => Change::Keep(object),
            })
        };
        store.write(decide).await?;
    }
    Ok(())
}

/// Which of the events go. They come in the order of their namespaces.
fn doomed(events: &[Arc<Stored>], now: Timestamp) -> Vec<Arc<Stored>> {
    let mut found = Vec::new();
    for in_namespace in events.chunk_by(|one, other| one.key.namespace == other.key.namespace) {
        let expired = |object: &Arc<Stored>| now.as_second() - last_seen(object) > EVENT_SECONDS_MAX;
        let (gone, mut left): (Vec<_>, Vec<_>) = in_namespace.iter().cloned().partition(expired);
        found.extend(gone);
        let surplus = left.len().saturating_sub(EVENTS_PER_NAMESPACE_MAX);
        left.sort_by_key(|object| object.resource_version);
        found.extend(left.into_iter().take(surplus));
    }
    found
}

/// The latest of the times that an event names, in seconds.
fn last_seen(object: &Stored) -> i64 {
    let value = object.value();
    let times = [&value["lastTimestamp"], &value["eventTime"], &value["metadata"]["creationTimestamp"]];
    let seconds = |time: &Value| Some(time.as_str()?.parse::<Timestamp>().ok()?.as_second());
    times.into_iter().filter_map(seconds).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(namespace: &str, version: u64, seen: i64) -> Arc<Stored> {
        let name = format!("e{version}");
        let key = Key { resource: EVENTS.into(), namespace: namespace.into(), name: name.into() };
        let seen = Timestamp::from_second(seen).unwrap().to_string();
        let value = json!({ "lastTimestamp": seen });
        Arc::new(Stored::new(key, version, &value))
    }

    #[test]
    fn the_expired_go_and_then_the_oldest_beyond_the_limit_of_their_namespace() {
        let now = Timestamp::from_second(10_000).unwrap();
        let mut events = vec![event("a", 1, 10_000 - EVENT_SECONDS_MAX - 1), event("a", 2, 9_000)];
        let surplus = u64::try_from(EVENTS_PER_NAMESPACE_MAX).unwrap() + 2;
        events.extend((10..10 + surplus).rev().map(|version| event("b", version, 10_000)));
        let gone: Vec<u64> = doomed(&events, now).iter().map(|object| object.resource_version).collect();
        assert_eq!(gone, [1, 10, 11]);
    }
}
