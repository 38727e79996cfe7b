//! The codec of one record (layout in FORMAT.md). Values in, values out.

use crate::position::LogPosition;

/// Bytes before a record's payload.
pub(crate) const HEADER_BYTES: usize = 40;
/// Records begin at multiples of this, so that a search can step over the rest.
pub(crate) const ALIGN: usize = 8;

/// Bytes before the payload of a compacted event: its original position.
pub(crate) const ORIGIN_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Event = 1,
    /// State of the log when a segment began: stream count and segment list. The streams and cursors follow
    /// in the same batch.
    Snapshot = 2,
    Stream = 3,
    ForgetStream = 4,
    Cursor = 5,
    ForgetCursor = 6,
    /// Segments without live records: their files may be deleted.
    Drop = 7,
    /// Last record of a segment: the next segment exists or is about to.
    Seal = 8,
    /// An event copied from another segment: its original position, then its payload.
    Compacted = 9,
}

impl RecordKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Event,
            2 => Self::Snapshot,
            3 => Self::Stream,
            4 => Self::ForgetStream,
            5 => Self::Cursor,
            6 => Self::ForgetCursor,
            7 => Self::Drop,
            8 => Self::Seal,
            9 => Self::Compacted,
            _ => return None,
        })
    }

    /// Name for display.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Snapshot => "snapshot",
            Self::Stream => "stream",
            Self::ForgetStream => "forget-stream",
            Self::Cursor => "cursor",
            Self::ForgetCursor => "forget-cursor",
            Self::Drop => "drop",
            Self::Seal => "seal",
            Self::Compacted => "moved",
        }
    }
}

/// Header of a record, without payload length and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    /// 0 for records without a stream.
    pub(crate) stream: u32,
    pub(crate) position: LogPosition,
    pub(crate) at_ms: u64,
    /// Bytes before this record that no sync had confirmed when it was appended. It proves what was
    /// durable: damage below `position - unsynced` cannot be a torn write.
    pub(crate) unsynced: u32,
    /// Records of the same batch after this one.
    pub(crate) batch_rest: u32,
}

/// A record found in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecodedRecord<'a> {
    pub(crate) head: RecordHeader,
    pub(crate) payload: &'a [u8],
}

impl DecodedRecord<'_> {
    /// For an event: its original position, and the number of payload bytes before its own.
    pub(crate) fn event(&self) -> Option<(LogPosition, usize)> {
        match self.head.kind {
            RecordKind::Event => Some((self.head.position, 0)),
            RecordKind::Compacted => {
                let origin = LogPosition::new(u64_at(self.payload, 0)?);
                (origin < self.head.position).then_some((origin, ORIGIN_BYTES))
            }
            _ => None,
        }
    }
}

/// Size of a record with this payload, in the file.
pub(crate) const fn record_bytes(payload_bytes: usize) -> usize {
    (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGN)
}

/// Appends one record to `out`. `parts` together are shorter than 4 GiB (the caller's limits).
pub(crate) fn encode(out: &mut Vec<u8>, salt: u32, head: &RecordHeader, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length_word = u32::try_from(length).expect("record_bytes_max is a u32");
    let start = out.len();

    let mut header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&length_word.to_le_bytes());
    header[8..16].copy_from_slice(&head.position.get().to_le_bytes());
    header[16..24].copy_from_slice(&head.at_ms.to_le_bytes());
    header[24..28].copy_from_slice(&head.stream.to_le_bytes());
    header[28..32].copy_from_slice(&head.unsynced.to_le_bytes());
    header[32] = head.kind as u8;
    header[36..40].copy_from_slice(&head.batch_rest.to_le_bytes());
    out.extend_from_slice(&header);
    for part in parts {
        out.extend_from_slice(part);
    }
    let crc = crc32c::crc32c_append(salt, &out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + record_bytes(length), 0);
}

/// Decodes the record at `offset` of a segment, if it is valid and belongs at `position`.
pub(crate) fn decode(segment: &[u8], offset: usize, salt: u32, position: LogPosition) -> Option<DecodedRecord<'_>> {
    let found = peek(segment, offset)?;
    if found.head.position != position {
        return None; // the cheap test first: it rejects zeros and stale bytes
    }
    let end = offset + HEADER_BYTES + found.payload.len();
    let crc = crc32c::crc32c_append(salt, &segment[offset + 4..end]);
    (crc == u32_at(segment, offset)?).then_some(found)
}

/// Same as [`decode`] for a record whose checksum was already verified.
pub(crate) fn peek(segment: &[u8], offset: usize) -> Option<DecodedRecord<'_>> {
    let length = u32_at(segment, offset + 4)? as usize;
    let start = offset.checked_add(HEADER_BYTES)?;
    let payload = segment.get(start..start.checked_add(length)?)?;
    if start + length > segment.len() - segment.len() % ALIGN {
        return None;
    }
    let head = RecordHeader {
        kind: RecordKind::from_byte(*segment.get(offset + 32)?)?,
        stream: u32_at(segment, offset + 24)?,
        position: LogPosition::new(u64_at(segment, offset + 8)?),
        at_ms: u64_at(segment, offset + 16)?,
        unsynced: u32_at(segment, offset + 28)?,
        batch_rest: u32_at(segment, offset + 36)?,
    };
    Some(DecodedRecord { head, payload })
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(position: u64) -> RecordHeader {
        RecordHeader {
            kind: RecordKind::Event,
            stream: 7,
            position: LogPosition::new(position),
            at_ms: 1_700_000_000_000,
            unsynced: 512,
            batch_rest: 3,
        }
    }

    #[test]
    fn record_encoding_matches_format_document() {
        let mut out = Vec::new();
        encode(&mut out, 0, &head(0x0102), &[b"ab", b"", b"c"]);
        assert_eq!(out.len(), 48);
        assert_eq!(out[4..8], [3, 0, 0, 0]);
        assert_eq!(out[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out[16..24], 1_700_000_000_000_u64.to_le_bytes());
        assert_eq!(out[24..28], [7, 0, 0, 0]);
        assert_eq!(out[28..32], [0, 2, 0, 0]);
        assert_eq!(out[32..40], [1, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(out[40..48], *b"abc\0\0\0\0\0");
        assert_eq!(out[0..4], crc32c::crc32c(&out[4..43]).to_le_bytes());
    }

    #[test]
    fn record_of_other_position_or_salt_is_rejected() {
        let mut out = Vec::new();
        encode(&mut out, 9, &head(64), &[b"abc"]);
        assert!(decode(&out, 0, 9, LogPosition::new(64)).is_some());
        assert!(decode(&out, 0, 9, LogPosition::new(72)).is_none());
        assert!(decode(&out, 0, 8, LogPosition::new(64)).is_none());
    }

    proptest! {
        #[test]
        fn encoded_record_is_decoded(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut out = vec![0; 16];
            encode(&mut out, 5, &head(16), &[&payload]);
            let found = decode(&out, 16, 5, LogPosition::new(16)).unwrap();
            prop_assert_eq!(found.payload, &payload[..]);
            prop_assert_eq!(found.head, head(16));
        }

        #[test]
        fn flipped_bit_is_detected(
            payload in proptest::collection::vec(any::<u8>(), 0..100), bit in any::<usize>(),
        ) {
            let mut out = Vec::new();
            encode(&mut out, 5, &head(0), &[&payload]);
            let bit = bit % ((HEADER_BYTES + payload.len()) * 8);
            out[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&out, 0, 5, LogPosition::new(0)).is_none());
        }

        #[test]
        fn arbitrary_bytes_are_no_record_and_no_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), offset in 0_usize..300,
        ) {
            let position = u64_at(&bytes, offset.saturating_add(8)).unwrap_or(0);
            prop_assert!(decode(&bytes, offset, 1, LogPosition::new(position)).is_none());
        }
    }
}
