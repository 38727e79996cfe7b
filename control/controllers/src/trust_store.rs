//! Verifies subscribers with `https` URLs: by the system's authorities, those of the operator's trust
//! bundles, and the destination's own (`CACerts`).
//!
//! The system's are read at the first such URL, and again after a restart.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use contract::table::DeliveryTarget;
use contract::tls::{CertificateAuthorities, TlsClientConfig, TrustError};
use rustls::RootCertStore;

use crate::destination_resolver::DestinationAddress;
use crate::urls::{self, UrlScheme};

/// ConfigMaps of `knative-eventing` with this label, set to `true`, bring authorities (PEM) in whatever key.
pub const BUNDLE_LABEL: &str = "networking.knative.dev/trust-bundle";

/// Entries from which on dead ones are looked for.
const SWEEP_AT: usize = 64;

#[derive(Debug, Default)]
pub struct TrustStore {
    system: OnceLock<RootCertStore>,
    state: Mutex<TrustStoreState>,
    /// Hosts and ports at which the appliance itself takes events.
    own_endpoints: Vec<(Box<str>, u16)>,
}

#[derive(Debug, Default)]
struct TrustStoreState {
    /// The operator's, each with its name.
    bundles: Vec<(String, String)>,
    by_certificates: HashMap<String, TrustEntry>,
    sweep_at: usize,
}

/// All destinations that are verified by the same authorities.
struct TrustEntry {
    authorities: Arc<CertificateAuthorities>,
    /// Held by deliveries to them. The same object as long as it is in use, so that connections are kept over
    /// publishes.
    by_name: HashMap<Box<str>, Weak<TlsClientConfig>>,
}

impl std::fmt::Debug for TrustEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl TrustStore {
    /// The store of an appliance with events listeners at these URLs.
    pub fn with_own_endpoints<'u>(urls: impl IntoIterator<Item = &'u str>) -> Self {
        let targets = urls.into_iter().filter_map(|url| urls::parse_target(url).ok());
        Self { own_endpoints: targets.map(|(_, listener)| (listener.host, listener.port)).collect(), ..Self::default() }
    }

    /// The TLS configuration of deliveries to `address`; the error names the problem.
    pub fn target(&self, address: &DestinationAddress) -> Result<DeliveryTarget, String> {
        let (scheme, mut target) = urls::parse_target(&address.url)?;
        target.is_stream = self.is_own_endpoint(&target);
        if scheme == UrlScheme::Https {
            target.tls = Some(self.trust_for(&target.host, address.ca_certs.as_deref().unwrap_or_default())?);
        }
        Ok(target)
    }

    /// Whether the target is one of our own streams, by the address in its status, or by loopback.
    fn is_own_endpoint(&self, target: &DeliveryTarget) -> bool {
        let (host, is_loopback) = (&*target.host, is_loopback(&target.host));
        let is_stream = target.path.starts_with("/brokers/") || target.path.starts_with("/channels/");
        is_stream
            && self
                .own_endpoints
                .iter()
                .any(|(listener, port)| *port == target.port && (is_loopback || **listener == *host))
    }

    /// Takes the operator's bundles; `true` if they are others than before.
    pub fn set_bundles(&self, bundles: Vec<(String, String)>) -> bool {
        let mut known = self.lock();
        if known.bundles == bundles {
            return false;
        }
        known.bundles = bundles;
        known.by_certificates.clear();
        true
    }

    /// The TLS configuration of a host, by the authorities of the system, the operator and `certificates` (PEM).
    pub(crate) fn trust_for(&self, host: &str, certificates: &str) -> Result<Arc<TlsClientConfig>, String> {
        let mut known = self.lock();
        let TrustStoreState { bundles, by_certificates, sweep_at: tidy_at } = &mut *known;
        if let Some(entry) = by_certificates.get_mut(certificates) {
            return entry.of(host);
        }
        if by_certificates.len() >= (*tidy_at).max(SWEEP_AT) {
            by_certificates.retain(|_, entry| entry.by_name.values().any(|trust| trust.strong_count() > 0));
            *tidy_at = by_certificates.len() * 2;
        }
        let authorities = Arc::new(self.authorities(bundles, certificates)?);
        let mut entry = TrustEntry { authorities, by_name: HashMap::new() };
        let trust = entry.of(host)?;
        by_certificates.insert(certificates.to_owned(), entry);
        Ok(trust)
    }

    fn authorities(&self, bundles: &[(String, String)], certificates: &str) -> Result<CertificateAuthorities, String> {
        let mut roots = self.system.get_or_init(system).clone();
        for (name, bundle) in bundles {
            if let Err(why) = CertificateAuthorities::read(bundle.as_bytes(), &mut roots) {
                tracing::warn!(name, %why, "a trust bundle could not be read completely");
            }
        }
        if !certificates.trim().is_empty() {
            CertificateAuthorities::read(certificates.as_bytes(), &mut roots)
                .map_err(|why| format!("CACerts: {why}"))?;
        }
        CertificateAuthorities::new(roots, false).map_err(|why| match why {
            TrustError::NoAuthorities => {
                "no trusted authority is configured: set CACerts, or install the system's (package \
                                   ca-certificates, or SSL_CERT_FILE)"
                    .to_owned()
            }
            why => why.to_string(),
        })
    }

    /// The authorities of this host.
    pub(crate) fn system_authorities(&self) -> RootCertStore {
        self.system.get_or_init(system).clone()
    }

    fn lock(&self) -> MutexGuard<'_, TrustStoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a host of a URL (lower case) is this machine, in any of the ways in which the system's look-up takes an address.
fn is_loopback(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost") || is_loopback_number(host),
    }
}

/// `127.1`, `0x7f.1` or `2130706433`: numbers of which the last fills the rest of the four bytes (inet_aton(3)).
fn is_loopback_number(host: &str) -> bool {
    let number = |part: &str| match (part.strip_prefix("0x"), part.strip_prefix('0')) {
        (Some(hex), _) => u32::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) if !octal.is_empty() => u32::from_str_radix(octal, 8).ok(),
        _ => part.parse().ok(),
    };
    let numbers: Option<Vec<u32>> = host.split('.').map(number).collect();
    match numbers.as_deref() {
        Some([whole]) => whole >> 24 == 127,
        Some([127, .., _]) => true,
        _ => false,
    }
}

impl TrustEntry {
    fn of(&mut self, host: &str) -> Result<Arc<TlsClientConfig>, String> {
        if let Some(trust) = self.by_name.get(host).and_then(Weak::upgrade) {
            return Ok(trust);
        }
        let made = TlsClientConfig::by(Arc::clone(&self.authorities), host).map_err(|why| why.to_string())?;
        let trust = Arc::new(made);
        self.by_name.retain(|_, trust| trust.strong_count() > 0);
        self.by_name.insert(host.into(), Arc::downgrade(&trust));
        Ok(trust)
    }
}

/// The authorities that this host trusts, `SSL_CERT_FILE` and `SSL_CERT_DIR` included.
fn system() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for why in &found.errors {
        tracing::warn!(%why, "some of the system's authorities cannot be read");
    }
    let mut roots = RootCertStore::empty();
    let (taken, left) = roots.add_parsable_certificates(found.certs);
    tracing::debug!(taken, left, "the system's authorities are read");
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> String {
        rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap().cert.pem()
    }

    fn address(url: &str, certificates: Option<&str>) -> DestinationAddress {
        DestinationAddress { ca_certs: certificates.map(str::to_owned), ..DestinationAddress::from(url) }
    }

    /// Connections are pooled by it, so it has to be the same object from publish to publish.
    #[test]
    fn the_same_name_by_the_same_authorities_is_one_trust() {
        let (trusts, one, other) = (TrustStore::default(), authority(), authority());
        let of = |url: &str, pem: &str| trusts.target(&address(url, Some(pem))).unwrap();
        let first = of("https://a.test/x", &one);
        assert_eq!((first.port, first.tls.is_some()), (443, true));
        assert_eq!(first.tls, of("https://a.test:444/y", &one).tls);
        assert_ne!(first.tls, of("https://b.test/x", &one).tls);
        assert_ne!(first.tls, of("https://a.test/x", &other).tls);
        assert_eq!(of("http://a.test/", &one).tls, None);
        assert!(of("https://[::1]:8443/", &one).tls.is_some());

        assert!(trusts.set_bundles(vec![("more".into(), other.clone())]));
        assert!(!trusts.set_bundles(vec![("more".into(), other)]));
        assert_ne!(first.tls, of("https://a.test/x", &one).tls);
    }

    /// EV-RTE-13: only our own streams get the remaining hops.
    #[test]
    fn a_stream_of_ours_is_known_by_its_address() {
        let trusts = TrustStore::with_own_endpoints(["http://10.0.0.1:8081", "https://10.0.0.1:8444"]);
        let is_stream = |url: &str| trusts.target(&url.into()).unwrap().is_stream;
        for ours in [
            "http://10.0.0.1:8081/brokers/ns/b",
            "http://10.0.0.1:8081/channels/ns/c",
            "http://localhost:8081/brokers/ns/b",
            "http://127.0.0.1:8444/brokers/ns/b",
            "http://[::1]:8081/brokers/ns/b",
            "http://[::ffff:127.0.0.1]:8081/brokers/ns/b",
            "http://LOCALHOST.:8081/brokers/ns/b",
            "http://127.1:8081/brokers/ns/b",
            "http://0x7f.1:8081/brokers/ns/b",
            "http://0177.0.0.1:8081/brokers/ns/b",
            "http://2130706433:8081/brokers/ns/b",
        ] {
            assert!(is_stream(ours), "{ours}");
        }
        for other in [
            "http://10.0.0.1:8081/",
            "http://10.0.0.1:8080/brokers/ns/b",
            "http://10.0.0.1/brokers/ns/b",
            "http://10.0.0.2:8081/brokers/ns/b",
            "http://brokers.test/channels/ns/c",
            "http://127.example.com:8081/brokers/ns/b",
            "http://128.0.0.1:8081/brokers/ns/b",
        ] {
            assert!(!is_stream(other), "{other}");
        }
    }

    #[test]
    fn invalid_certificates_are_reported() {
        let trusts = TrustStore::default();
        let half = authority();
        let half = &half[..half.len() / 2];
        for bad in ["nonsense", half, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let why = trusts.target(&address("https://a.test/", Some(bad))).unwrap_err();
            assert!(why.starts_with("CACerts: "), "{why}");
        }
    }

    #[test]
    fn what_nobody_holds_any_more_is_forgotten() {
        let (trusts, pem) = (TrustStore::default(), authority());
        for n in 0..500 {
            let url = format!("https://h{n}.test/");
            drop(trusts.target(&address(&url, Some(&pem))).unwrap());
        }
        assert_eq!(trusts.lock().by_certificates[&pem].by_name.len(), 1);
    }
}
