//! What a client learns from refused streams.

use crate::limits::RESPONSES_PER_STREAM;

/// The streams that a server takes in practice. Some servers count a stream until their own work on it has ended, after the
/// response: then they refuse streams within the limit that they have announced, and would go on to refuse them.
#[derive(Debug)]
pub(crate) struct StreamAllowance {
    streams: u32,
    /// Responses since the last change.
    responses: u32,
}

impl Default for StreamAllowance {
    fn default() -> Self {
        Self { streams: u32::MAX, responses: 0 }
    }
}

impl StreamAllowance {
    pub(crate) fn streams(&self) -> u32 {
        self.streams
    }

    /// The server has refused a stream while so many others were open.
    pub(crate) fn refused(&mut self, others: usize) {
        let others = u32::try_from(others).unwrap_or(u32::MAX).max(1);
        *self = Self { streams: self.streams.min(others), responses: 0 };
    }

    /// The server has responded: it may take more.
    pub(crate) fn responded(&mut self) {
        if self.streams == u32::MAX {
            return;
        }
        self.responses += 1;
        if self.responses == RESPONSES_PER_STREAM {
            *self = Self { streams: self.streams + 1, responses: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_lower_the_allowance_and_responses_raise_it_slowly() {
        let mut allowance = StreamAllowance::default();
        allowance.responded();
        assert_eq!(allowance.streams(), u32::MAX);
        allowance.refused(9);
        allowance.refused(12);
        assert_eq!(allowance.streams(), 9, "an older refusal says more");
        (1..RESPONSES_PER_STREAM).for_each(|_| allowance.responded());
        assert_eq!(allowance.streams(), 9);
        allowance.responded();
        assert_eq!(allowance.streams(), 10);
        allowance.refused(0);
        assert_eq!(allowance.streams(), 1, "or the connection would never be tried again");
    }
}
