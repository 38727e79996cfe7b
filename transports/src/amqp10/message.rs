//! The AMQP protocol binding of CloudEvents.

use adapter::{Event, SendError, Value as Attribute, child_of, from_json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Data, Header, Message, MessageId, Properties,
};
use fe2o3_amqp::types::primitives::{Binary, SimpleValue, Symbol, Value};

/// Attributes are written with the first prefix, which JMS allows too, and read with either.
const PREFIXES: [&str; 2] = ["cloudEvents_", "cloudEvents:"];
const STRUCTURED: &str = "application/cloudevents";

/// A CloudEvent in binary or structured mode; any other message becomes the data of an event.
pub(super) fn event_of(message: Message<Body<Value>>, source: &str) -> Event {
    let properties = message.properties.unwrap_or_default();
    let content_type = properties.content_type.map(|symbol| symbol.0).unwrap_or_default();
    let application = message.application_properties.map(|properties| properties.0).unwrap_or_default();
    let traceparent = application.get("traceparent").and_then(text);
    let (data, value_type) = data_of(message.body);
    let attributes: Vec<(&String, &SimpleValue)> = application.iter().collect();
    let mut event = match cloud_event(&attributes, &content_type, data.clone()) {
        Ok(Some(event)) => event,
        read => {
            if let Err(error) = read {
                tracing::warn!(error, "malformed CloudEvent is passed on as a plain message");
            }
            let id = properties.message_id.map(message_id).filter(|id| !id.is_empty());
            let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
            let data_type = if content_type.is_empty() { value_type } else { content_type.as_str() };
            let mut event =
                Event::new("dev.sluicegate.amqp.message", source, id).with_data(data_type, data.unwrap_or_default());
            if let Some(subject) = properties.subject.filter(|subject| !subject.is_empty()) {
                event.set("subject", subject);
            }
            event
        }
    };
    event.traceparent = traceparent;
    event
}

/// `None`: the message is not a CloudEvent.
fn cloud_event(
    application: &[(&String, &SimpleValue)],
    content_type: &str,
    data: Option<Bytes>,
) -> Result<Option<Event>, String> {
    let media_type = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if media_type.starts_with(STRUCTURED) {
        return match media_type.as_str() {
            "application/cloudevents+json" | STRUCTURED => from_json(&data.unwrap_or_default()).map(Some),
            _ => Ok(Some(Event::opaque(content_type, data.unwrap_or_default()))),
        };
    }
    let with_prefix = |prefix: &str| application.iter().any(|(name, _)| name.starts_with(prefix));
    let prefix = match PREFIXES.map(with_prefix) {
        [false, false] => return Ok(None),
        [true, true] => return Err("the message mixes the prefixes cloudEvents_ and cloudEvents:".to_owned()),
        [underscore, _] => PREFIXES[usize::from(!underscore)],
    };
    let mut event = Event::default();
    for (name, value) in application {
        let Some(name) = name.strip_prefix(prefix) else { continue };
        match value {
            SimpleValue::Bool(truth) => event.set(name, Attribute::Boolean(*truth)),
            SimpleValue::Int(number) => event.set(name, Attribute::Integer(*number)),
            value => {
                if let Some(text) = text(value) {
                    event.set(name, text);
                }
            }
        }
    }
    if !content_type.is_empty() {
        event.set("datacontenttype", content_type);
    }
    event.data = data;
    event.check()?;
    Ok(Some(event))
}

/// The canonical text of a value. `None`: it has none.
fn text(value: &SimpleValue) -> Option<String> {
    Some(match value {
        SimpleValue::String(text) => text.clone(),
        SimpleValue::Symbol(symbol) => symbol.0.clone(),
        SimpleValue::Bool(truth) => truth.to_string(),
        SimpleValue::Ubyte(number) => number.to_string(),
        SimpleValue::Ushort(number) => number.to_string(),
        SimpleValue::Uint(number) => number.to_string(),
        SimpleValue::Ulong(number) => number.to_string(),
        SimpleValue::Byte(number) => number.to_string(),
        SimpleValue::Short(number) => number.to_string(),
        SimpleValue::Int(number) => number.to_string(),
        SimpleValue::Long(number) => number.to_string(),
        SimpleValue::Char(letter) => letter.to_string(),
        SimpleValue::Binary(bytes) => STANDARD.encode(bytes),
        SimpleValue::Timestamp(time) => jiff::Timestamp::from_millisecond(time.clone().into_inner()).ok()?.to_string(),
        SimpleValue::Uuid(id) => uuid::Uuid::from_bytes(id.clone().into_inner()).to_string(),
        _ => return None,
    })
}

fn message_id(id: MessageId) -> String {
    match id {
        MessageId::String(text) => text,
        MessageId::Ulong(number) => number.to_string(),
        MessageId::Uuid(id) => uuid::Uuid::from_bytes(id.into_inner()).to_string(),
        MessageId::Binary(bytes) => STANDARD.encode(bytes),
    }
}

/// The data, and its content type if the message names none.
fn data_of(body: Body<Value>) -> (Option<Bytes>, &'static str) {
    const BYTES: &str = "application/octet-stream";
    let (data, content_type) = match body {
        Body::Empty | Body::Value(AmqpValue(Value::Null)) => return (None, ""),
        Body::Data(sections) => {
            let mut sections = sections.into_iter().map(|section| section.0.into_vec());
            let mut data = sections.next().unwrap_or_default();
            sections.for_each(|section| data.extend(section));
            (data, BYTES)
        }
        Body::Value(AmqpValue(Value::Binary(bytes))) => (bytes.into_vec(), BYTES),
        Body::Value(AmqpValue(Value::String(text))) => (text.into_bytes(), "text/plain"),
        Body::Value(AmqpValue(value)) => (json(value).to_string().into_bytes(), "application/json"),
        Body::Sequence(sections) => {
            let values = sections.into_iter().flat_map(|section| section.0).map(json).collect();
            (serde_json::Value::Array(values).to_string().into_bytes(), "application/json")
        }
    };
    (Some(Bytes::from(data)).filter(|data| !data.is_empty()), content_type)
}

/// A typed body as JSON, because the sink has no AMQP types.
fn json(value: Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match value {
        Value::Null => Json::Null,
        Value::Bool(truth) => truth.into(),
        Value::Ubyte(number) => number.into(),
        Value::Ushort(number) => number.into(),
        Value::Uint(number) => number.into(),
        Value::Ulong(number) => number.into(),
        Value::Byte(number) => number.into(),
        Value::Short(number) => number.into(),
        Value::Int(number) => number.into(),
        Value::Long(number) => number.into(),
        Value::Float(number) => number.into_inner().into(),
        Value::Double(number) => number.into_inner().into(),
        Value::String(text) => text.into(),
        Value::Symbol(symbol) => symbol.0.into(),
        Value::Char(letter) => letter.to_string().into(),
        Value::Binary(bytes) => STANDARD.encode(bytes).into(),
        Value::Timestamp(time) => {
            let millis = time.into_inner();
            jiff::Timestamp::from_millisecond(millis).map_or_else(|_| millis.into(), |time| time.to_string().into())
        }
        Value::Uuid(id) => uuid::Uuid::from_bytes(id.into_inner()).to_string().into(),
        Value::List(values) => values.into_iter().map(json).collect(),
        Value::Array(values) => values.0.into_iter().map(json).collect(),
        Value::Map(map) => {
            let key = |key: Value| match key {
                Value::String(text) => text,
                Value::Symbol(symbol) => symbol.0,
                other => json(other).to_string(),
            };
            Json::Object(map.into_iter().map(|(name, value)| (key(name), json(value))).collect())
        }
        Value::Described(described) => json(described.value),
        other => other.to_string().into(),
    }
}

/// The message of an event: attributes as application properties, or all of it in the body.
pub(super) fn message_of(event: &Event, structured: bool) -> Result<Message<Data>, SendError> {
    let mut application = ApplicationProperties::builder().insert("traceparent", child_of(event));
    let mut properties = Properties::default();
    let data = if let Some(format) = &event.opaque {
        properties.content_type = Some(symbol(format)?);
        event.data.clone().unwrap_or_default().to_vec()
    } else if structured {
        properties.content_type = Some(Symbol::from("application/cloudevents+json"));
        adapter::to_json(event)
    } else {
        for (name, value) in event.attributes() {
            let key = format!("{}{name}", PREFIXES[0]);
            application = match value {
                Attribute::Text(text) if name == "datacontenttype" => {
                    properties.content_type = Some(symbol(text)?);
                    application
                }
                Attribute::Text(text) => application.insert(key, text.clone()),
                Attribute::Integer(number) => application.insert(key, *number),
                Attribute::Boolean(truth) => application.insert(key, *truth),
            };
        }
        event.data.clone().unwrap_or_default().to_vec()
    };
    // A durable message is on disk before the broker accepts it, if its queue is durable.
    let header = Header { durable: true, ..Header::builder().build() };
    let message = Message::builder().header(header).properties(properties).application_properties(application.build());
    Ok(message.data(Binary::from(data)).build())
}

fn symbol(content_type: &str) -> Result<Symbol, SendError> {
    if content_type.is_ascii() {
        Ok(Symbol::from(content_type))
    } else {
        Err(SendError::rejected(format!("content type {content_type:?} is not ASCII, as AMQP requires")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(message: Message<Data>) -> Message<Body<Value>> {
        Message {
            header: message.header,
            delivery_annotations: None,
            message_annotations: None,
            properties: message.properties,
            application_properties: message.application_properties,
            body: Body::Data(vec![message.body].into()),
            footer: None,
        }
    }

    fn with_properties(pairs: &[(&str, SimpleValue)]) -> Message<Body<Value>> {
        let mut application = ApplicationProperties::builder();
        for (name, value) in pairs {
            application = application.insert(*name, value.clone());
        }
        let message = Message::builder().application_properties(application.build());
        received(message.data(Binary::from(b"x".to_vec())).build())
    }

    fn required(prefix: &str) -> Vec<(String, SimpleValue)> {
        [("specversion", "1.0"), ("id", "1"), ("source", "/s"), ("type", "t")]
            .map(|(name, value)| (format!("{prefix}{name}"), SimpleValue::from(value.to_owned())))
            .to_vec()
    }

    #[test]
    fn binary_message_has_only_the_underscore_prefix() {
        let event = Event::new("t", "/s", "1").with("subject", "ä \"b\"").with("n", Attribute::Integer(7));
        let event = event.with("b", Attribute::Boolean(true)).with_data("text/plain", "hello");
        let message = message_of(&event, false).unwrap();
        let names: Vec<&String> = message.application_properties.iter().flat_map(|map| map.0.keys()).collect();
        assert!(names.iter().all(|name| name.starts_with("cloudEvents_") || *name == "traceparent"), "{names:?}");
        let mut read = event_of(received(message), "amqp://h/q");
        assert!(read.traceparent.take().is_some());
        assert_eq!(read, event);
    }

    #[test]
    fn structured_message_survives_the_round_trip() {
        let event = Event::new("t", "/s", "1").with_data("application/json", "{\"a\":1}");
        let message = message_of(&event, true).unwrap();
        let content_type = message.properties.as_ref().unwrap().content_type.clone().unwrap();
        assert_eq!(content_type.0, "application/cloudevents+json");
        let mut read = event_of(received(message), "amqp://h/q");
        read.traceparent = None;
        assert_eq!(read, event);
    }

    #[test]
    fn colon_prefix_is_read_and_a_mixture_is_refused() {
        let borrow = |pairs: &[(String, SimpleValue)]| {
            let pairs: Vec<(&str, SimpleValue)> =
                pairs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
            event_of(with_properties(&pairs), "amqp://h/q")
        };
        let mut pairs = required("cloudEvents:");
        let time = SimpleValue::Timestamp(fe2o3_amqp::types::primitives::Timestamp::from_milliseconds(1_000));
        pairs.push(("cloudEvents:time".to_owned(), time));
        let event = borrow(&pairs);
        assert_eq!((event.id(), event.text("type")), ("1".to_owned(), "t".to_owned()));
        assert_eq!(event.text("time"), "1970-01-01T00:00:01Z");
        pairs.push(("cloudEvents_subject".to_owned(), SimpleValue::from("s".to_owned())));
        assert_eq!(borrow(&pairs).text("type"), "dev.sluicegate.amqp.message");
    }

    #[test]
    fn unknown_format_is_forwarded_untouched() {
        let event = Event::opaque("application/cloudevents+avro", Bytes::from_static(b"\x01"));
        let mut read = event_of(received(message_of(&event, false).unwrap()), "amqp://h/q");
        read.traceparent = None;
        assert_eq!(read, event);
    }

    #[test]
    fn plain_message_keeps_the_type_of_its_body() {
        let value = Value::List(vec![Value::Int(1), Value::String("a".to_owned())]);
        let message = Message::builder().body(Body::Value(AmqpValue(value))).build();
        let event = event_of(message, "amqp://h/q");
        assert_eq!(event.data.as_deref(), Some(&b"[1,\"a\"]"[..]));
        assert_eq!(event.text("datacontenttype"), "application/json");
    }
}
