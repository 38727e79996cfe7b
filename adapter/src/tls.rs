//! TLS from files, with ring as the only crypto library.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::Deserialize;

use crate::error::Error;
use crate::secret::{SecretFile, directory_file};

/// The `tls` section of a transport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// The section turns TLS on unless this is false.
    pub enable: Option<bool>,
    /// A secret with several keys: a directory with `ca.crt`, `tls.crt` and `tls.key` (or `user.crt` and `user.key`).
    pub secret: Option<PathBuf>,
    pub ca_cert: Option<SecretFile>,
    pub cert: Option<SecretFile>,
    pub key: Option<SecretFile>,
}

impl Tls {
    pub fn is_enabled(&self) -> bool {
        self.enable.unwrap_or(true)
    }

    pub fn ca(&self) -> Option<SecretFile> {
        self.file(&self.ca_cert, &["ca.crt"])
    }

    /// Certificate chain and private key.
    pub fn identity(&self) -> Option<(SecretFile, SecretFile)> {
        let cert = self.file(&self.cert, &["tls.crt", "user.crt"])?;
        let key = self.file(&self.key, &["tls.key", "user.key"])?;
        Some((cert, key))
    }

    fn file(&self, named: &Option<SecretFile>, names: &[&str]) -> Option<SecretFile> {
        named.clone().or_else(|| directory_file(self.secret.as_deref()?, names))
    }

    /// Reads the files. Without a CA the certificates of the host are trusted.
    pub fn client(&self) -> Result<Arc<ClientConfig>, Error> {
        let ca = self.ca().map(|ca| ca.read_bytes()).transpose()?;
        let identity = self.identity().map(|(cert, key)| Ok((cert.read_bytes()?, key.read_bytes()?))).transpose()?;
        client_config(ca.as_deref(), identity)
    }

    /// For a listener.
    pub fn server(&self) -> Result<Arc<ServerConfig>, Error> {
        let (cert, key) = self
            .identity()
            .ok_or_else(|| Error::secret("the certificate of the listener is missing: no tls.crt or tls.key"))?;
        let (chain, key) = parse_identity(&cert.read_bytes()?, &key.read_bytes()?)?;
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(Error::secret)?.with_no_client_auth();
        let config = builder.with_single_cert(chain, key);
        Ok(Arc::new(config.map_err(|error| Error::secret(format!("certificate of the listener: {error}")))?))
    }
}

/// ring's provider. It is installed for the process, because some protocol clients ask for the default.
pub(crate) fn install_provider() {
    // An error means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn client_config(
    ca: Option<&[u8]>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| Error::secret(format!("CA certificate: {error}")))?;
                roots.add(certificate).map_err(|error| Error::secret(format!("CA certificate: {error}")))?;
            }
            if roots.is_empty() {
                return Err(Error::secret("CA certificate: the file holds no PEM certificate"));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(Error::secret)?.with_root_certificates(roots);
    let config = match identity {
        Some((cert, key)) => {
            let (chain, key) = parse_identity(&cert, &key)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| Error::secret(format!("client certificate: {error}")))?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn parse_identity(cert: &[u8], key: &[u8]) -> Result<Identity, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
    let chain = chain.map_err(|error| Error::secret(format!("certificate: {error}")))?;
    // The key's parser says what is wrong without quoting bytes of it.
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|_| Error::secret("private key: the file holds no PEM key"))?;
    Ok((chain, key))
}
