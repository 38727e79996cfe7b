//! Finds a body's bytes in the input (Content-Length, chunked, until close), and writes chunks.

use std::ops::Range;

use bytes::{BufMut, BytesMut};

use super::{BodyFraming, FieldName, MalformedHttp};
use crate::http::limits::{CHUNK_EXTENSION_BYTES_MAX, CHUNK_SIZE_DIGITS_MAX, FIELDS_USUAL, TRAILER_BYTES_MAX};

/// What the next bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEvent {
    /// After `skip` bytes of framing come `take` bytes of content (at least one).
    Data { skip: usize, take: usize },
    /// All bytes were framing; more are needed.
    NeedBytes,
    /// The body ended after `skip` bytes of framing; what follows belongs to the next message.
    End { skip: usize },
}

/// Decodes one body as its bytes arrive.
#[derive(Debug)]
pub struct BodyDecoder {
    state: BodyDecoderState,
    /// Trailer lines, CR LF included; empty unless the peer sent some.
    trailers: Vec<u8>,
    /// A response body: blanks before a colon of its trailers are removed (RFC 9112 5.1).
    of_response: bool,
}

#[derive(Debug, Clone, Copy)]
enum BodyDecoderState {
    Length {
        left: u64,
    },
    UntilClose,
    Size {
        size: u64,
        digits: u8,
    },
    Extension {
        size: u64,
        bytes: u16,
    },
    /// After the CR of a chunk's line.
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCarriageReturn,
    DataLineFeed,
    /// At the first byte of a trailer line, or of the empty line that ends them.
    TrailerStart,
    TrailerLine,
    TrailerLineFeed,
    LastLineFeed,
    Done,
}

impl BodyDecoder {
    #[inline]
    #[must_use]
    pub fn new(framing: BodyFraming) -> Self {
        let state = match framing {
            BodyFraming::Empty | BodyFraming::Length(0) => BodyDecoderState::Done,
            BodyFraming::Length(left) => BodyDecoderState::Length { left },
            BodyFraming::Chunked => BodyDecoderState::Size { size: 0, digits: 0 },
            BodyFraming::UntilClose => BodyDecoderState::UntilClose,
        };
        Self { state, trailers: Vec::new(), of_response: false }
    }

    #[must_use]
    pub fn of_response(framing: BodyFraming) -> Self {
        Self { of_response: true, ..Self::new(framing) }
    }

    /// Whether the body is complete.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, BodyDecoderState::Done)
    }

    /// Whether the connection may end here: the body is complete, or ends with the connection.
    #[must_use]
    pub fn may_close(&self) -> bool {
        matches!(self.state, BodyDecoderState::Done | BodyDecoderState::UntilClose)
    }

    /// The trailer lines of a chunked body that is done.
    #[must_use]
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Decodes the next bytes. The caller consumes the returned bytes and calls again.
    pub fn next(&mut self, input: &[u8]) -> Result<BodyEvent, MalformedHttp> {
        let mut at = 0;
        loop {
            match self.state {
                BodyDecoderState::Done => return Ok(BodyEvent::End { skip: at }),
                _ if at == input.len() => return Ok(BodyEvent::NeedBytes),
                BodyDecoderState::UntilClose => {
                    return Ok(BodyEvent::Data { skip: at, take: input.len() - at });
                }
                BodyDecoderState::Length { left } => {
                    let take = at_most(left, input.len() - at);
                    let left = left - take as u64;
                    self.state = if left == 0 { BodyDecoderState::Done } else { BodyDecoderState::Length { left } };
                    return Ok(BodyEvent::Data { skip: at, take });
                }
                BodyDecoderState::Data { left } => {
                    let take = at_most(left, input.len() - at);
                    let left = left - take as u64;
                    self.state =
                        if left == 0 { BodyDecoderState::DataCarriageReturn } else { BodyDecoderState::Data { left } };
                    return Ok(BodyEvent::Data { skip: at, take });
                }
                _ => {
                    self.state = self.framing_byte(input[at])?;
                    at += 1;
                }
            }
        }
    }

    /// One byte of a chunked body that is not content.
    fn framing_byte(&mut self, byte: u8) -> Result<BodyDecoderState, MalformedHttp> {
        Ok(match (self.state, byte) {
            (BodyDecoderState::Size { size, digits }, _) if byte.is_ascii_hexdigit() => {
                if digits == CHUNK_SIZE_DIGITS_MAX {
                    return Err(MalformedHttp::ChunkSize);
                }
                let digit = (byte as char).to_digit(16).map_or(0, u64::from);
                BodyDecoderState::Size { size: (size << 4) | digit, digits: digits + 1 }
            }
            (BodyDecoderState::Size { digits: 0, .. }, _) => return Err(MalformedHttp::ChunkSize),
            (BodyDecoderState::Size { size, .. }, b'\r') => BodyDecoderState::SizeEnd { size },
            (BodyDecoderState::Size { size, .. }, b';') => BodyDecoderState::Extension { size, bytes: 0 },
            (BodyDecoderState::Size { .. }, _) => return Err(MalformedHttp::ChunkSize),

            (BodyDecoderState::Extension { size, .. }, b'\r') => BodyDecoderState::SizeEnd { size },
            (BodyDecoderState::Extension { size, bytes }, b'\t' | b' '..=b'~' | 0x80..)
                if bytes < CHUNK_EXTENSION_BYTES_MAX =>
            {
                BodyDecoderState::Extension { size, bytes: bytes + 1 }
            }
            (BodyDecoderState::Extension { .. }, _) => return Err(MalformedHttp::ChunkExtension),

            (BodyDecoderState::SizeEnd { size: 0 }, b'\n') => BodyDecoderState::TrailerStart,
            (BodyDecoderState::SizeEnd { size }, b'\n') => BodyDecoderState::Data { left: size },
            (BodyDecoderState::DataCarriageReturn, b'\r') => BodyDecoderState::DataLineFeed,
            (BodyDecoderState::DataLineFeed, b'\n') => BodyDecoderState::Size { size: 0, digits: 0 },
            (
                BodyDecoderState::SizeEnd { .. }
                | BodyDecoderState::DataCarriageReturn
                | BodyDecoderState::DataLineFeed,
                _,
            ) => {
                return Err(MalformedHttp::ChunkEnd);
            }

            (BodyDecoderState::TrailerStart, b'\r') => BodyDecoderState::LastLineFeed,
            (BodyDecoderState::LastLineFeed, b'\n') => {
                if self.of_response && !self.trailers.is_empty() {
                    self.trailers = without_blanks(&self.trailers);
                }
                check_trailers(&self.trailers)?;
                BodyDecoderState::Done
            }
            (BodyDecoderState::LastLineFeed, _)
            | (BodyDecoderState::TrailerStart | BodyDecoderState::TrailerLine, b'\n') => {
                return Err(MalformedHttp::Trailer);
            }
            (BodyDecoderState::TrailerLine, b'\r') => self.retain(byte, BodyDecoderState::TrailerLineFeed)?,
            (BodyDecoderState::TrailerStart | BodyDecoderState::TrailerLine, _) => {
                self.retain(byte, BodyDecoderState::TrailerLine)?
            }
            (BodyDecoderState::TrailerLineFeed, b'\n') => self.retain(byte, BodyDecoderState::TrailerStart)?,
            (BodyDecoderState::TrailerLineFeed, _) => return Err(MalformedHttp::Trailer),

            (
                BodyDecoderState::Length { .. }
                | BodyDecoderState::UntilClose
                | BodyDecoderState::Data { .. }
                | BodyDecoderState::Done,
                _,
            ) => {
                unreachable!("next() consumes content itself")
            }
        })
    }

    fn retain(&mut self, byte: u8, next: BodyDecoderState) -> Result<BodyDecoderState, MalformedHttp> {
        if self.trailers.len() == TRAILER_BYTES_MAX {
            return Err(MalformedHttp::TrailersTooLarge);
        }
        self.trailers.push(byte);
        Ok(next)
    }
}

fn at_most(left: u64, available: usize) -> usize {
    usize::try_from(left).map_or(available, |left| left.min(available))
}

/// Trailer lines without the blanks between names and colons.
fn without_blanks(lines: &[u8]) -> Vec<u8> {
    let mut clean = Vec::with_capacity(lines.len()); // trailers are rare
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let (name, rest) = line.split_at(memchr::memchr(b':', line).unwrap_or(0));
        clean.extend_from_slice(name.trim_ascii_end());
        clean.extend_from_slice(rest);
    }
    clean
}

fn check_trailers(lines: &[u8]) -> Result<(), MalformedHttp> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut whole = lines.to_vec(); // trailers are rare
    whole.extend_from_slice(b"\r\n");
    let mut slots = [httparse::EMPTY_HEADER; FIELDS_USUAL];
    match httparse::parse_headers(&whole, &mut slots) {
        Ok(httparse::Status::Complete(_)) => Ok(()),
        _ => Err(MalformedHttp::Trailer),
    }
}

/// The trailer lines that may be forwarded: none that frame, route or belong to one hop, because a receiver that merges
/// trailers into headers would act on them.
pub fn trailer_fields(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.split_inclusive(|&byte| byte == b'\n').filter(|line| {
        let name = &line[..memchr::memchr(b':', line).unwrap_or(0)];
        FieldName::of(name) == FieldName::Other && !name.eq_ignore_ascii_case(b"trailer")
    })
}

/// Writes the line that opens a chunk of `bytes` bytes. The caller writes the content and CR LF.
pub fn put_chunk_line(out: &mut BytesMut, bytes: usize) {
    let digits: Range<u32> = 0..(usize::BITS - bytes.leading_zeros()).div_ceil(4).max(1);
    for digit in digits.rev() {
        out.put_u8(b"0123456789abcdef"[(bytes >> (4 * digit)) & 0xf]);
    }
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Content, the length of the body if it ended, trailers.
    type DecodedBody = (Vec<u8>, Option<usize>, Vec<u8>);

    /// Reads a body; the input arrives in pieces of `step` bytes.
    fn read(framing: BodyFraming, input: &[u8], step: usize) -> Result<DecodedBody, MalformedHttp> {
        let mut reader = BodyDecoder::new(framing);
        let mut content = Vec::new();
        let mut taken = 0;
        let mut end = input.len().min(step);
        loop {
            match reader.next(&input[taken..end])? {
                BodyEvent::Data { skip, take } => {
                    assert!(take > 0);
                    content.extend_from_slice(&input[taken + skip..taken + skip + take]);
                    taken += skip + take;
                }
                BodyEvent::End { skip } => {
                    return Ok((content, Some(taken + skip), reader.trailers().to_vec()));
                }
                BodyEvent::NeedBytes if end == input.len() => return Ok((content, None, Vec::new())),
                BodyEvent::NeedBytes => {
                    taken = end;
                    end = input.len().min(end + step);
                }
            }
        }
    }

    #[test]
    fn body_ends_exactly_where_its_framing_says() {
        for (framing, input, content, bytes) in [
            (BodyFraming::Empty, "GET", "", Some(0)),
            (BodyFraming::Length(3), "abcGET", "abc", Some(3)),
            (BodyFraming::Length(9), "abc", "abc", None),
            (BodyFraming::UntilClose, "abc", "abc", None),
            (BodyFraming::Chunked, "3\r\nabc\r\n0\r\n\r\nGET", "abc", Some(13)),
            (
                BodyFraming::Chunked,
                "3;a=\"b\"\r\nabc\r\nA\r\n0123456789\r\n000\r\nX: y\r\n\r\nG",
                "abc0123456789",
                Some(42),
            ),
            (BodyFraming::Chunked, "0\r\n\r", "", None),
        ] {
            for step in 1..=input.len() {
                let (found, taken, _) = read(framing, input.as_bytes(), step).unwrap();
                assert_eq!((found.as_slice(), taken), (content.as_bytes(), bytes), "{input:?} by {step}");
            }
        }
    }

    #[test]
    fn malformed_chunk_is_rejected() {
        let long_extension = format!("1;{}\r\n", "x".repeat(1 + usize::from(CHUNK_EXTENSION_BYTES_MAX)));
        let long_trailers = format!("0\r\nA: {}\r\n\r\n", "x".repeat(TRAILER_BYTES_MAX));
        for (input, why) in [
            ("\r\n", MalformedHttp::ChunkSize),
            ("-1\r\n", MalformedHttp::ChunkSize),
            ("+1\r\n", MalformedHttp::ChunkSize),
            ("0x1\r\n", MalformedHttp::ChunkSize),
            (" 1\r\n", MalformedHttp::ChunkSize),
            ("1 \r\n", MalformedHttp::ChunkSize),
            ("g\r\n", MalformedHttp::ChunkSize),
            ("1\na\r\n", MalformedHttp::ChunkSize),
            ("11111111111111111\r\n", MalformedHttp::ChunkSize),
            ("00000000000000001\r\n", MalformedHttp::ChunkSize),
            ("1\rx", MalformedHttp::ChunkEnd),
            ("1;\n", MalformedHttp::ChunkExtension),
            ("1;a\0\r\n", MalformedHttp::ChunkExtension),
            (&long_extension, MalformedHttp::ChunkExtension),
            ("1\r\nab", MalformedHttp::ChunkEnd),
            ("1\r\na\n", MalformedHttp::ChunkEnd),
            ("1\r\na\r\r", MalformedHttp::ChunkEnd),
            ("1\r\na0\r\n\r\n", MalformedHttp::ChunkEnd),
            ("0\r\n\n", MalformedHttp::Trailer),
            ("0\r\nA : b\r\n\r\n", MalformedHttp::Trailer),
            ("0\r\nA\r\n\r\n", MalformedHttp::Trailer),
            ("0\r\nA: b\n\r\n", MalformedHttp::Trailer),
            ("0\r\n A: b\r\n\r\n", MalformedHttp::Trailer),
            ("0\r\n\rX", MalformedHttp::Trailer),
            (&long_trailers, MalformedHttp::TrailersTooLarge),
        ] {
            for step in [1, 2, input.len()] {
                assert_eq!(read(BodyFraming::Chunked, input.as_bytes(), step).unwrap_err(), why, "{input:?} by {step}");
            }
        }
    }

    #[test]
    fn largest_chunk_size_does_not_overflow() {
        let (content, end, _) = read(BodyFraming::Chunked, b"ffffffffffffffff\r\nabc", 64).unwrap();
        assert_eq!((content.as_slice(), end), (b"abc".as_slice(), None));
    }

    #[test]
    fn framing_and_routing_trailers_are_not_forwarded() {
        let lines = b"X-Sum: 1\r\nContent-Length: 5\r\nHost: evil\r\ntrailer: x\r\nGrpc-Status: 0\r\n";
        let kept: Vec<_> = trailer_fields(lines).collect();
        assert_eq!(kept, [b"X-Sum: 1\r\n".as_slice(), b"Grpc-Status: 0\r\n"]);
    }

    #[test]
    fn chunk_lines_are_plain_hexadecimal() {
        for (bytes, line) in [(1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (4096, "1000\r\n"), (0, "0\r\n")] {
            let mut out = BytesMut::new();
            put_chunk_line(&mut out, bytes);
            assert_eq!(out, line);
        }
    }

    proptest! {
        #[test]
        fn chunked_body_round_trips(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8), step in 1usize..400) {
            let mut wire = BytesMut::new();
            for piece in &pieces {
                put_chunk_line(&mut wire, piece.len());
                wire.put_slice(piece);
                wire.put_slice(b"\r\n");
            }
            wire.put_slice(b"0\r\n\r\n");
            let (content, end, _) = read(BodyFraming::Chunked, &wire, step).unwrap();
            prop_assert_eq!(content, pieces.concat());
            prop_assert_eq!(end, Some(wire.len()));
        }

        #[test]
        fn decoding_does_not_depend_on_the_split(input in "[0-9a-f;\r\n :x]{0,60}", step in 1usize..20) {
            let whole = read(BodyFraming::Chunked, input.as_bytes(), usize::MAX);
            prop_assert_eq!(whole, read(BodyFraming::Chunked, input.as_bytes(), step));
        }
    }
}
