//! Integers with a prefix (RFC 7541 5.1).

use bytes::{BufMut, BytesMut};

use super::HpackError;

/// Larger than any length or size that is accepted, and far from an overflow.
const VALUE_MAX: usize = 1 << 24;
/// Bytes after the prefix: more could only be zeros, or a value beyond [`VALUE_MAX`].
const BYTES_MAX: u32 = 4;

/// Reads an integer whose first byte is at the front of `input`, with a prefix of `bits`.
pub(super) fn read(input: &mut &[u8], bits: u32) -> Result<usize, HpackError> {
    let (first, mut rest) = input.split_first().ok_or(HpackError::Truncated)?;
    let prefix = (1_usize << bits) - 1;
    let mut value = usize::from(*first) & prefix;
    if value == prefix {
        let mut at = 0;
        loop {
            let (byte, after) = rest.split_first().ok_or(HpackError::Truncated)?;
            rest = after;
            value += usize::from(byte & 0x7f) << (7 * at);
            at += 1;
            if byte & 0x80 == 0 {
                break;
            }
            if at == BYTES_MAX {
                return Err(HpackError::Integer);
            }
        }
        if value > VALUE_MAX {
            return Err(HpackError::Integer);
        }
    }
    *input = rest;
    Ok(value)
}

/// Writes `value` with a prefix of `bits`; `first` has the bits before it.
pub(super) fn put(out: &mut BytesMut, first: u8, bits: u32, value: usize) {
    let prefix = (1_usize << bits) - 1;
    if value < prefix {
        out.put_u8(first | value as u8);
        return;
    }
    out.put_u8(first | prefix as u8);
    let mut left = value - prefix;
    while left >= 0x80 {
        out.put_u8(left as u8 | 0x80);
        left >>= 7;
    }
    out.put_u8(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541 C.1.
    #[test]
    fn examples_of_the_rfc_round_trip() {
        for (bits, value, bytes) in
            [(5, 10, &[0x0a][..]), (5, 1337, &[0x1f, 0x9a, 0x0a]), (8, 42, &[0x2a]), (7, 127, &[0x7f, 0])]
        {
            let mut out = BytesMut::new();
            put(&mut out, 0, bits, value);
            assert_eq!(out, bytes);
            let mut input = bytes;
            assert_eq!((read(&mut input, bits), input.len()), (Ok(value), 0));
        }
    }

    #[test]
    fn overlong_and_truncated_integers_are_errors() {
        for (bytes, why) in [
            (&[][..], HpackError::Truncated),
            (&[0x1f], HpackError::Truncated),
            (&[0x1f, 0x80], HpackError::Truncated),
            (&[0x1f, 0xff, 0xff, 0xff, 0x7f], HpackError::Integer),
            (&[0x1f, 0x80, 0x80, 0x80, 0x80, 0x00], HpackError::Integer),
        ] {
            assert_eq!(read(&mut &*bytes, 5), Err(why), "{bytes:x?}");
        }
    }
}
