//! Certificates that are trusted themselves, and not only as authorities.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

/// Whether the certificate is a trusted one: of the same subject, with the same key.
pub(super) fn is_pinned(own: &CertificateDer<'_>, roots: &RootCertStore) -> bool {
    let mut alone = RootCertStore::empty();
    alone.add(own.clone().into_owned()).is_ok() && alone.roots.iter().all(|one| roots.roots.contains(one))
}
