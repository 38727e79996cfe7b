//! Publishes events, and answers when the servers have them.

use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::message::PublishMessage;
use codec::encode::EncodedEvent;
use contract::event_store::{EventStoreError, ExternalStream, PublishRequest, StoreMessage, StoredEvent};

use crate::connections::Connections;
use crate::errors;

/// The name of `datacontenttype` in the NATS binding; in the structured mode it is `Content-Type` there, too.
pub(crate) const CONTENT_TYPE: &str = "ce-datacontenttype";

/// Hands the event to the connection, in the order of the calls, and lets a task wait for the answer.
pub(crate) async fn publish(connections: Arc<Connections>, request: PublishRequest) {
    let PublishRequest { stream, message, answer, permit } = request;
    match send(&connections, &stream, message).await {
        Ok(stored) => {
            tokio::spawn(async move {
                let outcome = match stored.await {
                    Ok(ack) => Ok(StoredEvent { is_duplicate: ack.duplicate }),
                    Err(why) => Err(errors::not_published(&stream, &why)),
                };
                drop(permit);
                drop(answer.send(outcome)); // the sender may have hung up
            });
        }
        Err(why) => drop(answer.send(Err(why))),
    }
}

async fn send(
    connections: &Connections,
    stream: &ExternalStream,
    message: StoreMessage,
) -> Result<PublishAckFuture, EventStoreError> {
    let connection = connections.connected(&stream.connection)?;
    let StoreMessage { id, content } = message;
    let headers = headers(&content);
    let (bytes, max) = (wire_bytes(&headers, &id, &content), connection.client.server_info().max_payload);
    if bytes > max {
        return Err(EventStoreError::TooLarge { bytes, max });
    }
    let message = PublishMessage::build().headers(headers).payload(content.body).message_id(&id);
    let message = message.expected_stream(&stream.name);
    let sent = connection.context.send_publish(stream.name.to_string(), message).await;
    sent.map_err(|why| errors::not_published(stream, &why))
}

/// The headers of the NATS binding: those of HTTP, but for the name of the content type.
fn headers(content: &EncodedEvent) -> HeaderMap {
    let is_binary = content.headers().any(|(name, _)| name.eq_ignore_ascii_case("ce-id"));
    let mut headers = HeaderMap::new();
    for (name, value) in content.headers() {
        let name = if is_binary && name.eq_ignore_ascii_case("content-type") { CONTENT_TYPE } else { name };
        // Only a forwarded header may have bytes that are not UTF-8.
        let value = String::from_utf8_lossy(value);
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            headers.append(name, value);
        }
    }
    headers
}

/// The size that the servers compare with their limit: the version, and a line a header.
fn wire_bytes(headers: &HeaderMap, id: &str, content: &EncodedEvent) -> usize {
    const VERSION_LINES: usize = "NATS/1.0\r\n\r\n".len();
    const LINE: usize = ": \r\n".len();
    const OWN_NAMES: usize = "Nats-Msg-Id".len() + "Nats-Expected-Stream".len() + 2 * LINE;
    const STREAM_NAME_MAX: usize = 64;
    let each = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    let lines: usize = each.map(|(name, value)| AsRef::<str>::as_ref(name).len() + value.as_str().len() + LINE).sum();
    VERSION_LINES + OWN_NAMES + id.len() + STREAM_NAME_MAX + lines + content.body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(fields: &str, body: &'static str) -> EncodedEvent {
        EncodedEvent { fields: fields.as_bytes().to_vec(), body: body.into() }
    }

    /// The binding names the content type of binary mode as an attribute, and that of an envelope as in HTTP.
    #[test]
    fn content_type_has_its_name_in_the_nats_binding() {
        let binary = headers(&event("ce-id: 1\r\nContent-Type: text/plain\r\nce-name: %E2%82%AC\r\n", "x"));
        let value = |map: &HeaderMap, name: &str| map.get(name).map(|value| value.as_str().to_owned());
        assert_eq!(value(&binary, CONTENT_TYPE).as_deref(), Some("text/plain"));
        assert_eq!(value(&binary, "ce-name").as_deref(), Some("%E2%82%AC"));
        assert_eq!(value(&binary, "Content-Type"), None);
        let envelope = headers(&event("Content-Type: application/cloudevents+json\r\n", "{}"));
        assert_eq!(value(&envelope, "Content-Type").as_deref(), Some("application/cloudevents+json"));
    }

    #[test]
    fn size_counts_headers_and_body() {
        let content = event("ce-id: 1\r\n", "12345");
        let bytes = wire_bytes(&headers(&content), "abc", &content);
        let larger = wire_bytes(&headers(&content), "abcd", &content);
        assert!(larger == bytes + 1 && bytes > "ce-id: 1\r\n".len() + 5 + 3, "{bytes}");
    }
}
