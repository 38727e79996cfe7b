//! TLS as tables carry it: the certificates that the gateway shows, the peers that it trusts, and how handshakes end.

mod certificates;
mod client_config;
mod handshake_outcome;
pub mod verification_error;

pub use certificates::{CertificateStore, IdentityError, TlsIdentity};
pub use client_config::{CertificateAuthorities, TlsClientConfig, TrustError};
pub use handshake_outcome::HandshakeOutcome;
