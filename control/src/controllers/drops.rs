//! Tells owners of events that were dropped: a Kubernetes Event on the Trigger or Subscription, counted up
//! while it goes on. The counters are the cores'; here they are only looked at.

use std::collections::HashMap;
use std::time::Duration;

use super::world::{World, now};
use crate::events_recorder::{Level, News};
use crate::publish::Dropped;

/// How often is looked: a person who wonders has not got further than `kubectl describe` by then.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Runs for ever.
pub(super) async fn tell(world: &World) {
    let mut told: HashMap<String, u64> = HashMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let drops = world.publisher.drops();
        told.retain(|uid, _| drops.iter().any(|dropped| dropped.uid == *uid));
        for dropped in drops {
            let before = told.insert(dropped.uid.clone(), dropped.events);
            if before != Some(dropped.events) {
                record(world, &dropped).await;
            }
        }
    }
}

async fn record(world: &World, Dropped { uid, label, .. }: &Dropped) {
    let Some((namespace, name)) = label.split_once('/') else { return };
    let news = News {
        level: Level::Warning,
        reason: "EventDropped".into(),
        message: "Events could not be delivered and were dropped: there is no dead letter sink, or it did not take them. \
            `sluicegate event list --dead-letters` names them."
            .into(),
    };
    let is = |found: &Option<String>| found.as_ref() == Some(uid);
    if let Some(trigger) = world.triggers.get(namespace, name).filter(|one| is(&one.metadata.uid)) {
        world.recorder.record(&*trigger, &news, now()).await;
    } else if let Some(one) = world.subscriptions.get(namespace, name).filter(|one| is(&one.metadata.uid)) {
        world.recorder.record(&*one, &news, now()).await;
    }
}
