//! What a failed verification of a server means, and what to do about it.

use rustls::{CertificateError, Error};

/// The text of the one error that rustls does not translate (webpki's `CaUsedAsEndEntity`).
const AUTHORITY_AS_SERVER: &str = "CaUsedAsEndEntity";

/// Whether the server showed the certificate of an authority as its own.
#[must_use]
pub fn is_authority_as_server(why: &Error) -> bool {
    matches!(why, Error::InvalidCertificate(CertificateError::Other(_)))
        && format!("{why:?}").contains(AUTHORITY_AS_SERVER)
}

/// The same for an error of a session, which may have an error of TLS inside.
#[must_use]
pub fn sentence_of_session(why: &std::io::Error) -> String {
    let inner = why.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| why.to_string(), sentence)
}

/// A sentence that names the remedy. Other errors keep their own text.
#[must_use]
pub fn sentence(why: &Error) -> String {
    let Error::InvalidCertificate(certificate) = why else { return why.to_string() };
    match certificate {
        _ if is_authority_as_server(why) => {
            "its own certificate is that of an authority, and is not one of the trusted certificates; trust exactly this \
             certificate (ca=FILE), or give the server one that an authority signed (openssl: basicConstraints=CA:FALSE)"
                .to_owned()
        }
        CertificateError::UnknownIssuer => {
            "no trusted authority signed its certificate; add the certificate of its authority to the trusted ones (ca=FILE)"
                .to_owned()
        }
        CertificateError::BadSignature => {
            "a trusted authority has the name of the one that signed its certificate, but another key; trust the authority's \
             present certificate (ca=FILE)"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("{why}; ask for a name that is in the certificate (name=NAME)")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("{why}; renew it at the server, or correct the clock of this host")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("{why}; correct the clock of this host or of the server")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("{why}; give the server a certificate for servers (extendedKeyUsage=serverAuth)")
        }
        _ => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_names_the_remedy() {
        for (why, remedy) in [
            (CertificateError::UnknownIssuer, "ca=FILE"),
            (CertificateError::BadSignature, "another key"),
            (CertificateError::NotValidForName, "name=NAME"),
            (CertificateError::Expired, "renew it"),
        ] {
            let told = sentence(&Error::InvalidCertificate(why));
            assert!(told.contains(remedy), "{told}");
        }
        assert_eq!(sentence(&Error::DecryptError), Error::DecryptError.to_string());
    }
}
