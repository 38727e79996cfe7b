//! What all Transfer-Encoding fields of a message amount to.

use super::tokens;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Coding {
    /// No such field.
    #[default]
    None,
    /// `chunked` once, and nothing else: the only coding that we read.
    Chunked,
    /// Ends in one `chunked`, after codings that we do not know.
    Unknown,
    /// So far codings that we do not know; without a `chunked` at the end the body's end is a guess.
    Open,
    /// Cannot become right: something after `chunked`, or an empty list.
    Invalid,
}

impl Coding {
    /// Takes in the next field's value.
    pub(super) fn add(&mut self, value: &[u8]) {
        let mut empty = true;
        for token in tokens(value) {
            empty = false;
            let chunked = token.eq_ignore_ascii_case(b"chunked");
            *self = match (*self, chunked) {
                (Self::None, true) => Self::Chunked,
                (Self::Open, true) => Self::Unknown,
                (Self::None | Self::Open, false) => Self::Open,
                _ => Self::Invalid,
            };
        }
        if empty {
            *self = Self::Invalid;
        }
    }
}
