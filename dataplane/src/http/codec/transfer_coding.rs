//! What all Transfer-Encoding fields of a message amount to.

use super::field_names::trim;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TransferCoding {
    /// No such field.
    #[default]
    None,
    /// `chunked` once, and nothing else: the only coding that we read.
    Chunked,
    /// Ends in one `chunked`, after codings that we do not know.
    Unknown,
    /// So far codings that we do not know; without a `chunked` at the end the body's end is a guess.
    Open,
    /// Cannot become right: something after `chunked`, or a list with an empty place. RFC 9110 5.6.1.2 has those passed
    /// over; where it is about where a body ends, nobody honest writes them, and nginx and HAProxy refuse them too.
    Invalid,
}

impl TransferCoding {
    /// Takes in the next field's value.
    pub(super) fn add(&mut self, value: &[u8]) {
        for coding in value.split(|&byte| byte == b',').map(trim) {
            let chunked = coding.eq_ignore_ascii_case(b"chunked");
            *self = match (*self, chunked) {
                _ if coding.is_empty() => Self::Invalid,
                (Self::None, true) => Self::Chunked,
                (Self::Open, true) => Self::Unknown,
                (Self::None | Self::Open, false) => Self::Open,
                _ => Self::Invalid,
            };
        }
    }
}
