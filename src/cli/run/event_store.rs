//! The external store of events: the thread that speaks to NATS JetStream, for Brokers of that class.

use std::sync::Arc;

use ::control::controllers::EventStoreConfig;
use anyhow::{Context as _, Result};
use dataplane::contract::event_store::EventStoreClient;
use dataplane::target_policy::TargetPolicy;
use jetstream::JetStreamThread;

use crate::config::RunConfig;

/// Starts the thread, which does nothing until there is such a Broker.
pub(super) fn start(config: &RunConfig, targets: &Arc<TargetPolicy>) -> Result<(EventStoreConfig, JetStreamThread)> {
    let (client, requests) = EventStoreClient::new();
    let thread = JetStreamThread::start(client.finish(), requests, Arc::clone(targets));
    let thread = thread.context("start the thread that speaks to JetStream")?;
    let servers = config.nats_servers.iter().map(|server| server.0.clone()).collect();
    Ok((EventStoreConfig { client, servers }, thread))
}
