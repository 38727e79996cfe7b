//! Protocol errors of a SPDY peer.

use super::CONTROL_BYTES_MAX;

/// Why a peer's bytes are not SPDY/3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    #[error("a control frame of SPDY version {0}, expected 3")]
    Version(u16),
    #[error("a control frame of {0} bytes, the limit is {CONTROL_BYTES_MAX}")]
    FrameTooLarge(usize),
    #[error("a control frame of type {0} is too short")]
    FrameTooShort(u16),
    #[error("a header block does not decompress")]
    HeaderCompression,
    #[error("a header block decompresses to more than its limit")]
    HeaderBlockTooLarge,
    #[error("a header block has too many headers")]
    TooManyHeaders,
    #[error("a header block is malformed")]
    MalformedHeaderBlock,
}
