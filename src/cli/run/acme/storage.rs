//! What ACME keeps in the data folder: the account, the certificates with their keys, and the schedule. Only the owner can read it.
//!
//! ```text
//! acme/lock                        held by the process that orders
//! acme/DIRECTORY/account.json      account key; it can revoke and replace every certificate
//! acme/DIRECTORY/schedule.json     failures, and orders of the last hour
//! acme/DIRECTORY/certificates/HOST.pem   chain and key
//! ```
//! DIRECTORY is the host and port of the directory, so that certificates of a test directory are never used in production.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use control::bounded_file;
use dataplane::tls::TlsIdentity;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use x509_parser::pem::Pem;

use super::limits::{FILE_BYTES_MAX, HOSTS_MAX};
use super::schedule::ValidityPeriod;

/// A certificate that was ordered.
#[derive(Debug, Clone)]
pub(super) struct StoredCertificate {
    pub(super) identity: TlsIdentity,
    pub(super) validity: ValidityPeriod,
}

impl StoredCertificate {
    /// From PEM with chain and key, if it is for `host`.
    pub(super) fn parse(host: &str, pem: &[u8]) -> Result<Self> {
        let identity = TlsIdentity::from_pem(pem, pem)?;
        anyhow::ensure!(identity.is_for(host), "the certificate is not for {host}");
        let leaf = Pem::iter_from_buffer(pem).flatten().find(|block| block.label == "CERTIFICATE");
        let leaf = leaf.context("there is no certificate")?;
        let validity = leaf.parse_x509().context("the certificate cannot be read")?.validity().clone();
        let second = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp());
        let validity =
            ValidityPeriod { not_before: second(validity.not_before)?, not_after: second(validity.not_after)? };
        Ok(Self { identity, validity })
    }
}

/// The folder of one directory.
#[derive(Debug, Clone)]
pub(super) struct AcmeStorage {
    folder: PathBuf,
    lock: PathBuf,
}

impl AcmeStorage {
    pub(super) fn open(data: &Path, directory: &str) -> Result<Self> {
        let root = data.join("acme");
        let authority = directory.parse::<http::Uri>().ok().and_then(|url| Some(url.authority()?.to_string()));
        let authority = authority.context("the URL of the directory has no host")?;
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
        let name: String = authority.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
        let folder = root.join(name);
        let certificates = folder.join("certificates");
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&certificates)
            .with_context(|| certificates.display().to_string())?;
        Ok(Self { folder, lock: root.join("lock") })
    }

    /// The lock that only one process has: `None` while another has it, as during a hot restart.
    pub(super) fn try_lock(&self) -> Result<Option<File>> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.lock)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(why)) => Err(why).with_context(|| self.lock.display().to_string()),
        }
    }

    /// The readable certificates by host. A broken file is logged, and ordered again.
    pub(super) fn certificates(&self) -> Result<BTreeMap<String, StoredCertificate>> {
        let folder = self.folder.join("certificates");
        let mut certificates = BTreeMap::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())?.take(2 * HOSTS_MAX) {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(host) = name.and_then(|name| name.strip_suffix(".pem")) else { continue };
            let read = read(&path).and_then(|pem| StoredCertificate::parse(host, &pem.unwrap_or_default()));
            match read {
                Ok(certificate) => drop(certificates.insert(host.to_owned(), certificate)),
                Err(why) => {
                    let (file, why) = (path.display(), format!("{why:#}"));
                    tracing::warn!(%file, why, "a certificate of ACME cannot be used; it is ordered again");
                }
            }
        }
        Ok(certificates)
    }

    /// `host` is a DNS name, so it is safe as a file name.
    pub(super) fn write_certificate(&self, host: &str, pem: &str) -> Result<()> {
        write(&self.folder.join("certificates").join(format!("{host}.pem")), pem.as_bytes())
    }

    /// `None`: there is none yet.
    pub(super) fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.folder.join(name);
        let Some(text) = read(&path)? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).with_context(|| path.display().to_string())
    }

    pub(super) fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        write(&self.folder.join(name), &serde_json::to_vec(value)?)
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match bounded_file::read(path, FILE_BYTES_MAX) {
        Ok(Some(bytes)) => Ok(Some(bytes)),
        Ok(None) => anyhow::bail!("{} has more than {FILE_BYTES_MAX} bytes", path.display()),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why).with_context(|| path.display().to_string()),
    }
}

/// Replaces a file in one step: after a power cut it is the old or the new one.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    written().with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const DIRECTORY: &str = "https://ca.example.org:14000/dir";

    fn pem(host: &str) -> String {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        made.cert.pem() + &made.signing_key.serialize_pem()
    }

    #[test]
    fn certificates_are_read_again_and_broken_ones_are_not() {
        let data = tempfile::tempdir().unwrap();
        let storage = AcmeStorage::open(data.path(), DIRECTORY).unwrap();
        storage.write_certificate("a.org", &pem("a.org")).unwrap();
        storage.write_certificate("b.org", &pem("other.org")).unwrap();
        storage.write_certificate("c.org", "no PEM").unwrap();
        let read = AcmeStorage::open(data.path(), DIRECTORY).unwrap().certificates().unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), ["a.org"]);
        let other = AcmeStorage::open(data.path(), "https://other.example.org/dir").unwrap();
        assert!(other.certificates().unwrap().is_empty());
    }

    #[test]
    fn files_are_open_to_their_owner_only() {
        let data = tempfile::tempdir().unwrap();
        let storage = AcmeStorage::open(data.path(), DIRECTORY).unwrap();
        storage.write_json("account.json", &"key").unwrap();
        let mode = |path: &str| fs::metadata(data.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("acme/ca.example.org_14000/account.json"), 0o600);
        assert_eq!((mode("acme"), mode("acme/ca.example.org_14000/certificates")), (0o700, 0o700));
        assert_eq!(storage.read_json::<String>("account.json").unwrap().as_deref(), Some("key"));
        assert_eq!(storage.read_json::<String>("none.json").unwrap(), None);
    }

    #[test]
    fn one_process_has_the_lock() {
        let data = tempfile::tempdir().unwrap();
        let storage = AcmeStorage::open(data.path(), DIRECTORY).unwrap();
        let held = storage.try_lock().unwrap().unwrap();
        assert!(storage.try_lock().unwrap().is_none());
        drop(held);
        assert!(storage.try_lock().unwrap().is_some());
    }
}
