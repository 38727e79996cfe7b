//! Hexadecimal numbers.

/// Writes the lowest hexadecimal digits of `number`, as many as fit into `out`, in lower case. Implemented here, because
/// `write!` takes a thousand instructions for the ids of a trace, a sixteenth of the proxy's own work per request; this
/// takes a hundred.
#[inline]
pub fn put(out: &mut [u8], mut number: u128) {
    for part in out.rchunks_mut(8) {
        let digits = digits(number as u32);
        part.copy_from_slice(&digits[8 - part.len()..]);
        number >>= 32;
    }
}

/// All eight at once, each in its byte of a word.
fn digits(number: u32) -> [u8; 8] {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let mut word = u64::from(number);
    word = (word << 16 | word) & 0x0000_ffff_0000_ffff;
    word = (word << 8 | word) & 0x00ff_00ff_00ff_00ff;
    word = (word << 4 | word) & (ONES * 0x0f);
    let letters = ((word + ONES * 6) >> 4) & ONES; // for digits above nine
    (word + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_match_the_formatter_and_fit_the_buffer() {
        for number in [0, 1, 0xa0, 0x0123_4567_89ab_cdef, u128::MAX, 1 << 127] {
            let mut all = [0; 32];
            put(&mut all, number);
            let text = format!("{number:032x}");
            assert_eq!(all, *text.as_bytes());
            let mut low = [0; 16];
            put(&mut low, number);
            assert_eq!(low, text.as_bytes()[16..]);
            let mut few = [0; 3];
            put(&mut few, number);
            assert_eq!(few, text.as_bytes()[29..]);
        }
    }
}
