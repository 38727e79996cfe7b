//! Header blocks of a client: decoding ends, and what was decoded is the same after it was encoded and decoded again.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sluicegate_http2::hpack::{HpackDecoder, HpackEncoder, HpackError};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|input: &[u8]| {
    let (mut decoder, mut again, mut encoder) = (HpackDecoder::default(), HpackDecoder::default(), HpackEncoder::default());
    // Blocks of one connection; a byte before each is its length.
    let mut rest = input;
    while let Some((length, after)) = rest.split_first() {
        let (block, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        let Ok(fields) = decoded(&mut decoder, block) else { return };
        if length % 7 == 0 {
            encoder.set_table_bytes(u32::from(*length) * 40);
        }
        let mut out = BytesMut::new();
        encoder.begin(&mut out);
        fields.iter().for_each(|(name, value)| encoder.field(name, value, &mut out));
        assert_eq!(decoded(&mut again, &out), Ok(fields));
    }
});

fn decoded(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Vec::new();
    decoder.decode(block, 1 << 20, |name, value| fields.push((name.to_vec(), value.to_vec())))?;
    Ok(fields)
}
