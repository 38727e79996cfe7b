//! Events at the ingress, in all three content modes: rejected or parsed; a parsed event survives the log, and is
//! sent as a request that parses as the same event.
#![no_main]

use std::borrow::Cow;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::cloudevent::{
    CloudEventAttribute, EventData, CloudEvent, AttributeKind, ContentMode, binary, carriage, structured,
};
use sluicegate_dataplane::encode::encode;
use sluicegate_dataplane::record::{EventRecord, encode_head};

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    match choice % 3 {
        0 => {
            let (headers, body) = split(bytes);
            let _ = carriage(headers.first().map(|(_, value)| *value));
            if let Ok(event) = binary::parse(headers, body) {
                kept(&event);
            }
        }
        1 => {
            if let Ok(event) = structured::parse(bytes) {
                kept(&event);
            }
        }
        _ => {
            for event in structured::parse_batch(bytes).iter().flatten() {
                kept(event);
            }
        }
    }
});

/// Lines of `NAME:VALUE` as a head parser hands them over, then an empty line and the body.
fn split(bytes: &[u8]) -> (Vec<(&str, &[u8])>, &[u8]) {
    let mut headers = Vec::new();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let value = line[colon + 1..].trim_ascii();
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        if let Ok(name) = std::str::from_utf8(&line[..colon])
            && name.is_ascii()
            && value.iter().all(is_text)
        {
            headers.push((name, value));
        }
    }
    (headers, rest)
}

fn kept(event: &CloudEvent<'_>) {
    let mut bytes = encode_head(event, &[], 3);
    bytes.extend_from_slice(event.data.bytes());
    let record = EventRecord::decode(Bytes::from(bytes)).expect("what was written is read");
    assert_eq!(record.event(), *event);

    let out = encode(&record, event.mode, &[]);
    match event.mode {
        ContentMode::Binary => {
            let again = binary::parse(out.headers(), &out.body).expect("what was taken is sent");
            assert_eq!(again, *event);
        }
        ContentMode::Structured => {
            let again = structured::parse(&out.body).expect("what was taken is sent");
            assert_eq!(again.data, event.data);
            assert_eq!(values(&again), values(event));
        }
    }

    // In the other mode the attributes are the same texts; how data travels depends on its type.
    if event.mode == ContentMode::Binary {
        let out = encode(&record, ContentMode::Structured, &[]);
        let again = structured::parse(&out.body).expect("binary events have a structured form");
        assert_eq!(without_coding(&again), without_coding(event));
    } else {
        let out = encode(&record, ContentMode::Binary, &[]);
        let again = binary::parse(out.headers(), &out.body).expect("structured events have a binary form");
        let typed = event.attribute("datacontenttype").is_some();
        let mut found = without_coding(&again);
        found.retain(|(name, _)| typed || name != "datacontenttype"); // written for data without a type
        assert_eq!(found, without_coding(event));
        if let EventData::Bytes(data) = &event.data {
            assert_eq!(again.data.bytes(), &**data);
        }
    }
}

type Named<'e> = Vec<(Cow<'e, str>, Cow<'e, str>)>;

fn values<'e>(event: &'e CloudEvent<'_>) -> Vec<(Cow<'e, str>, Cow<'e, str>, AttributeKind)> {
    event
        .attributes
        .iter()
        .map(|CloudEventAttribute { name, value, kind }| (Cow::from(&**name), Cow::from(&**value), *kind))
        .collect()
}

/// 0.3 says in an attribute whether data is base64; that changes with the mode.
fn without_coding<'e>(event: &'e CloudEvent<'_>) -> Named<'e> {
    let named = values(event).into_iter().map(|(name, value, _)| (name, value));
    named.filter(|(name, _)| name != "datacontentencoding").collect()
}
