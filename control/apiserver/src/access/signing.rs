//! A certificate authority, and the certificates that it signs. Values in, values out.

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

pub const DAY_SECONDS: i64 = 24 * 3600;
/// Maximum length of a certificate's common name; clients verify the other names.
const COMMON_NAME_BYTES_MAX: usize = 64;

/// A certificate and its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateKeyPair {
    /// The leaf certificate first, then the intermediates that sign it.
    pub certificate: String,
    pub key: String,
}

/// Why nothing can be signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("the certificate is not a CA certificate")]
    NoAuthority,
    #[error(transparent)]
    Signing(#[from] rcgen::Error),
}

/// Makes an authority that vouches for itself.
pub fn create_authority(name: &str, days: i64, now: Timestamp) -> Result<CertificateKeyPair, SigningError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, days);
    Ok(CertificateKeyPair {
        certificate: with_unix_line_ends(&params.self_signed(&key)?.pem()),
        key: key.serialize_pem(),
    })
}

/// A certificate for servers of these names, signed by `authority`.
pub fn sign(
    authority: &CertificateKeyPair,
    names: &[String],
    days: i64,
    now: Timestamp,
) -> Result<CertificateKeyPair, SigningError> {
    let vouches_for_itself = is_self_signed(&authority.certificate).ok_or(SigningError::NoAuthority)?;
    let issuer = issuer(authority)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    if let Some(first) = names.first().filter(|name| name.len() <= COMMON_NAME_BYTES_MAX) {
        params.distinguished_name.push(DnType::CommonName, first.as_str());
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut params, now, days);
    let mut certificate = with_unix_line_ends(&params.signed_by(&key, &issuer)?.pem());
    // Clients that trust a self-signed certificate have it already.
    if !vouches_for_itself {
        certificate.push_str(&authority.certificate);
    }
    Ok(CertificateKeyPair { certificate, key: key.serialize_pem() })
}

/// Whether it could sign; not whether its key is that of its certificate.
pub fn check_authority(authority: &CertificateKeyPair) -> Result<(), SigningError> {
    is_self_signed(&authority.certificate).ok_or(SigningError::NoAuthority)?;
    Ok(issuer(authority).map(drop)?)
}

fn issuer(authority: &CertificateKeyPair) -> Result<Issuer<'static, KeyPair>, rcgen::Error> {
    Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)
}

/// When a certificate ends; `None`: it cannot be read.
#[must_use]
pub fn not_after(pem: &[u8]) -> Option<Timestamp> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).ok()?;
    Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()
}

/// An unreadable certificate counts as expired.
#[must_use]
pub fn expires_within(pem: &[u8], days: i64, now: Timestamp) -> bool {
    not_after(pem).is_none_or(|ends| ends.as_second() - now.as_second() < days * DAY_SECONDS)
}

/// Whether it begins only after `now`: the clock was ahead when it was made, or is behind.
#[must_use]
pub fn is_not_yet_valid(pem: &[u8], now: Timestamp) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem) else { return false };
    let parsed = x509_parser::parse_x509_certificate(&der);
    parsed.is_ok_and(|(_, parsed)| parsed.validity().not_before.timestamp() > now.as_second())
}

/// Whether its subject has this common name.
#[must_use]
pub fn has_common_name(pem: &[u8], name: &str) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem) else { return false };
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(&der) else { return false };
    parsed.subject().iter_common_name().any(|known| known.as_str() == Ok(name))
}

/// Whether an authority's certificate is self-signed; `None`: it is not a CA, or may not sign.
fn is_self_signed(pem: &str) -> Option<bool> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).ok()?;
    let may_sign = parsed.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    (parsed.is_ca() && may_sign).then(|| parsed.issuer() == parsed.subject())
}

/// Valid from yesterday, because clocks differ, for this many days.
fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let date = |days: i64| {
        let day = Timestamp::from_second(now.as_second().saturating_add(days * DAY_SECONDS)).unwrap_or(now);
        let day = day.to_zoned(jiff::tz::TimeZone::UTC).date();
        date_time_ymd(day.year().into(), day.month().unsigned_abs(), day.day().unsigned_abs())
    };
    params.not_before = date(-1);
    params.not_after = date(days);
}

fn with_unix_line_ends(pem: &str) -> String {
    pem.replace("\r\n", "\n")
}

/// Nothing of a key belongs into a log.
impl std::fmt::Debug for CertificateKeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signed").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    #[test]
    fn certificate_has_its_lifetime_and_a_chain_to_the_authority() {
        let root = create_authority("root", 100, now()).unwrap();
        let names = ["app.example.com".to_owned(), "*.example.com".to_owned()];
        let made = sign(&root, &names, 10, now()).unwrap();
        assert!(!expires_within(made.certificate.as_bytes(), 9, now()));
        assert!(expires_within(made.certificate.as_bytes(), 11, now()));
        let then = |days: i64| Timestamp::from_second(now().as_second() + days * DAY_SECONDS).unwrap();
        assert!(!is_not_yet_valid(made.certificate.as_bytes(), now()));
        assert!(is_not_yet_valid(made.certificate.as_bytes(), then(-3)));
        assert_eq!(made.certificate.matches("BEGIN").count(), 1, "the root is left out");
        // An authority between: the operator's own, signed by the company's.
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name.push(DnType::CommonName, "between");
        let issuer = Issuer::from_ca_cert_pem(&root.certificate, KeyPair::from_pem(&root.key).unwrap()).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let between = CertificateKeyPair { certificate, key: key.serialize_pem() };
        let made = sign(&between, &names, 10, now()).unwrap();
        assert_eq!(made.certificate.matches("BEGIN").count(), 2);
    }

    #[test]
    fn who_is_no_authority_signs_nothing() {
        let root = create_authority("root", 100, now()).unwrap();
        let names = ["a.test".to_owned()];
        let leaf = sign(&root, &names, 10, now()).unwrap();
        assert!(matches!(sign(&leaf, &names, 10, now()), Err(SigningError::NoAuthority)));
        let torn = CertificateKeyPair { certificate: root.certificate.clone(), key: "no key".into() };
        assert!(matches!(sign(&torn, &names, 10, now()), Err(SigningError::Signing(_))));
        assert!(check_authority(&root).is_ok());
        assert!(matches!(check_authority(&leaf), Err(SigningError::NoAuthority)));
        assert!(matches!(check_authority(&torn), Err(SigningError::Signing(_))));
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let lists_only = CertificateKeyPair { certificate, key: key.serialize_pem() };
        assert!(matches!(check_authority(&lists_only), Err(SigningError::NoAuthority)));
        assert!(has_common_name(root.certificate.as_bytes(), "root"));
        assert!(!has_common_name(root.certificate.as_bytes(), "roo") && !has_common_name(b"", "root"));
        assert!(expires_within(b"no certificate", 0, now()));
        assert!(!format!("{root:?}").contains("PRIVATE"));
    }
}
