//! Receives a worker's events from an external store.

use std::rc::Rc;
use std::sync::Arc;

use codec::cloudevent::CloudEvent;
use contract::event_store::{
    ConsumerSpec, EventStoreError, ExternalStream, ReceivedEvent, StoreMessage, SubscribeRequest,
};
use contract::limits::STORE_UNFINISHED_MAX;
use contract::table::{DeliveryOrder, Subscriber};
use ring::Notify;
use tokio::sync::mpsc;
use wal::{LogPosition, LogRecord};

use super::recovered_attempts::AttemptCounts;
use super::send::EventSender;
use super::source::EventSource;
use super::store_reader::StoreReader;
use super::worker::{DispatchContext, SubscriberConfig, SubscriptionWorker};
use crate::limits::SPACE_RETRY_INTERVAL;
use crate::stored_message;

pub(super) fn consumer(subscriber: &Subscriber) -> ConsumerSpec {
    let is_ordered = subscriber.delivery.sequence != DeliveryOrder::Free;
    ConsumerSpec::of(&subscriber.name, subscriber.initial_offset, is_ordered)
}

impl<P: EventSender> SubscriptionWorker<P> {
    /// Continues where the subscriber's consumer in the store is.
    pub(super) fn start_on_store(
        context: &Rc<DispatchContext<P>>,
        stream: &Arc<ExternalStream>,
        order: SubscriberConfig,
    ) -> Rc<Self> {
        let (events, received) = mpsc::channel(STORE_UNFINISHED_MAX);
        let (done, acknowledged) = mpsc::unbounded_channel(); // bounded by the events that are unfinished
        let consumer = consumer(&order.subscriber);
        let source = EventSource::Store(StoreReader::new(done));
        let worker = Self::spawn(context, source, Rc::new(Notify::default()), order, AttemptCounts::default());
        let request = SubscribeRequest { stream: Arc::clone(stream), consumer, events, done: acknowledged };
        let (stream, receiver) = (Arc::clone(stream), Rc::clone(&worker));
        context.ring.spawn(async move {
            stream.subscribe(request).await;
            receiver.receive(received).await;
        });
        worker
    }

    async fn receive(self: Rc<Self>, mut received: mpsc::Receiver<ReceivedEvent>) {
        let EventSource::Store(reader) = &self.source else { return };
        while let Some(event) = received.recv().await {
            self.turn_budget().await;
            self.charge_encoding(event.body.len());
            if self.is_stopped() || !reader.receive(self.record(&event)) {
                return;
            }
            self.offer(1);
            self.notify.ring();
        }
    }

    /// The event as a record. One that is no CloudEvent becomes a record that cannot be decoded: it is reported and
    /// dropped like a damaged one.
    fn record(&self, event: &ReceivedEvent) -> LogRecord {
        let payload = stored_message::decode(event, &mut self.context.rng.borrow_mut()).unwrap_or_else(|why| {
            let (stream, sequence) = (&*self.order.borrow().stream.name, event.sequence);
            tracing::warn!(stream, sequence, why, "a message of the store is no event");
            Vec::new()
        });
        let (position, next) = (LogPosition::new(event.sequence), LogPosition::new(event.sequence + 1));
        LogRecord { position, since: position, next, damaged: 0, at_ms: event.at_ms, payload: payload.into() }
    }

    /// Publishes a reply into the store, and while that cannot take it waits: the original event is not done before,
    /// and another request to the subscriber does not help.
    pub(super) async fn publish_reply(
        &self,
        stream: &Arc<ExternalStream>,
        position: LogPosition,
        head: &[u8],
        reply: &CloudEvent<'_>,
    ) -> Result<(), String> {
        let id = self.reply_id(position, reply);
        let content = stored_message::encode_message(head.to_vec(), reply.data.bytes());
        let content = content.map_err(|why| why.to_string())?;
        loop {
            let stored = match stream.publish(StoreMessage { id: id.clone(), content: content.clone() }) {
                Ok(answer) => answer.await.unwrap_or(Err(EventStoreError::Stopping)),
                Err(why) => Err(why),
            };
            match stored {
                Ok(_) => return Ok(()),
                Err(why) if why.is_temporary() && !self.is_stopped() && !self.on_hold.get() => {
                    tracing::debug!(subscriber = %self.order.borrow().subscriber.label, %why, "a reply waits");
                    self.context.ring.sleep(SPACE_RETRY_INTERVAL).await;
                }
                Err(why) => return Err(why.to_string()),
            }
        }
    }

    /// The message of a reply: the same for each attempt of this delivery, and another one for each other delivery,
    /// since many subscribers reply with the id and source of the event that they got.
    fn reply_id(&self, position: LogPosition, reply: &CloudEvent<'_>) -> Box<str> {
        let (id, source) = (reply.attribute("id"), reply.attribute("source"));
        let delivery = format!("{}:{position}", self.name);
        stored_message::id(&[&delivery, source.unwrap_or_default(), id.unwrap_or_default()])
    }
}
