//! Adapts a ring socket to h2, for connections to instances: tokio's I/O traits without tokio behind them.
//!
//! Writes are buffered until h2 flushes, so that the frames of many streams leave in one send.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use ring::{Chunk, Ring};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::limits::{INSTANCE_STREAMS_MAX, WRITE_BYTES_MAX};
use super::response_trailers::ResponseTrailerScan;
use crate::http::buffers::by;
use crate::tls::{ByteStream, Transport};

type SendFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// The bytes of one connection, both ways.
pub struct Http2Io {
    ring: Ring,
    stream: Rc<Transport>,
    /// Received and not read.
    held: Chunk,
    /// Of an instance's connection.
    response_trailers: Option<ResponseTrailerScan>,
    io_state: Rc<IoState>,
    /// Written and not sent: up to `WRITE_BYTES_MAX` and one frame.
    buffer: BytesMut,
    /// The send in flight.
    sending: Option<SendFuture>,
    /// The write side is shut down.
    shut: bool,
    /// The longest time for one send, if it is limited.
    stall_max: Option<Duration>,
}

/// Shared state of a connection that its owner, or a request, reads.
#[derive(Debug, Default)]
pub struct IoState {
    pub received: Cell<u64>,
    pub sent: Cell<u64>,
    /// A send is in flight.
    pub sending: Cell<bool>,
    /// Streams with malformed trailers whose requests have not asked for that yet.
    malformed: RefCell<Vec<u32>>,
}

impl IoState {
    /// The entry of a stream that was reset is never asked for. Therefore the oldest entry is dropped when there are more
    /// entries than a connection can have open streams.
    fn note_malformed(&self, stream: u32) {
        let mut malformed = self.malformed.borrow_mut();
        if malformed.len() == INSTANCE_STREAMS_MAX {
            malformed.remove(0);
        }
        malformed.push(stream);
    }

    /// Whether the trailers of the stream, which have arrived, are malformed. Clears the entry.
    pub fn has_malformed_trailers(&self, stream: u32) -> bool {
        let mut malformed = self.malformed.borrow_mut();
        let at = malformed.iter().position(|known| *known == stream);
        at.map(|at| malformed.remove(at)).is_some()
    }
}

impl Http2Io {
    /// `held` are bytes that were received before. A send may take `stall_max`; zero means no limit.
    #[must_use]
    pub fn new(ring: &Ring, stream: impl Into<Transport>, held: Chunk, stall_max: Duration) -> Self {
        Self {
            ring: ring.clone(),
            stream: Rc::new(stream.into()),
            held,
            response_trailers: None,
            io_state: Rc::default(),
            buffer: BytesMut::new(),
            sending: None,
            shut: false,
            stall_max: (!stall_max.is_zero()).then_some(stall_max),
        }
    }

    /// Detects malformed trailers of responses and records them in `io_state`.
    #[must_use]
    pub fn of_responses(self, io_state: &Rc<IoState>) -> Self {
        Self { response_trailers: Some(ResponseTrailerScan::default()), io_state: Rc::clone(io_state), ..self }
    }

    /// Ready when no send is in flight.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let Poll::Ready(result) = sending.as_mut().poll(cx) else { return Poll::Pending };
        self.sending = None;
        self.io_state.sending.set(false);
        Poll::Ready(result)
    }

    fn begin_send(&mut self) {
        let bytes = self.buffer.split().freeze();
        self.io_state.sent.set(self.io_state.sent.get() + bytes.len() as u64);
        let (ring, stream) = (self.ring.clone(), Rc::clone(&self.stream));
        let due = self.stall_max.map(|wait| ring.now() + wait);
        self.io_state.sending.set(true);
        self.sending = Some(Box::pin(async move {
            by(&ring, due, stream.send(bytes.into())).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        }));
    }
}

impl AsyncRead for Http2Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.held.is_empty() {
            // Cancel-safe, so each poll may be a new call.
            match pin!(this.stream.recv()).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Ready(Ok(chunk)) => this.held = chunk,
            }
        }
        let taken = this.held.len().min(into.remaining());
        if let Some(scan) = &mut this.response_trailers {
            scan.read(&this.held[..taken], |stream| this.io_state.note_malformed(stream));
        }
        into.put_slice(&this.held[..taken]);
        this.held.advance(taken);
        if this.held.is_empty() {
            this.held = Chunk::empty(); // the receive buffer is released
        }
        this.io_state.received.set(this.io_state.received.get() + taken as u64);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= WRITE_BYTES_MAX {
            match self.poll_sent(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Ready(Ok(())) => self.begin_send(),
            }
        }
        let taken = bytes.len().min(WRITE_BYTES_MAX);
        self.buffer.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.poll_sent(cx) {
                Poll::Ready(Ok(())) if self.buffer.is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => self.begin_send(),
                other => return other,
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.as_mut().poll_flush(cx) {
            Poll::Ready(Ok(())) if !self.shut => {
                self.shut = true;
                let stream = Rc::clone(&self.stream);
                self.sending = Some(Box::pin(async move { stream.shutdown_write().await }));
                self.poll_sent(cx)
            }
            other => other,
        }
    }
}
