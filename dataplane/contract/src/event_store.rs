//! Streams whose events an external store has: the messages between the threads that use them and the thread that
//! speaks to the store.
//!
//! A core publishes and receives events with [`ExternalStream::publish`] and [`ExternalStream::subscribe`], control
//! makes and deletes streams and consumers. [`EventStoreClient`] is the sending half; the receiving half belongs to a
//! thread of its own, because clients of such stores need a runtime that the cores do not have. Nothing here names a
//! protocol.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use codec::encode::EncodedEvent;
use tokio::sync::{mpsc, oneshot};

use crate::initial_offset::InitialOffset;
use crate::limits::{STORE_PUBLISHED_BYTES_MAX, STORE_PUBLISHES_MAX, STORE_REQUESTS_MAX, STORE_UNFINISHED_MAX};

/// The stream of a Broker in an external store.
#[derive(Debug)]
pub struct ExternalStream {
    /// Its name there.
    pub name: Box<str>,
    /// For operators, who see it in the store's tools.
    pub description: Box<str>,
    pub connection: Arc<StoreConnection>,
    pub options: ExternalStreamOptions,
    pub client: EventStoreClient,
}

impl PartialEq for ExternalStream {
    /// Whether readers and publishers can go on with the other one.
    fn eq(&self, other: &Self) -> bool {
        let key = |stream: &Self| (stream.name.clone(), stream.options);
        key(self) == key(other) && self.connection == other.connection && self.description == other.description
    }
}

impl Eq for ExternalStream {}

/// How a stream is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalStreamOptions {
    /// Copies, each on a server of its own.
    pub replicas: u8,
    /// The oldest events beyond so many bytes are dropped; 0: none are, and the store's own limit rejects new ones.
    pub retention_bytes: u64,
    /// Older events are dropped; zero: none are.
    pub retention_time: Duration,
    /// An event with the id of an earlier one within this time is acknowledged and not stored again.
    pub duplicate_window: Duration,
}

/// How the store is reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreConnection {
    /// URLs of some servers; the others are discovered.
    pub servers: Vec<String>,
    pub credentials: StoreCredentials,
    /// Certificate authorities that are trusted for TLS, PEM; `None`: the system's.
    pub certificate_authorities: Option<String>,
}

impl StoreConnection {
    /// The servers, for messages.
    #[must_use]
    pub fn address(&self) -> String {
        self.servers.join(", ")
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum StoreCredentials {
    None,
    Password {
        user: String,
        password: String,
    },
    Token(String),
    /// The text of a credentials file.
    File(String),
}

impl fmt::Debug for StoreCredentials {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Password { .. } => "Password",
            Self::Token(_) => "Token",
            Self::File(_) => "File",
        })
    }
}

/// Why the store did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventStoreError {
    #[error("no connection to {servers}: {why}")]
    Unreachable { servers: String, why: String },
    #[error("{servers} rejects the credentials: {why}")]
    Unauthorized { servers: String, why: String },
    #[error("JetStream is not enabled on {servers}: {why}")]
    NotEnabled { servers: String, why: String },
    #[error("the stream cannot have {wanted} replicas: {why}; add servers, or set replicas in the Broker's ConfigMap")]
    ReplicasMissing { wanted: u8, why: String },
    #[error("stream {stream} has no leader: fewer than half of its replicas are reachable")]
    NoLeader { stream: String },
    #[error("stream {stream} does not exist in the store; it is made again within seconds")]
    StreamMissing { stream: String },
    #[error("the store is full: {why}")]
    Full { why: String },
    #[error("the event has {bytes} bytes as a message, the servers accept {max} (max_payload)")]
    TooLarge { bytes: usize, max: usize },
    #[error("{events} events with {bytes} bytes wait for the store already")]
    Overloaded { events: u64, bytes: u64 },
    #[error("{servers} did not answer within {waited:?}")]
    TimedOut { servers: String, waited: Duration },
    #[error("the process is stopping")]
    Stopping,
    #[error("{0}")]
    Other(String),
}

impl EventStoreError {
    /// Whether the same event may be stored later.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        !matches!(self, Self::TooLarge { .. } | Self::Stopping)
    }

    /// As a condition's reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "StoreUnreachable",
            Self::Unauthorized { .. } => "CredentialsRejected",
            Self::NotEnabled { .. } => "JetStreamNotEnabled",
            Self::ReplicasMissing { .. } => "ReplicasMissing",
            Self::NoLeader { .. } => "StreamWithoutLeader",
            Self::StreamMissing { .. } => "StreamMissing",
            Self::Full { .. } => "StoreFull",
            Self::TimedOut { .. } => "StoreTimeout",
            Self::TooLarge { .. } | Self::Overloaded { .. } | Self::Stopping | Self::Other(_) => "StoreFailed",
        }
    }
}

/// The state of a stream, as its store reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamReport {
    pub server_version: String,
    /// Replicas that have all events, including the leader.
    pub current_replicas: usize,
    /// Bytes of the stored events.
    pub bytes: u64,
}

/// A durable consumer: where a subscriber continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSpec {
    pub name: Box<str>,
    /// Where a new one begins.
    pub start: InitialOffset,
    /// Events that may be delivered and not acknowledged, over all readers.
    pub unfinished_max: usize,
}

impl ConsumerSpec {
    /// The consumer of a subscriber. With any order there is one event at a time, because a store has no order by key,
    /// and several processes may read one consumer.
    #[must_use]
    pub fn of(subscriber: &str, start: InitialOffset, is_ordered: bool) -> Self {
        let unfinished_max = if is_ordered { 1 } else { STORE_UNFINISHED_MAX };
        Self { name: subscriber.into(), start, unfinished_max }
    }
}

/// An event as a message of the store.
#[derive(Debug)]
pub struct StoreMessage {
    /// Two messages with the same id are one event.
    pub id: Box<str>,
    pub content: EncodedEvent,
}

/// The store has the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredEvent {
    /// It had it before.
    pub is_duplicate: bool,
}

/// An event that the store delivers. It is delivered again unless its sequence is reported as done.
#[derive(Debug)]
pub struct ReceivedEvent {
    /// Its number in the stream.
    pub sequence: u64,
    /// When it was stored, in milliseconds since 1970.
    pub at_ms: u64,
    pub headers: Vec<(Box<str>, Box<str>)>,
    pub body: Bytes,
}

/// The answer to a request.
pub type StoreAnswer<T> = oneshot::Sender<Result<T, EventStoreError>>;

/// A message to the thread that speaks to the store. If the receiver of an answer is gone, the answer is discarded.
#[derive(Debug)]
pub enum StoreRequest {
    /// Creates the stream, or changes its options; deletes consumers of ours that are not in `consumers`.
    EnsureStream {
        stream: Arc<ExternalStream>,
        consumers: Option<Vec<Box<str>>>,
        answer: StoreAnswer<StreamReport>,
    },
    DeleteStream {
        stream: Arc<ExternalStream>,
        answer: StoreAnswer<()>,
    },
    EnsureConsumer {
        stream: Arc<ExternalStream>,
        consumer: ConsumerSpec,
        answer: StoreAnswer<()>,
    },
    Publish(Box<PublishRequest>),
    Subscribe(Box<SubscribeRequest>),
    /// Acknowledge what is done, give the rest back, and end.
    Finish,
}

/// See [`StoreRequest::Publish`].
#[derive(Debug)]
pub struct PublishRequest {
    pub stream: Arc<ExternalStream>,
    pub message: StoreMessage,
    pub answer: StoreAnswer<StoredEvent>,
    /// Counts it as in flight.
    pub permit: PublishPermit,
}

/// See [`StoreRequest::Subscribe`]. It ends when `events` is closed, or all events in `done` are acknowledged and its
/// sender is gone.
#[derive(Debug)]
pub struct SubscribeRequest {
    pub stream: Arc<ExternalStream>,
    pub consumer: ConsumerSpec,
    pub events: mpsc::Sender<ReceivedEvent>,
    /// The sequences of events that are done.
    pub done: mpsc::UnboundedReceiver<u64>,
}

/// The way to the thread that speaks to the store. Clones share the limits.
#[derive(Debug, Clone)]
pub struct EventStoreClient {
    requests: mpsc::Sender<StoreRequest>,
    publishes: Arc<PublishesInFlight>,
}

#[derive(Debug, Default)]
struct PublishesInFlight {
    events: AtomicU64,
    bytes: AtomicU64,
}

impl EventStoreClient {
    /// A client, and the requests that it sends.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<StoreRequest>) {
        let (requests, received) = mpsc::channel(STORE_REQUESTS_MAX);
        (Self { requests, publishes: Arc::default() }, received)
    }

    /// Ends the thread that speaks to the store.
    #[must_use]
    pub fn finish(&self) -> StoreFinish {
        StoreFinish(self.requests.clone())
    }

    async fn ask<T>(&self, request: impl FnOnce(StoreAnswer<T>) -> StoreRequest) -> Result<T, EventStoreError> {
        let (answer, hear) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| EventStoreError::Stopping)?;
        hear.await.unwrap_or(Err(EventStoreError::Stopping))
    }
}

/// Ends the thread that speaks to the store, from a thread without a runtime.
#[derive(Debug)]
pub struct StoreFinish(mpsc::Sender<StoreRequest>);

impl StoreFinish {
    pub fn send(self) {
        drop(self.0.blocking_send(StoreRequest::Finish)); // it has ended otherwise
    }
}

/// Counts one event in flight until it is dropped.
#[derive(Debug)]
pub struct PublishPermit {
    publishes: Arc<PublishesInFlight>,
    bytes: u64,
}

impl PublishPermit {
    fn take(publishes: &Arc<PublishesInFlight>, bytes: usize) -> Result<Self, EventStoreError> {
        let bytes = bytes as u64;
        let (before, bytes_before) =
            (publishes.events.fetch_add(1, Relaxed), publishes.bytes.fetch_add(bytes, Relaxed));
        let permit = Self { publishes: Arc::clone(publishes), bytes }; // gives both back when it is refused, too
        if before >= STORE_PUBLISHES_MAX || bytes_before + bytes > STORE_PUBLISHED_BYTES_MAX {
            return Err(EventStoreError::Overloaded { events: before, bytes: bytes_before });
        }
        Ok(permit)
    }
}

impl Drop for PublishPermit {
    fn drop(&mut self) {
        self.publishes.events.fetch_sub(1, Relaxed);
        self.publishes.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl ExternalStream {
    /// Creates the stream, or changes its options. With `consumers`, other consumers of ours are deleted.
    ///
    /// # Errors Those of the store.
    pub async fn ensure(self: &Arc<Self>, consumers: Option<Vec<Box<str>>>) -> Result<StreamReport, EventStoreError> {
        let stream = Arc::clone(self);
        self.client.ask(|answer| StoreRequest::EnsureStream { stream, consumers, answer }).await
    }

    /// Deletes the stream with its events. One that does not exist is deleted.
    ///
    /// # Errors Those of the store.
    pub async fn delete(self: &Arc<Self>) -> Result<(), EventStoreError> {
        let stream = Arc::clone(self);
        self.client.ask(|answer| StoreRequest::DeleteStream { stream, answer }).await
    }

    /// Creates a consumer, or changes its limit; every later event is for it.
    ///
    /// # Errors Those of the store.
    pub async fn ensure_consumer(self: &Arc<Self>, consumer: ConsumerSpec) -> Result<(), EventStoreError> {
        let stream = Arc::clone(self);
        self.client.ask(|answer| StoreRequest::EnsureConsumer { stream, consumer, answer }).await
    }

    /// Hands an event over, in the order of these calls; the answer comes when the store has it.
    ///
    /// # Errors Too many events wait for the store.
    pub fn publish(
        self: &Arc<Self>,
        message: StoreMessage,
    ) -> Result<oneshot::Receiver<Result<StoredEvent, EventStoreError>>, EventStoreError> {
        let bytes = message.content.fields.len() + message.content.body.len();
        let permit = PublishPermit::take(&self.client.publishes, bytes)?;
        let (answer, hear) = oneshot::channel();
        let request = PublishRequest { stream: Arc::clone(self), message, answer, permit };
        match self.client.requests.try_send(StoreRequest::Publish(Box::new(request))) {
            Ok(()) => Ok(hear),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(EventStoreError::Overloaded { events: STORE_REQUESTS_MAX as u64, bytes: 0 })
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(EventStoreError::Stopping),
        }
    }

    /// Receives the events of a consumer, which is created if it does not exist.
    pub async fn subscribe(&self, request: SubscribeRequest) {
        // The process is stopping otherwise, and the events' channel is closed with the request.
        drop(self.client.requests.send(StoreRequest::Subscribe(Box::new(request))).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(client: EventStoreClient) -> Arc<ExternalStream> {
        let connection = StoreConnection {
            servers: vec!["nats://a:4222".into()],
            credentials: StoreCredentials::Token("secret".into()),
            certificate_authorities: None,
        };
        let options = ExternalStreamOptions {
            replicas: 3,
            retention_bytes: 0,
            retention_time: Duration::ZERO,
            duplicate_window: Duration::from_secs(120),
        };
        let (name, description) = ("s".into(), "Broker ns/b".into());
        Arc::new(ExternalStream { name, description, connection: Arc::new(connection), options, client })
    }

    fn message(bytes: usize) -> StoreMessage {
        let content = EncodedEvent { fields: Vec::new(), body: vec![0; bytes].into() };
        StoreMessage { id: "1".into(), content }
    }

    #[test]
    fn publishes_are_bounded_in_number_and_bytes() {
        let (client, mut requests) = EventStoreClient::new();
        let stream = stream(client);
        let half = usize::try_from(STORE_PUBLISHED_BYTES_MAX / 2).unwrap();
        let held: Vec<_> = (0..2).map(|_| stream.publish(message(half)).unwrap()).collect();
        let refused = stream.publish(message(1)).unwrap_err();
        assert_eq!(refused, EventStoreError::Overloaded { events: 2, bytes: STORE_PUBLISHED_BYTES_MAX });
        drop(requests.try_recv());
        assert!(stream.publish(message(1)).is_ok(), "its request was dropped, and its bytes with it");
        drop(held);
        while requests.try_recv().is_ok() {}
        let (mut sent, mut kept) = (0, Vec::new());
        while stream.publish(message(1)).is_ok() {
            sent += 1;
            kept.extend(requests.try_recv());
        }
        assert_eq!(sent, STORE_PUBLISHES_MAX);
    }

    #[test]
    fn secrets_are_not_shown() {
        let stream = stream(EventStoreClient::new().0);
        assert!(!format!("{stream:?}").contains("secret"));
    }
}
