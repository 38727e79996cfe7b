//! A connection to the target, plain or TLS.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker, ready};

use ring::{Chunk, IdleReadiness, Ring, RingStream};

use crate::error::{FailureKind, RequestFailure};
use crate::limits::CONNECT_TIMEOUT;
use crate::target::LoadTarget;
use crate::tls::{TlsSession, TlsSettings};

/// One connection. One task sends and receives.
pub(crate) struct LoadStream {
    stream: RingStream,
    tls: Option<Box<TlsSession>>,
}

impl LoadStream {
    /// Connects, with the handshake of TLS if there are settings for it. `protocol` must be agreed on in it, if there is one.
    pub(crate) async fn connect(
        ring: &Ring,
        target: &LoadTarget,
        tls: Option<&TlsSettings>,
        protocol: Option<&[u8]>,
    ) -> Result<Self, RequestFailure> {
        let connected = ring.timeout(CONNECT_TIMEOUT, RingStream::connect(ring, target.address)).await;
        let stream = connected
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|why| RequestFailure::io(FailureKind::Connect, &why))?;
        let Some(settings) = tls else { return Ok(Self { stream, tls: None }) };
        let handshake = ring.timeout(CONNECT_TIMEOUT, Self::handshake(stream, settings)).await;
        let secured = handshake
            .unwrap_or_else(|_| Err(io::Error::other("the handshake did not finish in time")))
            .map_err(|why| RequestFailure::new(FailureKind::Tls, format!("TLS handshake: {why}")))?;
        if let (Some(protocol), Some(session)) = (protocol, &secured.tls)
            && !session.has_agreed_on(protocol)
        {
            let name = String::from_utf8_lossy(protocol).into_owned();
            return Err(RequestFailure::new(FailureKind::Tls, format!("the server did not agree on {name} (ALPN)")));
        }
        Ok(secured)
    }

    async fn handshake(stream: RingStream, settings: &TlsSettings) -> io::Result<Self> {
        let session = settings.session()?;
        loop {
            stream.send(session.take_records()?).await?;
            if !session.is_handshaking() {
                return Ok(Self { stream, tls: Some(Box::new(session)) });
            }
            let received = stream.recv().await?;
            if received.is_empty() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
            if let Err(why) = session.decrypt(&received) {
                // The alert says to the server why.
                let _ = stream.send(session.take_records()?).await;
                return Err(why);
            }
        }
    }

    /// Sends all of `bytes`.
    #[inline]
    pub(crate) async fn send(&self, bytes: Chunk) -> io::Result<()> {
        match self.try_send(bytes)? {
            None => Ok(()),
            Some(rest) => self.send_waiting(rest).await,
        }
    }

    /// Sends `bytes` without waiting, if they are few: the response shows that they were sent. Otherwise returns what is left.
    #[inline]
    pub(crate) fn try_send(&self, mut bytes: Chunk) -> io::Result<Option<UnsentBytes>> {
        match &self.tls {
            None => {
                Ok(self.stream.send_detached(bytes).err().map(|rest| UnsentBytes { wire: rest, plain: Chunk::empty() }))
            }
            Some(session) => {
                let records = Chunk::from(session.encrypt(&mut bytes)?);
                let unsent = self.stream.send_detached(records).err().unwrap_or_default();
                let all = unsent.is_empty() && bytes.is_empty();
                Ok((!all).then_some(UnsentBytes { wire: unsent, plain: bytes }))
            }
        }
    }

    pub(crate) async fn send_waiting(&self, unsent: UnsentBytes) -> io::Result<()> {
        let UnsentBytes { wire, mut plain } = unsent;
        self.stream.send(wire).await?;
        if let Some(session) = &self.tls {
            while !plain.is_empty() {
                self.stream.send(session.encrypt(&mut plain)?).await?;
            }
        }
        Ok(())
    }

    /// The next bytes. Empty: the server has closed. A dropped call loses no bytes.
    #[inline]
    pub(crate) async fn recv(&self) -> io::Result<Chunk> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    pub(crate) fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let Some(session) = &self.tls else { return pin!(self.stream.recv()).poll(cx) };
        loop {
            if let Some(plain) = session.take_plain() {
                return Poll::Ready(Ok(plain));
            }
            if session.is_closed() {
                return Poll::Ready(Ok(Chunk::empty()));
            }
            let received = ready!(pin!(self.stream.recv()).poll(cx))?;
            if received.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            session.decrypt(&received)?;
        }
    }

    /// Whether an idle connection can carry a request: the server has not closed it, and has sent nothing unasked. Messages of the
    /// TLS protocol (tickets, key updates) are processed and do not count.
    pub(crate) fn is_idle(&self) -> bool {
        let Some(session) = &self.tls else { return self.stream.ready() == IdleReadiness::Idle };
        loop {
            match self.stream.ready() {
                IdleReadiness::Closed => return false,
                IdleReadiness::Idle => return !session.is_closed() && !session.has_plain(),
                IdleReadiness::Data => {}
            }
            match pin!(self.stream.recv()).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(received)) if !received.is_empty() && session.decrypt(&received).is_ok() => {}
                Poll::Ready(_) => return false,
                Poll::Pending => return !session.is_closed() && !session.has_plain(),
            }
        }
    }
}

/// What a send without waiting has left.
pub(crate) struct UnsentBytes {
    /// For the socket.
    wire: Chunk,
    /// Not yet encrypted.
    plain: Chunk,
}
