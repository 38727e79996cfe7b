//! Forwards events between cores: all events of an ordered stream go into one core's log, whichever core
//! received them.
//!
//! A core's log keeps the order of arrival, and two logs have no common order. Only ordered streams pay for
//! forwarding: a copy of the request and two wakes, some 20 µs.
//!
//! Other threads use the same channels to let a core send a request for them.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::FixedState;
use tokio::sync::{mpsc, oneshot};

use codec::encode::EncodedEvent;
use codec::http::LocalResponse;
use codec::stored_request::RequestId;

use crate::event_response::unavailable;
use crate::limits::RELAYED_MAX;
use crate::post_error::PostError;
use crate::table::DeliveryTarget;

/// One core's end of the channels to all others.
#[derive(Debug)]
pub struct CoreRelay {
    core: usize,
    senders: Arc<[mpsc::Sender<CoreMessage>]>,
    inbox: mpsc::Receiver<CoreMessage>,
}

/// A message to another core, which sends an answer; if the receiver of the answer is gone, it is
/// discarded.
#[derive(Debug)]
pub enum CoreMessage {
    /// A request for a stream that the receiving core owns.
    Request { path: Box<str>, headers: Vec<(Box<str>, Box<[u8]>)>, body: Bytes, answer: oneshot::Sender<LocalResponse> },
    /// A record for the stream at this path, made by [`codec::record::addressed`].
    Copy { path: Box<str>, record: Vec<u8>, answer: oneshot::Sender<LocalResponse> },
    /// A question for the response to a stored request of the stream at this path; `None` if the core does not know it.
    Result { path: Box<str>, id: RequestId, answer: oneshot::Sender<Option<LocalResponse>> },
    /// A request to send, in the same way as a delivery.
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
    /// One relay for each core.
    #[must_use]
    pub fn among(cores: usize) -> Vec<Self> {
        let (ways, inboxes): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::channel(RELAYED_MAX)).unzip();
        let ways: Arc<[_]> = ways.into();
        let end = |(core, inbox)| Self { core, senders: Arc::clone(&ways), inbox };
        inboxes.into_iter().enumerate().map(end).collect()
    }

    /// The relay of a single core.
    #[must_use]
    pub fn alone() -> Self {
        Self::among(1).remove(0)
    }

    /// The sending half, for threads that are no core.
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
    /// Whether another core owns the stream of this name.
    #[must_use]
    pub fn is_remote(&self, stream: &str) -> bool {
        self.writer_of(stream) != self.core
    }

    fn writer_of(&self, stream: &str) -> usize {
        let hash = FixedState::default().hash_one(stream);
        usize::try_from(hash % self.senders.len() as u64).unwrap_or_default()
    }

    /// Forwards the request and waits for the answer.
    pub async fn send(&self, stream: &str, path: &str, headers: &[(&str, &[u8])], body: &[u8]) -> LocalResponse {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let body = Bytes::copy_from_slice(body); // the receive buffers belong to this thread
        self.forward(stream, |answer| CoreMessage::Request { path: path.into(), headers, body, answer }).await
    }

    /// Appends a record to the stream of this name at this path.
    pub async fn copy(&self, stream: &str, path: &str, record: Vec<u8>) -> LocalResponse {
        self.forward(stream, |answer| CoreMessage::Copy { path: path.into(), record, answer }).await
    }

    /// Lets a core send a request like a delivery: to a Service in this process, which is started if it
    /// sleeps, or to an external address, with TLS if the target requires it.
    ///
    /// # Errors There was no response; all of these may be temporary.
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
            return unsent("the core that would send it is overloaded");
        }
        hear.await.unwrap_or_else(|_| unsent("the core that would send it is stopping"))
    }

    /// The response to a stored request that another core has, or its state; `None` if none of them knows it.
    pub async fn result(&self, path: &str, id: RequestId) -> Option<LocalResponse> {
        for (_, other) in self.senders.iter().enumerate().filter(|(core, _)| *core != self.core) {
            let (answer, hear) = oneshot::channel();
            if other.try_send(CoreMessage::Result { path: path.into(), id, answer }).is_err() {
                return Some(unavailable("a core that may have the result is overloaded"));
            }
            if let Ok(Some(found)) = hear.await {
                return Some(found);
            }
        }
        None
    }

    async fn forward(
        &self,
        stream: &str,
        message: impl FnOnce(oneshot::Sender<LocalResponse>) -> CoreMessage,
    ) -> LocalResponse {
        let (answer, hear) = oneshot::channel();
        if self.senders[self.writer_of(stream)].try_send(message(answer)).is_err() {
            return unavailable("the core that orders this stream is overloaded");
        }
        hear.await.unwrap_or_else(|_| unavailable("the core that orders this stream is stopping"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_owned_by_one_core() {
        for cores in 1..5 {
            let ends: Vec<_> = CoreRelay::among(cores).into_iter().map(|end| end.split().0).collect();
            for stream in ["broker/ns/a/1", "broker/ns/b/2", "channel/ns/c/3"] {
                let writers = ends.iter().filter(|end| !end.is_remote(stream)).count();
                assert_eq!(writers, 1, "{stream} among {cores}");
            }
        }
    }
}
