//! Finds the frames in the bytes of a client, however they are cut.
//!
//! A frame that is whole in the receive buffer is read there. Parts of a frame are copied, except of DATA, whose content
//! is passed on as it arrives, and of unknown frames, which are skipped.

use std::ops::Range;

use crate::error::ConnectionFault;
use crate::frame::{self, FrameHeader, HEADER_BYTES};
use crate::limits::FRAME_BYTES_MAX;

/// The next thing in the bytes of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FramePart {
    /// All bytes were read, and a frame is incomplete or none has begun.
    NeedBytes,
    /// A frame of a known type other than DATA, whole.
    Frame(FrameHeader, PayloadPlace),
    /// A DATA frame begins. `padding` of its bytes are no content, including their length.
    DataBegins { header: FrameHeader, padding: usize },
    /// Content of the DATA frame that began last: a range of the input.
    Content(Range<usize>),
    /// The DATA frame that began last has ended, with its padding.
    DataEnds,
    /// A frame of an unknown type, which is skipped.
    Unknown,
}

/// Where the payload of a frame is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadPlace {
    /// A range of the input.
    Input(Range<usize>),
    /// [`FrameReader::take_collected`] has it.
    Collected,
}

/// What the next bytes belong to.
#[derive(Debug)]
enum ReadState {
    Frame,
    Data {
        content: usize,
        padding: usize,
    },
    /// Bytes of an unknown frame or of padding.
    Skip(usize),
}

/// The reader of one connection, after the preface.
#[derive(Debug)]
pub struct FrameReader {
    state: ReadState,
    /// The beginning of a frame whose end has not arrived: at most a whole frame.
    collected: Vec<u8>,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self { state: ReadState::Frame, collected: Vec::new() }
    }
}

impl FrameReader {
    /// Reads from `input` at `at`, and advances `at` over what was read.
    pub fn next(&mut self, input: &[u8], at: &mut usize) -> Result<FramePart, ConnectionFault> {
        loop {
            let left = input.len() - *at;
            match &mut self.state {
                ReadState::Frame => return self.frame(input, at),
                ReadState::Data { content: 0, padding: 0 } => {
                    self.state = ReadState::Frame;
                    return Ok(FramePart::DataEnds);
                }
                _ if left == 0 => return Ok(FramePart::NeedBytes),
                ReadState::Data { content: 0, padding } => {
                    let skipped = left.min(*padding);
                    *padding -= skipped;
                    *at += skipped;
                }
                ReadState::Data { content, .. } => {
                    let taken = left.min(*content);
                    *content -= taken;
                    *at += taken;
                    return Ok(FramePart::Content(*at - taken..*at));
                }
                ReadState::Skip(bytes) => {
                    let skipped = left.min(*bytes);
                    *bytes -= skipped;
                    *at += skipped;
                    if *bytes == 0 {
                        self.state = ReadState::Frame;
                    }
                }
            }
        }
    }

    /// The payload of the frame that [`PayloadPlace::Collected`] named. Give the memory back with
    /// [`FrameReader::put_back`].
    pub fn take_collected(&mut self) -> CollectedFrame {
        CollectedFrame(std::mem::take(&mut self.collected))
    }

    pub fn put_back(&mut self, mut frame: CollectedFrame) {
        frame.0.clear();
        self.collected = frame.0;
    }

    fn frame(&mut self, input: &[u8], at: &mut usize) -> Result<FramePart, ConnectionFault> {
        let rest = &input[*at..];
        if self.collected.is_empty()
            && let Some(bytes) = rest.first_chunk::<HEADER_BYTES>()
        {
            let header = checked(FrameHeader::parse(*bytes))?;
            if let Some(part) = self.begin(header, rest.get(HEADER_BYTES).copied())? {
                *at += head_bytes(header);
                return Ok(part);
            }
            if let Some(payload) = rest[HEADER_BYTES..].get(..header.length) {
                let start = *at + HEADER_BYTES;
                *at = start + payload.len();
                return Ok(FramePart::Frame(header, PayloadPlace::Input(start..*at)));
            }
        }
        self.collect(input, at)
    }

    /// Copies the next bytes of a frame that is not whole in the input.
    fn collect(&mut self, input: &[u8], at: &mut usize) -> Result<FramePart, ConnectionFault> {
        if !self.fill(HEADER_BYTES, input, at) {
            return Ok(FramePart::NeedBytes);
        }
        let Some(bytes) = self.collected.first_chunk::<HEADER_BYTES>() else { return Ok(FramePart::NeedBytes) };
        let header = checked(FrameHeader::parse(*bytes))?;
        if is_padded_data(header) && !self.fill(HEADER_BYTES + 1, input, at) {
            return Ok(FramePart::NeedBytes);
        }
        if let Some(part) = self.begin(header, self.collected.get(HEADER_BYTES).copied())? {
            self.collected.clear();
            return Ok(part);
        }
        match self.fill(HEADER_BYTES + header.length, input, at) {
            true => Ok(FramePart::Frame(header, PayloadPlace::Collected)),
            false => Ok(FramePart::NeedBytes),
        }
    }

    /// Copies until `wanted` bytes are there.
    fn fill(&mut self, wanted: usize, input: &[u8], at: &mut usize) -> bool {
        let missing = wanted.saturating_sub(self.collected.len());
        let taken = missing.min(input.len() - *at);
        self.collected.extend_from_slice(&input[*at..*at + taken]);
        *at += taken;
        taken == missing
    }

    /// Begins a frame that is not read as a whole. `None` for others, and if `pad`, the first byte of the payload, is
    /// needed and missing.
    fn begin(&mut self, header: FrameHeader, pad: Option<u8>) -> Result<Option<FramePart>, ConnectionFault> {
        match header.kind {
            frame::DATA => {
                let mut padding = 0;
                if header.has(frame::PADDED) {
                    if header.length == 0 {
                        return Err(ConnectionFault::FrameLength);
                    }
                    let Some(pad) = pad else { return Ok(None) };
                    padding = 1 + usize::from(pad);
                    if padding > header.length {
                        return Err(ConnectionFault::Padding);
                    }
                }
                self.state = ReadState::Data { content: header.length - padding, padding: padding.saturating_sub(1) };
                Ok(Some(FramePart::DataBegins { header, padding }))
            }
            frame::HEADERS..=frame::CONTINUATION | frame::PRIORITY_UPDATE => Ok(None),
            _ => {
                self.state = ReadState::Skip(header.length);
                Ok(Some(FramePart::Unknown))
            }
        }
    }
}

/// Memory with a whole frame.
#[derive(Debug, Default)]
pub struct CollectedFrame(Vec<u8>);

impl CollectedFrame {
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.get(HEADER_BYTES..).unwrap_or_default()
    }
}

fn checked(header: FrameHeader) -> Result<FrameHeader, ConnectionFault> {
    if header.length > FRAME_BYTES_MAX {
        return Err(ConnectionFault::FrameTooLarge);
    }
    if !header.has_valid_length() {
        return Err(ConnectionFault::FrameLength);
    }
    Ok(header)
}

fn is_padded_data(header: FrameHeader) -> bool {
    header.kind == frame::DATA && header.has(frame::PADDED) && header.length > 0
}

/// Bytes of the header, and of the padding's length of DATA.
fn head_bytes(header: FrameHeader) -> usize {
    HEADER_BYTES + usize::from(is_padded_data(header))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;

    fn put(out: &mut BytesMut, kind: u8, flags: u8, payload: &[u8]) {
        FrameHeader { length: payload.len(), kind, flags, stream: 1 }.put(out);
        out.extend_from_slice(payload);
    }

    /// What is read, in words, for input in pieces of `piece` bytes. Content is joined.
    fn read(input: &[u8], piece: usize) -> Result<Vec<String>, ConnectionFault> {
        let (mut reader, mut parts, mut content) = (FrameReader::default(), Vec::new(), Vec::new());
        for bytes in input.chunks(piece) {
            let mut at = 0;
            loop {
                match reader.next(bytes, &mut at)? {
                    FramePart::NeedBytes => break,
                    FramePart::Frame(header, PayloadPlace::Input(range)) => {
                        parts.push(format!("{} {:?}", header.kind, &bytes[range]));
                    }
                    FramePart::Frame(header, PayloadPlace::Collected) => {
                        let frame = reader.take_collected();
                        parts.push(format!("{} {:?}", header.kind, frame.payload()));
                        reader.put_back(frame);
                    }
                    FramePart::DataBegins { padding, .. } => parts.push(format!("data with {padding}")),
                    FramePart::Content(range) => content.extend_from_slice(&bytes[range]),
                    FramePart::DataEnds => parts.push(format!("{:?}", std::mem::take(&mut content))),
                    FramePart::Unknown => parts.push("unknown".to_owned()),
                }
            }
            assert_eq!(at, bytes.len());
        }
        Ok(parts)
    }

    #[test]
    fn frames_are_found_for_any_split() {
        let mut input = BytesMut::new();
        put(&mut input, frame::SETTINGS, 0, &[]);
        put(&mut input, frame::DATA, frame::PADDED, &[2, 7, 8, 0, 0]);
        put(&mut input, 0xbe, 0, &[1; 300]);
        put(&mut input, frame::HEADERS, 0, &[9; 20]);
        put(&mut input, frame::DATA, frame::END_STREAM, &[]);
        put(&mut input, frame::DATA, frame::PADDED, &[0]);
        let whole = read(&input, 10_000).unwrap();
        assert_eq!(whole.len(), 9);
        assert_eq!(whole[1..3], ["data with 3", "[7, 8]"]);
        for piece in 1..40 {
            assert_eq!(read(&input, piece).unwrap(), whole, "by {piece}");
        }
    }

    #[test]
    fn invalid_lengths_and_padding_are_errors() {
        for (kind, flags, length, fault) in [
            (frame::PRIORITY, 0, 4, ConnectionFault::FrameLength),
            (frame::RST_STREAM, 0, 3, ConnectionFault::FrameLength),
            (frame::SETTINGS, 0, 5, ConnectionFault::FrameLength),
            (frame::SETTINGS, frame::ACK, 6, ConnectionFault::FrameLength),
            (frame::PING, 0, 7, ConnectionFault::FrameLength),
            (frame::PING, frame::ACK, 9, ConnectionFault::FrameLength),
            (frame::GOAWAY, 0, 7, ConnectionFault::FrameLength),
            (frame::WINDOW_UPDATE, 0, 3, ConnectionFault::FrameLength),
            (frame::DATA, frame::PADDED, 0, ConnectionFault::FrameLength),
            (frame::DATA, frame::PADDED, 255, ConnectionFault::Padding),
            (frame::HEADERS, 0, FRAME_BYTES_MAX + 1, ConnectionFault::FrameTooLarge),
            (0xbe, 0, FRAME_BYTES_MAX + 1, ConnectionFault::FrameTooLarge),
        ] {
            let mut input = BytesMut::new();
            put(&mut input, kind, flags, &vec![0xff; length]);
            for piece in [1, 100_000] {
                assert_eq!(read(&input, piece), Err(fault), "{kind} of {length} by {piece}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_for_any_split(input in proptest::collection::vec(any::<u8>(), 0..100), piece in 1..20_usize) {
            // Lengths below 256, so that frames end.
            let input: Vec<u8> = input.chunks(12).flat_map(|frame| [&[0, 0], frame].concat()).collect();
            prop_assert_eq!(read(&input, piece).is_ok(), read(&input, 1 << 20).is_ok());
            if let (Ok(pieces), Ok(whole)) = (read(&input, piece), read(&input, 1 << 20)) {
                prop_assert_eq!(pieces, whole);
            }
        }
    }
}
