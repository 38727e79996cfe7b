//! Verifies that a peer's certificate has one of several subject alternative names.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use webpki::EndEntityCert;

use super::pinned_certificate::is_pinned;
use super::trust_error::TrustError;
use super::verification_error;

/// A subject alternative name of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SubjectName {
    /// A host name; a leading `*.` stands for one label.
    Dns(Box<str>),
    /// Compared byte by byte, as RFC 5280 7.4 allows.
    Uri(Box<str>),
}

impl SubjectName {
    fn is_in(&self, parsed: &ParsedCertificate<'_>, certificate: &EndEntityCert<'_>) -> bool {
        match self {
            Self::Uri(wanted) => certificate.valid_uri_names().any(|name| *name == **wanted),
            Self::Dns(wanted) => match wanted.strip_prefix('*') {
                Some(parent) => certificate.valid_dns_names().any(|name| is_child(name, parent)),
                None => ServerName::try_from(&**wanted).is_ok_and(|name| verify_server_name(parsed, &name).is_ok()),
            },
        }
    }
}

/// Whether `name` is one label, or a wildcard, and then `parent`, which begins with a dot.
fn is_child(name: &str, parent: &str) -> bool {
    let Some(at) = name.len().checked_sub(parent.len()).filter(|at| *at > 0) else { return false };
    name.is_char_boundary(at) && name[at..].eq_ignore_ascii_case(parent) && !name[..at].contains('.')
}

/// Standard verification of chain and signatures, for any of several names.
#[derive(Debug)]
pub(super) struct SubjectNameVerifier {
    /// Verifies signatures.
    standard: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    names: Vec<SubjectName>,
}

impl SubjectNameVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>, names: Vec<SubjectName>) -> Result<Self, TrustError> {
        let standard = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::new(default_provider()));
        Ok(Self { standard: standard.build().map_err(TrustError::Authorities)?, roots, names })
    }
}

impl ServerCertVerifier for SubjectNameVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _asked_for: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(own)?;
        let algorithms = default_provider().signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, algorithms) {
            Err(why) if verification_error::is_authority_as_server(&why) && is_pinned(own, &self.roots) => {}
            chain => chain?,
        }
        let certificate = EndEntityCert::try_from(own).map_err(|_| CertificateError::BadEncoding)?;
        if self.names.iter().any(|name| name.is_in(&parsed, &certificate)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.standard.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.standard.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.standard.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

    use super::*;

    /// A certificate with these names, and the authority that signed it.
    fn certificate(dns: &[&str], uris: &[&str]) -> (CertificateDer<'static>, RootCertStore) {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let mut params = CertificateParams::new(dns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        let made = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(issuer.der().clone()).unwrap();
        (made.der().clone(), roots)
    }

    fn accepts(certificate: &CertificateDer<'_>, roots: &RootCertStore, names: &[SubjectName]) -> bool {
        let verifier = SubjectNameVerifier::new(Arc::new(roots.clone()), names.to_vec()).unwrap();
        let asked_for = ServerName::try_from("unused.test").unwrap();
        verifier.verify_server_cert(certificate, &[], &asked_for, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn certificate_needs_one_of_the_names() {
        let (own, roots) = certificate(&["a.example.com", "*.w.example.com"], &["spiffe://example.com/a"]);
        let dns = |name: &str| SubjectName::Dns(name.into());
        let uri = |name: &str| SubjectName::Uri(name.into());
        for (names, accepted) in [
            (vec![dns("a.example.com")], true),
            (vec![dns("A.example.com")], true),
            (vec![dns("b.example.com")], false),
            (vec![dns("x.w.example.com")], true),
            (vec![dns("*.w.example.com")], true),
            (vec![dns("*.example.com")], true),
            (vec![dns("*.com")], false),
            (vec![dns("*.a.example.com")], false),
            (vec![uri("spiffe://example.com/a")], true),
            (vec![uri("spiffe://example.com/b")], false),
            (vec![uri("spiffe://example.com/b"), dns("a.example.com")], true),
            (vec![dns("spiffe://example.com/a")], false),
            (vec![uri("a.example.com")], false),
        ] {
            assert_eq!(accepts(&own, &roots, &names), accepted, "{names:?}");
        }
    }

    #[test]
    fn certificate_of_another_authority_is_refused() {
        let (own, _) = certificate(&["a.test"], &[]);
        let (_, others) = certificate(&["a.test"], &[]);
        assert!(!accepts(&own, &others, &[SubjectName::Dns("a.test".into())]));
    }
}
