//! The subscriber of a request: `NAMESPACE/NAME`, or prefixed by the kind where that is ambiguous.

use std::sync::Arc;

use anyhow::{Result, bail};
use dataplane::table::{EventStream, RoutingTable, Subscriber};

/// A subscriber of the table.
pub(super) struct SubscriberRef<'t> {
    /// Path of its stream.
    pub(super) path: &'t str,
    pub(super) stream: &'t Arc<EventStream>,
    pub(super) subscriber: &'t Arc<Subscriber>,
}

impl SubscriberRef<'_> {
    /// Brokers have Triggers, channels have Subscriptions, and stored requests their Service.
    pub(super) fn kind(&self) -> &'static str {
        match self.path.split('/').nth(1) {
            Some("brokers") => "trigger",
            Some("requests") => "service",
            _ => "subscription",
        }
    }
}

/// All subscribers of the table.
pub(super) fn all(table: &RoutingTable) -> impl Iterator<Item = SubscriberRef<'_>> {
    table.streams.iter().flat_map(|(path, stream)| {
        stream.subscribers.iter().map(move |subscriber| SubscriberRef { path, stream, subscriber })
    })
}

/// The only one with this name.
pub(super) fn named<'t>(table: &'t RoutingTable, name: &str) -> Result<SubscriberRef<'t>> {
    let (kind, label) = match name.split_once('/') {
        Some((kind @ ("trigger" | "subscription" | "service"), label)) if label.contains('/') => (Some(kind), label),
        _ => (None, name),
    };
    if !label.contains('/') {
        bail!("{name:?} has no namespace: write NAMESPACE/NAME, as in default/{name}");
    }
    let mut found = all(table)
        .filter(|reference| *reference.subscriber.label == *label && kind.is_none_or(|kind| kind == reference.kind()));
    match (found.next(), found.next()) {
        (Some(reference), None) => Ok(reference),
        (Some(_), Some(_)) => {
            bail!("{label} is a Trigger and a Subscription: write trigger/{label} or subscription/{label}")
        }
        (None, _) => bail!(
            "there is no Trigger or Subscription {name} that is Ready: `kubectl get triggers,subscriptions -A` lists them"
        ),
    }
}
