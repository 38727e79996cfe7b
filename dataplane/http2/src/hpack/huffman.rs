//! The Huffman code of strings (RFC 7541 5.2).
//!
//! The code is canonical: the codes of one length are consecutive, in the order of their symbols. So the lengths of
//! appendix B determine all codes, and the tables below are computed from them.

use bytes::{BufMut, BytesMut};

use super::HpackError;

/// The end-of-string symbol, which no string contains.
const EOS: usize = 256;
const SYMBOLS: usize = EOS + 1;
/// The longest code.
const BITS_MAX: usize = 30;
/// Codes of up to this many bits are found with one look-up: all that usual text has.
const FAST_BITS: usize = 9;

/// Bits of the code of each symbol (RFC 7541, appendix B).
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// All codes of one length.
#[derive(Clone, Copy)]
struct CodeLength {
    /// The first code.
    first: u32,
    count: u32,
    /// The position of its symbol in [`SORTED`].
    position: usize,
}

const fn code_lengths() -> [CodeLength; BITS_MAX + 1] {
    let mut all = [CodeLength { first: 0, count: 0, position: 0 }; BITS_MAX + 1];
    let (mut code, mut position, mut bits) = (0, 0, 1);
    while bits <= BITS_MAX {
        code <<= 1;
        let mut count = 0;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == bits {
                count += 1;
            }
            symbol += 1;
        }
        all[bits] = CodeLength { first: code, count, position };
        code += count;
        position += count as usize;
        bits += 1;
    }
    all
}

const CODE_LENGTHS: [CodeLength; BITS_MAX + 1] = code_lengths();

/// Symbols in the order of their codes.
static SORTED: [u16; SYMBOLS] = sorted();

const fn sorted() -> [u16; SYMBOLS] {
    let mut all = [0; SYMBOLS];
    let (mut bits, mut next) = (1, 0);
    while bits <= BITS_MAX {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == bits {
                all[next] = symbol as u16;
                next += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    all
}

static CODES: [u32; SYMBOLS] = codes();

const fn codes() -> [u32; SYMBOLS] {
    let mut all = [0; SYMBOLS];
    let mut next = [0; BITS_MAX + 1];
    let mut symbol = 0;
    while symbol < SYMBOLS {
        let bits = LENGTHS[symbol] as usize;
        all[symbol] = CODE_LENGTHS[bits].first + next[bits];
        next[bits] += 1;
        symbol += 1;
    }
    all
}

/// By the next bits of the input: the symbol, and the length of its code in the upper byte; 0 for a longer code.
static FAST: [u16; 1 << FAST_BITS] = fast();

const fn fast() -> [u16; 1 << FAST_BITS] {
    let all_codes = codes();
    let mut all = [0; 1 << FAST_BITS];
    let mut symbol = 0;
    while symbol < EOS {
        let bits = LENGTHS[symbol] as usize;
        if bits <= FAST_BITS {
            let first = (all_codes[symbol] as usize) << (FAST_BITS - bits);
            let mut at = first;
            while at < first + (1 << (FAST_BITS - bits)) {
                all[at] = (bits << 8 | symbol) as u16;
                at += 1;
            }
        }
        symbol += 1;
    }
    all
}

/// Appends the decoded string. It has at most 8/5 of the bytes of `input`.
pub fn decode(mut input: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    // The bits that were read and not decoded, from the top.
    let (mut window, mut held) = (0_u64, 0_u32);
    loop {
        while held <= 56
            && let Some((byte, rest)) = input.split_first()
        {
            window |= u64::from(*byte) << (56 - held);
            held += 8;
            input = rest;
        }
        let entry = FAST[(window >> (64 - FAST_BITS)) as usize];
        let bits = u32::from(entry >> 8);
        if bits != 0 && bits <= held {
            out.push(entry as u8);
            window <<= bits;
            held -= bits;
            continue;
        }
        match long_code(window, held) {
            Some((symbol, bits)) => {
                out.push(symbol);
                window <<= bits;
                held -= bits;
            }
            // Padding: fewer than eight bits, all of them ones.
            None if held < 8 && window == padding(held) => return Ok(()),
            None => return Err(HpackError::Huffman),
        }
    }
}

fn padding(bits: u32) -> u64 {
    if bits == 0 { 0 } else { u64::MAX << (64 - bits) }
}

/// The symbol of a code that is longer than [`FAST_BITS`], and the length of the code.
fn long_code(window: u64, held: u32) -> Option<(u8, u32)> {
    for bits in FAST_BITS as u32 + 1..=held.min(BITS_MAX as u32) {
        let CodeLength { first, count, position } = CODE_LENGTHS[bits as usize];
        let offset = ((window >> (64 - bits)) as u32).wrapping_sub(first);
        if offset < count {
            let symbol = SORTED[position + offset as usize];
            return u8::try_from(symbol).ok().map(|symbol| (symbol, bits));
        }
    }
    None
}

/// Bytes of the encoded string.
#[must_use]
pub fn encoded_bytes(text: &[u8]) -> usize {
    text.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum::<usize>().div_ceil(8)
}

/// Appends the encoded string.
pub fn encode(text: &[u8], out: &mut BytesMut) {
    let (mut window, mut held) = (0_u64, 0_u32);
    for byte in text {
        let bits = u32::from(LENGTHS[usize::from(*byte)]);
        window = window << bits | u64::from(CODES[usize::from(*byte)]);
        held += bits;
        if held >= 32 {
            held -= 32;
            out.put_u32((window >> held) as u32);
        }
    }
    while held >= 8 {
        held -= 8;
        out.put_u8((window >> held) as u8);
    }
    if held > 0 {
        out.put_u8((window << (8 - held)) as u8 | 0xff >> held);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 7541 C.4 and C.6.
    #[test]
    fn examples_of_the_rfc_round_trip() {
        for (text, code) in [
            ("www.example.com", &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..]),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
            ("", &[]),
        ] {
            let (mut encoded, mut decoded) = (BytesMut::new(), Vec::new());
            encode(text.as_bytes(), &mut encoded);
            assert_eq!((&encoded[..], encoded_bytes(text.as_bytes())), (code, code.len()));
            decode(code, &mut decoded).unwrap();
            assert_eq!(decoded, text.as_bytes());
        }
    }

    #[test]
    fn invalid_padding_and_end_of_string_are_errors() {
        for code in [
            &[0xff][..],               // eight bits of padding
            &[0x07, 0xff],             // "0" and eleven bits of padding
            &[0x00],                   // "0" and a padding of zeros
            &[0xff, 0xff, 0xff, 0xff], // the end of string
            &[0xff, 0xff, 0xff, 0xfc],
        ] {
            assert_eq!(decode(code, &mut Vec::new()), Err(HpackError::Huffman), "{code:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_string_round_trips(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (mut encoded, mut decoded) = (BytesMut::new(), Vec::new());
            encode(&text, &mut encoded);
            prop_assert_eq!(encoded.len(), encoded_bytes(&text));
            decode(&encoded, &mut decoded).unwrap();
            prop_assert_eq!(decoded, text);
        }

        /// There is one encoding of a string, so what decodes is what would be encoded.
        #[test]
        fn what_decodes_encodes_to_the_same(code in proptest::collection::vec(any::<u8>(), 0..50)) {
            let mut decoded = Vec::new();
            if decode(&code, &mut decoded).is_ok() {
                let mut encoded = BytesMut::new();
                encode(&decoded, &mut encoded);
                prop_assert_eq!(&encoded[..], &code[..]);
            }
        }
    }
}
