//! TLS towards instances: whom they have to prove to be, and whose word counts.

use std::fmt;
use std::io;
use std::sync::Arc;

use ring::{Chunk, Stream};
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, version};

use super::TlsStream;

/// Sessions kept for resumption, of all cores: two tickets each for as many instances as a backend has. The store
/// has a lock, which only handshakes take.
const SESSIONS_MAX: usize = 256;

/// Makes connections to the instances of a backend, and believes only who proves to be the one that is named.
pub struct Trust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// The protocol that has to be agreed on, if the instance names any.
    protocol: &'static [u8],
}

/// Why nobody can be trusted by what was given.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("the authorities are no PEM: {0}")]
    Pem(pem::Error),
    #[error("no certificate of an authority in it")]
    Nobody,
    #[error("an authority's certificate is no good: {0}")]
    Authority(rustls::Error),
    #[error("{0:?} is neither a DNS name nor an address")]
    Name(String),
    #[error("TLS: {0}")]
    Tls(rustls::Error),
}

impl Trust {
    /// In instances that prove to be `name` by one of the `authorities` (PEM), and speak HTTP/2 or HTTP/1.1.
    ///
    /// # Errors
    /// The authorities cannot be read, or the name is none.
    pub fn new(authorities: &[u8], name: &str, speaks_http2: bool) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities) {
            roots.add(certificate.map_err(TrustError::Pem)?).map_err(TrustError::Authority)?;
        }
        if roots.is_empty() {
            return Err(TrustError::Nobody);
        }
        let protocol: &[u8] = if speaks_http2 { b"h2" } else { b"http/1.1" };
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(TrustError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        let server = ServerName::try_from(name.to_owned()).map_err(|_| TrustError::Name(name.to_owned()))?;
        Ok(Self { config: Arc::new(config), name: server, protocol })
    }

    /// Shakes hands over a new connection. `InvalidData`: the instance is not whom it should be, or broke the
    /// rules.
    pub(crate) async fn shake_hands(&self, stream: Stream) -> io::Result<TlsStream> {
        let session = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let session = session.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let stream = TlsStream::new(stream, session.into(), Chunk::empty());
        stream.finish_handshake().await?;
        let agreed = stream.agreed_protocol();
        // HTTP/1.1 is what an instance speaks that has never heard of ALPN; HTTP/2 has to be agreed on (RFC 9113 3.2).
        if agreed.as_deref() == Some(self.protocol) || (agreed.is_none() && self.protocol == b"http/1.1") {
            Ok(stream)
        } else {
            let why = format!("the instance does not agree on {}", String::from_utf8_lossy(self.protocol));
            Err(io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_and_names_that_are_none_are_refused() {
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let pem = made.cert.pem();
        assert!(Trust::new(pem.as_bytes(), "a.example.com", false).is_ok());
        assert!(Trust::new(pem.as_bytes(), "127.0.0.1", true).is_ok());
        assert!(matches!(Trust::new(pem.as_bytes(), "a b", false), Err(TrustError::Name(_))));
        assert!(matches!(Trust::new(b"no pem", "a", false), Err(TrustError::Nobody)));
        let half = &pem.as_bytes()[..pem.len() / 2];
        assert!(Trust::new(half, "a", false).is_err());
    }
}
