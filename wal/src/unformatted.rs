//! Files without a header that are not what they seem: unused, or begun and never durable.
//!
//! A segment's header is written with its first flush. A disk that reported this flush durable without
//! writing it, and wrote later ones, leaves acknowledged records behind a header of zeros. They are
//! recognised by their position, and by their statement that something in this segment was durable before
//! them. The checksum cannot help, because its salt was in the header; so nothing is read from such a file,
//! it is reported and set aside. Instead a record header counts only when it is inside one sector: one
//! across two sectors may be half of a torn first flush and half of what an earlier use left behind it.

use crate::codec::{ALIGN, HEADER_BYTES, peek, u64_at};
use crate::header::SEGMENT_HEADER_BYTES;

/// Zeros are skipped in steps of this many bytes: a spare contains nothing else.
const STEP_BYTES: usize = 4096;
/// Size that a disk writes atomically, in bytes.
const SECTOR_BYTES: usize = 512;

/// Base of the segment that these records belong to, if it is one of `bases` and its first flush had been
/// confirmed when they were appended.
pub(crate) fn lost_header(file: &[u8], bases: &[u64]) -> Option<u64> {
    let zeros = [0; STEP_BYTES];
    for (nth, page) in file.chunks(STEP_BYTES).enumerate() {
        if zeros.starts_with(page) {
            continue;
        }
        let begin = (nth * STEP_BYTES).max(SEGMENT_HEADER_BYTES);
        let found = (begin..nth * STEP_BYTES + page.len()).step_by(ALIGN).find_map(|at| proof(file, at, bases));
        if found.is_some() {
            return found;
        }
    }
    None
}

fn proof(file: &[u8], at: usize, bases: &[u64]) -> Option<u64> {
    if at % SECTOR_BYTES > SECTOR_BYTES - HEADER_BYTES {
        return None;
    }
    let record_position = u64_at(file, at.checked_add(8)?)?;
    let base = record_position.checked_sub(at as u64).filter(|base| bases.contains(base))?;
    let head = peek(file, at).filter(|_| at + HEADER_BYTES <= file.len())?.head;
    let durable = record_position.saturating_sub(head.unsynced.into());
    (durable > base).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{RecordHeader, RecordKind, encode};
    use crate::position::LogPosition;

    const BASE: u64 = 1 << 20;

    /// A file of two pages with one record at `at`.
    fn file(at: usize, unsynced: u32) -> Vec<u8> {
        let position = LogPosition::new(BASE + at as u64);
        let head = RecordHeader { kind: RecordKind::Event, stream: 1, position, at_ms: 0, unsynced, batch_rest: 0 };
        let mut file = vec![0; at];
        encode(&mut file, 77, &head, &[b"acknowledged"]);
        file.resize(2 * STEP_BYTES, 0);
        file
    }

    /// A torn first flush over what an earlier use left made a record header of two halves: one with a
    /// position in this segment, one that proved another segment durable.
    #[test]
    fn record_header_across_sectors_is_ignored() {
        for at in [512 - 32, 4096 - 8] {
            assert_eq!(lost_header(&file(at, 8), &[BASE]), None, "{at}");
        }
    }

    #[test]
    fn lost_header_needs_record_after_durable_flush() {
        for at in [64, 512, 4096 - 40, 5000] {
            assert_eq!(lost_header(&file(at, 8), &[0, BASE]), Some(BASE), "{at}");
        }
        assert_eq!(lost_header(&file(512, 512), &[BASE]), None, "of the first flush, which was torn");
        assert_eq!(lost_header(&file(512, 8), &[BASE + 8]), None, "left by an earlier use");
        assert_eq!(lost_header(&[0; 3 * STEP_BYTES], &[0, BASE]), None, "a spare");
        assert_eq!(lost_header(&[0xff; 100], &[0, BASE]), None);
        assert_eq!(lost_header(&[], &[0]), None);
    }
}
