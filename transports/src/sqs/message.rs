//! A message of SQS as an event, and an event as a message.

use adapter::{Event, SendError, child_of, from_json, to_json};
use ring_crypto::digest;
use serde::Deserialize;
use serde_json::{Value, json};

use super::queue::SqsMessage;
use crate::aws::hex;

/// What the body of a message is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SqsBody {
    /// The event as JSON.
    #[default]
    Event,
    /// Its data alone, as upstream's IntegrationSink sends it.
    Data,
}

/// Upstream's attributes of an IntegrationSource for SQS.
const TYPE: &str = "dev.knative.connector.event.aws-sqs";
const SOURCE: &str = "dev.knative.eventing.aws-sqs-source";
const SUBJECT: &str = "aws-sqs-source";

/// A body that is a structured event stays it; any other becomes upstream's event.
pub(super) fn event_of(message: &SqsMessage) -> Event {
    let mut event = from_json(message.body.as_bytes()).unwrap_or_else(|_| {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&message.body).is_ok();
        let content_type = if is_json { "application/json" } else { "text/plain" };
        let mut event = Event::new(TYPE, SOURCE, message.id.as_str())
            .with("subject", SUBJECT)
            .with_data(content_type, message.body.clone());
        if let Some(time) = message.sent.and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok()) {
            event.set("time", time.to_string());
        }
        event
    });
    event.traceparent = message.attributes.get("traceparent").cloned();
    event
}

/// The input of `SendMessage`.
pub(super) fn input_of(event: &Event, url: &str, body: SqsBody, is_fifo: bool) -> Result<Value, SendError> {
    if event.opaque.is_some() {
        return Err(SendError::rejected("the event has a format that is not JSON"));
    }
    let bytes = match body {
        SqsBody::Event => to_json(event),
        SqsBody::Data => event.data.clone().unwrap_or_default().to_vec(),
    };
    let text =
        String::from_utf8(bytes).map_err(|_| SendError::rejected("the data is not UTF-8 text, as SQS requires"))?;
    let mut input = json!({
        "QueueUrl": url,
        "MessageBody": text,
        "MessageAttributes": {"traceparent": {"DataType": "String", "StringValue": child_of(event)}},
    });
    if is_fifo {
        let key = event.text("partitionkey");
        let group = if key.is_empty() { event.text("source") } else { key };
        input["MessageGroupId"] = json!(identifier(&group));
        // Source and id identify an event: a retry whose first attempt arrived is dropped by SQS.
        input["MessageDeduplicationId"] = json!(sha256(&format!("{}\0{}", event.text("source"), event.id())));
    }
    Ok(input)
}

/// SQS takes identifiers of up to 128 printable ASCII characters; others are replaced by their hash.
fn identifier(text: &str) -> String {
    if !text.is_empty() && text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        text.to_owned()
    } else {
        sha256(text)
    }
}

fn sha256(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(body: &str) -> Event {
        event_of(&SqsMessage {
            id: "m".to_owned(),
            receipt_handle: String::new(),
            body: body.to_owned(),
            group: None,
            sent: Some(1_000),
            attributes: std::collections::HashMap::new(),
        })
    }

    #[test]
    fn plain_message_has_upstreams_attributes() {
        let event = received("{\"a\":1}");
        let attributes: Vec<String> =
            ["type", "source", "subject", "id", "time", "datacontenttype"].map(|name| event.text(name)).to_vec();
        assert_eq!(attributes, [TYPE, SOURCE, SUBJECT, "m", "1970-01-01T00:00:01Z", "application/json"]);
        assert_eq!(received("hello").text("datacontenttype"), "text/plain");
    }

    #[test]
    fn event_survives_the_round_trip() {
        let event = Event::new("t", "/s", "ä").with_data("application/octet-stream", vec![0, 255]);
        let input = input_of(&event, "http://q", SqsBody::Event, true).unwrap();
        assert_eq!(received(input["MessageBody"].as_str().unwrap()), event);
        assert_eq!(input["MessageGroupId"], "/s");
        assert!(input_of(&event, "http://q", SqsBody::Data, false).is_err());
    }
}
