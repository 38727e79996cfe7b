//! TLS, for clients and towards instances: rustls, fed bytes from the ring.
//!
//! A [`TlsAcceptor`] turns an accepted connection into a [`TlsStream`]: it waits for the hello, takes its turn
//! (`turnstile`), and answers by the [`TlsServerConfig`] that all cores share. Which certificate a name gets is in
//! the table ([`certificates`]). [`TlsClientConfig`] says which instance or subscriber is believed. From there on [`Transport`] is all the proxy sees.
//! Deliberately absent: what is said inside (HTTP), and where certificates come from (files, control).

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
