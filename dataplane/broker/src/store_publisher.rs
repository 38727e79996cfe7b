//! Publishes accepted events into an external store, and answers when it has them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use codec::http::LocalResponse;
use codec::record::ExtensionHeader;
use contract::event_response::{answer, unavailable};
use contract::event_store::{EventStoreError, ExternalStream, StoreMessage};
use contract::table::EventStream;

use super::delivery::EventSender;
use super::engine::BrokerEngine;
use super::ingress::{self, IncomingEvent};
use super::stored_message;

impl<P: EventSender + Clone> BrokerEngine<P> {
    /// Answers 202 when the store has all of the events. A store takes them one by one: if it refuses one of a batch,
    /// the sender repeats all, and the store recognises those that it has by their ids.
    pub(super) async fn publish(
        &self,
        stream: &EventStream,
        external: &Arc<ExternalStream>,
        events: &[IncomingEvent<'_>],
        extensions: &[ExtensionHeader<'_>],
    ) -> LocalResponse {
        let (mut answers, mut failure) = (Vec::with_capacity(events.len()), None);
        for incoming in events {
            let content = stored_message::encode_message(incoming.head(extensions), incoming.event.data.bytes());
            let content = content.map_err(|why| EventStoreError::Other(why.to_string()));
            let id = stored_message::id_of(&incoming.event);
            match content.and_then(|content| external.publish(StoreMessage { id, content })) {
                Ok(answer) => answers.push(answer),
                Err(why) => {
                    failure = Some(why);
                    break;
                }
            }
        }
        for answer in answers {
            match answer.await.unwrap_or(Err(EventStoreError::Stopping)) {
                Ok(stored) if stored.is_duplicate => stream.tally.deduplicated.fetch_add(1, Relaxed),
                Ok(_) => stream.tally.accepted.fetch_add(1, Relaxed),
                Err(why) => {
                    failure.get_or_insert(why);
                    continue;
                }
            };
        }
        failure.as_ref().map_or_else(ingress::accepted, not_stored)
    }
}

/// The response to an event that the store did not take.
fn not_stored(why: &EventStoreError) -> LocalResponse {
    match why {
        EventStoreError::TooLarge { .. } => answer(413, &why.to_string()),
        _ => unavailable(&why.to_string()),
    }
}
