//! Requests about received messages: deletions and changes of the visibility timeout, in batches and a few at once.

use std::pin::Pin;
use std::rc::Rc;

use adapter::Error;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::ReceiptHandle;
use super::queue::{BATCH_MAX, SqsQueue};

/// Requests to SQS at once beside the poll. More of them would each open a connection.
const ACTIONS_MAX: usize = 8;

/// Returns the handles whose deletion has to be tried again.
type Action = Pin<Box<dyn Future<Output = Result<Vec<ReceiptHandle>, Error>>>>;

pub(super) struct SqsActions {
    queue: Rc<SqsQueue>,
    url: Rc<str>,
    running: FuturesUnordered<Action>,
    deleted: Vec<ReceiptHandle>,
    /// SQS delivers them again at once.
    released: Vec<ReceiptHandle>,
    /// They stay invisible for the visibility timeout.
    extended: Vec<ReceiptHandle>,
}

impl SqsActions {
    pub(super) fn new(queue: Rc<SqsQueue>, url: Rc<str>) -> SqsActions {
        let running = FuturesUnordered::new();
        SqsActions { queue, url, running, deleted: Vec::new(), released: Vec::new(), extended: Vec::new() }
    }

    pub(super) fn delete(&mut self, handle: ReceiptHandle) {
        self.deleted.push(handle);
    }

    pub(super) fn release(&mut self, handle: ReceiptHandle) {
        self.released.push(handle);
    }

    /// Replaces the handles of the last heartbeat that were not sent: those that are still pending are among the new ones.
    pub(super) fn extend(&mut self, handles: Vec<ReceiptHandle>) {
        self.extended = handles;
    }

    /// Nothing that SQS has to know is left.
    pub(super) fn is_done(&self) -> bool {
        self.running.is_empty() && self.deleted.is_empty() && self.released.is_empty()
    }

    /// Starts the requests that there is room for.
    pub(super) fn start(&mut self, visibility_seconds: u32) {
        while self.running.len() < ACTIONS_MAX {
            let (queue, url) = (Rc::clone(&self.queue), Rc::clone(&self.url));
            // One small deletion at a time: what is settled meanwhile goes into the next one.
            let deletes = self.deleted.len() >= BATCH_MAX || !self.deleted.is_empty() && self.running.is_empty();
            if deletes {
                let handles = batch(&mut self.deleted);
                self.running.push(Box::pin(async move { queue.delete(&url, handles).await }));
                continue;
            }
            let (handles, seconds) = if !self.extended.is_empty() {
                (batch(&mut self.extended), visibility_seconds)
            } else if !self.released.is_empty() {
                (batch(&mut self.released), 0)
            } else {
                return;
            };
            self.running.push(Box::pin(async move {
                queue.set_visibility(&url, handles, seconds).await?;
                Ok(Vec::new())
            }));
        }
    }

    /// Waits for the end of one request, or for ever if none is running. Safe to use in `select!`.
    pub(super) async fn finished(&mut self) -> Result<(), Error> {
        let Some(again) = self.running.next().await else { return std::future::pending().await };
        self.deleted.extend(again?);
        Ok(())
    }
}

/// The oldest first: the message of a handle that waits for too long is visible again.
fn batch(handles: &mut Vec<ReceiptHandle>) -> Vec<ReceiptHandle> {
    handles.drain(..handles.len().min(BATCH_MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::CredentialFiles;
    use crate::sqs::queue::SqsQueueConfig;

    #[test]
    fn requests_at_once_are_bounded_and_deletions_come_first() {
        let config = SqsQueueConfig {
            arn: "q".to_owned(),
            region: Some("us-east-1".to_owned()),
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            credentials: CredentialFiles::default(),
            tls: None,
            creates: false,
        };
        let queue = Rc::new(SqsQueue::new(config, "ADAPTER_RECEIVER").unwrap());
        let mut actions = SqsActions::new(queue, "http://127.0.0.1:1/q".into());
        let handles = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<ReceiptHandle>>();
        handles(2 * BATCH_MAX).into_iter().for_each(|handle| actions.delete(handle));
        actions.extend(handles(100));
        handles(2048).into_iter().for_each(|handle| actions.release(handle));
        actions.start(30);
        assert_eq!(actions.running.len(), ACTIONS_MAX);
        assert!(actions.deleted.is_empty());
        assert_eq!(actions.extended[0], ((ACTIONS_MAX - 2) * BATCH_MAX).to_string(), "the oldest are sent first");
        assert_eq!((actions.extended.len(), actions.released.len()), (100 - (ACTIONS_MAX - 2) * BATCH_MAX, 2048));
        assert!(!actions.is_done());
    }
}
