//! A connection's bytes, encrypted or not.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use ring::{Chunk, Stream};

use super::TlsStream;

/// What bytes come out of and go into. A call of `recv` that is dropped loses nothing; an empty chunk says
/// that the peer has finished.
pub trait Pipe {
    fn recv(&self) -> impl Future<Output = io::Result<Chunk>>;
    fn send(&self, bytes: Chunk) -> impl Future<Output = io::Result<()>>;
    /// Tells the peer that nothing more will come. Receiving goes on.
    fn shutdown_write(&self) -> impl Future<Output = io::Result<()>>;
}

/// A client's connection.
pub enum Wire {
    Plain(Stream),
    Tls(Box<TlsStream>),
}

impl Wire {
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
            Self::Plain(_) => Ok(()),
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
