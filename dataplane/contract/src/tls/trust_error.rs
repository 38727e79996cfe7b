//! Why a configuration for TLS towards instances and subscribers is invalid.

use rustls::client::VerifierBuilderError;
use rustls::pki_types::pem;

/// Why the trust configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("the certificates of the authorities are not valid PEM: {0}")]
    Pem(pem::Error),
    #[error("no certificate of an authority found")]
    NoAuthorities,
    #[error("invalid certificate of an authority: {0}")]
    Authority(rustls::Error),
    #[error("{0:?} is neither a DNS name nor an address")]
    Name(String),
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    #[error("the authorities cannot be used: {0}")]
    Authorities(VerifierBuilderError),
}
