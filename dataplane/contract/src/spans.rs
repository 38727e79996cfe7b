//! Spans of requests, for the trace exporter.
//!
//! A core pushes a record of fixed size into a bounded lock-free queue; the exporter takes them out. When it does not
//! keep up, spans are dropped and counted, and no request waits.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crossbeam_queue::ArrayQueue;

use crate::table::{Backend, EndpointAddress};

/// Spans that may wait for the exporter, of all cores together: 3 MiB, allocated when the export is enabled.
pub const SPANS_WAITING_MAX: usize = 8192;

/// Bytes of a method, host and path in a span. The rest is cut: a span has a fixed size.
pub const METHOD_BYTES_MAX: usize = 16;
pub const HOST_BYTES_MAX: usize = 64;
pub const PATH_BYTES_MAX: usize = 128;

/// The position of a request in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: [u8; 16],
    /// The gateway's span, which the instance gets as its parent.
    pub id: u64,
    /// The client's span; 0 if there is none, so the trace begins here.
    pub parent: u64,
    /// The trace is sampled.
    pub sampled: bool,
}

/// A bounded copy of a text, stored inline.
#[derive(Debug, Clone, Copy)]
pub struct InlineText<const MAX: usize> {
    bytes: [u8; MAX],
    length: usize,
}

impl<const MAX: usize> InlineText<MAX> {
    pub fn new(text: &[u8]) -> Self {
        let length = text.len().min(MAX);
        let mut bytes = [0; MAX];
        bytes[..length].copy_from_slice(&text[..length]);
        Self { bytes, length }
    }

    /// Invalid UTF-8, such as a character that was cut, is replaced.
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
    /// Until it acquired its permit.
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
    /// Why the gateway answered by itself.
    pub reason: Option<&'static str>,
}

/// Between the cores and the exporter. Clones share the queue.
#[derive(Debug, Clone)]
pub struct SpanQueue(Arc<ArrayQueue<TraceSpan>>);

impl Default for SpanQueue {
    fn default() -> Self {
        Self(Arc::new(ArrayQueue::new(SPANS_WAITING_MAX)))
    }
}

impl SpanQueue {
    /// `false`: the queue is full.
    pub fn push(&self, span: TraceSpan) -> bool {
        self.0.push(span).is_ok()
    }

    /// The oldest span in the queue.
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
    fn text_is_cut_at_its_maximum() {
        assert_eq!(InlineText::<4>::new(b"").to_text(), "");
        assert_eq!(InlineText::<4>::new(b"abcd").to_text(), "abcd");
        assert_eq!(InlineText::<4>::new(b"abcde").to_text(), "abcd");
        assert_eq!(InlineText::<2>::new("a\u{fc}".as_bytes()).to_text(), "a\u{fffd}");
    }
}
