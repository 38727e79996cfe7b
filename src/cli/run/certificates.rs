//! Certificates from the files that `--tls-cert` names: at the start, and again at every SIGHUP; and at the
//! start the CAs that `--route` names.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use control::bounded_file;
use control::expiry::{Expiries, Source};
use control::publish::Publisher;
use dataplane::table::Protocol;
use dataplane::tls::{CertificateStore, TlsClientConfig, TlsIdentity};
use jiff::Timestamp;

use crate::config::{CertificateRule, RouteRule, RunConfig};

/// A chain of ten certificates is 20 KiB; a wrong path (a disk image, a log) must not be read whole.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Loads all of them, or returns the first error.
pub(super) fn load(rules: &[CertificateRule], expiries: &Expiries) -> Result<CertificateStore> {
    let mut certificates = CertificateStore::default();
    let mut chains = Vec::new();
    for rule in rules {
        let named = || format!("tls-cert: {}", rule.host);
        let (chain, key) = (read(&rule.certificate).with_context(named)?, read(&rule.key).with_context(named)?);
        let identity = TlsIdentity::from_pem(&chain, &key).with_context(|| {
            format!("tls-cert: {}: {} and {}", rule.host, rule.certificate.display(), rule.key.display())
        })?;
        certificates.insert(&rule.host, identity);
        chains.push((&rule.host, chain));
    }
    for (host, chain) in chains {
        expiries.record(Source::TlsCert, host, &chain, Timestamp::now());
    }
    Ok(certificates)
}

/// Reloads the certificates. If one of them is invalid all stay as they are: half a reload is worse than
/// none.
pub(super) fn reload(config: &RunConfig, publisher: &Publisher, expiries: &Expiries) {
    match load(&config.certificates, expiries) {
        Ok(certificates) => {
            let count = certificates.len();
            publisher.set_certificates(certificates);
            tracing::info!(count, "certificates read again");
        }
        Err(why) => tracing::error!(why = format!("{why:#}"), "the certificates stay as they were"),
    }
}

/// The TLS verification of a route's addresses, if they use TLS.
pub(super) fn client_tls(rule: &RouteRule, expiries: &Expiries) -> Result<Option<Arc<TlsClientConfig>>> {
    let Some(tls) = &rule.tls else { return Ok(None) };
    let named = || format!("route: {}", rule.host);
    let authorities = read(&tls.authorities).with_context(named)?;
    let trust = TlsClientConfig::new(&authorities, &tls.name, rule.protocol == Protocol::H2c)
        .with_context(|| format!("route: {}: {}", rule.host, tls.authorities.display()))?;
    expiries.record(Source::RouteCa, &rule.host, &authorities, Timestamp::now());
    Ok(Some(Arc::new(trust)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let named = || path.display().to_string();
    let large = || format!("{} has more than {FILE_BYTES_MAX} bytes", path.display());
    bounded_file::read(path, FILE_BYTES_MAX).with_context(named)?.with_context(large)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(host: &str, certificate: &Path, key: &Path) -> CertificateRule {
        CertificateRule { host: host.into(), certificate: certificate.into(), key: key.into() }
    }

    #[test]
    fn bad_file_is_named_and_nothing_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let [chain, key, bad] = ["chain.pem", "key.pem", "bad.pem"].map(|name| folder.path().join(name));
        std::fs::write(&chain, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(&bad, "no pem").unwrap();

        let expiries = Expiries::default();
        let load = |rules: &[CertificateRule]| super::load(rules, &expiries);
        assert_eq!(load(&[rule("a", &chain, &key), rule("*", &chain, &key)]).unwrap().len(), 2);
        let [nowhere, endless] = ["/no", "/dev/zero"].map(Path::new);
        for (broken, name) in [
            (rule("b", &bad, &key), "bad.pem"),
            (rule("b", nowhere, &key), "/no"),
            (rule("b", endless, &key), "/dev/zero has more than"),
        ] {
            let why = format!("{:#}", load(&[rule("a", &chain, &key), broken]).unwrap_err());
            assert!(why.starts_with("tls-cert: b") && why.contains(name), "{why}");
        }
    }
}
