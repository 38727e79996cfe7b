//! Between cores: events of a stream whose subscribers want them in order go into one core's log,
//! whichever core they came in at.
//!
//! A core's log keeps the order in which events came to it, and two logs have none between them. Only
//! such streams pay for the way: a copy of the request and two wakes, some 20 µs.
//!
//! By the same ways whoever is no core has a core send something for it.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::FixedState;
use tokio::sync::{mpsc, oneshot};

use super::LocalResponse;
use super::delivery::PostError;
use super::encode::EncodedEvent;
use super::ingress;
use super::limits::RELAYED_MAX;
use crate::table::DeliveryTarget;

/// One core's end of the ways to all others.
#[derive(Debug)]
pub struct CoreRelay {
    core: usize,
    senders: Arc<[mpsc::Sender<CoreMessage>]>,
    inbox: mpsc::Receiver<CoreMessage>,
}

/// Something on its way to another core, whose answer is waited for; a sender that has gone hears nothing.
#[derive(Debug)]
pub enum CoreMessage {
    /// A request for a stream that the core keeps.
    Request { path: Box<str>, headers: Vec<(Box<str>, Box<[u8]>)>, body: Bytes, answer: oneshot::Sender<LocalResponse> },
    /// A record for the stream at this path, as [`super::record::addressed`] makes them.
    Copy { path: Box<str>, record: Vec<u8>, answer: oneshot::Sender<LocalResponse> },
    /// A request to somebody, as deliveries are made.
    DeadLetter(Box<ForwardedDeadLetter>),
}

/// See [`CoreMessage::DeadLetter`].
#[derive(Debug)]
pub struct ForwardedDeadLetter {
    pub target: DeliveryTarget,
    pub request: EncodedEvent,
    pub timeout: Duration,
    pub answer: oneshot::Sender<Result<LocalResponse, PostError>>,
}

/// The sending half.
#[derive(Debug, Clone)]
pub struct CoreSenders {
    core: usize,
    senders: Arc<[mpsc::Sender<CoreMessage>]>,
}

impl CoreRelay {
    /// An end for each core.
    #[must_use]
    pub fn among(cores: usize) -> Vec<Self> {
        let (ways, inboxes): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::channel(RELAYED_MAX)).unzip();
        let ways: Arc<[_]> = ways.into();
        let end = |(core, inbox)| Self { core, senders: Arc::clone(&ways), inbox };
        inboxes.into_iter().enumerate().map(end).collect()
    }

    /// The end of a core that has no others.
    #[must_use]
    pub fn alone() -> Self {
        Self::among(1).remove(0)
    }

    /// The sending half, for whoever is no core.
    #[must_use]
    pub fn senders(&self) -> CoreSenders {
        CoreSenders { core: self.core, senders: Arc::clone(&self.senders) }
    }

    #[must_use]
    pub fn split(self) -> (CoreSenders, mpsc::Receiver<CoreMessage>) {
        (CoreSenders { core: self.core, senders: self.senders }, self.inbox)
    }
}

impl CoreSenders {
    /// Whether the stream of this name is kept by another core.
    #[must_use]
    pub fn is_remote(&self, stream: &str) -> bool {
        self.writer_of(stream) != self.core
    }

    fn writer_of(&self, stream: &str) -> usize {
        let hash = FixedState::default().hash_one(stream);
        usize::try_from(hash % self.senders.len() as u64).unwrap_or_default()
    }

    /// Hands the request over and waits for the answer.
    pub async fn send(&self, stream: &str, path: &str, headers: &[(&str, &[u8])], body: &[u8]) -> LocalResponse {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let body = Bytes::copy_from_slice(body); // the receive buffers are this thread's own
        self.forward(stream, |answer| CoreMessage::Request { path: path.into(), headers, body, answer }).await
    }

    /// Has a record appended to the stream of this name at this path.
    pub async fn copy(&self, stream: &str, path: &str, record: Vec<u8>) -> LocalResponse {
        self.forward(stream, |answer| CoreMessage::Copy { path: path.into(), record, answer }).await
    }

    /// Has a core make a request as it makes deliveries: to a Service of ours in this process, started if it sleeps, to
    /// everybody else by address, by TLS if the target says so.
    ///
    /// # Errors
    /// There was no answer; all of these may pass.
    pub async fn send_to_core(
        &self,
        target: DeliveryTarget,
        request: EncodedEvent,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        let (answer, hear) = oneshot::channel();
        let way = &self.senders[self.writer_of(&target.url)];
        let unsent = |why: &str| Err(PostError::Transport(why.into()));
        if way
            .try_send(CoreMessage::DeadLetter(Box::new(ForwardedDeadLetter { target, request, timeout, answer })))
            .is_err()
        {
            return unsent("the core that would send it has too much to do");
        }
        hear.await.unwrap_or_else(|_| unsent("the core that was to send it ends"))
    }

    async fn forward(
        &self,
        stream: &str,
        parcel: impl FnOnce(oneshot::Sender<LocalResponse>) -> CoreMessage,
    ) -> LocalResponse {
        let (answer, hear) = oneshot::channel();
        if self.senders[self.writer_of(stream)].try_send(parcel(answer)).is_err() {
            return ingress::unavailable("the core that keeps this stream in order has too much to do");
        }
        hear.await.unwrap_or_else(|_| ingress::unavailable("the core that keeps this stream in order ends"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_kept_by_one_core() {
        for cores in 1..5 {
            let ends: Vec<_> = CoreRelay::among(cores).into_iter().map(|end| end.split().0).collect();
            for stream in ["broker/ns/a/1", "broker/ns/b/2", "channel/ns/c/3"] {
                let keepers = ends.iter().filter(|end| !end.is_remote(stream)).count();
                assert_eq!(keepers, 1, "{stream} among {cores}");
            }
        }
    }
}
