//! TLS as tables carry it: the certificates that the gateway shows, the peers that it trusts, and how handshakes end.

mod certificates;
mod client_config;
mod handshake_outcome;
mod pinned_certificate;
mod subject_name;
mod trust_error;
pub mod verification_error;

pub use certificates::{CertificateStore, IdentityError, TlsIdentity};
pub use client_config::{ApplicationProtocol, CertificateAuthorities, TlsClientConfig};
pub use handshake_outcome::HandshakeOutcome;
pub use subject_name::SubjectName;
pub use trust_error::TrustError;
