//! Finds trailers of responses that begin with a pseudo-field: such a response is malformed (RFC 9113 8.1), and h2 would pass
//! it on without the field.
//!
//! It reads along: nine bytes of each frame's header, however they are split, and the front of each block. A HEADERS frame that
//! ends its stream has trailers if a final head came before it, and is a head itself if not. Which heads are final is read from
//! `:status`; where that refers to the dynamic table, DATA says so.

use std::collections::BTreeSet;

use super::limits::INSTANCE_STREAMS_MAX;
use super::trailer_scan::TrailerScan;

const HEAD_BYTES: usize = 9;
const RESERVED: u32 = 1 << 31;
const END_STREAM: u8 = 0x1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// One connection to an instance.
#[derive(Debug, Default)]
pub(super) struct ResponseTrailerScan {
    head: [u8; HEAD_BYTES],
    /// Bytes of `head` that have come.
    known: usize,
    /// Bytes of the frame's payload that have not come.
    payload: usize,
    block: BlockScan,
    /// Streams whose final head has come.
    answered: AnsweredStreams,
}

/// Up to [`INSTANCE_STREAMS_MAX`] streams. An instance need not send another frame on a stream that was reset, so the
/// oldest stream is removed when there are more. If that one is still open, its next DATA adds it again.
#[derive(Debug, Default)]
struct AnsweredStreams(BTreeSet<u32>);

impl AnsweredStreams {
    fn insert(&mut self, stream: u32) {
        if self.0.len() == INSTANCE_STREAMS_MAX && !self.0.contains(&stream) {
            self.0.pop_first();
        }
        self.0.insert(stream);
    }

    /// Whether the stream was among them.
    fn remove(&mut self, stream: u32) -> bool {
        self.0.remove(&stream)
    }
}

/// What is looked for in the payload in progress.
#[derive(Debug, Default)]
enum BlockScan {
    #[default]
    Nothing,
    Head(u32, StatusScan),
    Trailers(u32, TrailerScan),
}

impl ResponseTrailerScan {
    /// Takes the next bytes that came; tells `found` of streams whose trailers are malformed.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(u32)) {
        while !bytes.is_empty() {
            let (payload, rest) = bytes.split_at(self.payload.min(bytes.len()));
            self.payload -= payload.len();
            self.payload(payload, &mut found);
            let (head, rest) = rest.split_at((HEAD_BYTES - self.known).min(rest.len()));
            self.head[self.known..self.known + head.len()].copy_from_slice(head);
            self.known += head.len();
            bytes = rest;
            if self.known == HEAD_BYTES {
                self.known = 0;
                self.frame();
            }
        }
    }

    fn payload(&mut self, bytes: &[u8], found: &mut impl FnMut(u32)) {
        match &mut self.block {
            BlockScan::Nothing => return,
            BlockScan::Head(stream, scan) => {
                if scan.finds_final(bytes) {
                    self.answered.insert(*stream);
                }
            }
            BlockScan::Trailers(stream, scan) => {
                if scan.finds_pseudo(bytes) {
                    found(*stream);
                }
            }
        }
        if self.payload == 0 {
            self.block = BlockScan::Nothing;
        }
    }

    fn frame(&mut self) {
        let [high, middle, low, kind, flags, stream @ ..] = self.head;
        self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let stream = u32::from_be_bytes(stream) & !RESERVED;
        let ends = flags & END_STREAM != 0;
        match kind {
            0x0 | 0x1 if ends => {
                let had_head = self.answered.remove(stream);
                if kind == 0x1 && had_head {
                    self.block = BlockScan::Trailers(stream, TrailerScan::new(flags));
                }
            }
            0x0 => self.answered.insert(stream),
            0x1 => self.block = BlockScan::Head(stream, StatusScan::new(flags)),
            0x3 => drop(self.answered.remove(stream)),
            _ => {}
        }
    }
}

/// Reads `:status` at the front of a head's block, byte by byte. h2 refuses a head that begins with another field.
#[derive(Debug, Clone, Copy)]
enum StatusScan {
    /// What is before the block: the padding's length, a priority.
    Before(u8),
    Field,
    /// In a change of the table's size.
    Size,
    Length,
    Value {
        huffman: bool,
    },
    Done,
}

/// The first five bits of a value that is coded by Huffman and begins with `1`.
const HUFFMAN_ONE: u8 = 0x01;

impl StatusScan {
    fn new(flags: u8) -> Self {
        let before = u8::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
        if before == 0 { Self::Field } else { Self::Before(before) }
    }

    /// Takes the next bytes of the block; whether it has a final status.
    fn finds_final(&mut self, bytes: &[u8]) -> bool {
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
                0x88..=0x8e => (Self::Done, true), // 200, 204, 206, 304, 400, 404, 500
                0x48..=0x4e | 0x08..=0x0e | 0x18..=0x1e => (Self::Length, false),
                0x3f => (Self::Size, false),
                0x20..=0x3e => (Self::Field, false),
                _ => (Self::Done, false),
            },
            Self::Size if byte & 0x80 != 0 => (Self::Size, false),
            Self::Size => (Self::Field, false),
            Self::Length => (Self::Value { huffman: byte & 0x80 != 0 }, false),
            Self::Value { huffman: true } => (Self::Done, byte >> 3 != HUFFMAN_ONE),
            Self::Value { huffman: false } => (Self::Done, byte != b'1'),
            Self::Done => (Self::Done, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END_HEADERS: u8 = 0x4;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    fn headers(flags: u8, stream: u32, block: &[u8]) -> Vec<u8> {
        frame(0x1, flags | END_HEADERS, stream, block)
    }

    /// The reported streams, for any split of the bytes.
    fn reported(frames: &[Vec<u8>]) -> Vec<u32> {
        let bytes = [frame(0x4, 0, 0, &[]), frames.concat()].concat();
        let by = |piece: usize| {
            let (mut scan, mut reported) = (ResponseTrailerScan::default(), Vec::new());
            bytes.chunks(piece).for_each(|bytes| scan.read(bytes, |stream| reported.push(stream)));
            reported
        };
        let whole = by(bytes.len());
        for piece in [1, 2, 7, 10] {
            assert_eq!(by(piece), whole, "by {piece}");
        }
        whole
    }

    #[test]
    fn pseudo_field_in_response_trailers_is_found() {
        let trailers = headers(END_STREAM, 1, &[0x88]);
        for head in [&[0x88][..], &[0x48, 3, b'2', b'0', b'1'], &[0x08, 0x82, 0x10, 0x01], &[0x3f, 0x01, 0x8d]] {
            assert_eq!(reported(&[headers(0, 1, head), trailers.clone()]), [1], "{head:x?}");
        }
        // A status of the dynamic table: DATA says that the head was final.
        let data = frame(0x0, 0, 1, b"x");
        assert_eq!(reported(&[headers(0, 1, &[0xbe]), data.clone(), trailers.clone()]), [1]);
        let padded = headers(END_STREAM | PADDED, 1, &[2, 0x84, 0, 0]);
        assert_eq!(reported(&[headers(PADDED, 1, &[1, 0x88, 0]), data, padded]), [1]);
        // Two interleaved streams.
        let other = [headers(0, 3, &[0x88]), headers(END_STREAM, 3, &[0x0f, 0x00, 1, b'a'])];
        assert_eq!(reported(&[headers(0, 1, &[0x88]), other[0].clone(), trailers, other[1].clone()]), [1]);
    }

    /// A client that goes cancels its stream, and the instance need not send another frame on it.
    #[test]
    fn cancelled_streams_take_bounded_memory() {
        let (mut scan, mut found) = (ResponseTrailerScan::default(), Vec::new());
        let last = 6 * INSTANCE_STREAMS_MAX as u32 + 1;
        for stream in (1..=last).step_by(2) {
            scan.read(&headers(0, stream, &[0x88]), |stream| found.push(stream));
        }
        assert_eq!(scan.answered.0.len(), INSTANCE_STREAMS_MAX);
        // The oldest stream is still open, and DATA adds it again.
        scan.read(&frame(0x0, 0, 1, b"x"), |stream| found.push(stream));
        assert_eq!(scan.answered.0.len(), INSTANCE_STREAMS_MAX);
        for stream in [1, last] {
            scan.read(&headers(END_STREAM, stream, &[0x88]), |stream| found.push(stream));
        }
        assert_eq!(found, [1, last]);
    }

    #[test]
    fn head_that_ends_its_stream_is_no_trailers() {
        let ended = headers(END_STREAM, 1, &[0x88]);
        assert_eq!(reported(std::slice::from_ref(&ended)), [0_u32; 0]);
        // After an interim response, literal or indexed.
        for interim in [&[0x48, 3, b'1', b'0', b'3'][..], &[0x48, 0x82, 0x08, 0x01], &[0xbe]] {
            assert_eq!(reported(&[headers(0, 1, interim), ended.clone()]), [0_u32; 0], "{interim:x?}");
        }
        // Good trailers, and a stream that was reset.
        assert_eq!(reported(&[headers(0, 1, &[0x88]), headers(END_STREAM, 1, &[0x0f, 0x00, 1, b'a'])]), [0_u32; 0]);
        assert_eq!(reported(&[headers(0, 1, &[0x88]), frame(0x3, 0, 1, &[0; 4]), ended]), [0_u32; 0]);
    }
}
