//! Frames of SPDY/3.1: bytes in, frames out, and back.
//!
//! DATA frames may have 16 MiB, so their payload is passed on in chunks as it arrives. Control frames are read whole and are
//! bounded. An error is the peer's, and ends the connection: the compression state of its headers is lost.

use bytes::{Buf as _, Bytes, BytesMut};

use super::CONTROL_BYTES_MAX;
pub use super::error::SpdyError;
pub use super::header_block::Headers;
use super::header_block::{Deflater, Inflater};

const VERSION: u16 = 3;
const HEAD_BYTES: usize = 8;
const CONTROL_BIT: u8 = 0x80;
/// Stream numbers have 31 bits.
const STREAM_MASK: u32 = 0x7fff_ffff;
const FLAG_FIN: u8 = 1;
/// A frame's length has 24 bits.
const PAYLOAD_BYTES_MAX: usize = (1 << 24) - 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// A frame of a client, as far as a server acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    SynStream {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    /// A DATA frame or a piece of it; `fin` is set on the last one.
    Data {
        stream: u32,
        fin: bool,
        bytes: Bytes,
    },
    /// More headers of an open stream.
    Headers {
        stream: u32,
        fin: bool,
    },
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
}

/// The payload of a DATA frame that is still arriving.
struct PendingData {
    stream: u32,
    fin: bool,
    bytes_left: usize,
}

/// Reads frames.
pub struct Decoder {
    buffer: BytesMut,
    data: Option<PendingData>,
    headers: Inflater,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { buffer: BytesMut::new(), data: None, headers: Inflater::new() }
    }
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Where the bytes of a read go.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next frame; `None`: it needs more bytes. Bounded by [`CONTROL_BYTES_MAX`] and what was pushed at once.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, SpdyError> {
        loop {
            if let Some(data) = self.data.take() {
                return Ok(self.next_piece(data));
            }
            let Some(head) = self.buffer.first_chunk::<HEAD_BYTES>().copied() else { return Ok(None) };
            let [a, b, c, d, flags, length @ ..] = head;
            let length = usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
            let fin = flags & FLAG_FIN != 0;
            if a & CONTROL_BIT == 0 {
                self.buffer.advance(HEAD_BYTES);
                let stream = u32::from_be_bytes([a, b, c, d]);
                if length == 0 {
                    return Ok(Some(Frame::Data { stream, fin, bytes: Bytes::new() }));
                }
                self.data = Some(PendingData { stream, fin, bytes_left: length });
                continue;
            }
            let version = u16::from_be_bytes([a & !CONTROL_BIT, b]);
            if version != VERSION {
                return Err(SpdyError::Version(version));
            }
            if length > CONTROL_BYTES_MAX {
                return Err(SpdyError::FrameTooLarge(length));
            }
            if self.buffer.len() < HEAD_BYTES + length {
                return Ok(None);
            }
            self.buffer.advance(HEAD_BYTES);
            let payload = self.buffer.split_to(length);
            if let Some(frame) = self.control_frame(u16::from_be_bytes([c, d]), fin, &payload)? {
                return Ok(Some(frame));
            }
        }
    }

    fn next_piece(&mut self, mut data: PendingData) -> Option<Frame> {
        let count = data.bytes_left.min(self.buffer.len());
        if count == 0 {
            self.data = Some(data);
            return None;
        }
        let (stream, bytes) = (data.stream, self.buffer.split_to(count).freeze());
        data.bytes_left -= count;
        let is_whole = data.bytes_left == 0;
        let fin = data.fin && is_whole;
        self.data = (!is_whole).then_some(data);
        Some(Frame::Data { stream, fin, bytes })
    }

    /// `None`: a frame that asks for nothing. SETTINGS, WINDOW_UPDATE and unknown types are among them.
    fn control_frame(&mut self, kind: u16, fin: bool, payload: &[u8]) -> Result<Option<Frame>, SpdyError> {
        let number = || payload.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
        let number = || number().ok_or(SpdyError::FrameTooShort(kind));
        let stream = || number().map(|stream| stream & STREAM_MASK);
        let behind = |bytes: usize| payload.get(bytes..).ok_or(SpdyError::FrameTooShort(kind));
        Ok(match kind {
            SYN_STREAM => {
                let headers = self.headers.read(behind(10)?)?;
                Some(Frame::SynStream { stream: stream()?, fin, headers })
            }
            // The server opens no streams; its block still belongs to the compression state.
            SYN_REPLY => {
                self.headers.read(behind(4)?)?;
                None
            }
            HEADERS => {
                self.headers.read(behind(4)?)?;
                Some(Frame::Headers { stream: stream()?, fin })
            }
            RST_STREAM => Some(Frame::Reset { stream: stream()? }),
            PING => Some(Frame::Ping { id: number()? }),
            GOAWAY => Some(Frame::GoAway),
            _ => None,
        })
    }
}

/// Writes frames.
pub struct Encoder {
    headers: Deflater,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { headers: Deflater::new() }
    }
}

impl Encoder {
    /// Accepts a stream.
    pub fn syn_reply(&mut self, to: &mut BytesMut, stream: u32) -> Result<(), SpdyError> {
        let block = self.headers.write(&[])?;
        control(to, SYN_REPLY, 0, &[&stream.to_be_bytes(), &block]);
        Ok(())
    }

    /// Opens a stream, as clients do.
    pub fn syn_stream(&mut self, to: &mut BytesMut, stream: u32, headers: &[(&str, &str)]) -> Result<(), SpdyError> {
        let block = self.headers.write(headers)?;
        control(to, SYN_STREAM, 0, &[&stream.to_be_bytes(), &[0; 6], &block]);
        Ok(())
    }
}

/// A DATA frame, or more than one for a payload that is longer than a frame.
pub fn data(to: &mut BytesMut, stream: u32, bytes: &[u8], fin: bool) {
    let mut rest = bytes;
    loop {
        let (piece, after) = rest.split_at(rest.len().min(PAYLOAD_BYTES_MAX));
        rest = after;
        let is_last = rest.is_empty();
        to.extend_from_slice(&(stream & STREAM_MASK).to_be_bytes());
        head_end(to, if fin && is_last { FLAG_FIN } else { 0 }, piece.len());
        to.extend_from_slice(piece);
        if is_last {
            return;
        }
    }
}

/// Ends a stream of the peer: it is refused.
pub fn refuse_stream(to: &mut BytesMut, stream: u32) {
    const REFUSED_STREAM: u32 = 3;
    control(to, RST_STREAM, 0, &[&stream.to_be_bytes(), &REFUSED_STREAM.to_be_bytes()]);
}

pub fn ping(to: &mut BytesMut, id: u32) {
    control(to, PING, 0, &[&id.to_be_bytes()]);
}

fn control(to: &mut BytesMut, kind: u16, flags: u8, parts: &[&[u8]]) {
    to.extend_from_slice(&(VERSION | u16::from(CONTROL_BIT) << 8).to_be_bytes());
    to.extend_from_slice(&kind.to_be_bytes());
    head_end(to, flags, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| to.extend_from_slice(part));
}

fn head_end(to: &mut BytesMut, flags: u8, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    to.extend_from_slice(&[flags, length[1], length[2], length[3]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8]) -> Result<Vec<Frame>, SpdyError> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        std::iter::from_fn(|| decoder.next_frame().transpose()).collect()
    }

    fn data_frame(stream: u32, fin: bool, bytes: &'static [u8]) -> Frame {
        Frame::Data { stream, fin, bytes: Bytes::from_static(bytes) }
    }

    /// kubectl's bytes, at once and byte by byte.
    #[test]
    fn frames_are_read_in_pieces_of_any_size() {
        let (mut encoder, mut bytes) = (Encoder::default(), BytesMut::new());
        encoder.syn_stream(&mut bytes, 1, &[("streamtype", "error")]).unwrap();
        encoder.syn_stream(&mut bytes, 3, &[("streamType", "stdin")]).unwrap();
        data(&mut bytes, 3, b"ls\n", false);
        data(&mut bytes, 3, b"", true);
        ping(&mut bytes, 7);
        encoder.syn_reply(&mut bytes, 2).unwrap();
        control(&mut bytes, 4, 0, &[b"settings"]);
        control(&mut bytes, 9, 0, &[&[0; 8]]);
        control(&mut bytes, 99, 0, &[]);
        refuse_stream(&mut bytes, 3);
        control(&mut bytes, GOAWAY, 0, &[&[0; 8]]);
        let syn = |stream, kind: &str| Frame::SynStream {
            stream,
            fin: false,
            headers: vec![("streamtype".into(), kind.into())],
        };
        let after = [data_frame(3, true, b""), Frame::Ping { id: 7 }, Frame::Reset { stream: 3 }, Frame::GoAway];
        let all: Vec<_> = [syn(1, "error"), syn(3, "stdin"), data_frame(3, false, b"ls\n")]
            .into_iter()
            .chain(after.clone())
            .collect();
        assert_eq!(frames(&bytes).unwrap(), all);

        let mut decoder = Decoder::default();
        let mut seen = Vec::new();
        for byte in &bytes {
            decoder.push(&[*byte]);
            seen.extend(std::iter::from_fn(|| decoder.next_frame().unwrap()));
        }
        let single = [data_frame(3, false, b"l"), data_frame(3, false, b"s"), data_frame(3, false, b"\n")];
        let wanted: Vec<_> = [syn(1, "error"), syn(3, "stdin")].into_iter().chain(single).chain(after).collect();
        assert_eq!(seen, wanted);
    }

    #[test]
    fn fin_is_on_the_last_piece_of_a_data_frame() {
        let mut bytes = BytesMut::new();
        data(&mut bytes, 5, b"abcd", true);
        let (first, second) = bytes.split_at(HEAD_BYTES + 2);
        let mut decoder = Decoder::default();
        decoder.push(first);
        assert_eq!(decoder.next_frame().unwrap(), Some(data_frame(5, false, b"ab")));
        assert_eq!(decoder.next_frame().unwrap(), None);
        decoder.push(second);
        assert_eq!(decoder.next_frame().unwrap(), Some(data_frame(5, true, b"cd")));
        assert_eq!(decoder.next_frame().unwrap(), None);
    }

    #[test]
    fn malformed_frame_is_refused_with_a_reason() {
        for (bytes, why) in [
            (&[0x80, 2, 0, 1, 0, 0, 0, 0][..], SpdyError::Version(2)),
            (&[0xff; 8], SpdyError::Version(0x7fff)),
            (&[0x80, 3, 0, 1, 0, 1, 0, 0], SpdyError::FrameTooLarge(65_536)),
            (&[0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1], SpdyError::FrameTooShort(SYN_STREAM)),
            (&[0x80, 3, 0, 3, 0, 0, 0, 0], SpdyError::FrameTooShort(RST_STREAM)),
            (&[0x80, 3, 0, 6, 0, 0, 0, 1, 1], SpdyError::FrameTooShort(PING)),
            (&[0x80, 3, 0, 8, 0, 0, 0, 6, 0, 0, 0, 1, 1, 2], SpdyError::HeaderCompression),
        ] {
            assert_eq!(frames(bytes), Err(why), "{bytes:?}");
        }
    }

    #[test]
    fn payload_longer_than_a_frame_is_split() {
        let mut bytes = BytesMut::new();
        data(&mut bytes, 1, &vec![7; PAYLOAD_BYTES_MAX + 1], true);
        let seen = frames(&bytes).unwrap();
        let sizes: Vec<_> = seen
            .iter()
            .map(|frame| match frame {
                Frame::Data { fin, bytes, .. } => (bytes.len(), *fin),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sizes, [(PAYLOAD_BYTES_MAX, false), (1, true)]);
    }
}
