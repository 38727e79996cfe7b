//! cloudevents-sdk as the oracle: we parse what it writes, and it parses what we write, with the same
//! result.

use cloudevents::event::ExtensionValue;
use cloudevents::{AttributesReader as _, Event as Theirs, EventBuilder as _, EventBuilderV03, EventBuilderV10};
use proptest::prelude::*;

use super::*;
use crate::encode::encode;
use crate::record::{EventRecord, encode_head};

fn theirs() -> impl Strategy<Value = Theirs> {
    let extension = prop_oneof![
        "[ -~€é]{0,20}".prop_map(ExtensionValue::String),
        any::<bool>().prop_map(ExtensionValue::Boolean),
        any::<i32>().prop_map(|n| ExtensionValue::Integer(n.into())),
    ];
    let data = prop_oneof![
        Just(None),
        any::<Vec<u8>>().prop_map(|bytes| Some(cloudevents::Data::Binary(bytes))),
        any::<i64>().prop_map(|n| Some(cloudevents::Data::Json(serde_json::json!({ "n": n })))),
        "\\PC{0,30}".prop_map(|text| Some(cloudevents::Data::String(text))),
    ];
    ("[!-~€]{1,20}", "[a-z]{1,9}", proptest::option::of("[a-z €]{1,9}"), any::<bool>(), extension, data).prop_map(
        |(id, ty, subject, old, extension, data)| {
            let media = match &data {
                Some(cloudevents::Data::Json(_)) => "application/json",
                _ => "text/plain",
            };
            macro_rules! build {
                ($builder:ty) => {{
                    let mut builder = <$builder>::new().id(id).ty(ty).source("urn:oracle").time("2018-04-05T17:31:00Z");
                    if let Some(subject) = subject {
                        builder = builder.subject(subject);
                    }
                    if let Some(data) = data {
                        builder = builder.data(media, data);
                    }
                    builder.extension("someext", extension).build().expect("all required attributes are set")
                }};
            }
            if old { build!(EventBuilderV03) } else { build!(EventBuilderV10) }
        },
    )
}

fn stored(event: &CloudEvent<'_>) -> EventRecord {
    let mut bytes = encode_head(event, &[], 0);
    bytes.extend(event.data.bytes());
    EventRecord::decode(bytes.into()).unwrap()
}

proptest! {
    /// DP-PROTO-01, EV-RTE-01: an envelope of the oracle is parsed with equal attributes, and the oracle
    /// parses our encoding as the original event.
    #[test]
    fn envelope_round_trip_agrees_with_oracle(theirs in theirs()) {
        let envelope = serde_json::to_vec(&theirs).unwrap();
        let ours = structured::parse(&envelope).unwrap();
        prop_assert_eq!(ours.attribute("id"), Some(theirs.id()));
        prop_assert_eq!(ours.attribute("type"), Some(theirs.ty()));
        prop_assert_eq!(ours.attribute("subject"), theirs.subject());
        let version = theirs.specversion();
        prop_assert_eq!(ours.attribute("specversion"), Some(version.as_str()));
        let extension = theirs.extension("someext").unwrap().to_string();
        prop_assert_eq!(ours.attribute("someext"), Some(extension.as_str()));

        let back: Theirs = serde_json::from_slice(&encode(&stored(&ours), ContentMode::Structured, &[]).body).unwrap();
        prop_assert_eq!(&back, &theirs);
    }

    /// EV-RTE-01: through binary mode the attributes are equal and the data is the same bytes.
    #[test]
    fn oracle_event_survives_binary_mode(theirs in theirs()) {
        let envelope = serde_json::to_vec(&theirs).unwrap();
        let first = structured::parse(&envelope).unwrap();
        let out = encode(&stored(&first), ContentMode::Binary, &[]);
        let second = binary::parse(out.headers(), &out.body).unwrap();
        for attribute in first.attributes.iter().filter(|a| a.name != "datacontentencoding") {
            prop_assert_eq!(second.attribute(&attribute.name), Some(&*attribute.value));
        }
        let data = match theirs.data() {
            None => Vec::new(),
            Some(cloudevents::Data::Binary(bytes)) => bytes.clone(),
            Some(cloudevents::Data::String(text)) => text.clone().into_bytes(),
            Some(cloudevents::Data::Json(json)) => json.to_string().into_bytes(),
        };
        prop_assert_eq!(&*out.body, &*data);
    }
}
