//! Retention of Events: they expire, and their number is bounded.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde_json::Value;

use super::{ObjectKey, ObjectStore, StagedView, StoreError, StoredObject, WriteOperation};

/// The retention of an event after it was last seen; Kubernetes' figure.
pub const EVENT_SECONDS_MAX: i64 = 3600;
/// Maximum Events of one namespace. The oldest are deleted first, so that one noisy object cannot fill the store.
pub const EVENTS_PER_NAMESPACE_MAX: usize = 1000;
/// How many Events over the limit a namespace's trim deletes at once: finding the oldest reads all of them, so the
/// cost is shared by many new ones.
const TRIM_BATCH: usize = EVENTS_PER_NAMESPACE_MAX / 10;
/// Shortest interval between two sweeps for expired Events.
const SWEEP_INTERVAL_MIN: Duration = Duration::from_secs(30);

const EVENTS: &str = "/events";

/// Whether the number of objects of this kind has a limit.
#[must_use]
pub fn is_event(key: &ObjectKey) -> bool {
    &*key.resource == EVENTS
}

/// Deletes expired events until the store is shut.
pub async fn run(store: Arc<ObjectStore>) {
    let weak = Arc::downgrade(&store);
    drop(store);
    loop {
        let Some(store) = weak.upgrade() else { return };
        let pause = match trim(&store, Timestamp::now()).await {
            Ok(pause) => pause,
            Err(StoreError::Full { .. }) => SWEEP_INTERVAL_MIN,
            Err(why) => {
                tracing::error!(error = %why, "expired events are no longer deleted");
                return;
            }
        };
        drop(store);
        tokio::time::sleep(pause).await;
    }
}

/// Deletes expired events; returns the time until the next may expire.
pub async fn trim(store: &ObjectStore, now: Timestamp) -> Result<Duration, StoreError> {
    let events = store.read().list(&Arc::from(EVENTS), None).items();
    let (gone, oldest) = expired(&events, now);
    delete(store, gone).await?;
    // Events recorded in the meantime stay for longer than that.
    let left = oldest.map_or(EVENT_SECONDS_MAX, |seen| EVENT_SECONDS_MAX + 1 - (now.as_second() - seen));
    Ok(Duration::from_secs(u64::try_from(left).unwrap_or(0)).max(SWEEP_INTERVAL_MIN))
}

/// Deletes the oldest of a namespace that has too many.
pub async fn trim_namespace(store: &ObjectStore, namespace: &str) -> Result<(), StoreError> {
    let resource = Arc::from(EVENTS);
    if store.read().count(&resource, Some(namespace)) <= EVENTS_PER_NAMESPACE_MAX {
        return Ok(());
    }
    let events = store.read().list(&resource, Some(namespace)).items();
    delete(store, excess(events)).await
}

async fn delete(store: &ObjectStore, events: Vec<Arc<StoredObject>>) -> Result<(), StoreError> {
    let deletions = events.into_iter().map(|object| {
        store.write(move |view: &StagedView| {
            let there = view.get(&object.key);
            Ok::<_, StoreError>(match there.filter(|now| now.resource_version == object.resource_version) {
                Some(there) => WriteOperation::Delete(there.key.clone(), there.value()),
                // Deleted already, or recorded again in the meantime.
                None => WriteOperation::NoOp(object),
            })
        })
    });
    // In batches, so that they share commits: the writer of one Event too many waits for a hundred deletions.
    let mut deletions = std::pin::pin!(stream::iter(deletions).buffer_unordered(TRIM_BATCH));
    while let Some(deleted) = deletions.next().await {
        deleted?;
    }
    Ok(())
}

/// The expired events, and when the oldest of the others was last seen, in seconds.
fn expired(events: &[Arc<StoredObject>], now: Timestamp) -> (Vec<Arc<StoredObject>>, Option<i64>) {
    let (mut found, mut oldest) = (Vec::new(), None);
    for event in events {
        let seen = last_seen(event, now);
        if now.as_second() - seen > EVENT_SECONDS_MAX {
            found.push(Arc::clone(event));
        } else {
            oldest = Some(oldest.map_or(seen, |oldest: i64| oldest.min(seen)));
        }
    }
    (found, oldest)
}

/// The events to delete from a namespace with too many.
fn excess(mut events: Vec<Arc<StoredObject>>) -> Vec<Arc<StoredObject>> {
    events.sort_by_key(|object| object.resource_version);
    events.truncate((events.len() + TRIM_BATCH).saturating_sub(EVENTS_PER_NAMESPACE_MAX));
    events
}

/// The latest of an event's times, in seconds. Times in the future do not count: a client wrote them, or the clock
/// was set back, and the next check would be due after them. An event without any other time is as old as this check.
fn last_seen(object: &StoredObject, now: Timestamp) -> i64 {
    let now = now.as_second();
    let value = object.value();
    let times = [&value["lastTimestamp"], &value["eventTime"], &value["metadata"]["creationTimestamp"]];
    let seconds = |time: &Value| Some(time.as_str()?.parse::<Timestamp>().ok()?.as_second());
    times.into_iter().filter_map(seconds).filter(|seen| *seen <= now).max().unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(namespace: &str, version: u64, seen: i64) -> Arc<StoredObject> {
        let name = format!("e{version}");
        let key = ObjectKey { resource: EVENTS.into(), namespace: namespace.into(), name: name.into() };
        let seen = Timestamp::from_second(seen).unwrap().to_string();
        let value = json!({ "lastTimestamp": seen });
        Arc::new(StoredObject::new(key, version, &value))
    }

    #[test]
    fn the_expired_go_and_the_next_look_is_when_another_is() {
        let now = Timestamp::from_second(10_000).unwrap();
        let events = [event("a", 1, 10_000 - EVENT_SECONDS_MAX - 1), event("a", 2, 9_000), event("b", 3, 9_500)];
        let (gone, oldest) = expired(&events, now);
        assert_eq!(gone.iter().map(|object| object.resource_version).collect::<Vec<_>>(), [1]);
        assert_eq!(oldest, Some(9_000));
        assert!(expired(&[], now).1.is_none());
    }

    /// A time in the future keeps neither its own Event forever nor those recorded after it.
    #[test]
    fn times_to_come_do_not_put_the_next_look_off() {
        let now = Timestamp::from_second(10_000).unwrap();
        let (gone, oldest) = expired(&[event("a", 1, 250_000_000_000)], now);
        assert!(gone.is_empty(), "the clock may have been set back");
        assert_eq!(oldest, Some(10_000));

        let key = ObjectKey { resource: EVENTS.into(), namespace: "a".into(), name: "made".into() };
        let made = Timestamp::from_second(10_000 - EVENT_SECONDS_MAX - 1).unwrap().to_string();
        let value = json!({ "lastTimestamp": "9999-01-01T00:00:00Z", "metadata": { "creationTimestamp": made } });
        let (gone, _) = expired(&[Arc::new(StoredObject::new(key, 2, &value))], now);
        assert_eq!(gone.len(), 1);
    }

    #[test]
    fn beyond_the_limit_the_oldest_go_some_at_a_time() {
        let count = u64::try_from(EVENTS_PER_NAMESPACE_MAX).unwrap() + 1;
        let events: Vec<_> = (10..10 + count).rev().map(|version| event("b", version, 10_000)).collect();
        let gone = excess(events);
        assert_eq!(gone.len(), TRIM_BATCH + 1);
        assert_eq!((gone[0].resource_version, gone[TRIM_BATCH].resource_version), (10, 110));
    }
}
