//! Finds a pseudo-field at the start of trailers, which makes them malformed (RFC 9113 8.1); h2 drops it silently.
//!
//! Pseudo-fields precede all others, or h2 rejects the block, so only the first field matters. A reference to the
//! dynamic table cannot be resolved without decoding every block of the connection a second time; h2 drops those.

/// Entries of HPACK's static table that are pseudo-fields (RFC 7541, appendix A).
const PSEUDO: std::ops::RangeInclusive<u8> = 1..=14;
/// The first seven bits of a Huffman-coded name that begins with a colon.
const HUFFMAN_COLON: u8 = 0x5c;

const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Scans the start of one block, byte by byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrailerScan {
    /// Before the block: the padding's length, a priority.
    Before(u8),
    /// At the first byte of a field, or of a table size update.
    Field,
    /// Inside a table size update.
    Size,
    /// At the length of a literal name.
    NameLength,
    /// At the first byte of the name.
    Name {
        huffman: bool,
    },
    Done,
}

impl TrailerScan {
    /// For the HEADERS frame with these flags.
    pub(super) fn new(flags: u8) -> Self {
        let before = u8::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
        if before == 0 { Self::Field } else { Self::Before(before) }
    }

    /// Reads the next bytes of the block. Returns whether it begins with a pseudo-field.
    pub(super) fn finds_pseudo(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().any(|byte| {
            let (next, found) = self.byte(*byte);
            *self = next;
            found
        })
    }

    fn byte(self, byte: u8) -> (Self, bool) {
        match self {
            Self::Before(1) => (Self::Field, false),
            Self::Before(left) => (Self::Before(left - 1), false),
            Self::Field => match byte {
                0x80.. => (Self::Done, PSEUDO.contains(&(byte & 0x7f))),
                0x40 | 0x00 | 0x10 => (Self::NameLength, false),
                0x40.. => (Self::Done, PSEUDO.contains(&(byte & 0x3f))),
                0x3f => (Self::Size, false),
                0x20.. => (Self::Field, false),
                _ => (Self::Done, PSEUDO.contains(&(byte & 0x0f))),
            },
            Self::Size if byte & 0x80 != 0 => (Self::Size, false),
            Self::Size => (Self::Field, false),
            Self::NameLength if byte & 0x7f == 0x7f => (Self::Done, false), // no pseudo-field is so long
            Self::NameLength => (Self::Name { huffman: byte & 0x80 != 0 }, false),
            Self::Name { huffman: true } => (Self::Done, byte >> 1 == HUFFMAN_COLON),
            Self::Name { huffman: false } => (Self::Done, byte == b':'),
            Self::Done => (Self::Done, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pseudo_field_is_found_for_any_coding_and_split() {
        for (flags, block, found) in [
            (0, &[0x88][..], true),                     // :status: 200, indexed
            (0, &[0x82], true),                         // :method: GET
            (0, &[0x44, 1, b'/'], true),                // :path by its index, incremental indexing
            (0, &[0x04, 1, b'/'], true),                // without indexing
            (0, &[0x14, 1, b'/'], true),                // never indexed
            (0, &[0x40, 5, b':', b'p'], true),          // literal name
            (0, &[0x00, 0x84, 0xb9, 0x58], true),       // Huffman-coded name
            (0, &[0x3f, 0xe1, 0x1f, 0x20, 0x82], true), // after two table size updates
            (PADDED, &[1, 0x82, 0], true),
            (PADDED | PRIORITY, &[0, 0, 0, 0, 0, 9, 0x82], true),
            (0, &[0x8f], false), // accept-charset
            (0, &[0xbe], false), // the dynamic table
            (0, &[0x40, 5, b'x', b'-', b's', b'u', b'm', 1, b':'], false),
            (0, &[0x00, 0x85, 0xf2, 0xb1], false),
            (0, &[0x0f, 0x00, 1, b':'], false),
            (0, &[], false),
        ] {
            for piece in [1, 2, 100] {
                let mut scan = TrailerScan::new(flags);
                let any = block.chunks(piece).any(|bytes| scan.finds_pseudo(bytes));
                assert_eq!(any, found, "{flags} {block:x?} by {piece}");
            }
        }
    }
}
