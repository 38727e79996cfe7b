//! The first 64 bytes of a segment (layout in FORMAT.md).

use crate::codec::{u32_at, u64_at};
use crate::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;
/// Format that is written. Version 2 added compacted events, which a program of version 1 would report as
/// damage.
pub(crate) const FORMAT: u32 = 2;
/// Oldest format that can be read.
pub(crate) const FORMAT_MIN: u32 = 1;
/// No log grows to this position; a sum of positions below it cannot overflow.
pub(crate) const BASE_MAX: u64 = 1 << 62;
const MAGIC: [u8; 8] = *b"SLUICWAL";

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// [`FORMAT`], or an older supported one.
    pub(crate) format: u32,
    /// Position of the segment's first byte.
    pub(crate) base: u64,
    /// Bytes from `base` to the base of the next segment, whatever the length of the file is.
    pub(crate) capacity: u32,
    /// Initial value of every checksum inside. It prevents stale bytes of a recycled file, and bytes that a
    /// sender put into an event, from passing as a record.
    pub(crate) salt: u32,
}

/// Classification of the first bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderState {
    Good(SegmentHeader),
    /// Zeros: preallocated, never used.
    Blank,
    /// A partial header: its first flush never returned.
    Torn,
    Foreign([u8; 8]),
    OtherFormat(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.format.to_le_bytes());
        out[12..16].copy_from_slice(&self.salt.to_le_bytes());
        out[16..24].copy_from_slice(&self.base.to_le_bytes());
        out[24..28].copy_from_slice(&self.capacity.to_le_bytes());
        let crc = crc32c::crc32c(&out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(file: &[u8]) -> HeaderState {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let length = file.len().min(SEGMENT_HEADER_BYTES);
        bytes[..length].copy_from_slice(&file[..length]);

        if bytes.iter().all(|byte| *byte == 0) {
            return HeaderState::Blank;
        }
        // A file is wiped before its header is written, so a torn header is a valid one mixed with zeros.
        let torn_magic = MAGIC.iter().zip(&bytes).all(|(ours, found)| found == ours || *found == 0);
        if !torn_magic {
            let mut found = [0; 8];
            found.copy_from_slice(&bytes[..8]);
            return HeaderState::Foreign(found);
        }
        if bytes[..8] != MAGIC {
            return HeaderState::Torn;
        }
        let (Some(format), Some(salt)) = (u32_at(&bytes, 8), u32_at(&bytes, 12)) else {
            return HeaderState::Torn;
        };
        if !(FORMAT_MIN..=FORMAT).contains(&format) && format != 0 {
            return HeaderState::OtherFormat(format); // before the checksum, which another format may store elsewhere
        }
        match (u64_at(&bytes, 16), u32_at(&bytes, 24), u32_at(&bytes, 60)) {
            (Some(base), Some(capacity), Some(crc))
                if crc == crc32c::crc32c(&bytes[..60])
                    && base <= BASE_MAX
                    && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&capacity) =>
            {
                HeaderState::Good(Self { format, base, capacity, salt })
            }
            _ => HeaderState::Torn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader { format: FORMAT, base: 1 << 40, capacity: 1 << 20, salt: 0xdead_beef };

    #[test]
    fn header_states_are_distinguished() {
        let good = HEADER.encode();
        assert_eq!(SegmentHeader::decode(&good), HeaderState::Good(HEADER));
        assert_eq!(SegmentHeader::decode(&[]), HeaderState::Blank);
        assert_eq!(SegmentHeader::decode(&[0; 4096]), HeaderState::Blank);
        assert_eq!(SegmentHeader::decode(b"PNG\r\n and more"), HeaderState::Foreign(*b"PNG\r\n an"));

        let mut newer = good;
        newer[8] = 3;
        assert_eq!(SegmentHeader::decode(&newer), HeaderState::OtherFormat(3));
        let older = SegmentHeader { format: FORMAT_MIN, ..HEADER };
        assert_eq!(SegmentHeader::decode(&older.encode()), HeaderState::Good(older));
        let mut flipped = good;
        flipped[20] ^= 1;
        assert_eq!(SegmentHeader::decode(&flipped), HeaderState::Torn);
    }

    #[test]
    fn header_torn_at_any_byte_is_classified_as_torn() {
        let good = HEADER.encode();
        for cut in 1..SEGMENT_HEADER_BYTES {
            let mut torn = [0; SEGMENT_HEADER_BYTES];
            torn[..cut].copy_from_slice(&good[..cut]);
            if torn != good {
                assert_eq!(SegmentHeader::decode(&torn), HeaderState::Torn, "cut at {cut}");
            }
        }
    }
}
