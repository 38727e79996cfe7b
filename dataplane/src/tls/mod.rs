//! TLS, for clients and towards instances: rustls, fed bytes from the ring.
//!
//! A [`TlsAcceptor`] turns an accepted connection into a [`TlsStream`]: it waits for the ClientHello, takes its turn
//! (`handshake_limiter`), and answers with the [`TlsServerConfig`] that all cores share. The table holds the
//! certificates by name ([`certificates`]). [`TlsClientConfig`] verifies instances and subscribers. From there on the
//! proxy only sees [`Transport`]. Out of scope: HTTP, and the source of certificates (files, control).

mod acceptor;
pub mod certificates;
mod client_config;
mod client_hello;
mod handshake_limiter;
mod handshake_outcome;
mod limits;
mod server_config;
mod stream;
mod transport;

pub use acceptor::TlsAcceptor;
pub use certificates::{CertificateStore, IdentityError, TlsIdentity};
pub use client_config::{CertificateAuthorities, TlsClientConfig, TrustError};
pub use handshake_outcome::HandshakeOutcome;
pub use limits::TlsLimits;
pub use server_config::{DefaultCertificate, TlsServerConfig, TlsVersionMin};
pub use stream::TlsStream;
pub use transport::{ByteStream, Transport};
