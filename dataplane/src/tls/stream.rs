//! A TLS session over a ring's stream, with the stream's own surface: plaintext in and out.
//!
//! Calls may be dropped at any time, so a send of records belongs to the session and not to the call that
//! began it: whoever comes next, in either direction, drives it on. That is also how answers of the
//! protocol itself leave (tickets, key updates, alerts) while nobody has anything to say.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use ring::{Chunk, IdleReadiness, RingStream};
use rustls::{Connection, HandshakeKind};

use super::limits::BATCH_BYTES_MAX;

/// One TLS connection. As with [`RingStream`], a recv may run beside a send; both belong to one task.
pub struct TlsStream {
    stream: Rc<RingStream>,
    session: RefCell<Connection>,
    /// Decrypted and not yet received.
    plain: RefCell<Vec<u8>>,
    end: RefCell<Option<TlsStreamEnd>>,
    /// The records on their way.
    leaving: RefCell<Option<PendingSend>>,
    sending: Cell<TlsSendState>,
}

type PendingSend = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// Why nothing more comes.
enum TlsStreamEnd {
    /// The peer said so (`close_notify`).
    Finished,
    /// The connection ended and nobody said so: what came may have been cut off by anybody.
    Truncated,
    /// Not TLS, or not by our keys.
    Broken(Box<str>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TlsSendState {
    Idle,
    Busy,
    /// A send failed or was given up midway: nobody knows how much of it left.
    Broken,
}

impl TlsStream {
    /// `arrived` came behind the hello that `session` has seen.
    pub(super) fn new(stream: RingStream, session: Connection, arrived: Chunk) -> Self {
        let stream = Self {
            stream: Rc::new(stream),
            session: RefCell::new(session),
            plain: RefCell::default(),
            end: RefCell::default(),
            leaving: RefCell::default(),
            sending: Cell::new(TlsSendState::Idle),
        };
        stream.digest(&arrived);
        stream
    }

    /// Says and hears what is left of the handshake. `InvalidData`: the peer broke it off, or the rules.
    pub(super) async fn finish_handshake(&self) -> io::Result<HandshakeKind> {
        loop {
            poll_fn(|cx| self.poll_leave(cx)).await?;
            if let Some(kind) = self.agreed() {
                return Ok(kind);
            }
            self.ended()?;
            let chunk = self.stream.recv().await?;
            self.take(&chunk);
        }
    }

    /// The next bytes, as they come. Empty: the peer has finished, and said so; a connection that merely
    /// ends is an error. A call that is dropped loses no bytes.
    pub async fn recv(&self) -> io::Result<Chunk> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Sends all of `bytes`. A call that is dropped midway leaves the stream unable to send.
    pub async fn send(&self, bytes: impl Into<Chunk>) -> io::Result<()> {
        let mut rest = bytes.into();
        if rest.is_empty() {
            return Ok(());
        }
        let mut turn = self.begin_send()?;
        while !rest.is_empty() {
            poll_fn(|cx| self.poll_leave(cx)).await?;
            let batch = &rest[..rest.len().min(BATCH_BYTES_MAX)];
            let taken = self.session.borrow_mut().writer().write(batch)?;
            rest.advance(taken);
        }
        drop(rest); // a receive buffer goes back before the wait
        poll_fn(|cx| self.poll_leave(cx)).await?;
        turn.whole = true;
        Ok(())
    }

    /// Tells the peer that all was said, so that it can tell an end from a cut.
    pub async fn finish(&self) -> io::Result<()> {
        self.session.borrow_mut().send_close_notify();
        poll_fn(|cx| self.poll_leave(cx)).await
    }

    /// As [`TlsStream::finish`], and ends the connection's outgoing half. Receiving goes on.
    pub async fn shutdown_write(&self) -> io::Result<()> {
        self.finish().await?;
        self.stream.shutdown_write().await
    }

    /// The name that the client asked for, which picked the certificate.
    #[must_use]
    pub fn server_name(&self) -> Option<Box<str>> {
        match &*self.session.borrow() {
            Connection::Server(session) => session.server_name().map(Into::into),
            Connection::Client(_) => None,
        }
    }

    /// What the handshake agreed to speak (ALPN).
    #[must_use]
    pub fn agreed_protocol(&self) -> Option<Vec<u8>> {
        self.session.borrow().alpn_protocol().map(<[u8]>::to_vec)
    }

    /// Whether a connection that should be idle is, as [`RingStream::ready`] says it. What the protocol says for
    /// itself (tickets, key updates) is heard and is no data.
    #[must_use]
    pub fn ready(&self) -> IdleReadiness {
        loop {
            if !self.plain.borrow().is_empty() {
                return IdleReadiness::Data;
            }
            if self.end.borrow().is_some() {
                return IdleReadiness::Closed;
            }
            match self.stream.ready() {
                IdleReadiness::Data => {}
                other => return other,
            }
            match pin!(self.stream.recv()).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(chunk)) => self.take(&chunk),
                Poll::Ready(Err(_)) => return IdleReadiness::Closed,
                Poll::Pending => return IdleReadiness::Idle,
            }
        }
    }

    /// As [`RingStream::hung_up`]: who has finished his side of the connection says nothing more in the session either.
    pub async fn hung_up(&self) -> io::Result<()> {
        self.stream.hung_up().await
    }

    /// As [`RingStream::suspend`].
    pub fn suspend(&self) {
        self.stream.suspend();
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        loop {
            let plain = self.plain.take();
            if !plain.is_empty() {
                return Poll::Ready(Ok(Chunk::from(plain)));
            }
            // A failure to send is the sender's to hear; what the peer said can still be received.
            let left = self.poll_leave(cx);
            if self.end.borrow().is_some() {
                // The alert that tells the peer why goes first.
                return if left.is_pending() { Poll::Pending } else { Poll::Ready(self.ended()) };
            }
            let chunk = ready!(pin!(self.stream.recv()).poll(cx))?;
            self.take(&chunk);
        }
    }

    /// Takes in what the socket brought, be it the end.
    fn take(&self, chunk: &Chunk) {
        if chunk.is_empty() {
            *self.end.borrow_mut() = Some(TlsStreamEnd::Truncated);
        } else {
            self.digest(chunk);
        }
    }

    /// Decrypts.
    fn digest(&self, chunk: &Chunk) {
        let mut session = self.session.borrow_mut();
        let mut rest: &[u8] = chunk;
        while !rest.is_empty() && self.end.borrow().is_none() {
            let end = match advance(&mut session, &mut rest, &mut self.plain.borrow_mut()) {
                Ok(false) => continue,
                Ok(true) => TlsStreamEnd::Finished,
                Err(why) => TlsStreamEnd::Broken(why.to_string().into()),
            };
            *self.end.borrow_mut() = Some(end); // nothing behind it is looked at
        }
    }

    /// Nothing more comes; an error unless the peer said so.
    fn ended(&self) -> io::Result<Chunk> {
        match &*self.end.borrow() {
            None | Some(TlsStreamEnd::Finished) => Ok(Chunk::empty()),
            Some(TlsStreamEnd::Truncated) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(TlsStreamEnd::Broken(why)) => Err(io::Error::new(io::ErrorKind::InvalidData, &**why)),
        }
    }

    fn agreed(&self) -> Option<HandshakeKind> {
        let session = self.session.borrow();
        if session.is_handshaking() { None } else { session.handshake_kind() }
    }

    /// Sends the records that wait, until there are none.
    fn poll_leave(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut leaving = self.leaving.borrow_mut();
        loop {
            if self.sending.get() == TlsSendState::Broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if let Some(send) = leaving.as_mut() {
                let sent = ready!(send.as_mut().poll(cx));
                *leaving = None;
                if sent.is_err() {
                    self.sending.set(TlsSendState::Broken);
                    return Poll::Ready(sent);
                }
            }
            let records = take_records(&mut self.session.borrow_mut())?;
            if records.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let stream = Rc::clone(&self.stream);
            *leaving = Some(Box::pin(async move { stream.send(records).await }));
        }
    }

    fn begin_send(&self) -> io::Result<TlsSendGuard<'_>> {
        match self.sending.get() {
            TlsSendState::Idle => {
                self.sending.set(TlsSendState::Busy);
                Ok(TlsSendGuard { sending: &self.sending, whole: false })
            }
            TlsSendState::Busy => Err(io::Error::other("another send on this stream is under way")),
            TlsSendState::Broken => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Marks the stream broken unless a send ran to its end.
struct TlsSendGuard<'a> {
    sending: &'a Cell<TlsSendState>,
    whole: bool,
}

impl Drop for TlsSendGuard<'_> {
    fn drop(&mut self) {
        self.sending.set(if self.whole { TlsSendState::Idle } else { TlsSendState::Broken });
    }
}

/// One step through what arrived; `true` when the peer has finished.
fn advance(session: &mut Connection, rest: &mut &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
    if session.read_tls(rest)? == 0 {
        return Ok(true); // it looks at nothing behind a close_notify
    }
    let state = session.process_new_packets().map_err(io::Error::other)?;
    let mut left = state.plaintext_bytes_to_read();
    plain.reserve(left);
    while left > 0 {
        let mut reader = session.reader();
        let piece = reader.fill_buf()?;
        let bytes = piece.len();
        if bytes == 0 {
            break;
        }
        plain.extend_from_slice(piece);
        reader.consume(bytes);
        left = left.saturating_sub(bytes);
    }
    Ok(state.peer_has_closed())
}

fn take_records(session: &mut Connection) -> io::Result<Vec<u8>> {
    let mut records = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut records)?;
    }
    Ok(records)
}
