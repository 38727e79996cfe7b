//! The access log: one line per response, written into a buffer of the core and passed to the writer in batches.
//!
//! A core never waits for a disk: when the writer does not keep up, batches are dropped and their lines counted.
//! Filling the buffer does not allocate; there is one allocation per batch of some hundred lines.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

use contract::counters::CoreCounters;
use contract::table::EndpointAddress;

mod line_encoding;
pub(crate) mod request_log;

/// A batch is passed on at this size: some 100 lines, one write of the writer.
pub const PIECE_BYTES: usize = 32 * 1024;

/// Batches that may wait for the writer, of all cores together: 8 MiB, a second or two of a busy host.
pub const PIECES_WAITING_MAX: usize = 256;

/// A batch is passed on after this time at the latest, so that a quiet host's log is not late.
pub const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// Bytes of a host or path in a line. The rest is cut: one request must not fill a batch.
pub const PART_BYTES_MAX: usize = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// `host ident authuser [date] "request" status bytes`, the format of NCSA httpd.
    Common,
    /// One JSON object per line.
    Json,
}

/// The access log's configuration on a core.
#[derive(Debug, Clone)]
pub struct AccessLogConfig {
    /// The format of the line of every response. `None`: no line for every response; the request log may still write
    /// lines.
    pub format: Option<AccessLogFormat>,
    /// To the writer. Bounded by [`PIECES_WAITING_MAX`].
    pub writer: SyncSender<Vec<u8>>,
}

/// One response.
#[derive(Debug)]
pub struct AccessLogEntry<'a> {
    pub at: SystemTime,
    pub client: SocketAddr,
    /// `HTTP/1.1`, `HTTP/1.0` or `HTTP/2`; `TCP`, `TLS` or `UDP` for what is relayed.
    pub protocol: &'static str,
    /// Empty when the request could not be parsed, or when there is none.
    pub method: &'a [u8],
    /// The server name, of a connection of TLS that is relayed.
    pub host: &'a [u8],
    pub path: &'a [u8],
    /// 0: the response was cut, or the client was gone before it.
    pub status: u16,
    /// Bytes of the client, of a connection that is relayed.
    pub received: Option<u64>,
    /// Bytes sent to the client. In HTTP/2 without heads and frames, which streams share.
    pub bytes: u64,
    pub duration: Duration,
    /// Until it acquired its permit.
    pub waited: Option<Duration>,
    /// From there to the response head.
    pub upstream: Option<Duration>,
    pub backend: Option<&'a str>,
    pub instance: Option<EndpointAddress>,
    pub trace: Option<&'a [u8]>,
    /// Why the gateway answered by itself.
    pub reason: Option<&'static str>,
}

/// The access log of one core.
pub struct AccessLog {
    config: AccessLogConfig,
    counters: Arc<CoreCounters>,
    /// Allocated only while there are lines.
    buffer: RefCell<Vec<u8>>,
    lines: Cell<u64>,
    /// Wakes the task that flushes after [`FLUSH_EVERY`].
    waker: Cell<Option<Waker>>,
}

impl AccessLog {
    #[must_use]
    pub fn new(config: AccessLogConfig, counters: Arc<CoreCounters>) -> Self {
        let (buffer, lines, waker) = (RefCell::default(), Cell::default(), Cell::default());
        Self { config, counters, buffer, lines, waker }
    }

    /// Whether every response has a line.
    #[must_use]
    pub fn logs_everything(&self) -> bool {
        self.config.format.is_some()
    }

    pub fn put(&self, line: &AccessLogEntry<'_>) {
        match self.config.format {
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
                buffer.reserve(2 * PIECE_BYTES); // one allocation per batch
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

    /// Passes the buffered lines to the writer.
    pub fn flush(&self) {
        let lines = self.lines.replace(0);
        if lines == 0 {
            return;
        }
        let piece = self.buffer.take();
        let counted = match self.config.writer.try_send(piece) {
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
            received: None,
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
    fn batches_are_dropped_and_counted_when_writer_is_full() {
        let (writer, piece) = sync_channel(1);
        let counters = Arc::new(CoreCounters::default());
        let log =
            AccessLog::new(AccessLogConfig { format: Some(AccessLogFormat::Json), writer }, Arc::clone(&counters));
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
        assert!(piece.try_recv().is_err(), "an empty batch is not sent");
    }
}
