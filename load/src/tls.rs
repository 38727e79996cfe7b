//! TLS towards the target: which certificates are accepted, and the session over a connection.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use ring::Chunk;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring::default_provider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::LoadTestError;

/// Which certificates of the target are accepted.
#[derive(Debug, Clone, Default)]
pub enum TlsTrust {
    /// Those of the host's authorities.
    #[default]
    System,
    /// Those of the authorities in this PEM text.
    Authorities(Vec<u8>),
    /// All: the peer is not authenticated.
    Insecure,
}

/// Opens sessions with one target.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TlsSettings {
    pub(crate) fn new(trust: &TlsTrust, host: &str, speaks_http2: bool) -> Result<Self, LoadTestError> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| LoadTestError::Trust(format!("{host:?} is neither a DNS name nor an address")))?;
        let provider = Arc::new(default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|why| LoadTestError::Trust(why.to_string()))?;
        let mut config = match trust {
            TlsTrust::Insecure => {
                let verifier = Arc::new(AcceptingVerifier { provider });
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
            TlsTrust::System => builder.with_root_certificates(system_roots()?).with_no_client_auth(),
            TlsTrust::Authorities(pem) => builder.with_root_certificates(roots(pem)?).with_no_client_auth(),
        };
        config.alpn_protocols = vec![if speaks_http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        Ok(Self { config: Arc::new(config), name })
    }

    pub(crate) fn session(&self) -> io::Result<TlsSession> {
        let made = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let session = made.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        Ok(TlsSession { session: RefCell::new(session), plain: RefCell::default(), closed: Cell::new(false) })
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, LoadTestError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|why| LoadTestError::Trust(format!("the authorities are not PEM: {why}")))?;
        roots
            .add(certificate)
            .map_err(|why| LoadTestError::Trust(format!("a certificate of the authorities: {why}")))?;
    }
    if roots.is_empty() {
        return Err(LoadTestError::Trust("the file of authorities has no certificate; give one in PEM".to_owned()));
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, LoadTestError> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        drop(roots.add(certificate)); // a host's store may have certificates that rustls does not read
    }
    if roots.is_empty() {
        let why = "this host has no certificate authorities; install ca-certificates, or use --ca FILE or --insecure";
        return Err(LoadTestError::Trust(why.to_owned()));
    }
    Ok(roots)
}

/// Accepts every certificate, and still checks that the peer has its key.
#[derive(Debug)]
struct AcceptingVerifier {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AcceptingVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// One session: bytes of the socket in, plaintext out, and the reverse. It does no I/O.
pub(crate) struct TlsSession {
    session: RefCell<ClientConnection>,
    /// Decrypted and not yet received.
    plain: RefCell<Vec<u8>>,
    /// The peer has closed the session.
    closed: Cell<bool>,
}

impl TlsSession {
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.borrow().is_handshaking()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Decrypted bytes wait to be received.
    pub(crate) fn has_plain(&self) -> bool {
        !self.plain.borrow().is_empty()
    }

    /// Whether the handshake has agreed on `protocol`.
    pub(crate) fn has_agreed_on(&self, protocol: &[u8]) -> bool {
        self.session.borrow().alpn_protocol() == Some(protocol)
    }

    /// Records to send, of the protocol or of data.
    pub(crate) fn take_records(&self) -> io::Result<Vec<u8>> {
        let mut session = self.session.borrow_mut();
        let mut records = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut records)?;
        }
        Ok(records)
    }

    /// Encrypts as much of `bytes` as fits into the session's buffer, and returns the records.
    pub(crate) fn encrypt(&self, bytes: &mut Chunk) -> io::Result<Vec<u8>> {
        let taken = self.session.borrow_mut().writer().write(bytes)?;
        bytes.advance(taken);
        self.take_records()
    }

    /// Decrypts. An error is a violation of the protocol, or a rejected certificate.
    pub(crate) fn decrypt(&self, mut received: &[u8]) -> io::Result<()> {
        let mut session = self.session.borrow_mut();
        let mut plain = self.plain.borrow_mut();
        while !received.is_empty() && !self.closed.get() {
            if session.read_tls(&mut received)? == 0 {
                self.closed.set(true); // rustls reads nothing after a close_notify
                break;
            }
            let state = session.process_new_packets().map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let mut reader = session.reader();
                let piece = reader.fill_buf()?;
                let bytes = piece.len();
                if bytes == 0 {
                    break;
                }
                plain.extend_from_slice(piece);
                reader.consume(bytes);
                left = left.saturating_sub(bytes);
            }
            self.closed.set(state.peer_has_closed());
        }
        Ok(())
    }

    /// What was decrypted since the last call.
    pub(crate) fn take_plain(&self) -> Option<Chunk> {
        let plain = self.plain.take();
        (!plain.is_empty()).then(|| Chunk::from(plain))
    }
}
