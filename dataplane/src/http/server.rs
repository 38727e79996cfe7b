//! A client's connection: its requests one after the other, and how it ends.
//!
//! [`Downstream`] is the part that every server has. [`serve_buffered`] is a whole server for small
//! messages: it hands over requests with their body and sends answers in one piece.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use ring::{Chunk, Ring, Tick};

use super::answer::Answer;
use super::bodies::{Bodies, Held, NoRoom};
use super::codec::{
    BodyReader, Framing, Malformed, Method, Piece, RequestHead, RequestView, Version, parse_request,
};
use super::date;
use super::limits::HttpLimits;
use super::roster::Seat;
use super::wire::{HeadFault, Inflow, Outflow, by};
use crate::tls::{Pipe, Wire};

/// What a client of HTTP/2 by prior knowledge sends first (RFC 9113 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's connection between and during requests.
pub struct Downstream {
    pub ring: Ring,
    pub stream: Wire,
    pub inflow: Inflow,
    pub outflow: Outflow,
    pub head: RequestHead,
    pub seat: Seat,
    /// Shared: there are ten thousands of idle connections, and one set of limits.
    pub limits: Rc<HttpLimits>,
}

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    Http1,
    /// HTTP/2 by prior knowledge.
    Http2,
}

/// Why there is no next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRequest {
    /// The client is gone, was idle for too long, or we stop.
    Gone,
    /// It began a head and did not finish it in time.
    Stalled,
    Malformed(Malformed),
}

impl Downstream {
    #[must_use]
    pub fn new(ring: &Ring, stream: impl Into<Wire>, seat: Seat, limits: &Rc<HttpLimits>) -> Self {
        Self {
            ring: ring.clone(),
            stream: stream.into(),
            inflow: Inflow::default(),
            outflow: Outflow::default(),
            head: RequestHead::within(limits.head),
            seat,
            limits: Rc::clone(limits),
        }
    }

    /// What the client speaks: waits for as many bytes as tell. They stay held.
    pub async fn opening(&mut self) -> Result<Spoken, NoRequest> {
        self.idle().await?;
        let due = self.ring.now() + self.limits.head_max;
        loop {
            let known = self.inflow.held.len().min(PREFACE.len());
            if self.inflow.held[..known] != PREFACE[..known] {
                return Ok(Spoken::Http1); // told by the first byte, nearly always
            }
            if known == PREFACE.len() {
                return Ok(Spoken::Http2);
            }
            let mut front = std::mem::take(&mut self.inflow.held).to_vec();
            match by(&self.ring, Some(due), self.inflow.fill(&self.stream)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false) | Err(_)) => return Err(NoRequest::Gone),
                Err(_) => return Err(NoRequest::Stalled),
            }
            front.extend_from_slice(&self.inflow.held);
            self.inflow.held = Chunk::from(front);
        }
    }

    /// The bytes of the next request's head, which then is in `head`.
    pub async fn next_head(&mut self) -> Result<Chunk, NoRequest> {
        if self.inflow.is_between() {
            self.idle().await?;
        }
        // What the last request asked must not shape an answer to one that cannot be read, nor what is told of it.
        (self.head.method, self.head.version) = (Method::default(), Version::default());
        let due = self.ring.now() + self.limits.head_max;
        let head = &mut self.head;
        let parsed = self.inflow.head(&self.stream, |bytes| parse_request(bytes, head));
        match by(&self.ring, Some(due), parsed).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(HeadFault::Malformed(why))) => Err(NoRequest::Malformed(why)),
            Ok(Err(HeadFault::Ended | HeadFault::Truncated | HeadFault::Broken(_))) => Err(NoRequest::Gone),
            Err(_) => Err(NoRequest::Stalled),
        }
    }

    /// Waits for the first byte of a request.
    async fn idle(&mut self) -> Result<(), NoRequest> {
        let due = self.ring.now() + self.limits.idle_max;
        let mut fill = pin!(self.inflow.fill(&self.stream));
        let seat = &self.seat;
        let first = poll_fn(|cx| match fill.as_mut().poll(cx) {
            Poll::Ready(filled) => Poll::Ready(filled.unwrap_or(false)),
            Poll::Pending => seat.poll_draining(cx).map(|()| false),
        });
        match by(&self.ring, Some(due), first).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(NoRequest::Gone),
        }
    }

    /// When a send, or the next bytes of a body, are overdue.
    #[must_use]
    pub fn stall_due(&self) -> Tick {
        self.ring.now() + self.limits.stall_max
    }

    /// Sends what is buffered, in bounded time.
    pub async fn flush(&mut self) -> io::Result<()> {
        let due = self.stall_due();
        by(&self.ring, Some(due), self.outflow.flush(&self.stream))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sends a whole answer of ours.
    pub async fn answer(&mut self, answer: &Answer, close: bool) -> io::Result<()> {
        let (to_head, date) = (self.head.method == Method::Head, date::at(self.ring.now()));
        let connection = match (close, self.head.version) {
            (true, _) => Some("close"),
            (false, Version::Http10) => Some("keep-alive"),
            (false, Version::Http11) => None,
        };
        answer.put(&mut self.outflow.buffer, to_head, connection, &date);
        self.flush().await
    }

    /// Ends a connection on which all was said. What is merely dropped looks like a cut to a TLS client. A client that reads
    /// slowly may be as slow with the end of its answer as with the rest.
    pub async fn close(&self) {
        let wait = self.limits.stream_idle_timeout;
        let due = (!wait.is_zero()).then(|| self.ring.now() + wait);
        let _ = by(&self.ring, due, self.stream.finish()).await; // however it ends, the connection goes
    }

    /// Ends a connection on which the client may still be sending: if we just closed, the kernel would
    /// answer its bytes with a reset, and the reset would overtake our answer.
    pub async fn linger(&mut self) {
        let due = self.ring.now() + self.limits.linger_max;
        let read_until = self.inflow.bytes + self.limits.linger_bytes_max as u64;
        let drained = async {
            self.stream.shutdown_write().await?;
            loop {
                self.inflow.held = Chunk::empty();
                if !self.inflow.fill(&self.stream).await? || self.inflow.bytes > read_until {
                    return io::Result::Ok(());
                }
            }
        };
        let _ = by(&self.ring, Some(due), drained).await; // however it ends, the connection goes
    }

    /// Reads a whole body, as far as there is room for it, which it holds as long as what comes with it.
    pub async fn whole_body(&mut self, bodies: &Bodies) -> Result<(Bytes, Held), NoBody> {
        let framing = self.head.framing;
        if let Framing::Length(length) = framing {
            bodies.judge(length).map_err(NoBody::NoRoom)?;
        }
        let mut room = bodies.enter();

        let mut reader = BodyReader::new(framing);
        let mut body = BytesMut::new();
        if self.head.expects_continue && self.inflow.held.is_empty() {
            self.outflow.buffer.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.flush().await.map_err(|_| NoBody::Gone)?;
        }
        loop {
            match reader.next(&self.inflow.held).map_err(NoBody::Malformed)? {
                Piece::Data { skip, take } => {
                    room.grow(take).map_err(NoBody::NoRoom)?;
                    self.inflow.held.advance(skip);
                    body.extend_from_slice(&self.inflow.held[..take]);
                    self.inflow.held.advance(take);
                }
                Piece::End { skip } => {
                    self.inflow.held.advance(skip);
                    return Ok((body.freeze(), room));
                }
                Piece::NeedBytes => {
                    self.inflow.held = Chunk::empty();
                    let due = self.stall_due();
                    match by(&self.ring, Some(due), self.inflow.fill(&self.stream)).await {
                        Ok(Ok(true)) => {}
                        Ok(Ok(false) | Err(_)) => return Err(NoBody::Gone),
                        Err(_) => return Err(NoBody::Stalled),
                    }
                }
            }
        }
    }
}

/// Why there is no whole body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoBody {
    Gone,
    NoRoom(NoRoom),
    Stalled,
    Malformed(Malformed),
}

impl NoBody {
    /// What the client is told, if there is one.
    fn answer(self) -> Option<Answer> {
        match self {
            Self::Gone => None,
            Self::NoRoom(why) => Some(why.answer()),
            Self::Stalled => Some(Answer::text(408, "request timeout: the body stopped coming")),
            Self::Malformed(why) => Some(Answer::text(why.status(), why.sentence())),
        }
    }
}

/// Serves one connection: every request with its whole body to `handler`, until the client goes. Bodies
/// for which there is no room get 413 or 503, those that stop coming 408. `refusal` finishes answers that are given in the
/// handler's place.
pub async fn serve_buffered(
    mut connection: Downstream,
    bodies: &Bodies,
    refusal: fn(Answer) -> Answer,
    handler: &impl AsyncFn(RequestView<'_>, Bytes) -> Answer,
) {
    loop {
        let (bytes, body, room) = match whole_request(&mut connection, bodies).await {
            Ok(whole) => whole,
            Err(None) => return connection.close().await,
            Err(Some(answer)) => {
                if connection.answer(&refusal(answer), true).await.is_ok() {
                    connection.linger().await;
                }
                return;
            }
        };

        let answer = handler(connection.head.view(&bytes), body).await;
        drop((bytes, room)); // the receive buffer goes back before the next wait
        let close = !connection.head.keep_alive || connection.seat.is_draining();
        match connection.answer(&answer, close).await {
            Err(_) => return,
            // A client that has gone on sending is heard out, or a reset would overtake the answer.
            Ok(()) if close && !connection.inflow.is_between() => return connection.linger().await,
            Ok(()) if close => return connection.close().await,
            Ok(()) => {}
        }
    }
}

/// The next request's head and body; or what its client is told, if there is one.
async fn whole_request(
    connection: &mut Downstream,
    bodies: &Bodies,
) -> Result<(Chunk, Bytes, Held), Option<Answer>> {
    let bytes = match connection.next_head().await {
        Ok(bytes) => bytes,
        Err(NoRequest::Gone) => return Err(None),
        Err(NoRequest::Stalled) => {
            return Err(Some(Answer::text(408, "request timeout: the head did not come")));
        }
        Err(NoRequest::Malformed(why)) => return Err(Some(Answer::text(why.status(), why.sentence()))),
    };
    if connection.head.expects_more {
        return Err(Some(Answer::text(417, "the only expectation known is 100-continue")));
    }
    let (body, room) = connection.whole_body(bodies).await.map_err(NoBody::answer)?;
    Ok((bytes, body, room))
}
