//! TLS towards instances and subscribers: which name they must prove, and which authorities are trusted.
//!
//! A self-signed certificate often says that it is an authority (`openssl req -x509` makes such). It is accepted if exactly this
//! certificate is among the trusted ones, as curl and Go do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, version};

use super::pinned_certificate::is_pinned;
use super::subject_name::{SubjectName, SubjectNameVerifier};
use super::trust_error::TrustError;
use super::verification_error;

/// Sessions kept for resumption, for all cores and all targets with the same authorities. The store has a lock, which
/// only handshakes take.
const SESSIONS_MAX: usize = 256;

/// Trusted authorities with a TLS configuration. Shared by all targets with the same authorities.
pub struct CertificateAuthorities {
    config: Arc<ClientConfig>,
    /// `None`: the verification depends on more than these and the name.
    roots: Option<Arc<RootCertStore>>,
    protocol: ApplicationProtocol,
}

/// The protocol to agree on, if the peer supports ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApplicationProtocol {
    Http1,
    Http2,
    /// Nothing is agreed on: the bytes are those of others.
    Unnamed,
}

impl ApplicationProtocol {
    /// As ALPN names it.
    fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
            Self::Unnamed => b"",
        }
    }

    fn of_http(speaks_http2: bool) -> Self {
        if speaks_http2 { Self::Http2 } else { Self::Http1 }
    }
}

/// Opens TLS connections to the instances of a backend or to a subscriber, and accepts only peers that prove the
/// configured name.
pub struct TlsClientConfig {
    authorities: Arc<CertificateAuthorities>,
    name: ServerName<'static>,
    id: u64,
}

impl CertificateAuthorities {
    /// These authorities, for peers that speak HTTP/2 or HTTP/1.1. A peer may also show exactly one of these certificates, although
    /// it is an authority's.
    ///
    /// # Errors
    ///
    /// `roots` is empty.
    pub fn new(roots: RootCertStore, speaks_http2: bool) -> Result<Self, TrustError> {
        Self::for_protocol(roots, ApplicationProtocol::of_http(speaks_http2))
    }

    fn for_protocol(roots: RootCertStore, protocol: ApplicationProtocol) -> Result<Self, TrustError> {
        if roots.is_empty() {
            return Err(TrustError::NoAuthorities);
        }
        let roots = Arc::new(roots);
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(TrustError::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinnedVerifier::new(Arc::clone(&roots))?))
            .with_no_client_auth();
        if protocol != ApplicationProtocol::Unnamed {
            config.alpn_protocols = vec![protocol.name().to_vec()];
        }
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Ok(Self { config: Arc::new(config), roots: Some(roots), protocol })
    }

    /// Adds the certificates in `pem` to `roots`.
    ///
    /// # Errors
    /// A certificate cannot be read, or there is none; some may have been added.
    pub fn read(pem: &[u8], roots: &mut RootCertStore) -> Result<(), TrustError> {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(TrustError::Pem)?).map_err(TrustError::Authority)?;
        }
        if roots.len() == before { Err(TrustError::NoAuthorities) } else { Ok(()) }
    }
}

impl TlsClientConfig {
    /// For instances that prove `name` by one of the `authorities` (PEM), and speak HTTP/2 or HTTP/1.1.
    ///
    /// # Errors
    ///
    /// The authorities cannot be read, or the name is invalid.
    pub fn new(authorities: &[u8], name: &str, speaks_http2: bool) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        CertificateAuthorities::read(authorities, &mut roots)?;
        Self::by(Arc::new(CertificateAuthorities::new(roots, speaks_http2)?), name)
    }

    /// For instances that prove any of `names` by one of the `authorities` (PEM). The first is sent as the server name.
    ///
    /// # Errors
    ///
    /// The authorities cannot be read, or a name is invalid.
    pub fn of_any(authorities: &[u8], names: &[&str], speaks_http2: bool) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        CertificateAuthorities::read(authorities, &mut roots)?;
        let mut made = CertificateAuthorities::new(roots.clone(), speaks_http2)?;
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
        let chain = chain.build().map_err(TrustError::Authorities)?;
        let each = names
            .iter()
            .map(|name| ServerName::try_from((*name).to_owned()).map_err(|_| TrustError::Name((*name).to_owned())));
        let verifier = AnyNameVerifier { chain, names: each.collect::<Result<_, _>>()? };
        let mut config = (*made.config).clone();
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        (made.config, made.roots) = (Arc::new(config), None);
        Self::by(Arc::new(made), names.first().copied().unwrap_or_default())
    }

    /// For peers whose certificate is signed by one of the `roots` and has one of the `names`; without names, `server_name`.
    ///
    /// # Errors
    ///
    /// There are no roots, or the server name is invalid.
    pub fn for_subject(
        roots: RootCertStore,
        server_name: &str,
        names: Vec<SubjectName>,
        protocol: ApplicationProtocol,
    ) -> Result<Self, TrustError> {
        let mut made = CertificateAuthorities::for_protocol(roots.clone(), protocol)?;
        if !names.is_empty() {
            let mut config = (*made.config).clone();
            config.dangerous().set_certificate_verifier(Arc::new(SubjectNameVerifier::new(Arc::new(roots), names)?));
            (made.config, made.roots) = (Arc::new(config), None);
        }
        Self::by(Arc::new(made), server_name)
    }

    /// For peers that prove `name`: a DNS name, or an address, with IPv6 in brackets or not.
    ///
    /// # Errors
    ///
    /// The name is invalid.
    pub fn by(authorities: Arc<CertificateAuthorities>, name: &str) -> Result<Self, TrustError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let plain = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        let named = ServerName::try_from(plain.to_owned()).map_err(|_| TrustError::Name(name.to_owned()))?;
        Ok(Self { authorities, name: named, id: NEXT.fetch_add(1, Relaxed) })
    }

    /// Unique in this process: a pooled connection is reused only for the same configuration.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether it accepts the same peers as `other`, so that connections of one may be used for the other. A file that was read
    /// again gives another configuration, with another id.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let (own, others) = (&self.authorities, &other.authorities);
        let has_same_roots = match (&own.roots, &others.roots) {
            (Some(own), Some(others)) => own.roots == others.roots,
            _ => false,
        };
        self == other || (has_same_roots && own.protocol == others.protocol && self.name == other.name)
    }

    /// The client's side of a new session.
    ///
    /// # Errors
    ///
    /// The configuration and the name do not fit together.
    pub fn session(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.authorities.config), self.name.clone())
    }

    /// Checks the protocol that the peer agreed on.
    ///
    /// # Errors
    ///
    /// It is another one. A peer without ALPN speaks HTTP/1.1; HTTP/2 has to be agreed on (RFC 9113 3.2).
    pub fn check_protocol(&self, agreed: Option<&[u8]>) -> Result<(), String> {
        let protocol = self.authorities.protocol;
        match agreed {
            None if protocol != ApplicationProtocol::Http2 => Ok(()),
            Some(agreed) if agreed == protocol.name() => Ok(()),
            _ => Err(format!("the instance does not support {}", String::from_utf8_lossy(protocol.name()))),
        }
    }
}

/// Standard verification; beside it, a certificate of an authority is accepted for its own server if it is pinned.
#[derive(Debug)]
struct PinnedVerifier {
    chain: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
}

impl PinnedVerifier {
    fn new(roots: Arc<RootCertStore>) -> Result<Self, TrustError> {
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::new(default_provider()));
        Ok(Self { chain: chain.build().map_err(TrustError::Authorities)?, roots })
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.chain.verify_server_cert(own, between, name, ocsp, now) {
            // Its validity was checked before that.
            Err(why) if verification_error::is_authority_as_server(&why) && is_pinned(own, &self.roots) => {
                verify_server_name(&ParsedCertificate::try_from(own)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Standard verification of chain and signatures, for any of several names.
#[derive(Debug)]
struct AnyNameVerifier {
    chain: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for AnyNameVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _asked_for: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut last = rustls::Error::General("no server name is configured".to_owned());
        for name in &self.names {
            match self.chain.verify_server_cert(own, between, name, ocsp, now) {
                Ok(verified) => return Ok(verified),
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Identity of the object: a configuration cannot be compared.
impl PartialEq for TlsClientConfig {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for TlsClientConfig {}

impl fmt::Debug for TlsClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_authorities_and_names_are_rejected() {
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let pem = made.cert.pem();
        assert!(TlsClientConfig::new(pem.as_bytes(), "a.example.com", false).is_ok());
        for address in ["127.0.0.1", "[::1]", "::1"] {
            assert!(TlsClientConfig::new(pem.as_bytes(), address, true).is_ok());
        }
        assert!(matches!(TlsClientConfig::new(pem.as_bytes(), "a b", false), Err(TrustError::Name(_))));
        assert!(matches!(TlsClientConfig::new(b"no pem", "a", false), Err(TrustError::NoAuthorities)));
        assert!(TlsClientConfig::of_any(pem.as_bytes(), &["kn-routing", "kn-user-ns"], true).is_ok());
        assert!(matches!(TlsClientConfig::of_any(pem.as_bytes(), &["a", "a b"], true), Err(TrustError::Name(_))));
        assert!(matches!(TlsClientConfig::of_any(pem.as_bytes(), &[], true), Err(TrustError::Name(_))));
        let half = &pem.as_bytes()[..pem.len() / 2];
        assert!(TlsClientConfig::new(half, "a", false).is_err());
    }

    #[test]
    fn configurations_with_same_trust_and_name_are_equivalent() {
        let pem = || rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        let (pem, other) = (pem(), pem());
        let made = |pem: &str, name, speaks_http2| TlsClientConfig::new(pem.as_bytes(), name, speaks_http2).unwrap();
        let config = made(&pem, "a", false);
        assert!(config.is_equivalent(&made(&pem, "a", false)) && config != made(&pem, "a", false));
        for different in [made(&other, "a", false), made(&pem, "b", false), made(&pem, "a", true)] {
            assert!(!config.is_equivalent(&different));
        }
        let of_any = TlsClientConfig::of_any(pem.as_bytes(), &["a"], false).unwrap();
        assert!(of_any.is_equivalent(&of_any) && !of_any.is_equivalent(&config));
    }
}
