//! A TLS session over a ring stream, with the interface of the stream: plaintext in and out.
//!
//! Calls may be dropped at any time, so a send of records belongs to the session and not to the call that began it: the
//! next call, in either direction, continues it. In this way protocol messages (tickets, key updates, alerts) are also
//! sent while there is no data to send.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use ring::{Chunk, IdleReadiness, RingStream};
use rustls::{Connection, HandshakeKind};

use contract::tls::verification_error;

use super::TlsClientConfig;
use super::limits::BATCH_BYTES_MAX;

/// One TLS connection. As with [`RingStream`], a recv may run concurrently with a send; both belong to one task.
pub struct TlsStream {
    stream: Rc<RingStream>,
    session: RefCell<Connection>,
    /// Decrypted and not yet received.
    plain: RefCell<Vec<u8>>,
    end: RefCell<Option<TlsStreamEnd>>,
    /// The records that are being sent.
    pending_send: RefCell<Option<PendingSend>>,
    sending: Cell<TlsSendState>,
}

type PendingSend = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// Why no more data comes.
enum TlsStreamEnd {
    /// The peer closed the session (`close_notify`).
    Finished,
    /// The connection ended without `close_notify`: an attacker may have cut it off.
    Truncated,
    /// Not TLS, or not with this session's keys.
    Broken(Box<str>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TlsSendState {
    Idle,
    Busy,
    /// A send failed or was cancelled midway: it is unknown how much of it was sent.
    Broken,
}

impl TlsStream {
    /// `arrived` are the bytes after the ClientHello that `session` has read.
    pub(super) fn new(stream: RingStream, session: Connection, arrived: Chunk) -> Self {
        let stream = Self {
            stream: Rc::new(stream),
            session: RefCell::new(session),
            plain: RefCell::default(),
            end: RefCell::default(),
            pending_send: RefCell::default(),
            sending: Cell::new(TlsSendState::Idle),
        };
        stream.decrypt(&arrived);
        stream
    }

    /// Runs the client's side of the handshake over a new connection. `InvalidData`: the instance failed verification or
    /// violated the protocol.
    pub(super) async fn connect(stream: RingStream, config: &TlsClientConfig) -> io::Result<Self> {
        let session = config.session().map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let stream = Self::new(stream, session.into(), Chunk::empty());
        stream.finish_handshake().await?;
        let checked = config.check_protocol(stream.agreed_protocol().as_deref());
        checked.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        Ok(stream)
    }

    /// Finishes the handshake. `InvalidData`: the peer aborted it or violated the protocol.
    pub(super) async fn finish_handshake(&self) -> io::Result<HandshakeKind> {
        loop {
            poll_fn(|cx| self.poll_send(cx)).await?;
            if let Some(kind) = self.agreed() {
                return Ok(kind);
            }
            self.ended()?;
            let chunk = self.stream.recv().await?;
            self.take(&chunk);
        }
    }

    /// The next bytes. Empty: the peer closed the session; a connection that only ends is an error. Cancel-safe: a
    /// dropped call loses no bytes.
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
            poll_fn(|cx| self.poll_send(cx)).await?;
            let batch = &rest[..rest.len().min(BATCH_BYTES_MAX)];
            let taken = self.session.borrow_mut().writer().write(batch)?;
            rest.advance(taken);
        }
        drop(rest); // a receive buffer is released before the wait
        poll_fn(|cx| self.poll_send(cx)).await?;
        turn.whole = true;
        Ok(())
    }

    /// Sends `close_notify`, so that the peer can tell an end from a truncation.
    pub async fn finish(&self) -> io::Result<()> {
        self.session.borrow_mut().send_close_notify();
        poll_fn(|cx| self.poll_send(cx)).await
    }

    /// As [`TlsStream::finish`], and closes the connection's write side. Receiving continues.
    pub async fn shutdown_write(&self) -> io::Result<()> {
        self.finish().await?;
        self.stream.shutdown_write().await
    }

    /// The name that the client asked for, which selected the certificate.
    #[must_use]
    pub fn server_name(&self) -> Option<Box<str>> {
        match &*self.session.borrow() {
            Connection::Server(session) => session.server_name().map(Into::into),
            Connection::Client(_) => None,
        }
    }

    /// The protocol that the handshake agreed on (ALPN).
    #[must_use]
    pub fn agreed_protocol(&self) -> Option<Vec<u8>> {
        self.session.borrow().alpn_protocol().map(<[u8]>::to_vec)
    }

    /// Whether an idle connection is still idle, as [`RingStream::ready`]. Protocol messages (tickets, key updates) are
    /// processed and do not count as data.
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

    /// As [`RingStream::hung_up`]: a peer that has closed its write side sends nothing more in the session either.
    pub async fn hung_up(&self) -> io::Result<()> {
        self.stream.hung_up().await
    }

    /// As [`RingStream::suspend`].
    pub fn suspend(&self) {
        self.stream.suspend();
    }

    pub fn acknowledge(&self) {
        self.stream.acknowledge();
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        loop {
            let plain = self.plain.take();
            if !plain.is_empty() {
                return Poll::Ready(Ok(Chunk::from(plain)));
            }
            // A failure to send is reported to the sender; the peer's data can still be received.
            let left = self.poll_send(cx);
            if self.end.borrow().is_some() {
                // The alert that tells the peer the reason is sent first.
                return if left.is_pending() { Poll::Pending } else { Poll::Ready(self.ended()) };
            }
            let chunk = ready!(pin!(self.stream.recv()).poll(cx))?;
            self.take(&chunk);
        }
    }

    /// Processes the bytes from the socket, or its end.
    fn take(&self, chunk: &Chunk) {
        if chunk.is_empty() {
            *self.end.borrow_mut() = Some(TlsStreamEnd::Truncated);
        } else {
            self.decrypt(chunk);
        }
    }

    /// Decrypts.
    fn decrypt(&self, chunk: &Chunk) {
        let mut session = self.session.borrow_mut();
        let mut rest: &[u8] = chunk;
        while !rest.is_empty() && self.end.borrow().is_none() {
            let end = match advance(&mut session, &mut rest, &mut self.plain.borrow_mut()) {
                Ok(false) => continue,
                Ok(true) => TlsStreamEnd::Finished,
                Err(why) => TlsStreamEnd::Broken(verification_error::sentence_of_session(&why).into()),
            };
            *self.end.borrow_mut() = Some(end); // nothing after it is read
        }
    }

    /// No more data comes: an error unless the peer closed the session.
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

    /// Sends the pending records, until there are none.
    fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pending_send = self.pending_send.borrow_mut();
        loop {
            if self.sending.get() == TlsSendState::Broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if let Some(send) = pending_send.as_mut() {
                let sent = ready!(send.as_mut().poll(cx));
                *pending_send = None;
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
            *pending_send = Some(Box::pin(async move { stream.send(records).await }));
        }
    }

    fn begin_send(&self) -> io::Result<TlsSendGuard<'_>> {
        match self.sending.get() {
            TlsSendState::Idle => {
                self.sending.set(TlsSendState::Busy);
                Ok(TlsSendGuard { sending: &self.sending, whole: false })
            }
            TlsSendState::Busy => Err(io::Error::other("another send on this stream is in flight")),
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

/// Processes one piece of the input; `true` when the peer has closed the session.
fn advance(session: &mut Connection, rest: &mut &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
    if session.read_tls(rest)? == 0 {
        return Ok(true); // rustls reads nothing after a close_notify
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
