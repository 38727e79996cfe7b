//! Pulls the events of one consumer for a core, and acknowledges those that are done.
//!
//! A pull asks for no more than may be unfinished, so a slow subscriber holds back the server and not this process. The
//! server is told in time that unfinished events are still worked on. When the subscription ends, they are given back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::message::Acker;
use async_nats::jetstream::{AckKind, Message};
use contract::event_store::{EventStoreError, ReceivedEvent, SubscribeRequest};
use contract::limits::{STORE_UNFINISHED_BYTES_MAX, STORE_UNFINISHED_TOTAL_BYTES_MAX};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep};

use crate::connections::{Connections, JetStreamConnection};
use crate::limits::{
    ACKNOWLEDGED_MAX, FAILURES_LOGGED_MIN, MESSAGE_BYTES_MAX, PROGRESS_INTERVAL, PULL_EXPIRES,
    RECONNECT_CHECK_INTERVAL, RETRY_INTERVAL,
};
use crate::publisher::CONTENT_TYPE;
use crate::streams;

/// Serves one consumer until its core ends it, or the process stops.
pub(crate) async fn run(connections: Arc<Connections>, request: SubscribeRequest, stop: watch::Receiver<bool>) {
    let unfinished = UnfinishedEvents::within(connections.unfinished_bytes());
    let mut reader = ConsumerReader { request, unfinished, pull: None, stop };
    let mut failures = 0;
    while !reader.has_ended() {
        let stream = Arc::clone(&reader.request.stream);
        let why = match streams::ensure_consumer(&connections, &stream, &reader.request.consumer).await {
            Ok((connection, consumer)) => {
                if std::mem::take(&mut failures) >= FAILURES_LOGGED_MIN {
                    tracing::info!(stream = %stream.description, "events are received again");
                }
                match reader.receive(&connection, &consumer).await {
                    ReceiveEnd::Ended => break,
                    ReceiveEnd::Again => continue,
                    ReceiveEnd::Failed(why) => EventStoreError::Other(why),
                }
            }
            Err(why) => why,
        };
        failures += 1;
        let (stream, consumer) = (&*stream.description, &*reader.request.consumer.name);
        // Once: the Broker's condition says it, too. A new stream is not there at first.
        if failures == FAILURES_LOGGED_MIN {
            tracing::warn!(stream, consumer, %why, "no events are received; tried again");
        } else {
            tracing::debug!(stream, consumer, %why, "no events are received; tried again");
        }
        sleep(RETRY_INTERVAL).await;
    }
    reader.give_back().await;
}

struct ConsumerReader {
    request: SubscribeRequest,
    unfinished: UnfinishedEvents,
    /// The pull that the server serves.
    pull: Option<Batch>,
    stop: watch::Receiver<bool>,
}

enum ReceiveEnd {
    /// The core has ended the subscription.
    Ended,
    /// The server may have forgotten the pull.
    Again,
    Failed(String),
}

impl ConsumerReader {
    fn has_ended(&self) -> bool {
        *self.stop.borrow() || self.request.events.is_closed()
    }

    /// Pulls while there is room.
    async fn receive(&mut self, connection: &JetStreamConnection, consumer: &PullConsumer) -> ReceiveEnd {
        let connects = || connection.client.statistics().connects.load(Relaxed);
        let connected = connects();
        let mut look = interval(RECONNECT_CHECK_INTERVAL);
        self.pull = None;
        loop {
            if self.pull.is_none()
                && let Some((events, bytes)) = self.unfinished.room(self.request.consumer.unfinished_max)
            {
                let pull = consumer.batch().max_messages(events).max_bytes(bytes).expires(PULL_EXPIRES);
                match pull.messages().await {
                    Ok(pulled) => self.pull = Some(pulled),
                    Err(why) => return ReceiveEnd::Failed(why.to_string()),
                }
            }
            tokio::select! {
                biased;
                _ = self.stop.changed() => return ReceiveEnd::Ended,
                () = self.request.events.closed() => return ReceiveEnd::Ended,
                sequence = self.request.done.recv() => match sequence {
                    Some(sequence) => self.unfinished.acknowledge(sequence).await,
                    None => return ReceiveEnd::Ended,
                },
                message = next(&mut self.pull), if self.pull.is_some() => match message {
                    Some(Ok(message)) => self.take(message).await,
                    Some(Err(why)) if is_full(&why.to_string()) => self.pull = None,
                    Some(Err(why)) => return ReceiveEnd::Failed(why.to_string()),
                    None => self.pull = None,
                },
                _ = look.tick() => {
                    self.unfinished.keep_alive().await;
                    if connects() != connected {
                        while let Some(Some(Ok(message))) = next(&mut self.pull).now_or_never() {
                            self.take(message).await; // arrived before
                        }
                        return ReceiveEnd::Again;
                    }
                }
            }
        }
    }

    /// Gives back what is not done, including what has arrived and was not read. The pull ends first, or the server would
    /// deliver the same events into it.
    async fn give_back(mut self) {
        if let Some(mut batch) = self.pull.take() {
            while let Some(Some(Ok(message))) = batch.next().now_or_never() {
                let Some((sequence, _)) = sequence_and_time(&message) else { continue };
                let (message, acker) = message.split();
                self.unfinished.add(sequence, message.length, acker).await;
            }
        }
        self.unfinished.give_back().await;
    }

    async fn take(&mut self, message: Message) {
        let Some((sequence, at_ms)) = sequence_and_time(&message) else { return };
        let (message, acker) = message.split();
        if !self.unfinished.add(sequence, message.length, acker).await {
            return;
        }
        let headers = message.headers.iter().flat_map(|map| map.iter());
        let headers = headers
            .flat_map(|(name, values)| values.iter().map(move |value| (AsRef::<str>::as_ref(name), value.as_str())));
        let headers = headers.map(|(name, value)| (http_name(name).into(), value.into())).collect();
        let event = ReceivedEvent { sequence, at_ms, headers, body: message.payload };
        // There is room for all events that may be unfinished; if it is closed, they are given back.
        drop(self.request.events.send(event).await);
    }
}

/// The sequence of an event, and when it was stored in milliseconds since 1970. `None`: a message of the server, and no event.
fn sequence_and_time(message: &Message) -> Option<(u64, u64)> {
    let info = message.info().ok()?;
    let at_ms = u64::try_from(info.published.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    Some((info.stream_sequence, at_ms))
}

/// The name of a header in the HTTP binding.
fn http_name(name: &str) -> &str {
    if name.eq_ignore_ascii_case(CONTENT_TYPE) { "content-type" } else { name }
}

async fn next(pull: &mut Option<Batch>) -> Option<Result<Message, async_nats::Error>> {
    pull.as_mut()?.next().await
}

/// The server has ended a pull, because the next message does not fit into it.
fn is_full(why: &str) -> bool {
    why.contains("Exceeds MaxBytes") || why.contains("Exceeded Max")
}

/// The events that are delivered and not acknowledged, by their sequence.
#[derive(Default)]
struct UnfinishedEvents {
    events: HashMap<u64, UnfinishedEvent>,
    bytes: usize,
    /// Those of all consumers.
    total_bytes: Arc<AtomicUsize>,
    acknowledged: AcknowledgedSequences,
    kept_alive: Option<Instant>,
}

struct UnfinishedEvent {
    acker: Acker,
    bytes: usize,
}

impl UnfinishedEvents {
    /// The events and bytes that may be pulled now.
    fn room(&self, events_max: usize) -> Option<(usize, usize)> {
        let events = events_max.saturating_sub(self.events.len());
        let total = STORE_UNFINISHED_TOTAL_BYTES_MAX.saturating_sub(self.total_bytes.load(Relaxed));
        let bytes = STORE_UNFINISHED_BYTES_MAX.saturating_sub(self.bytes).min(total);
        if events > 0 && self.events.is_empty() && bytes < MESSAGE_BYTES_MAX {
            return Some((1, MESSAGE_BYTES_MAX)); // otherwise the events of some consumers would stop those of others
        }
        (events > 0 && bytes >= MESSAGE_BYTES_MAX).then_some((events, bytes))
    }

    fn within(total_bytes: Arc<AtomicUsize>) -> Self {
        let (acknowledged, events) = (AcknowledgedSequences::default(), HashMap::new());
        Self { events, bytes: 0, total_bytes, acknowledged, kept_alive: None }
    }

    /// Adds a delivered event; returns whether it is new here. One that is known was delivered again, because the server
    /// or its connection was lost: the newest delivery is the one to acknowledge.
    async fn add(&mut self, sequence: u64, bytes: usize, acker: Acker) -> bool {
        if self.acknowledged.has(sequence) {
            acknowledge(&acker, AckKind::Ack).await;
            return false;
        }
        if let Some(known) = self.events.get_mut(&sequence) {
            known.acker = acker;
            return false;
        }
        self.bytes += bytes;
        self.total_bytes.fetch_add(bytes, Relaxed);
        self.events.insert(sequence, UnfinishedEvent { acker, bytes });
        true
    }

    async fn acknowledge(&mut self, sequence: u64) {
        let Some(event) = self.events.remove(&sequence) else { return };
        self.bytes -= event.bytes;
        self.total_bytes.fetch_sub(event.bytes, Relaxed);
        self.acknowledged.add(sequence);
        acknowledge(&event.acker, AckKind::Ack).await;
    }

    /// Tells the server from time to time that they are still worked on.
    async fn keep_alive(&mut self) {
        let is_due = |last: &Instant| last.elapsed() >= PROGRESS_INTERVAL - Duration::from_millis(1);
        if !self.kept_alive.as_ref().is_none_or(is_due) {
            return;
        }
        self.kept_alive = Some(Instant::now());
        for event in self.events.values() {
            acknowledge(&event.acker, AckKind::Progress).await;
        }
    }

    /// The server delivers them to the next reader at once.
    async fn give_back(&mut self) {
        for (_, event) in self.events.drain() {
            acknowledge(&event.acker, AckKind::Nak(None)).await;
        }
    }
}

impl Drop for UnfinishedEvents {
    fn drop(&mut self) {
        self.total_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// If it is lost, the server delivers the event again.
async fn acknowledge(acker: &Acker, kind: AckKind) {
    if let Err(why) = acker.ack_with(kind).await {
        tracing::debug!(%why, "an acknowledgement was not sent");
    }
}

/// The last sequences that were acknowledged.
#[derive(Debug, Default)]
struct AcknowledgedSequences {
    order: VecDeque<u64>,
    known: HashSet<u64>,
}

impl AcknowledgedSequences {
    fn has(&self, sequence: u64) -> bool {
        self.known.contains(&sequence)
    }

    fn add(&mut self, sequence: u64) {
        if !self.known.insert(sequence) {
            return;
        }
        self.order.push_back(sequence);
        if self.order.len() > ACKNOWLEDGED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_acknowledged_sequences_are_remembered() {
        let mut acknowledged = AcknowledgedSequences::default();
        let last = ACKNOWLEDGED_MAX as u64 + 10;
        (1..=last).chain([last]).for_each(|sequence| acknowledged.add(sequence));
        assert_eq!((acknowledged.order.len(), acknowledged.known.len()), (ACKNOWLEDGED_MAX, ACKNOWLEDGED_MAX));
        assert!(!acknowledged.has(10) && acknowledged.has(11) && acknowledged.has(last));
    }

    #[test]
    fn pull_leaves_room_for_the_largest_message() {
        let mut unfinished = UnfinishedEvents::default();
        assert_eq!(unfinished.room(256), Some((256, STORE_UNFINISHED_BYTES_MAX)));
        unfinished.bytes = STORE_UNFINISHED_BYTES_MAX - MESSAGE_BYTES_MAX;
        assert_eq!(unfinished.room(256), Some((256, MESSAGE_BYTES_MAX)));
        unfinished.bytes = STORE_UNFINISHED_BYTES_MAX;
        unfinished.total_bytes.store(unfinished.bytes, Relaxed);
        let full = UnfinishedEvents::within(Arc::new(STORE_UNFINISHED_TOTAL_BYTES_MAX.into()));
        assert_eq!(full.room(256), Some((1, MESSAGE_BYTES_MAX)), "one at a time while others hold all");
        assert_eq!(full.room(0), None);
    }
}
