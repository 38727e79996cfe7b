//! The first message of a TLS client: one result for any cut, and for any records that it is in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::codec::client_hello::{CLIENT_HELLO_BYTES_MAX, ParsedClientHello, parse};

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    let step = (bytes.len() / 256).max(1);
    for cut in (0..bytes.len()).step_by(step) {
        match parse(&bytes[..cut]) {
            ParsedClientHello::NeedBytes(count) => assert!(cut < count && count <= CLIENT_HELLO_BYTES_MAX, "cut at {cut}"),
            decided => assert_eq!(decided, whole, "cut at {cut}"),
        }
    }
    let ParsedClientHello::Complete(name) = whole else { return };
    if let Some(name) = name {
        let name = name.as_str();
        assert!(!name.is_empty() && name.is_ascii() && name.bytes().all(|byte| !byte.is_ascii_uppercase()), "{name:?}");
    }
    // The same message in two records, if it came in one.
    let length = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
    if let Some(record) = bytes.get(5..5 + length)
        && length > 1
    {
        let (one, two) = record.split_at(length / 2);
        let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
        let split = parse(&[record(one), record(two)].concat());
        assert!(split == whole || bytes.len() > CLIENT_HELLO_BYTES_MAX - 5, "{split:?} and {whole:?}");
    }
});
