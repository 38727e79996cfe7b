//! Self-signed certificates of the API: an authority whose certificate clients trust, and a server certificate that
//! it signs and renews.
//!
//! ```text
//! authority.pem   the authority's certificate and key; a reader of this file can impersonate the API
//! ca.pem          its certificate alone, for clients
//! server.pem      certificate and key that the API serves
//! ```
//! Certificate and key share a file, so that a power cut never leaves one without the other.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::GeneralName;

use super::signing::{self, CertificateKeyPair, expires_within, is_not_yet_valid};

/// The DNS name in the certificate, besides addresses. A client that verifies this name can connect by any address.
pub const SERVER_NAME: &str = "sluicegate";

const AUTHORITY: &str = "authority.pem";
const CA: &str = "ca.pem";
const SERVER: &str = "server.pem";

/// Validity of an authority in days: every kubeconfig has to be written again when it expires.
const AUTHORITY_DAYS: i64 = 3650;
/// Validity of a server certificate in days; clients accept at most 398.
const SERVER_DAYS: i64 = 365;
/// Days before its expiry that a certificate is renewed; clients that were offline have this long to get the new one.
const RENEW_DAYS: i64 = 30;
/// An authority is renewed before its remaining lifetime is shorter than that of the certificates it signs.
const AUTHORITY_RENEW_DAYS: i64 = SERVER_DAYS + RENEW_DAYS;

/// 2026-11-01: a clock that is behind this has not been set since the host started, and what begins after it is kept.
const PLAUSIBLE_CLOCK_SECONDS: i64 = 1_793_491_200;

/// Whether a certificate can stay: it does not expire within `days`, and it was not made while the clock was ahead.
fn is_current(pem: &str, days: i64, now: Timestamp) -> bool {
    let is_early = now.as_second() >= PLAUSIBLE_CLOCK_SECONDS && is_not_yet_valid(pem.as_bytes(), now);
    !is_early && !expires_within(pem.as_bytes(), days, now)
}

/// The folder of these files.
#[derive(Debug, Clone)]
pub struct SelfSignedCertificates {
    folder: PathBuf,
    /// Names and addresses that the certificate is valid for.
    names: Vec<String>,
    /// The common name of the authority.
    authority_name: &'static str,
}

const API_AUTHORITY: &str = "Sluicegate API authority";

impl SelfSignedCertificates {
    #[must_use]
    pub fn new(folder: &Path, further: &[String]) -> Self {
        let mut names: Vec<String> = [SERVER_NAME, "localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        for name in further {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Self { folder: folder.to_owned(), names, authority_name: API_AUTHORITY }
    }

    /// With an authority of another name, for a client that trusts both.
    #[must_use]
    pub fn with_authority_name(self, authority: &'static str) -> Self {
        Self { authority_name: authority, ..self }
    }

    /// The authority's certificate.
    #[must_use]
    pub fn ca_path(&self) -> PathBuf {
        self.folder.join(CA)
    }

    /// Certificate and key.
    #[must_use]
    pub fn server_path(&self) -> PathBuf {
        self.folder.join(SERVER)
    }

    /// Makes what is missing, about to end, not yet valid, or for other names; answers whether there is a new certificate.
    ///
    /// # Errors
    /// A file cannot be read or written; it is named.
    pub fn renew(&self, now: Timestamp) -> Result<bool, String> {
        let path = self.folder.join(AUTHORITY);
        let mut is_renewed = false;
        let authority = match read(&path)? {
            Some(pem) if private_key(&pem).is_some() && is_current(&pem, AUTHORITY_RENEW_DAYS, now) => pem,
            _ => {
                is_renewed = true;
                let made = signing::create_authority(self.authority_name, AUTHORITY_DAYS, now);
                let pem = to_pem(made.map_err(|why| path_error(&path, &why))?);
                write(&path, &pem, 0o600)?;
                pem
            }
        };
        let certificate = authority.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap_or_default();
        if read(&self.ca_path())?.as_deref() != Some(certificate) {
            write(&self.ca_path(), certificate, 0o644)?;
        }
        let server = self.server_path();
        let good =
            |pem: &String| private_key(pem).is_some() && is_current(pem, RENEW_DAYS, now) && is_for(pem, &self.names);
        if !is_renewed && read(&server)?.as_ref().is_some_and(good) {
            return Ok(false);
        }
        let signer = CertificateKeyPair {
            certificate: certificate.to_owned(),
            key: private_key(&authority).unwrap_or_default().to_owned(),
        };
        let made = signing::sign(&signer, &self.names, SERVER_DAYS, now);
        write(&server, &to_pem(made.map_err(|why| path_error(&server, &why))?), 0o600)?;
        Ok(true)
    }
}

/// As a file has them.
fn to_pem(made: CertificateKeyPair) -> String {
    made.certificate + &made.key
}

/// The part that is a private key.
fn private_key(pem: &str) -> Option<&str> {
    pem.find("-----BEGIN PRIVATE KEY-----").map(|at| &pem[at..])
}

fn certificate(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).ok()
}

fn is_for(pem: &str, names: &[String]) -> bool {
    let found = certificate(pem).map(|der| names_of(&der)).unwrap_or_default();
    names.iter().all(|name| found.contains(name))
}

/// The names and addresses that a certificate is for; none if it cannot be read.
#[must_use]
pub fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let Ok(Some(found)) = parsed.subject_alternative_name() else { return Vec::new() };
    found.value.general_names.iter().filter_map(name_text).collect()
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let short = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let long = <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
            short.or(long).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn read(path: &Path) -> Result<Option<String>, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(path_error(path, &why)),
    }
}

/// All of it or nothing, also after a power cut.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let fresh = path.with_extension("new");
    let written = || -> io::Result<()> {
        let _ = std::fs::remove_file(&fresh); // left by a process that died; usually there is no such file
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    written().map_err(|why| path_error(path, &why))
}

fn path_error(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::signing::DAY_SECONDS;
    use super::*;

    fn days(days: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + days * DAY_SECONDS).unwrap()
    }

    /// A host whose clock was ahead when it made them, and is right now; one whose clock is not set yet keeps what it has.
    #[test]
    fn certificates_made_in_the_future_are_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let certificates = SelfSignedCertificates::new(folder.path(), &[]);
        let begins = || std::fs::read(certificates.ca_path()).map(|pem| is_not_yet_valid(&pem, days(0))).unwrap();
        assert_eq!(certificates.renew(days(400)), Ok(true));
        assert!(begins());
        assert_eq!(certificates.renew(Timestamp::from_second(0).unwrap()), Ok(false), "the clock is not set");
        assert_eq!(certificates.renew(days(0)), Ok(true));
        assert!(!begins());
        assert_eq!(certificates.renew(days(0)), Ok(false));
    }

    #[test]
    fn a_certificate_is_made_once_and_again_before_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let made = SelfSignedCertificates::new(folder.path(), &["10.0.0.5".into()]);
        assert_eq!(made.renew(days(0)), Ok(true));
        let (ca, server) = (read(&made.ca_path()).unwrap(), read(&made.server_path()).unwrap());
        assert_eq!(made.renew(days(SERVER_DAYS - RENEW_DAYS - 2)), Ok(false));
        assert_eq!(read(&made.server_path()).unwrap(), server);
        assert_eq!(made.renew(days(SERVER_DAYS - RENEW_DAYS + 2)), Ok(true));
        assert_ne!(read(&made.server_path()).unwrap(), server);
        assert_eq!(read(&made.ca_path()).unwrap(), ca, "clients go on with what they have");

        assert_eq!(made.renew(days(AUTHORITY_DAYS - AUTHORITY_RENEW_DAYS + 2)), Ok(true));
        assert_ne!(read(&made.ca_path()).unwrap(), ca);
    }

    #[test]
    fn other_names_need_another_certificate_of_the_same_authority() {
        let folder = tempfile::tempdir().unwrap();
        let made = SelfSignedCertificates::new(folder.path(), &[]);
        assert_eq!(made.renew(days(0)), Ok(true));
        let ca = read(&made.ca_path()).unwrap();
        let moved = SelfSignedCertificates::new(folder.path(), &["10.0.0.5".into(), "gate.example.com".into()]);
        assert_eq!((moved.renew(days(1)), moved.renew(days(1))), (Ok(true), Ok(false)));
        assert_eq!(read(&moved.ca_path()).unwrap(), ca);
    }

    #[test]
    fn keys_are_private_and_broken_ones_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let made = SelfSignedCertificates::new(folder.path(), &[]);
        made.renew(days(0)).unwrap();
        for name in [AUTHORITY, SERVER] {
            let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert!(!read(&made.ca_path()).unwrap().unwrap().contains("PRIVATE"));
        std::fs::write(made.server_path(), "torn").unwrap();
        assert_eq!(made.renew(days(0)), Ok(true));
        assert!(certificate(&read(&made.server_path()).unwrap().unwrap()).is_some());
    }
}
