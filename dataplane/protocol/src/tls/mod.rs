//! TLS, for clients and towards instances: rustls, fed bytes from the ring.
//!
//! A [`TlsAcceptor`] turns an accepted connection into a [`TlsStream`]: it waits for the ClientHello, takes its turn
//! (`handshake_limiter`), and answers with the [`TlsServerConfig`] that all cores share. The table holds the
//! certificates by name. A `TlsClientConfig` verifies instances and subscribers. From there on the
//! proxy only sees [`Transport`]. Out of scope: HTTP, and the source of certificates (files, control).

mod acceptor;
mod client_hello;
mod handshake_limiter;
mod limits;
mod server_config;
mod server_name_reader;
mod stream;
mod transport;

pub use acceptor::TlsAcceptor;
pub use contract::tls::{
    CertificateAuthorities, CertificateStore, HandshakeOutcome, IdentityError, TlsClientConfig, TlsIdentity, TrustError,
};
pub use limits::TlsLimits;
pub use server_config::{DefaultCertificate, TlsServerConfig, TlsVersionMin};
pub use server_name_reader::{NamedHello, refuse_server_name};
pub use stream::TlsStream;
pub use transport::{ByteStream, Transport};
