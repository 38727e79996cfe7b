//! A record from a log: rejected or decoded, and a decoded record is encoded again byte for byte.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::cloudevent::ContentMode;
use sluicegate_dataplane::broker::extension_headers;
use sluicegate_dataplane::encode::encode;
use sluicegate_dataplane::record::{ExtensionHeader, EventRecord, addressed, encode_head};

/// The bit of the second byte of records that are for one subscriber only.
const ADDRESSED: u8 = 0x80;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = EventRecord::decode(Bytes::copy_from_slice(bytes)) else { return };
    let event = record.event();
    let extensions: Vec<ExtensionHeader<'_>> = record.extension_headers().collect();
    let mut again = encode_head(&event, &extensions, record.hops_left);
    again.extend_from_slice(event.data.bytes());
    again[1] |= bytes[1] & ADDRESSED;
    assert_eq!(again, bytes);
    if let Some(to) = record.addressee() {
        let sent_again = addressed(&record, &to, (3, u64::MAX));
        let sent_again = EventRecord::decode(sent_again.into()).expect("what we wrote is a record");
        assert_eq!((sent_again.addressee(), sent_again.original()), (Some(to), Some((3, u64::MAX))));
    }

    for mode in [ContentMode::Binary, ContentMode::Structured] {
        let mut out = encode(&record, mode, &[]);
        extension_headers::attach(&record, &mut out, &mut fastrand::Rng::with_seed(1));
    }
    for attribute in record.attributes() {
        assert!(record.attribute(&attribute.name).is_some());
    }
});
