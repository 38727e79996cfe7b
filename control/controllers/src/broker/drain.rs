//! Brokers that are deleted only once their backlog is delivered (`sluicegate.dev/on-delete: drain`).
//!
//! A finalizer holds the object, so that a restart continues the drain. Until it ends, the Broker's address answers
//! 404, its Triggers are served, and replies are still accepted.

use std::collections::HashMap;
use std::time::Duration;

use super::finalizer;
use crate::api::Error;
use crate::context::ControllerContext;
use crate::names::broker_path as path;
use types::eventing::broker::Broker;
use types::shared::{name, namespace};

/// The finalizer of a draining Broker.
pub const FINALIZER: &str = "sluicegate.dev/drain";
/// Interval between checks of a draining Broker.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Looks in a row that find nothing pending before it goes: a reply that was stored in between, or a table that
/// has just been published, has its events counted by then.
const EMPTY_POLLS_MIN: u32 = 3;

/// Deleted, and held until its events have ended.
#[must_use]
pub fn is_draining(broker: &Broker) -> bool {
    broker.metadata.deletion_timestamp.is_some() && has_finalizer(broker)
}

fn has_finalizer(broker: &Broker) -> bool {
    finalizer::has(broker, FINALIZER)
}

/// Adds the finalizer to a Broker that `wants` to drain, and removes it from one that does not, if this appliance is
/// the leader.
pub async fn reconcile_finalizer(context: &ControllerContext, broker: &Broker, wants: bool) -> Result<Broker, Error> {
    if !context.leadership.is_leader() {
        return Ok(broker.clone());
    }
    let is_new = broker.metadata.deletion_timestamp.is_none();
    match (wants, has_finalizer(broker)) {
        (true, false) if is_new => write_finalizer(context, broker, true).await,
        (false, true) => write_finalizer(context, broker, false).await,
        _ => Ok(broker.clone()),
    }
}

async fn write_finalizer(context: &ControllerContext, broker: &Broker, held: bool) -> Result<Broker, Error> {
    finalizer::write(context, broker, FINALIZER, held).await
}

/// Removes the finalizer of drained Brokers that have no pending events. Runs forever.
pub async fn run(context: &ControllerContext) {
    let mut quiet: HashMap<String, u32> = HashMap::new();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        // Replaying large logs takes a while after a start; and only the leader may remove a finalizer, because only
        // its logs are written.
        if !context.publisher.cores_running() || !context.leadership.is_leader() {
            quiet.clear();
            continue;
        }
        let mut brokers = context.caches.brokers.all();
        brokers.retain(|broker| broker.is_ours() && is_draining(broker));
        let uid = |broker: &Broker| broker.metadata.uid.clone().unwrap_or_default();
        quiet.retain(|known, _| brokers.iter().any(|broker| uid(broker) == *known));
        for broker in brokers {
            let path = path(namespace(&broker.metadata), name(&broker.metadata));
            let looks = quiet.entry(uid(&broker)).or_default();
            *looks = if context.publisher.pending_events(&path) > 0 { 0 } else { *looks + 1 };
            if *looks >= EMPTY_POLLS_MIN
                && let Err(why) = write_finalizer(context, &broker, false).await
                && !why.is_conflict()
            {
                tracing::warn!(path, %why, "a drained Broker is not let go; tried again");
            }
        }
    }
}
