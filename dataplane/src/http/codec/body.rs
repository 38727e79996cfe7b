//! Where a body's bytes are in what arrives: Content-Length, chunked, until close; and chunked back out.

use std::ops::Range;

use bytes::{BufMut, BytesMut};

use super::{Framing, Malformed, Name};
use crate::http::limits::{
    CHUNK_EXTENSION_BYTES_MAX, CHUNK_SIZE_DIGITS_MAX, FIELDS_USUAL, TRAILER_BYTES_MAX,
};

/// What the next bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// After `skip` bytes of framing come `take` bytes of content (at least one).
    Data { skip: usize, take: usize },
    /// All bytes were framing; more have to come.
    NeedBytes,
    /// The body ended after `skip` bytes of framing; what follows belongs to the next message.
    End { skip: usize },
}

/// Follows one body through its bytes.
#[derive(Debug)]
pub struct BodyReader {
    state: State,
    /// Trailer lines, CR LF included; empty unless the peer sent some.
    trailers: Vec<u8>,
    /// It is a response's: blanks before a colon of its trailers are removed (RFC 9112 5.1).
    of_response: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
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

impl BodyReader {
    #[must_use]
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Empty | Framing::Length(0) => State::Done,
            Framing::Length(left) => State::Length { left },
            Framing::Chunked => State::Size { size: 0, digits: 0 },
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, trailers: Vec::new(), of_response: false }
    }

    #[must_use]
    pub fn of_response(framing: Framing) -> Self {
        Self { of_response: true, ..Self::new(framing) }
    }

    /// Whether the body is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether the connection may end here: the body is complete, or ends just so.
    #[must_use]
    pub fn may_close(&self) -> bool {
        matches!(self.state, State::Done | State::UntilClose)
    }

    /// The trailer lines of a chunked body that is done.
    #[must_use]
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Looks at the next bytes; the caller takes away what the answer names and asks again.
    pub fn next(&mut self, input: &[u8]) -> Result<Piece, Malformed> {
        let mut at = 0;
        loop {
            match self.state {
                State::Done => return Ok(Piece::End { skip: at }),
                _ if at == input.len() => return Ok(Piece::NeedBytes),
                State::UntilClose => return Ok(Piece::Data { skip: at, take: input.len() - at }),
                State::Length { left } => {
                    let take = at_most(left, input.len() - at);
                    let left = left - take as u64;
                    self.state = if left == 0 { State::Done } else { State::Length { left } };
                    return Ok(Piece::Data { skip: at, take });
                }
                State::Data { left } => {
                    let take = at_most(left, input.len() - at);
                    let left = left - take as u64;
                    self.state = if left == 0 { State::DataCarriageReturn } else { State::Data { left } };
                    return Ok(Piece::Data { skip: at, take });
                }
                _ => {
                    self.state = self.framing_byte(input[at])?;
                    at += 1;
                }
            }
        }
    }

    /// One byte of a chunked body that is not content.
    fn framing_byte(&mut self, byte: u8) -> Result<State, Malformed> {
        Ok(match (self.state, byte) {
            (State::Size { size, digits }, _) if byte.is_ascii_hexdigit() => {
                if digits == CHUNK_SIZE_DIGITS_MAX {
                    return Err(Malformed::ChunkSize);
                }
                let digit = (byte as char).to_digit(16).map_or(0, u64::from);
                State::Size { size: (size << 4) | digit, digits: digits + 1 }
            }
            (State::Size { digits: 0, .. }, _) => return Err(Malformed::ChunkSize),
            (State::Size { size, .. }, b'\r') => State::SizeEnd { size },
            (State::Size { size, .. }, b';') => State::Extension { size, bytes: 0 },
            (State::Size { .. }, _) => return Err(Malformed::ChunkSize),

            (State::Extension { size, .. }, b'\r') => State::SizeEnd { size },
            (State::Extension { size, bytes }, b'\t' | b' '..=b'~' | 0x80..)
                if bytes < CHUNK_EXTENSION_BYTES_MAX =>
            {
                State::Extension { size, bytes: bytes + 1 }
            }
            (State::Extension { .. }, _) => return Err(Malformed::ChunkExtension),

            (State::SizeEnd { size: 0 }, b'\n') => State::TrailerStart,
            (State::SizeEnd { size }, b'\n') => State::Data { left: size },
            (State::DataCarriageReturn, b'\r') => State::DataLineFeed,
            (State::DataLineFeed, b'\n') => State::Size { size: 0, digits: 0 },
            (State::SizeEnd { .. } | State::DataCarriageReturn | State::DataLineFeed, _) => {
                return Err(Malformed::ChunkEnd);
            }

            (State::TrailerStart, b'\r') => State::LastLineFeed,
            (State::LastLineFeed, b'\n') => {
                if self.of_response && !self.trailers.is_empty() {
                    self.trailers = without_blanks(&self.trailers);
                }
                check_trailers(&self.trailers)?;
                State::Done
            }
            (State::LastLineFeed, _) | (State::TrailerStart | State::TrailerLine, b'\n') => {
                return Err(Malformed::Trailer);
            }
            (State::TrailerLine, b'\r') => self.keep(byte, State::TrailerLineFeed)?,
            (State::TrailerStart | State::TrailerLine, _) => self.keep(byte, State::TrailerLine)?,
            (State::TrailerLineFeed, b'\n') => self.keep(byte, State::TrailerStart)?,
            (State::TrailerLineFeed, _) => return Err(Malformed::Trailer),

            (State::Length { .. } | State::UntilClose | State::Data { .. } | State::Done, _) => {
                unreachable!("next() takes content itself")
            }
        })
    }

    fn keep(&mut self, byte: u8, next: State) -> Result<State, Malformed> {
        if self.trailers.len() == TRAILER_BYTES_MAX {
            return Err(Malformed::TrailersTooLarge);
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

fn check_trailers(lines: &[u8]) -> Result<(), Malformed> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut whole = lines.to_vec(); // trailers are rare
    whole.extend_from_slice(b"\r\n");
    let mut slots = [httparse::EMPTY_HEADER; FIELDS_USUAL];
    match httparse::parse_headers(&whole, &mut slots) {
        Ok(httparse::Status::Complete(_)) => Ok(()),
        _ => Err(Malformed::Trailer),
    }
}

/// The trailer lines that may be passed on: nothing that frames, routes or belongs to one hop, for a
/// receiver that merges trailers into headers would act on it.
pub fn trailer_fields(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.split_inclusive(|&byte| byte == b'\n').filter(|line| {
        let name = &line[..memchr::memchr(b':', line).unwrap_or(0)];
        Name::of(name) == Name::Other && !name.eq_ignore_ascii_case(b"trailer")
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

    /// Content, bytes that the body took if it ended, trailers.
    type Read = (Vec<u8>, Option<usize>, Vec<u8>);

    /// Reads a body; the input comes in pieces of `step` bytes.
    fn read(framing: Framing, input: &[u8], step: usize) -> Result<Read, Malformed> {
        let mut reader = BodyReader::new(framing);
        let mut content = Vec::new();
        let mut taken = 0;
        let mut end = input.len().min(step);
        loop {
            match reader.next(&input[taken..end])? {
                Piece::Data { skip, take } => {
                    assert!(take > 0);
                    content.extend_from_slice(&input[taken + skip..taken + skip + take]);
                    taken += skip + take;
                }
                Piece::End { skip } => return Ok((content, Some(taken + skip), reader.trailers().to_vec())),
                Piece::NeedBytes if end == input.len() => return Ok((content, None, Vec::new())),
                Piece::NeedBytes => {
                    taken = end;
                    end = input.len().min(end + step);
                }
            }
        }
    }

    #[test]
    fn a_body_ends_where_its_framing_says_and_not_a_byte_later() {
        for (framing, input, content, bytes) in [
            (Framing::Empty, "GET", "", Some(0)),
            (Framing::Length(3), "abcGET", "abc", Some(3)),
            (Framing::Length(9), "abc", "abc", None),
            (Framing::UntilClose, "abc", "abc", None),
            (Framing::Chunked, "3\r\nabc\r\n0\r\n\r\nGET", "abc", Some(13)),
            (
                Framing::Chunked,
                "3;a=\"b\"\r\nabc\r\nA\r\n0123456789\r\n000\r\nX: y\r\n\r\nG",
                "abc0123456789",
                Some(42),
            ),
            (Framing::Chunked, "0\r\n\r", "", None),
        ] {
            for step in 1..=input.len() {
                let (found, taken, _) = read(framing, input.as_bytes(), step).unwrap();
                assert_eq!((found.as_slice(), taken), (content.as_bytes(), bytes), "{input:?} by {step}");
            }
        }
    }

    #[test]
    fn a_malformed_chunk_is_refused() {
        let long_extension = format!("1;{}\r\n", "x".repeat(1 + usize::from(CHUNK_EXTENSION_BYTES_MAX)));
        let long_trailers = format!("0\r\nA: {}\r\n\r\n", "x".repeat(TRAILER_BYTES_MAX));
        for (input, why) in [
            ("\r\n", Malformed::ChunkSize),
            ("-1\r\n", Malformed::ChunkSize),
            ("+1\r\n", Malformed::ChunkSize),
            ("0x1\r\n", Malformed::ChunkSize),
            (" 1\r\n", Malformed::ChunkSize),
            ("1 \r\n", Malformed::ChunkSize),
            ("g\r\n", Malformed::ChunkSize),
            ("1\na\r\n", Malformed::ChunkSize),
            ("11111111111111111\r\n", Malformed::ChunkSize),
            ("00000000000000001\r\n", Malformed::ChunkSize),
            ("1\rx", Malformed::ChunkEnd),
            ("1;\n", Malformed::ChunkExtension),
            ("1;a\0\r\n", Malformed::ChunkExtension),
            (&long_extension, Malformed::ChunkExtension),
            ("1\r\nab", Malformed::ChunkEnd),
            ("1\r\na\n", Malformed::ChunkEnd),
            ("1\r\na\r\r", Malformed::ChunkEnd),
            ("1\r\na0\r\n\r\n", Malformed::ChunkEnd),
            ("0\r\n\n", Malformed::Trailer),
            ("0\r\nA : b\r\n\r\n", Malformed::Trailer),
            ("0\r\nA\r\n\r\n", Malformed::Trailer),
            ("0\r\nA: b\n\r\n", Malformed::Trailer),
            ("0\r\n A: b\r\n\r\n", Malformed::Trailer),
            ("0\r\n\rX", Malformed::Trailer),
            (&long_trailers, Malformed::TrailersTooLarge),
        ] {
            for step in [1, 2, input.len()] {
                assert_eq!(
                    read(Framing::Chunked, input.as_bytes(), step).unwrap_err(),
                    why,
                    "{input:?} by {step}"
                );
            }
        }
    }

    #[test]
    fn the_largest_chunk_size_is_a_size_and_not_an_overflow() {
        let (content, end, _) = read(Framing::Chunked, b"ffffffffffffffff\r\nabc", 64).unwrap();
        assert_eq!((content.as_slice(), end), (b"abc".as_slice(), None));
    }

    #[test]
    fn trailers_that_frame_or_route_are_not_passed_on() {
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
        fn what_was_chunked_comes_back(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8), step in 1usize..400) {
            let mut wire = BytesMut::new();
            for piece in &pieces {
                put_chunk_line(&mut wire, piece.len());
                wire.put_slice(piece);
                wire.put_slice(b"\r\n");
            }
            wire.put_slice(b"0\r\n\r\n");
            let (content, end, _) = read(Framing::Chunked, &wire, step).unwrap();
            prop_assert_eq!(content, pieces.concat());
            prop_assert_eq!(end, Some(wire.len()));
        }

        #[test]
        fn any_bytes_in_any_pieces_give_one_answer(input in "[0-9a-f;\r\n :x]{0,60}", step in 1usize..20) {
            let whole = read(Framing::Chunked, input.as_bytes(), usize::MAX);
            prop_assert_eq!(whole, read(Framing::Chunked, input.as_bytes(), step));
        }
    }
}
