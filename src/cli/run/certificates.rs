//! Certificates from the files that `--tls-cert` names, and the CAs that `--route` names: at the start, and again at every reload.
//! Hosts of `--route` that have none get one of an authority of the appliance's own.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use control::access::self_signed::SelfSignedCertificates;
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

/// Below the data folder: the authority for hosts of `--route` without a certificate, and the certificate.
const OWN_FOLDER: &str = "https";
const OWN_AUTHORITY: &str = "Sluicegate HTTPS authority";

/// Adds a certificate for the hosts of `--route` that get one neither by `--tls-cert` nor by ACME, so that `--https` alone serves them. It stays the
/// same until hosts are added, or a month before it expires. Returns whether there is a new one.
pub(super) fn add_own(certificates: &mut CertificateStore, config: &RunConfig) -> Result<bool> {
    let has_none = |host: &str| match host {
        // With certificates of the operator, other names are not meant to be served.
        "*" => certificates.is_empty(),
        host => certificates.named(Some(&host.replacen('*', "any", 1))).is_none() && certificates.find(None).is_none(),
    };
    let by_acme = |host: &str| config.acme.as_ref().is_some_and(|acme| acme.allows(host));
    let without = config.routes.iter().map(|rule| &rule.host).filter(|host| has_none(host) && !by_acme(host));
    let hosts: Vec<_> = without.cloned().collect();
    if config.https.is_none() || hosts.is_empty() {
        return Ok(false);
    }
    let folder = config.data.join(OWN_FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let names: Vec<_> = hosts.iter().filter(|host| *host != "*").cloned().collect();
    let maker = SelfSignedCertificates::new(&folder, &names).with_authority_name(OWN_AUTHORITY);
    let is_new = maker.renew(Timestamp::now()).map_err(|why| anyhow!("https: {why}"))?;
    let path = maker.server_path();
    let pem = read(&path)?;
    let identity = TlsIdentity::from_pem(&pem, &pem).with_context(|| path.display().to_string())?;
    for host in &hosts {
        certificates.insert(host, identity.clone());
    }
    if is_new {
        let (ca, hosts) = (maker.ca_path(), hosts.join(", "));
        tracing::info!(
            ca = %ca.display(), hosts,
            "made a certificate for hosts of --route without --tls-cert; clients have to trust this authority"
        );
    }
    Ok(is_new)
}

/// Renews the own certificate when it is due.
pub(super) fn renew_own(config: &RunConfig, publisher: &Publisher, expiries: &Expiries) {
    if config.https.is_none() || config.routes.is_empty() {
        return;
    }
    let renewed = load(&config.certificates, expiries)
        .and_then(|mut certificates| add_own(&mut certificates, config).map(|is_new| (certificates, is_new)));
    match renewed {
        Ok((certificates, true)) => publisher.set_certificates(certificates),
        Ok((_, false)) => {}
        Err(why) => tracing::error!(why = format!("{why:#}"), "the certificate for hosts of --route cannot be renewed"),
    }
}

/// How the servers of a route are verified, if they use TLS.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteTls {
    pub(super) addresses: Option<Arc<TlsClientConfig>>,
    /// The authorization service.
    pub(super) authorization: Option<Arc<TlsClientConfig>>,
}

pub(super) fn client_tls(rule: &RouteRule, expiries: &Expiries) -> Result<RouteTls> {
    let trust = |file: &Path, name: &str, speaks_http2: bool| -> Result<Arc<TlsClientConfig>> {
        let authorities = read(file).with_context(|| format!("route: {}", rule.host))?;
        let trust = TlsClientConfig::new(&authorities, name, speaks_http2)
            .with_context(|| format!("route: {}: {}", rule.host, file.display()))?;
        expiries.record(Source::RouteCa, &rule.host, &authorities, Timestamp::now());
        Ok(Arc::new(trust))
    };
    let speaks_http2 = rule.protocol == Protocol::H2c;
    let addresses = rule.tls.as_ref().map(|tls| trust(&tls.authorities, &tls.name, speaks_http2)).transpose()?;
    let service = rule.forward_auth.as_ref().and_then(|rule| rule.tls.as_ref());
    let authorization = service.map(|tls| trust(&tls.authorities, &tls.name, false)).transpose()?;
    Ok(RouteTls { addresses, authorization })
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
