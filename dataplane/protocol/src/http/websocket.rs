//! WebSocket (RFC 6455) as far as tunnels need it: where frames end, and how to close.
//!
//! A tunnel passes bytes. Frame boundaries matter only when the gateway closes it: a Close frame inside another frame
//! would be garbage.

/// Tracks one direction's frames through its bytes.
#[derive(Debug, Default)]
pub struct FrameTracker {
    /// The next frame's header, as far as it was received: 2 bytes, the extended length (2 or 8), the mask (4).
    head: [u8; 14],
    header_bytes: usize,
    /// Bytes left of the current frame's payload.
    left: u64,
}

impl FrameTracker {
    /// Whether the next byte begins a frame.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.header_bytes == 0 && self.left == 0
    }

    /// Reads the next bytes.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.rest_of_frame(bytes);
            bytes = &bytes[taken..];
        }
    }

    /// Reads the next bytes up to the end of the current frame. Returns how many.
    pub fn rest_of_frame(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let taken = usize::try_from(self.left).map_or(bytes.len() - at, |left| left.min(bytes.len() - at));
                self.left -= taken as u64;
                at += taken;
            } else {
                self.head[self.header_bytes] = bytes[at];
                self.header_bytes += 1;
                at += 1;
                let Some(length) = self.content_length() else { continue };
                self.header_bytes = 0;
                self.left = length;
            }
            if self.left == 0 {
                return at;
            }
        }
        at
    }

    /// The payload's length, once the header is complete.
    fn content_length(&self) -> Option<u64> {
        let [_, second, rest @ ..] = &self.head;
        if self.header_bytes < 2 {
            return None;
        }
        let long = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        if self.header_bytes < 2 + long + mask {
            return None;
        }
        let longer = rest[..long].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        Some(if long == 0 { u64::from(second & 0x7f) } else { longer })
    }
}

/// Close with 1001, "going away", as a server sends it.
pub const GOING_AWAY: &[u8; 4] = &[0x88, 0x02, 0x03, 0xe9];

/// The same as a client sends it, masked.
#[must_use]
pub fn going_away_masked(key: [u8; 4]) -> Vec<u8> {
    vec![0x88, 0x82, key[0], key[1], key[2], key[3], 0x03 ^ key[0], 0xe9 ^ key[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut bytes = vec![0x82];
        match length {
            0..126 => bytes.push(mask | length as u8),
            126..65536 => {
                bytes.push(mask | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.resize(bytes.len() + if masked { 4 } else { 0 } + length, 0xff);
        bytes
    }

    #[test]
    fn frame_ends_are_found_for_any_split() {
        for length in [0, 1, 125, 126, 127, 65535, 65536, 70000] {
            for masked in [false, true] {
                let bytes = frame(length, masked);
                for piece in [1, 3, 1000, usize::MAX] {
                    let mut frames = FrameTracker::default();
                    for part in bytes[..bytes.len() - 1].chunks(piece) {
                        frames.pass(part);
                        assert!(!frames.is_between(), "{length} {masked} {piece}");
                    }
                    // Exactly the last byte of the frame is read.
                    let next = [&bytes[bytes.len() - 1..], b"\x81\x05".as_slice()].concat();
                    assert_eq!(frames.rest_of_frame(&next), 1);
                    assert!(frames.is_between());
                }
            }
        }
    }

    #[test]
    fn largest_frame_length_does_not_overflow() {
        let mut frames = FrameTracker::default();
        frames.pass(&[0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        frames.pass(&[0; 4096]);
        assert!(!frames.is_between());
    }

    #[test]
    fn close_frame_has_code_1001() {
        let masked = going_away_masked([1, 2, 3, 4]);
        let mut frames = FrameTracker::default();
        assert_eq!(frames.rest_of_frame(&masked), masked.len());
        assert!(frames.is_between());
        let code = [masked[6] ^ masked[2], masked[7] ^ masked[3]];
        assert_eq!(u16::from_be_bytes(code), 1001);
        assert_eq!(code, GOING_AWAY[2..]);
    }
}
