//! Spans: what a request came to, for whoever collects traces.
//!
//! A core pushes a record of fixed size into a bounded queue without a lock; who sends them takes them out. When
//! that one does not keep up, spans are dropped and counted, and no request waits.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crossbeam_queue::ArrayQueue;

use crate::table::{Backend, EndpointAddress};

/// Spans that may wait to be sent, of all cores together: 3 MiB, made when the export is asked for.
pub const SPANS_WAITING_MAX: usize = 8192;

/// Bytes of a method, host and path that a span has. The rest is cut: a span has a fixed size.
pub const METHOD_BYTES_MAX: usize = 16;
pub const HOST_BYTES_MAX: usize = 64;
pub const PATH_BYTES_MAX: usize = 128;

/// Where a request stands in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: [u8; 16],
    /// The span that is ours, which the instance is told as its parent.
    pub id: u64,
    /// The client's; 0 = it had none, so the trace begins here.
    pub parent: u64,
    /// Whoever began the trace wants it recorded.
    pub sampled: bool,
}

/// The beginning of a text, kept in place.
#[derive(Debug, Clone, Copy)]
pub struct InlineText<const MAX: usize> {
    bytes: [u8; MAX],
    length: usize,
}

impl<const MAX: usize> InlineText<MAX> {
    pub(crate) fn new(text: &[u8]) -> Self {
        let length = text.len().min(MAX);
        let mut bytes = [0; MAX];
        bytes[..length].copy_from_slice(&text[..length]);
        Self { bytes, length }
    }

    /// What is no UTF-8, a character that was cut in two say, is replaced.
    #[must_use]
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.length]).into_owned()
    }
}

/// One request, as the proxy saw it.
#[derive(Debug)]
pub struct TraceSpan {
    pub context: TraceContext,
    pub ended: SystemTime,
    pub duration: Duration,
    /// Until it had its place in an instance.
    pub waited: Option<Duration>,
    pub method: InlineText<METHOD_BYTES_MAX>,
    pub host: InlineText<HOST_BYTES_MAX>,
    pub path: InlineText<PATH_BYTES_MAX>,
    /// `HTTP/1.1` or `HTTP/2`.
    pub protocol: &'static str,
    pub client: IpAddr,
    /// 0: it was cut.
    pub status: u16,
    pub backend: Option<Arc<Backend>>,
    pub instance: Option<EndpointAddress>,
    /// Why the answer is ours and not an instance's.
    pub reason: Option<&'static str>,
}

/// Between the cores and who sends. Clones are the same one.
#[derive(Debug, Clone)]
pub struct SpanQueue(Arc<ArrayQueue<TraceSpan>>);

impl Default for SpanQueue {
    fn default() -> Self {
        Self(Arc::new(ArrayQueue::new(SPANS_WAITING_MAX)))
    }
}

impl SpanQueue {
    /// `false`: there was no room.
    pub(crate) fn push(&self, span: TraceSpan) -> bool {
        self.0.push(span).is_ok()
    }

    /// The oldest that waits.
    #[must_use]
    pub fn take(&self) -> Option<TraceSpan> {
        self.0.pop()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_its_room_ends() {
        assert_eq!(InlineText::<4>::new(b"").to_text(), "");
        assert_eq!(InlineText::<4>::new(b"abcd").to_text(), "abcd");
        assert_eq!(InlineText::<4>::new(b"abcde").to_text(), "abcd");
        assert_eq!(InlineText::<2>::new("a\u{fc}".as_bytes()).to_text(), "a\u{fffd}");
    }
}
