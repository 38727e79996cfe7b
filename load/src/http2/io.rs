//! Adapts a connection to h2: tokio's I/O traits without tokio behind them. Writes leave at a flush, together.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use ring::Chunk;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::HTTP2_WRITE_BYTES_MAX;
use crate::stream::LoadStream;
use crate::worker::Worker;

type SendFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

pub(super) struct ClientIo {
    worker: Rc<Worker>,
    stream: Rc<LoadStream>,
    /// Received and not read.
    unread: Chunk,
    /// Written and not sent: up to the limit and one frame.
    buffer: BytesMut,
    sending: Option<SendFuture>,
}

impl ClientIo {
    pub(super) fn new(worker: &Rc<Worker>, stream: LoadStream) -> Self {
        Self {
            worker: Rc::clone(worker),
            stream: Rc::new(stream),
            unread: Chunk::empty(),
            buffer: BytesMut::new(),
            sending: None,
        }
    }

    /// Sends what is buffered; ready when all of it is sent.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(sending) = &mut self.sending {
                let sent = ready!(sending.as_mut().poll(cx));
                self.sending = None;
                sent?;
            }
            if self.buffer.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let bytes = Chunk::from(self.buffer.split().freeze());
            if let Some(unsent) = self.stream.try_send(bytes)? {
                let stream = Rc::clone(&self.stream);
                self.sending = Some(Box::pin(async move { stream.send_waiting(unsent).await })); // for more than 4 KiB
            }
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.unread.is_empty() {
            this.unread = ready!(this.stream.poll_recv(cx))?;
            this.worker.add_bytes(this.unread.len());
        }
        let taken = this.unread.len().min(into.remaining());
        into.put_slice(&this.unread[..taken]);
        this.unread.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= HTTP2_WRITE_BYTES_MAX {
            ready!(self.poll_send(cx))?;
        }
        let taken = bytes.len().min(HTTP2_WRITE_BYTES_MAX);
        self.buffer.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx) // dropping the connection closes it
    }
}
