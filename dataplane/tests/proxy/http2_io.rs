//! Adapts a ring socket to the h2 crate, which is the client and the instance here: tokio's I/O traits without tokio
//! behind them.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use ring::{Chunk, Ring};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use sluicegate_dataplane::h2::limits::WRITE_BYTES_MAX;
use sluicegate_dataplane::http::buffers::by;
use sluicegate_dataplane::tls::{ByteStream as _, Transport};

type SendFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// The bytes of one connection, both ways.
pub(crate) struct Http2Io {
    ring: Ring,
    stream: Rc<Transport>,
    /// Received and not read.
    held: Chunk,
    /// Written and not sent: up to `WRITE_BYTES_MAX` and one frame.
    buffer: BytesMut,
    /// The send in flight.
    sending: Option<SendFuture>,
    /// The write side is shut down.
    shut: bool,
    /// The longest time for one send, if it is limited.
    stall_max: Option<Duration>,
}

impl Http2Io {
    /// `held` are bytes that were received before. A send may take `stall_max`; zero means no limit.
    pub(crate) fn new(ring: &Ring, stream: impl Into<Transport>, held: Chunk, stall_max: Duration) -> Self {
        Self {
            ring: ring.clone(),
            stream: Rc::new(stream.into()),
            held,
            buffer: BytesMut::new(),
            sending: None,
            shut: false,
            stall_max: (!stall_max.is_zero()).then_some(stall_max),
        }
    }

    /// Ready when no send is in flight.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let Poll::Ready(result) = sending.as_mut().poll(cx) else { return Poll::Pending };
        self.sending = None;
        Poll::Ready(result)
    }

    fn begin_send(&mut self) {
        let bytes = self.buffer.split().freeze();
        let (ring, stream) = (self.ring.clone(), Rc::clone(&self.stream));
        let due = self.stall_max.map(|wait| ring.now() + wait);
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
        into.put_slice(&this.held[..taken]);
        this.held.advance(taken);
        if this.held.is_empty() {
            this.held = Chunk::empty(); // the receive buffer is released
        }
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
