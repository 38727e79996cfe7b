//! A connection's bytes, encrypted or not.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use ring::{Chunk, Readiness, Ring, Stream};

use super::{TlsStream, Trust};

/// What bytes come out of and go into. A call of `recv` that is dropped loses nothing; an empty chunk says
/// that the peer has finished.
pub trait Pipe {
    fn recv(&self) -> impl Future<Output = io::Result<Chunk>>;
    fn send(&self, bytes: Chunk) -> impl Future<Output = io::Result<()>>;
    /// Tells the peer that nothing more will come. Receiving goes on.
    fn shutdown_write(&self) -> impl Future<Output = io::Result<()>>;
}

/// A connection to a client or an instance.
pub enum Wire {
    Plain(Stream),
    Tls(Box<TlsStream>),
}

impl Wire {
    /// A new connection to an instance; with `trust` by TLS.
    pub(crate) async fn connect(ring: &Ring, to: SocketAddr, trust: Option<&Trust>) -> io::Result<Self> {
        let stream = Stream::connect(ring, to).await?;
        match trust {
            None => Ok(stream.into()),
            // Boxed: what a handshake needs is no part of a plain connection's future.
            Some(trust) => Box::pin(trust.shake_hands(stream)).await.map(Into::into),
        }
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_addr(),
            Self::Tls(stream) => stream.peer_addr(),
        }
    }

    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Whether a connection that should be idle is, without waiting.
    #[must_use]
    pub fn ready(&self) -> Readiness {
        match self {
            Self::Plain(stream) => stream.ready(),
            Self::Tls(stream) => stream.ready(),
        }
    }

    /// Receives nothing more before the next `recv`, and holds none of the receive buffers.
    pub fn suspend(&self) {
        match self {
            Self::Plain(stream) => stream.suspend(),
            Self::Tls(stream) => stream.suspend(),
        }
    }

    /// Resolves once the peer has finished, or the connection is broken, whatever of it has still to be received.
    pub async fn hung_up(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.hung_up().await,
            Self::Tls(stream) => stream.hung_up().await,
        }
    }

    /// Hands over the last bytes of a message, if it need not be waited for that they leave; see [`Stream::post`].
    pub fn post(&self, bytes: Chunk) -> Result<(), Chunk> {
        match self {
            Self::Plain(stream) => stream.post(bytes),
            Self::Tls(_) => Err(bytes),
        }
    }

    /// Whether dropping the connection resets it: for a message whose end is the connection's. With TLS a connection that
    /// ends without `close_notify` shows that already.
    pub fn set_reset_on_close(&self, resets: bool) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.set_reset_on_close(resets),
            Self::Tls(_) => Ok(()),
        }
    }

    /// The name that a client asked for by TLS.
    #[must_use]
    pub fn server_name(&self) -> Option<Box<str>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.server_name(),
        }
    }

    /// Before a close that is not a cut: TLS tells the two apart, a plain connection cannot.
    pub async fn finish(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.settled().await,
            Self::Tls(stream) => stream.finish().await,
        }
    }
}

impl Pipe for Stream {
    async fn recv(&self) -> io::Result<Chunk> {
        Self::recv(self).await
    }

    async fn send(&self, bytes: Chunk) -> io::Result<()> {
        Self::send(self, bytes).await
    }

    async fn shutdown_write(&self) -> io::Result<()> {
        Self::shutdown_write(self).await
    }
}

impl Pipe for Wire {
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
}

impl From<Stream> for Wire {
    fn from(stream: Stream) -> Self {
        Self::Plain(stream)
    }
}

impl From<TlsStream> for Wire {
    fn from(stream: TlsStream) -> Self {
        Self::Tls(Box::new(stream))
    }
}
