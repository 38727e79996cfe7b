//! An event as a message of an external store, in a form that other programs can read: the fields and body of a
//! CloudEvent in the sender's content mode, with the headers that are forwarded with it.

use codec::cloudevent::CloudEvent;
use codec::encode::{EncodedEvent, encode};
use codec::hex;
use codec::record::{CorruptRecord, EventRecord, encode_head};
use contract::event_store::ReceivedEvent;
use fastrand::Rng;
use ring_crypto::digest::{Context, SHA256};

use crate::extension_headers;
use crate::ingress::{self, HOPS_HEADER};
use crate::limits::HOPS_MAX;

/// Bytes of a message's id: collisions are out of reach, and the store keeps each for its duplicate window.
const ID_BYTES: usize = 16;

/// The id of the message of an event from outside: an event is identified by source and id together, and senders
/// repeat it with both.
pub(super) fn id_of(event: &CloudEvent<'_>) -> Box<str> {
    id(&[event.attribute("source").unwrap_or_default(), event.attribute("id").unwrap_or_default()])
}

/// A hash of the parts.
pub(super) fn id(parts: &[&str]) -> Box<str> {
    let mut hash = Context::new(&SHA256);
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes()); // otherwise "a", "bc" would be "ab", "c"
        hash.update(part.as_bytes());
    }
    let digest = hash.finish();
    let (mut bytes, mut text) = ([0; ID_BYTES], [0; 2 * ID_BYTES]);
    bytes.copy_from_slice(&digest.as_ref()[..ID_BYTES]);
    hex::put(&mut text, u128::from_be_bytes(bytes));
    String::from_utf8_lossy(&text).into()
}

/// The content of a message, from a record: its head and its data.
pub(super) fn encode_message(head: Vec<u8>, data: &[u8]) -> Result<EncodedEvent, CorruptRecord> {
    let mut bytes = head;
    bytes.extend_from_slice(data);
    let record = EventRecord::decode(bytes.into())?;
    let mut out = encode(&record, record.mode, &[]);
    for header in record.extension_headers() {
        out.push(&header.name, &header.value);
    }
    if record.hops_left > 0 {
        out.push(HOPS_HEADER, itoa::Buffer::new().format(record.hops_left).as_bytes());
    }
    Ok(out)
}

/// A message as a record. One without a hop count was published by another program, and begins with all hops.
///
/// # Errors Why it is no event.
pub(super) fn decode(message: &ReceivedEvent, rng: &mut Rng) -> Result<Vec<u8>, String> {
    let headers: Vec<(&str, &[u8])> = message.headers.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
    let hops = message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(HOPS_HEADER));
    let hops_left = hops.and_then(|(_, value)| value.parse().ok()).unwrap_or(HOPS_MAX);
    let (events, _) = ingress::parse(&headers, &message.body).map_err(|why| why.to_string())?;
    let [event] = &events[..] else { return Err(format!("a batch of {} events", events.len())) };
    let extensions = extension_headers::select(headers.iter().copied(), None, rng);
    let mut record = encode_head(event, &extensions, hops_left);
    record.extend_from_slice(event.data.bytes());
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::cloudevent::{ContentMode, binary, structured};

    const TRACE: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn received(content: &EncodedEvent) -> ReceivedEvent {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let headers = content.headers().map(|(name, value)| (name.into(), text(value).into())).collect();
        ReceivedEvent { sequence: 7, at_ms: 0, headers, body: content.body.clone() }
    }

    /// EV-RTE-09: subscribers get what the sender sent, in its mode.
    #[test]
    fn message_round_trip_keeps_event() {
        let headers: [(&str, &[u8]); 7] = [
            ("ce-specversion", b"1.0"),
            ("ce-id", b"1"),
            ("ce-source", b"/s"),
            ("ce-type", b"t"),
            ("ce-comment", "%E2%82%AC 5".as_bytes()),
            ("content-type", b"text/plain"),
            ("traceparent", TRACE),
        ];
        let envelope = br#"{"specversion":"1.0","id":"1","source":"/s","type":"t","n":5,"data":{"a": [1,  2]}}"#;
        let extensions = extension_headers::select(headers, None, &mut Rng::with_seed(1));
        for (event, mode) in [
            (binary::parse(headers, b"\xff\x00data").unwrap(), ContentMode::Binary),
            (binary::parse(headers, b"").unwrap(), ContentMode::Binary),
            (structured::parse(envelope).unwrap(), ContentMode::Structured),
        ] {
            let head = encode_head(&event, &extensions, 9);
            let content = encode_message(head.clone(), event.data.bytes()).unwrap();
            let back = decode(&received(&content), &mut Rng::with_seed(2)).unwrap();
            let (before, after) = (
                EventRecord::decode([head, event.data.bytes().to_vec()].concat().into()).unwrap(),
                EventRecord::decode(back.into()).unwrap(),
            );
            assert_eq!((after.event(), after.mode, after.hops_left), (before.event(), mode, 9));
            assert!(after.extension_headers().eq(before.extension_headers()));
        }
    }

    #[test]
    fn message_of_another_program_needs_only_an_event() {
        let header = |name: &str, value: &str| (name.into(), value.into());
        let mut message = ReceivedEvent { sequence: 1, at_ms: 0, headers: Vec::new(), body: Vec::new().into() };
        assert!(decode(&message, &mut Rng::with_seed(1)).is_err());
        for (name, value) in [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")] {
            message.headers.push(header(name, value));
        }
        let record = EventRecord::decode(decode(&message, &mut Rng::with_seed(1)).unwrap().into()).unwrap();
        assert_eq!((record.hops_left, record.attribute("type")), (HOPS_MAX, Some("t")));
    }

    /// The same id from two sources is two events.
    #[test]
    fn id_depends_on_every_part() {
        assert_eq!(id(&["/a", "1"]), id(&["/a", "1"]));
        for other in [["/b", "1"], ["/a", "2"], ["/a1", ""], ["", "/a1"]] {
            assert_ne!(id(&["/a", "1"]), id(&other), "{other:?}");
        }
        assert_eq!(id(&[]).len(), 2 * ID_BYTES);
    }
}
