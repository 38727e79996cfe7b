//! A replay to the subscriber itself: copies of the events, for this subscriber alone, appended to the same stream. From
//! there they are events like all others: durable, retried, counted, dead-lettered.

use std::time::Duration;

use anyhow::{Result, bail};
use dataplane::table::RoutingTable;

use super::super::super::AdminServer;

/// Attempts to append to a full core; RETRY_AFTER is the interval.
const ATTEMPTS_MAX: u32 = 100;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The subscriber that copies are for.
pub(super) struct SubscriberCopies {
    /// The path of its stream.
    pub(super) path: String,
    pub(super) stream: Box<str>,
    /// Its durable name.
    pub(super) subscriber: Box<str>,
}

impl SubscriberCopies {
    pub(super) async fn append(&self, admin: &AdminServer, copy: Vec<u8>) -> Result<()> {
        if !self.is_there(&admin.tables.load()) {
            bail!("the subscriber was deleted meanwhile, or is no longer Ready");
        }
        for _ in 0..ATTEMPTS_MAX {
            let answer = admin.senders.copy(&self.stream, &self.path, copy.clone()).await;
            match answer.status {
                202 => return Ok(()),
                503 => tokio::time::sleep(RETRY_AFTER).await, // full for now
                status => bail!("a copy was rejected: {status} {}", String::from_utf8_lossy(&answer.body).trim()),
            }
        }
        bail!("the log has no space for copies")
    }

    /// Without this check a copy for a missing subscriber would be appended, and never delivered.
    fn is_there(&self, table: &RoutingTable) -> bool {
        let stream = table.streams.get(&*self.path);
        stream.is_some_and(|stream| stream.subscribers.iter().any(|one| *one.name == *self.subscriber))
    }
}
