//! A socket of the ring as h2 wants one: tokio's io traits, and no tokio behind them.
//!
//! What h2 writes is gathered until it flushes, so that the frames of many streams leave in one send.

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

use super::flood_guard::{FloodGuard, FloodKind, FloodViolation};
use super::limits::{STREAMS_MAX, WRITE_BYTES_MAX};
use super::response_trailers::ResponseTrailerScan;
use crate::http::buffers::by;
use crate::tls::{ByteStream, Transport};

type SendFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// One connection's bytes, both ways.
pub struct Http2Io {
    ring: Ring,
    stream: Rc<Transport>,
    /// Arrived and not read.
    held: Chunk,
    flood_guard: Option<FloodGuard>,
    /// Of an instance's connection.
    response_trailers: Option<ResponseTrailerScan>,
    facts: Rc<IoState>,
    /// Written and not sent; up to `WRITE_BYTES_MAX` and one frame.
    buffer: BytesMut,
    /// The send under way.
    sending: Option<SendFuture>,
    /// Our side was told to finish.
    shut: bool,
    /// The longest time one send may take, if there is one.
    stall_max: Option<Duration>,
}

/// What a connection's owner wants to know while h2 holds the [`Http2Io`].
#[derive(Debug, Default)]
pub struct IoState {
    pub received: Cell<u64>,
    pub sent: Cell<u64>,
    /// A send is under way.
    pub sending: Cell<bool>,
    /// Set once, and from then on nothing more is read.
    pub breach: Cell<Option<FloodViolation>>,
    /// What it would be, if h2 found a flood now.
    pub suspect: Cell<FloodKind>,
    /// Streams whose trailers are malformed, and whose requests have not been told so yet.
    malformed: RefCell<Vec<u32>>,
}

impl IoState {
    /// Streams that were reset meanwhile do not ask; the oldest are forgotten for later ones.
    fn note_malformed(&self, stream: u32) {
        let mut malformed = self.malformed.borrow_mut();
        if malformed.len() == STREAMS_MAX as usize {
            malformed.remove(0);
        }
        malformed.push(stream);
    }

    /// Whether the stream, whose trailers have come, is malformed by them. To be asked once.
    pub fn has_malformed_trailers(&self, stream: u32) -> bool {
        let mut malformed = self.malformed.borrow_mut();
        let at = malformed.iter().position(|known| *known == stream);
        at.map(|at| malformed.swap_remove(at)).is_some()
    }
}

impl Http2Io {
    /// `held` are bytes that came already. A send may take `stall_max`; zero: any time.
    #[must_use]
    pub fn new(ring: &Ring, stream: impl Into<Transport>, held: Chunk, stall_max: Duration) -> Self {
        Self {
            ring: ring.clone(),
            stream: Rc::new(stream.into()),
            held,
            flood_guard: None,
            response_trailers: None,
            facts: Rc::default(),
            buffer: BytesMut::new(),
            sending: None,
            shut: false,
            stall_max: (!stall_max.is_zero()).then_some(stall_max),
        }
    }

    /// A send may take any time: each stream has its own timeout, and what has no stream is its owner's to end. So a client that
    /// reads nothing for a while loses the streams that it does not read, and not its connection.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { stall_max: None, ..self }
    }

    /// Notices floods and frames of no good length, and tells of itself in `facts`.
    #[must_use]
    pub fn metered(self, meter: FloodGuard, facts: &Rc<IoState>) -> Self {
        Self { flood_guard: Some(meter), facts: Rc::clone(facts), ..self }
    }

    /// Notices malformed trailers of responses, and tells of them in `facts`.
    #[must_use]
    pub fn of_responses(self, facts: &Rc<IoState>) -> Self {
        Self { response_trailers: Some(ResponseTrailerScan::default()), facts: Rc::clone(facts), ..self }
    }

    /// Ready when no send is under way.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let Poll::Ready(result) = sending.as_mut().poll(cx) else { return Poll::Pending };
        self.sending = None;
        self.facts.sending.set(false);
        Poll::Ready(result)
    }

    fn begin_send(&mut self) {
        let bytes = self.buffer.split().freeze();
        self.facts.sent.set(self.facts.sent.get() + bytes.len() as u64);
        if let Some(meter) = &mut self.flood_guard {
            meter.sent(bytes.len() as u64);
        }
        let (ring, stream) = (self.ring.clone(), Rc::clone(&self.stream));
        let due = self.stall_max.map(|wait| ring.now() + wait);
        self.facts.sending.set(true);
        self.sending = Some(Box::pin(async move {
            by(&ring, due, stream.send(bytes.into())).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        }));
    }
}

impl AsyncRead for Http2Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.facts.breach.get().is_some() {
            return Poll::Pending; // the owner ends the connection
        }
        if this.held.is_empty() {
            // A call that is dropped loses nothing, so each poll may be a call of its own.
            match pin!(this.stream.recv()).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Ready(Ok(chunk)) => this.held = chunk,
            }
        }
        let mut taken = this.held.len().min(into.remaining());
        if let Some(meter) = &mut this.flood_guard {
            if let Err((before, breach)) = meter.read(&this.held[..taken], this.ring.now()) {
                this.facts.breach.set(Some(breach));
                taken = before;
                if taken == 0 {
                    cx.waker().wake_by_ref(); // the owner looks after each poll
                    return Poll::Pending;
                }
            }
            this.facts.suspect.set(meter.suspect());
            meter.take_malformed().for_each(|stream| this.facts.note_malformed(stream));
        }
        if let Some(scan) = &mut this.response_trailers {
            scan.read(&this.held[..taken], |stream| this.facts.note_malformed(stream));
        }
        into.put_slice(&this.held[..taken]);
        this.held.advance(taken);
        if this.held.is_empty() {
            this.held = Chunk::empty(); // the receive buffer goes back
        }
        this.facts.received.set(this.facts.received.get() + taken as u64);
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
