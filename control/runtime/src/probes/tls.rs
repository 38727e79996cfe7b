//! The transport of a probe to an instance that speaks TLS.
//!
//! Like a kubelet's, the probe does not verify the certificate: it is issued for the names of the instance's callers,
//! and there is no attacker in between on loopback.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

static CONFIG: LazyLock<Option<Arc<ClientConfig>>> = LazyLock::new(|| {
    let provider = Arc::new(ring::default_provider());
    let versions = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let any = Arc::new(AcceptAnyCertificate(provider));
    let config = versions.ok()?.dangerous().with_custom_certificate_verifier(any).with_no_client_auth();
    Some(Arc::new(config))
});

/// Does a TLS handshake over `stream`.
pub(crate) async fn connect(stream: TcpStream, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
    let config = CONFIG.clone().ok_or_else(|| io::Error::other("TLS cannot be set up"))?;
    TlsConnector::from(config).connect(ServerName::from(address.ip()), stream).await
}

/// Takes any certificate, if only its owner signs with it.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// SRV-CON-44: a probe with the scheme HTTPS speaks TLS, whichever authority signed the certificate.
    #[tokio::test]
    async fn a_certificate_that_nobody_knows_is_good_enough() {
        let made = rcgen::generate_simple_self_signed(vec!["elsewhere.test".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async {
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
            let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            let mut said = [0; 4];
            stream.read_exact(&mut said).await.unwrap();
            stream.write_all(&said).await.unwrap();
            stream.flush().await.unwrap();
        };
        let client = async {
            let mut stream = connect(TcpStream::connect(address).await.unwrap(), address).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            stream.flush().await.unwrap();
            let mut received = [0; 4];
            stream.read_exact(&mut received).await.unwrap();
            received
        };
        let ((), received) = tokio::join!(server, client);
        assert_eq!(&received, b"ping");
    }
}
