//! Which certificate a server name gets. Immutable: a reload makes a new one and publishes it with the table; open
//! connections keep their session keys.

use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

use crate::limits::CHAIN_BYTES_MAX;

/// A certificate chain and its matching private key.
#[derive(Clone)]
pub struct TlsIdentity(Arc<CertifiedKey>);

/// Whether they were read at the same time: keys are not compared.
impl PartialEq for TlsIdentity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl TlsIdentity {
    /// For the server's side of a session.
    #[must_use]
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0)
    }

    /// Whether clients see the same chain.
    #[must_use]
    pub fn has_same_chain(&self, other: &Self) -> bool {
        self.0.cert == other.0.cert
    }
}

/// Why the input is not an identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("the file contains no certificate")]
    NoCertificate,
    #[error("the certificates are not valid PEM: {0}")]
    Certificate(pem::Error),
    #[error("the private key cannot be read: {0}")]
    Key(pem::Error),
    #[error("the certificates are {0} bytes, limit {CHAIN_BYTES_MAX}")]
    Long(usize),
    #[error("the private key does not match the certificate: {0}")]
    Mismatch(rustls::Error),
}

impl TlsIdentity {
    /// From PEM, the server's own certificate first.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(IdentityError::Certificate)?;
        if chain.is_empty() {
            return Err(IdentityError::NoCertificate);
        }
        let bytes = chain.iter().map(|one| one.len()).sum();
        if bytes > CHAIN_BYTES_MAX {
            return Err(IdentityError::Long(bytes));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(IdentityError::Key)?;
        let both = CertifiedKey::from_der(chain, key, &default_provider()).map_err(IdentityError::Mismatch)?;
        Ok(Self(Arc::new(both)))
    }

    /// Whether the certificate is valid for `name`; for a wildcard, for any name that it covers.
    #[must_use]
    pub fn is_for(&self, name: &str) -> bool {
        let name = name.strip_prefix('*').map_or_else(|| name.to_owned(), |parent| format!("any{parent}"));
        let (Ok(name), Some(own)) = (ServerName::try_from(name), self.0.cert.first()) else { return false };
        ParsedCertificate::try_from(own).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
    }
}

/// Identities by server name.
#[derive(Default, Clone)]
pub struct CertificateStore {
    exact: HashMap<Box<str>, TlsIdentity, RandomState>,
    /// By the parent: `*.example.com` is under `example.com`.
    wildcard: HashMap<Box<str>, TlsIdentity, RandomState>,
    /// The default, for every other name and for clients that send none.
    any: Option<TlsIdentity>,
}

impl CertificateStore {
    /// `host` is a name in lower case, `*.` and a name, or `*`. A later identity replaces an earlier one.
    pub fn insert(&mut self, host: &str, identity: TlsIdentity) {
        if host == "*" {
            self.any = Some(identity);
        } else if let Some(parent) = host.strip_prefix("*.") {
            self.wildcard.insert(parent.into(), identity);
        } else {
            self.exact.insert(host.into(), identity);
        }
    }

    /// Adds those of `other`, which replace earlier ones of the same host.
    pub fn merge(&mut self, other: &Self) {
        self.exact.extend(other.exact.iter().map(|(host, identity)| (host.clone(), identity.clone())));
        self.wildcard.extend(other.wildcard.iter().map(|(parent, identity)| (parent.clone(), identity.clone())));
        self.any = other.any.clone().or(self.any.take());
    }

    /// The most specific identity: the name's own, its parent's wildcard (for one label, as clients check it by RFC
    /// 6125), or the default.
    #[must_use]
    pub fn find(&self, name: Option<&str>) -> Option<&TlsIdentity> {
        self.named(name).or(self.any.as_ref())
    }

    /// The same without the default.
    #[must_use]
    pub fn named(&self, name: Option<&str>) -> Option<&TlsIdentity> {
        let name = name?;
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return self.nearest(&name.to_ascii_lowercase()); // allocates only for odd clients
        }
        self.nearest(name)
    }

    /// The same for a name in lower case.
    fn nearest(&self, name: &str) -> Option<&TlsIdentity> {
        let parent = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(name).or_else(parent)
    }

    /// Whether a client that asks for `host` gets a certificate that covers it.
    #[must_use]
    pub fn covers(&self, host: &str) -> bool {
        self.find(Some(host)).is_some_and(|identity| identity.is_for(host))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcard.len() + usize::from(self.any.is_some())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Names only: keys must not be logged.
impl fmt::Debug for CertificateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("exact", &self.exact.keys())
            .field("wildcard", &self.wildcard.keys())
            .field("any", &self.any.is_some())
            .finish()
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({} certificates)", self.0.cert.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn identity(name: &str) -> TlsIdentity {
        let (certificate, key) = made(name);
        TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap()
    }

    #[test]
    fn most_specific_identity_is_found() {
        let mut certificates = CertificateStore::default();
        let [own, wild, any] = ["app.example.com", "*.example.com", "*"].map(|host| {
            let identity = identity("x");
            certificates.insert(host, identity.clone());
            identity
        });
        let cases = [
            (Some("app.example.com"), &own),
            (Some("APP.Example.com."), &own),
            (Some("other.example.com"), &wild),
            (Some("a.other.example.com"), &any),
            (Some("example.com"), &any),
            (None, &any),
        ];
        for (name, wanted) in cases {
            let found = certificates.find(name).unwrap();
            assert!(Arc::ptr_eq(&found.0, &wanted.0), "{name:?}");
        }
    }

    #[test]
    fn unknown_name_without_default_finds_no_certificate() {
        let mut certificates = CertificateStore::default();
        certificates.insert("app.example.com", identity("x"));
        assert!(certificates.find(Some("evil.example.com")).is_none());
        assert!(certificates.find(None).is_none());
    }

    #[test]
    fn host_is_covered_by_a_certificate_with_its_name() {
        let mut certificates = CertificateStore::default();
        certificates.insert("*", identity("*.example.com"));
        certificates.insert("odd.example.com", identity("other.test"));
        for (host, covered) in [
            ("app.example.com", true),
            ("*.example.com", true),
            ("a.b.example.com", false),
            ("odd.example.com", false),
            ("app.test", false),
            ("no name", false),
        ] {
            assert_eq!(certificates.covers(host), covered, "{host}");
        }
    }

    #[test]
    fn invalid_identity_is_rejected_with_its_reason() {
        let (certificate, key) = made("a");
        let (_, other_key) = made("b");
        let parse = |c: &str, k: &str| TlsIdentity::from_pem(c.as_bytes(), k.as_bytes()).unwrap_err();
        assert!(matches!(parse("", &key), IdentityError::NoCertificate));
        assert!(matches!(parse(&certificate, ""), IdentityError::Key(_)));
        assert!(matches!(parse(&certificate, &other_key), IdentityError::Mismatch(_)));
        assert!(matches!(parse(&certificate[..100], &key), IdentityError::Certificate(_)));
        assert!(matches!(parse(&certificate.repeat(100), &key), IdentityError::Long(_)));
    }

    #[test]
    fn debug_output_contains_no_key() {
        let mut certificates = CertificateStore::default();
        certificates.insert("a", identity("a"));
        let text = format!("{certificates:?}, {:?}", certificates.find(Some("a")).unwrap());
        let names = r#"Certificates { exact: ["a"], wildcard: [], any: false }, Identity(1 certificates)"#;
        assert_eq!(text, names);
    }
}
