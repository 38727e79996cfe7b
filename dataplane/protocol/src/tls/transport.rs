//! The bytes of a connection, encrypted or not.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use ring::{Chunk, EndpointAddress, IdleReadiness, Ring, RingStream};

use super::{TlsClientConfig, TlsStream};

/// A source and sink of bytes. `recv` is cancel-safe; an empty chunk means that the peer has closed its side.
pub trait ByteStream {
    fn recv(&self) -> impl Future<Output = io::Result<Chunk>>;
    fn send(&self, bytes: Chunk) -> impl Future<Output = io::Result<()>>;
    /// Tells the peer that no more data comes. Receiving continues.
    fn shutdown_write(&self) -> impl Future<Output = io::Result<()>>;
    /// Acknowledges the received bytes at once; see [`RingStream::acknowledge`].
    fn acknowledge(&self);
}

/// A connection to a client or an instance.
pub enum Transport {
    Plain(RingStream),
    Tls(Box<TlsStream>),
}

impl Transport {
    /// A new connection to an instance; with `trust` by TLS. It begins with `preamble`.
    pub(crate) async fn connect(
        ring: &Ring,
        to: EndpointAddress,
        trust: Option<&TlsClientConfig>,
        preamble: &[u8],
    ) -> io::Result<Self> {
        let stream = RingStream::connect(ring, to).await?;
        if !preamble.is_empty() {
            stream.send(Chunk::from(preamble.to_vec())).await?;
        }
        match trust {
            None => Ok(stream.into()),
            // Boxed: a plain connection's future should not reserve memory for a handshake.
            Some(trust) => Box::pin(TlsStream::connect(stream, trust)).await.map(Into::into),
        }
    }

    /// The address that the peer connected to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.local_addr(),
            Self::Tls(stream) => stream.local_addr(),
        }
    }

    #[inline]
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_addr(),
            Self::Tls(stream) => stream.peer_addr(),
        }
    }

    #[inline]
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Whether an idle connection is still idle, without waiting.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> IdleReadiness {
        match self {
            Self::Plain(stream) => stream.ready(),
            Self::Tls(stream) => stream.ready(),
        }
    }

    /// Stops receiving until the next `recv`, and releases the receive buffers.
    #[inline]
    pub fn suspend(&self) {
        match self {
            Self::Plain(stream) => stream.suspend(),
            Self::Tls(stream) => stream.suspend(),
        }
    }

    /// Resolves once the peer has closed its side, or the connection is broken, even if unread bytes remain.
    pub async fn hung_up(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.hung_up().await,
            Self::Tls(stream) => stream.hung_up().await,
        }
    }

    /// Sends the last bytes of a message without waiting, if that is possible; see [`RingStream::send_detached`].
    #[inline]
    pub fn send_detached(&self, bytes: Chunk) -> Result<(), Chunk> {
        match self {
            Self::Plain(stream) => stream.send_detached(bytes),
            Self::Tls(_) => Err(bytes),
        }
    }

    /// Whether dropping the connection resets it: for a message that ends with the connection. With TLS a connection
    /// that ends without `close_notify` already shows a truncation.
    pub fn set_reset_on_close(&self, resets: bool) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.set_reset_on_close(resets),
            Self::Tls(_) => Ok(()),
        }
    }

    /// The server name that a client asked for in TLS.
    #[must_use]
    pub fn server_name(&self) -> Option<Box<str>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.server_name(),
        }
    }

    /// Called before an orderly close: TLS distinguishes it from a truncation, a plain connection cannot.
    pub async fn finish(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.settled().await,
            Self::Tls(stream) => stream.finish().await,
        }
    }
}

impl ByteStream for RingStream {
    async fn recv(&self) -> io::Result<Chunk> {
        Self::recv(self).await
    }

    async fn send(&self, bytes: Chunk) -> io::Result<()> {
        Self::send(self, bytes).await
    }

    async fn shutdown_write(&self) -> io::Result<()> {
        Self::shutdown_write(self).await
    }

    fn acknowledge(&self) {
        Self::acknowledge(self);
    }
}

impl ByteStream for Transport {
    async fn recv(&self) -> io::Result<Chunk> {
        match self {
            Self::Plain(stream) => stream.recv().await,
            Self::Tls(stream) => stream.recv().await,
        }
    }

    async fn send(&self, bytes: Chunk) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.send(bytes).await,
            Self::Tls(stream) => stream.send(bytes).await,
        }
    }

    async fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.shutdown_write().await,
            Self::Tls(stream) => stream.shutdown_write().await,
        }
    }

    fn acknowledge(&self) {
        match self {
            Self::Plain(stream) => stream.acknowledge(),
            Self::Tls(stream) => stream.acknowledge(),
        }
    }
}

impl From<RingStream> for Transport {
    fn from(stream: RingStream) -> Self {
        Self::Plain(stream)
    }
}

impl From<TlsStream> for Transport {
    fn from(stream: TlsStream) -> Self {
        Self::Tls(Box::new(stream))
    }
}
