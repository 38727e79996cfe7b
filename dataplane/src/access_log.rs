//! The access log: a line for every answer, written into a buffer of the core's own and handed over in pieces.
//!
//! A core never waits for a disk: when the hand that writes does not keep up, pieces are dropped and their lines
//! counted. The buffer is filled without an allocation; one is made for each piece, some hundred lines.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

use crate::counters::CoreCounters;
use crate::table::EndpointAddress;

mod line_encoding;
pub(crate) mod request_log;
pub mod template;

pub use request_log::RequestLog;

/// A piece is handed over when it has this many bytes: some 100 lines, one write of the hand.
pub const PIECE_BYTES: usize = 32 * 1024;

/// Pieces that may wait for the hand, of all cores together: 8 MiB, a second or two of a busy host.
pub const PIECES_WAITING_MAX: usize = 256;

/// ... or after this long, so that a quiet host's log is not late.
pub const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// Bytes of a host or path that a line has. The rest is cut: one request must not fill a piece.
pub const PART_BYTES_MAX: usize = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// `host ident authuser [date] "request" status bytes`, as NCSA's httpd began it.
    Common,
    /// One object a line.
    Json,
}

/// Where a core's lines go.
#[derive(Debug, Clone)]
pub struct AccessLogConfig {
    /// Of the lines of all answers; `None`: only what else asks for lines has some.
    pub format: Option<AccessLogFormat>,
    /// To the hand that writes. Bounded by [`PIECES_WAITING_MAX`].
    pub writer: SyncSender<Vec<u8>>,
}

/// One answer.
#[derive(Debug)]
pub struct AccessLogEntry<'a> {
    pub at: SystemTime,
    pub client: SocketAddr,
    /// `HTTP/1.1`, `HTTP/1.0` or `HTTP/2`.
    pub protocol: &'static str,
    /// Empty when there was no request to be read.
    pub method: &'a [u8],
    pub host: &'a [u8],
    pub path: &'a [u8],
    /// 0: the answer broke off, or its client was gone before it.
    pub status: u16,
    /// Sent to the client. In HTTP/2 without heads and frames, which streams share.
    pub bytes: u64,
    pub duration: Duration,
    /// Until it had its place in an instance.
    pub waited: Option<Duration>,
    /// From there to the answer's head.
    pub upstream: Option<Duration>,
    pub backend: Option<&'a str>,
    pub instance: Option<EndpointAddress>,
    pub trace: Option<&'a [u8]>,
    /// Why the answer is ours and not an instance's.
    pub reason: Option<&'static str>,
}

/// One core's.
pub struct AccessLog {
    setup: AccessLogConfig,
    counters: Arc<CoreCounters>,
    /// Has room only while there are lines.
    buffer: RefCell<Vec<u8>>,
    lines: Cell<u64>,
    /// Of who hands over before long what there is.
    waker: Cell<Option<Waker>>,
}

impl AccessLog {
    #[must_use]
    pub fn new(setup: AccessLogConfig, counters: Arc<CoreCounters>) -> Self {
        let (buffer, lines, waker) = (RefCell::default(), Cell::default(), Cell::default());
        Self { setup, counters, buffer, lines, waker }
    }

    /// Whether each answer has a line.
    #[must_use]
    pub fn logs_everything(&self) -> bool {
        self.setup.format.is_some()
    }

    pub fn put(&self, line: &AccessLogEntry<'_>) {
        match self.setup.format {
            Some(AccessLogFormat::Common) => self.add(|buffer| line_encoding::common(buffer, line)),
            Some(AccessLogFormat::Json) => self.add(|buffer| line_encoding::json(buffer, line)),
            None => {}
        }
    }

    /// Adds the line that `write` writes.
    pub fn add(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let full = {
            let buffer = &mut *self.buffer.borrow_mut();
            if buffer.capacity() == 0 {
                buffer.reserve(2 * PIECE_BYTES); // one a piece
            }
            write(buffer);
            buffer.len() >= PIECE_BYTES
        };
        self.lines.set(self.lines.get() + 1);
        if full {
            self.flush();
        } else if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Resolves once there are lines.
    pub async fn filled(&self) {
        poll_fn(|cx| {
            if self.lines.get() > 0 {
                return Poll::Ready(());
            }
            self.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Hands over what there is.
    pub fn flush(&self) {
        let lines = self.lines.replace(0);
        if lines == 0 {
            return;
        }
        let piece = self.buffer.take();
        let counted = match self.setup.writer.try_send(piece) {
            Ok(()) => &self.counters.access_lines,
            Err(_) => &self.counters.access_dropped,
        };
        counted.fetch_add(lines, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    pub(super) fn line<'a>() -> AccessLogEntry<'a> {
        AccessLogEntry {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            client: ([127, 0, 0, 1], 4711).into(),
            protocol: "HTTP/1.1",
            method: b"GET",
            host: b"a.example.com:80",
            path: b"/x?y=\"z\"",
            status: 200,
            bytes: 12,
            duration: Duration::from_micros(1500),
            waited: Some(Duration::from_micros(10)),
            upstream: Some(Duration::from_micros(900)),
            backend: Some("default/a"),
            instance: Some(EndpointAddress::Ip(([127, 0, 0, 1], 9).into())),
            trace: Some(b"0af7651916cd43dd8448eb211c80319c"),
            reason: None,
        }
    }

    #[test]
    fn what_the_hand_has_no_room_for_is_dropped_and_counted() {
        let (hand, piece) = sync_channel(1);
        let counters = Arc::new(CoreCounters::default());
        let log = AccessLog::new(
            AccessLogConfig { format: Some(AccessLogFormat::Json), writer: hand },
            Arc::clone(&counters),
        );
        for _ in 0..1000 {
            log.put(&line());
        }
        log.flush();
        let first = piece.recv().unwrap();
        let lines = first.iter().filter(|byte| **byte == b'\n').count() as u64;
        assert!(first.len() >= PIECE_BYTES && lines > 10);
        assert_eq!(counters.access_lines.load(Relaxed), lines);
        assert_eq!(counters.access_dropped.load(Relaxed), 1000 - lines);
        log.flush();
        assert!(piece.try_recv().is_err(), "an empty piece is none");
    }
}
