//! Reports dropped events to their owners: a Kubernetes Event on the Trigger or Subscription for each reason,
//! counted up while it continues, and one on the Broker or channel for what deleted subscribers left behind, or what it
//! left behind itself. The cores count; this module only reads the counters.

use std::collections::HashMap;
use std::time::Duration;

use contract::abandoned::AbandonedEvents;

use crate::api::now;
use crate::context::ControllerContext;
use crate::event_recorder::{EventMessage, EventSeverity};
use crate::publish::DroppedEvents;
use types::eventing::broker::{Broker, BrokerSpec};
use types::messaging::in_memory_channel::{InMemoryChannel, InMemoryChannelSpec};

/// The interval between two reads of the counters: shorter than a user needs to reach `kubectl describe`.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The message for each reason, in the order of the counters. Without numbers: repeated messages are counted.
const REASON_MESSAGES: [&str; 5] = [
    "Events could not be delivered and were dropped: there is no dead letter sink. \
     `sluicegate event list --dead-letters` names them.",
    "Events could not be delivered and were dropped: the dead letter sink did not take them. \
     `sluicegate event list --dead-letters` names them.",
    "Events were dropped before they were delivered: retention-time or retention-bytes of the stream says so.",
    "Events were dropped because the disk lost or changed their records: see the log of the process.",
    "Events were dropped because a core had stopped at them before a restart, and there is no dead letter sink: see the log of \
     the process.",
];
const OVER_BUDGET: &str = "The filter takes too many steps for some events, which it withholds: shorten its expressions, or what \
    they look at. The counter sluicegate_subscriber_filter_over_budget_total says how many.";
const SUBSCRIBER_DELETED: &str = "A deleted Trigger or Subscription had events still to get: they were dropped. \
    The counter sluicegate_stream_abandoned_total says how many.";
const STREAM_DELETED: &str = "It was deleted while its subscribers had events still to get: they were dropped. \
    The counter sluicegate_abandoned_total says how many, for all that was deleted.";

/// Runs forever.
pub(crate) async fn run(context: &ControllerContext) {
    let mut reported: HashMap<String, ([u64; 5], u64, u64)> = HashMap::new();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let drops = context.publisher.dropped_events();
        reported.retain(|uid, _| drops.iter().any(|dropped| dropped.uid == *uid));
        for dropped in drops {
            let now = (dropped.events, dropped.over_budget, dropped.set_aside);
            let (before, withheld, set_aside) = reported.insert(dropped.uid.clone(), now).unwrap_or_default();
            for (nth, why) in REASON_MESSAGES.into_iter().enumerate() {
                if dropped.events[nth] > before[nth] {
                    record(context, &dropped, "EventDropped", why).await;
                }
            }
            if dropped.over_budget > withheld {
                record(context, &dropped, "FilterOverBudget", OVER_BUDGET).await;
            }
            if dropped.set_aside > set_aside {
                record(context, &dropped, "EventSetAside", &set_aside_message(&dropped)).await;
            }
        }
        for left in context.publisher.abandoned_events() {
            record_abandoned(context, &left).await;
        }
    }
}

/// With the position, although that makes another Event of each: such an event has stopped the process.
fn set_aside_message(DroppedEvents { stream, set_aside_position, .. }: &DroppedEvents) -> String {
    format!(
        "The event at position {set_aside_position} of the stream {stream} is set aside: a core stopped at it before \
         the last restart. It becomes a dead letter or is dropped; the log of the process says more."
    )
}

fn warning(reason: &str, message: &str) -> EventMessage {
    EventMessage { level: EventSeverity::Warning, reason: reason.into(), message: message.into() }
}

async fn record(
    context: &ControllerContext,
    DroppedEvents { uid, label, .. }: &DroppedEvents,
    reason: &str,
    why: &str,
) {
    let Some((namespace, name)) = label.split_once('/') else { return };
    let news = warning(reason, why);
    let is = |found: &Option<String>| found.as_ref() == Some(uid);
    if let Some(trigger) = context.caches.triggers.get(namespace, name).filter(|one| is(&one.metadata.uid)) {
        context.recorder.record(&*trigger, &news, now()).await;
    } else if let Some(one) = context.caches.subscriptions.get(namespace, name).filter(|one| is(&one.metadata.uid)) {
        context.recorder.record(&*one, &news, now()).await;
    }
}

/// On the Broker or channel, which may be gone.
async fn record_abandoned(context: &ControllerContext, left: &AbandonedEvents) {
    let mut parts = left.stream.split('/').map(str::to_owned);
    let (Some(kind), Some(ns), Some(name), Some(uid)) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let news = warning("EventsAbandoned", if left.is_whole { STREAM_DELETED } else { SUBSCRIBER_DELETED });
    if kind == "broker" {
        let mut broker = Broker::new(&ns, &name, BrokerSpec::default());
        broker.metadata.uid = Some(uid);
        context.recorder.record(&broker, &news, now()).await;
    } else {
        let mut channel = InMemoryChannel::new(&ns, &name, InMemoryChannelSpec::default());
        channel.metadata.uid = Some(uid);
        context.recorder.record(&channel, &news, now()).await;
    }
}
