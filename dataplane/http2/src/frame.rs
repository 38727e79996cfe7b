//! The header and the types of frames (RFC 9113 4.1 and 6).

use bytes::{BufMut, BytesMut};

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 9;

/// The bytes that begin a client's connection (RFC 9113 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0x0;
pub const HEADERS: u8 = 0x1;
pub const PRIORITY: u8 = 0x2;
pub const RST_STREAM: u8 = 0x3;
pub const SETTINGS: u8 = 0x4;
pub const PUSH_PROMISE: u8 = 0x5;
pub const PING: u8 = 0x6;
pub const GOAWAY: u8 = 0x7;
pub const WINDOW_UPDATE: u8 = 0x8;
pub const CONTINUATION: u8 = 0x9;
/// RFC 9218 7.1.
pub const PRIORITY_UPDATE: u8 = 0x10;

/// Of SETTINGS and PING.
pub const ACK: u8 = 0x1;
pub const END_STREAM: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
/// HEADERS begin with a priority.
pub const WITH_PRIORITY: u8 = 0x20;

/// The bit before a stream's number and before a window increment.
const RESERVED: u32 = 1 << 31;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the payload.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    /// The stream's number; 0 means the connection.
    pub stream: u32,
}

impl FrameHeader {
    #[must_use]
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Self {
        let [high, middle, low, kind, flags, stream @ ..] = bytes;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Self { length, kind, flags, stream: u31(stream) }
    }

    #[must_use]
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether a frame of this type may have this length (RFC 9113 4.2).
    #[must_use]
    pub fn has_valid_length(self) -> bool {
        match self.kind {
            PRIORITY => self.length == 5,
            RST_STREAM | WINDOW_UPDATE => self.length == 4,
            SETTINGS if self.has(ACK) => self.length == 0,
            SETTINGS => self.length.is_multiple_of(6),
            PING => self.length == 8,
            GOAWAY => self.length >= 8,
            PRIORITY_UPDATE => self.length >= 4,
            _ => true,
        }
    }

    /// Its bytes. The length has 24 bits: see [`crate::limits::FRAME_BYTES_MAX`].
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let [_, high, middle, low] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [high, middle, low, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub fn put(self, out: &mut BytesMut) {
        out.put_slice(&self.encode());
    }
}

/// A number of 31 bits; the first bit is ignored.
#[must_use]
pub const fn u31(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & !RESERVED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_header_round_trips() {
        let header = FrameHeader { length: 0x01_0203, kind: HEADERS, flags: END_STREAM, stream: 0x7fff_fffe };
        let mut out = BytesMut::new();
        header.put(&mut out);
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&out);
        assert_eq!(FrameHeader::parse(bytes), header);
        bytes[5] |= 0x80; // the reserved bit
        assert_eq!(FrameHeader::parse(bytes), header);
    }
}
