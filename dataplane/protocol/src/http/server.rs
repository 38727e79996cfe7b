//! A client's connection: serves its requests one after the other, and closes it.
//!
//! [`ClientConnection`] is the part that every server has. [`serve_buffered`] is a whole server for small messages: it
//! passes requests with their body and sends responses in one piece.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use codec::http::LocalResponse;
use codec::http::{
    BodyDecoder, BodyEvent, BodyFraming, HttpVersion, MalformedHttp, Method, RequestHead, RequestView, parse_request,
};
use ring::{Chunk, Ring, Tick};

use super::body_budget::{BodyBudget, BodyLimitExceeded, BodyReservation};
use super::buffers::{HeadReadError, ReadBuffer, WriteBuffer, by};
use super::connection_tracker::ConnectionGuard;
use super::date;
use super::limits::HttpLimits;
use crate::tls::{ByteStream, Transport};

/// The first bytes of an HTTP/2 client with prior knowledge (RFC 9113 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's connection between and during requests.
pub struct ClientConnection {
    pub ring: Ring,
    pub stream: Transport,
    pub read_buffer: ReadBuffer,
    pub write_buffer: WriteBuffer,
    pub head: RequestHead,
    pub guard: ConnectionGuard,
    /// Shared: there are tens of thousands of idle connections, and one set of limits.
    pub limits: Rc<HttpLimits>,
}

/// The protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientProtocol {
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// Why there is no next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestReadError {
    /// The client is gone, was idle for too long, or the core stops.
    ClientGone,
    /// It began a head and did not finish it in time.
    Stalled,
    Malformed(MalformedHttp),
}

impl ClientConnection {
    #[must_use]
    pub fn new(ring: &Ring, stream: impl Into<Transport>, guard: ConnectionGuard, limits: &Rc<HttpLimits>) -> Self {
        Self {
            ring: ring.clone(),
            stream: stream.into(),
            read_buffer: ReadBuffer::default(),
            write_buffer: WriteBuffer::default(),
            head: RequestHead::within(limits.head),
            guard,
            limits: Rc::clone(limits),
        }
    }

    /// Detects the client's protocol: waits for as many bytes as decide it. They stay buffered.
    pub async fn opening(&mut self) -> Result<ClientProtocol, RequestReadError> {
        self.idle().await?;
        let due = self.ring.now() + self.limits.head_max;
        loop {
            let known = self.read_buffer.unread.len().min(PREFACE.len());
            if self.read_buffer.unread[..known] != PREFACE[..known] {
                return Ok(ClientProtocol::Http1); // the first byte decides it, nearly always
            }
            if known == PREFACE.len() {
                return Ok(ClientProtocol::Http2);
            }
            let mut front = std::mem::take(&mut self.read_buffer.unread).to_vec();
            match by(&self.ring, Some(due), self.read_buffer.fill(&self.stream)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false) | Err(_)) => return Err(RequestReadError::ClientGone),
                Err(_) => return Err(RequestReadError::Stalled),
            }
            front.extend_from_slice(&self.read_buffer.unread);
            self.read_buffer.unread = Chunk::from(front);
        }
    }

    /// Reads the next request's head into `head` and returns its bytes.
    pub async fn next_head(&mut self) -> Result<Chunk, RequestReadError> {
        if self.read_buffer.is_between() {
            self.idle().await?;
        }
        // The last request must not affect the response to a malformed one, or its record.
        (self.head.method, self.head.version) = (Method::default(), HttpVersion::default());
        let due = self.ring.now() + self.limits.head_max;
        let head = &mut self.head;
        let parsed = self.read_buffer.head(&self.stream, |bytes| parse_request(bytes, head));
        match by(&self.ring, Some(due), parsed).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(HeadReadError::Malformed(why))) => Err(RequestReadError::Malformed(why)),
            Ok(Err(HeadReadError::Ended | HeadReadError::Truncated | HeadReadError::Broken(_))) => {
                Err(RequestReadError::ClientGone)
            }
            Err(_) => Err(RequestReadError::Stalled),
        }
    }

    /// Waits for the first byte of a request.
    async fn idle(&mut self) -> Result<(), RequestReadError> {
        let due = self.ring.now() + self.limits.idle_max;
        let mut fill = pin!(self.read_buffer.fill(&self.stream));
        let guard = &self.guard;
        let first = poll_fn(|cx| match fill.as_mut().poll(cx) {
            Poll::Ready(filled) => Poll::Ready(filled.unwrap_or(false)),
            Poll::Pending => guard.poll_draining(cx).map(|()| false),
        });
        match by(&self.ring, Some(due), first).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(RequestReadError::ClientGone),
        }
    }

    /// When a send, or the next bytes of a body, time out.
    #[must_use]
    pub fn stall_due(&self) -> Tick {
        self.ring.now() + self.limits.stall_max
    }

    /// Sends the buffered bytes, in bounded time.
    pub async fn flush(&mut self) -> io::Result<()> {
        let due = self.stall_due();
        by(&self.ring, Some(due), self.write_buffer.flush(&self.stream))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sends a whole local reply.
    pub async fn answer(&mut self, answer: &LocalResponse, close: bool) -> io::Result<()> {
        let (to_head, date) = (self.head.method == Method::Head, date::at(self.ring.now()));
        let connection = match (close, self.head.version) {
            (true, _) => Some("close"),
            (false, HttpVersion::Http10) => Some("keep-alive"),
            (false, HttpVersion::Http11) => None,
        };
        answer.put(&mut self.write_buffer.buffer, to_head, connection, &date);
        self.flush().await
    }

    /// Closes a connection after its last response. Without it a TLS client would see a truncation. A client that reads
    /// slowly may be as slow with the end of its response as with the rest.
    pub async fn close(&self) {
        let wait = self.limits.stream_idle_timeout;
        let due = (!wait.is_zero()).then(|| self.ring.now() + wait);
        let _ = by(&self.ring, due, self.stream.finish()).await; // the connection closes in any case
    }

    /// Closes a connection whose client may still be sending: after a plain close the kernel would answer its bytes
    /// with a reset, which would overtake the response.
    pub async fn linger(&mut self) {
        let due = self.ring.now() + self.limits.linger_max;
        let read_until = self.read_buffer.bytes + self.limits.linger_bytes_max as u64;
        let drained = async {
            self.stream.shutdown_write().await?;
            loop {
                self.read_buffer.unread = Chunk::empty();
                if !self.read_buffer.fill(&self.stream).await? || self.read_buffer.bytes > read_until {
                    return io::Result::Ok(());
                }
            }
        };
        let _ = by(&self.ring, Some(due), drained).await; // the connection closes in any case
    }

    /// Reads a whole body within the budget. The returned reservation holds its share.
    pub async fn whole_body(&mut self, bodies: &BodyBudget) -> Result<(Bytes, BodyReservation), BodyReadError> {
        let framing = self.head.framing;
        if let BodyFraming::Length(length) = framing {
            bodies.check_length(length).map_err(BodyReadError::LimitExceeded)?;
        }
        let mut reservation = bodies.enter();

        let mut reader = BodyDecoder::new(framing);
        let mut body = BytesMut::new();
        if self.head.expects_continue && self.read_buffer.unread.is_empty() {
            self.write_buffer.buffer.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.flush().await.map_err(|_| BodyReadError::ClientGone)?;
        }
        loop {
            match reader.next(&self.read_buffer.unread).map_err(BodyReadError::Malformed)? {
                BodyEvent::Data { skip, take } => {
                    reservation.grow(take).map_err(BodyReadError::LimitExceeded)?;
                    self.read_buffer.unread.advance(skip);
                    body.extend_from_slice(&self.read_buffer.unread[..take]);
                    self.read_buffer.unread.advance(take);
                }
                BodyEvent::End { skip } => {
                    self.read_buffer.unread.advance(skip);
                    return Ok((body.freeze(), reservation));
                }
                BodyEvent::NeedBytes => {
                    self.read_buffer.unread = Chunk::empty();
                    let due = self.stall_due();
                    match by(&self.ring, Some(due), self.read_buffer.fill_rest(&self.stream)).await {
                        Ok(Ok(true)) => {}
                        Ok(Ok(false) | Err(_)) => return Err(BodyReadError::ClientGone),
                        Err(_) => return Err(BodyReadError::Stalled),
                    }
                }
            }
        }
    }
}

/// Why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyReadError {
    ClientGone,
    LimitExceeded(BodyLimitExceeded),
    Stalled,
    Malformed(MalformedHttp),
}

impl BodyReadError {
    /// The response for the client, unless it is gone.
    fn answer(self) -> Option<LocalResponse> {
        match self {
            Self::ClientGone => None,
            Self::LimitExceeded(why) => Some(why.answer()),
            Self::Stalled => Some(LocalResponse::text(408, "request timeout: the request body stopped")),
            Self::Malformed(why) => Some(LocalResponse::text(why.status(), why.sentence())),
        }
    }
}

/// Serves one connection until its client goes: passes every request with its whole body to `handler`. Bodies beyond
/// the limits get 413 or 503, and bodies that stall get 408. `refusal` finishes responses that are sent in place of the
/// handler's.
///
/// `reject` may answer a request by its head, before memory is reserved for a body that has not arrived whole: an
/// unauthenticated client must not use up the budget of others.
pub async fn serve_buffered(
    mut connection: ClientConnection,
    bodies: &BodyBudget,
    refusal: fn(LocalResponse) -> LocalResponse,
    reject: &impl Fn(RequestView<'_>) -> Option<LocalResponse>,
    handler: &impl AsyncFn(RequestView<'_>, Bytes) -> LocalResponse,
) {
    loop {
        let (bytes, body, reservation) = match whole_request(&mut connection, bodies, reject).await {
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
        drop((bytes, reservation)); // the receive buffer is released before the next wait
        let close = !connection.head.keep_alive || connection.guard.is_draining();
        match connection.answer(&answer, close).await {
            Err(_) => return,
            // Reads the rest of a client that continued sending, or a reset would overtake the response.
            Ok(()) if close && !connection.read_buffer.is_between() => return connection.linger().await,
            Ok(()) if close => return connection.close().await,
            Ok(()) => {}
        }
    }
}

/// The next request's head and body, or else the response for its client, unless it is gone.
async fn whole_request(
    connection: &mut ClientConnection,
    bodies: &BodyBudget,
    reject: &impl Fn(RequestView<'_>) -> Option<LocalResponse>,
) -> Result<(Chunk, Bytes, BodyReservation), Option<LocalResponse>> {
    let bytes = match connection.next_head().await {
        Ok(bytes) => bytes,
        Err(RequestReadError::ClientGone) => return Err(None),
        Err(RequestReadError::Stalled) => {
            return Err(Some(LocalResponse::text(408, "request timeout: the request head is incomplete")));
        }
        Err(RequestReadError::Malformed(why)) => {
            return Err(Some(LocalResponse::text(why.status(), why.sentence())));
        }
    };
    if connection.head.expects_more {
        return Err(Some(LocalResponse::text(417, "the only supported expectation is 100-continue")));
    }
    let has_arrived = match connection.head.framing {
        BodyFraming::Empty => true,
        BodyFraming::Length(length) => length <= connection.read_buffer.unread.len() as u64,
        BodyFraming::Chunked | BodyFraming::UntilClose => false,
    };
    if !has_arrived && let Some(answer) = reject(connection.head.view(&bytes)) {
        return Err(Some(answer));
    }
    let (body, reservation) = connection.whole_body(bodies).await.map_err(BodyReadError::answer)?;
    Ok((bytes, body, reservation))
}
