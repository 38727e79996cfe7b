//! Numbers in the digits that ids are written in.

/// As many lower-case hexadecimal digits of `number` as `out` has room for, the lowest last. By hand, because `write!` takes ten times as
/// long: a thousand instructions for the ids of a trace, a twentieth of all that is ours of a proxied request.
pub(crate) fn put(out: &mut [u8], mut number: u128) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_formatter_as_far_as_there_is_room() {
        for number in [0, 1, 0xa0, 0x0123_4567_89ab_cdef, u128::MAX, 1 << 127] {
            let mut all = [0; 32];
            put(&mut all, number);
            let text = format!("{number:032x}");
            assert_eq!(all, *text.as_bytes());
            let mut low = [0; 16];
            put(&mut low, number);
            assert_eq!(low, text.as_bytes()[16..]);
        }
    }
}
