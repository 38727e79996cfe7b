//! The combined meaning of all Transfer-Encoding fields of a message.

use super::field_names::trim;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TransferCoding {
    /// No such field.
    #[default]
    None,
    /// `chunked` once, and nothing else: the only supported coding.
    Chunked,
    /// Ends in one `chunked`, after unknown codings.
    Unknown,
    /// Only unknown codings so far; without a final `chunked` the body's end is undefined.
    Open,
    /// Cannot become valid: something after `chunked`, or a list with an empty element. RFC 9110 5.6.1.2 ignores empty
    /// elements; but here they affect where a body ends, no honest client sends them, and nginx and HAProxy reject them
    /// too.
    Invalid,
}

impl TransferCoding {
    /// Adds the value of the next field.
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
