//! The expiry times of the certificates in use, for `/metrics` and the log.
//!
//! An expired certificate stays in use: an operator whose clients reject it finds the reason here, and a
//! clock that is ahead must not keep an appliance from starting.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// How often certificates that are in use are checked.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Where a certificate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// `--tls-cert`
    TlsCert,
    /// `--api-tls-cert`
    Api,
    /// `--api-client-ca`
    ApiClientCa,
    /// `ca=` of `--route`
    RouteCa,
    /// A Secret that an Ingress names.
    Secret,
    /// A ConfigMap of authorities for deliveries.
    TrustBundle,
}

impl Source {
    pub const ALL: [Self; 6] =
        [Self::TlsCert, Self::Api, Self::ApiClientCa, Self::RouteCa, Self::Secret, Self::TrustBundle];

    /// As a label, and in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TlsCert => "tls-cert",
            Self::Api => "api-tls-cert",
            Self::ApiClientCa => "api-client-ca",
            Self::RouteCa => "route-ca",
            Self::Secret => "secret",
            Self::TrustBundle => "trust-bundle",
        }
    }
}

/// The certificates in use, by source and name.
#[derive(Debug, Default)]
pub struct Expiries {
    used: Mutex<BTreeMap<(Source, String), Used>>,
}

/// A chain or a bundle.
#[derive(Debug)]
struct Used {
    expiries: Vec<Timestamp>,
    /// The log has it.
    is_logged: bool,
}

/// The state of one source of certificates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Certificates that have expired.
    pub expired: u64,
    pub earliest: Option<Timestamp>,
}

impl Expiries {
    /// Replaces what was recorded under this name. Logs what has expired and what is not valid yet.
    pub fn record(&self, source: Source, name: &str, pem: &[u8], now: Timestamp) {
        let mut expiries = Vec::new();
        let mut is_logged = false;
        for validity in validities(pem) {
            let Validity { subject, begins, expires } = validity;
            if expires <= now {
                is_logged = true;
                tell(source, name, &subject, expires);
            } else if begins > now {
                let source = source.name();
                tracing::warn!(source, name, subject, %begins, "the certificate is not valid yet by this host's clock");
            }
            expiries.push(expires);
        }
        self.lock().insert((source, name.to_owned()), Used { expiries, is_logged });
    }

    /// It is in use no more.
    pub fn forget(&self, source: Source, name: &str) {
        self.lock().remove(&(source, name.to_owned()));
    }

    /// Keeps those of one source whose name `keep` takes.
    pub fn retain(&self, source: Source, keep: impl Fn(&str) -> bool) {
        self.lock().retain(|(of, name), _| *of != source || keep(name));
    }

    #[must_use]
    pub fn summary(&self, source: Source, now: Timestamp) -> Summary {
        let used = self.lock();
        let of_source = used.iter().filter(|((of, _), _)| *of == source).flat_map(|(_, used)| &used.expiries);
        let mut summary = Summary::default();
        for expires in of_source {
            summary.expired += u64::from(*expires <= now);
            summary.earliest = Some(summary.earliest.map_or(*expires, |earliest| earliest.min(*expires)));
        }
        summary
    }

    /// Logs each that has expired since it was recorded, once.
    pub fn check(&self, now: Timestamp) {
        for ((source, name), used) in self.lock().iter_mut().filter(|(_, used)| !used.is_logged) {
            if let Some(expires) = used.expiries.iter().find(|expires| **expires <= now) {
                used.is_logged = true;
                tell(*source, name, "", *expires);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Source, String), Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(source: Source, name: &str, subject: &str, expired: Timestamp) {
    let source = source.name();
    tracing::warn!(source, name, subject, %expired, "the certificate has expired, and peers refuse it: replace it");
}

struct Validity {
    subject: String,
    begins: Timestamp,
    expires: Timestamp,
}

/// For readable certificates; unreadable ones are rejected where they are used.
fn validities(pem: &[u8]) -> impl Iterator<Item = Validity> {
    CertificateDer::pem_slice_iter(pem).map_while(Result::ok).filter_map(|der| {
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).ok()?;
        let validity = parsed.validity();
        let time = |seconds| Timestamp::from_second(seconds).ok();
        Some(Validity {
            subject: parsed.subject().to_string(),
            begins: time(validity.not_before.timestamp())?,
            expires: time(validity.not_after.timestamp())?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::signing::{DAY_SECONDS, create_authority};

    fn day(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + day * DAY_SECONDS).unwrap()
    }

    #[test]
    fn expired_certificates_are_counted_by_source() {
        let pem = |days: i64| create_authority("ca", days, day(0)).unwrap().certificate;
        let expiries = Expiries::default();
        let bundle = pem(10) + &pem(30);
        expiries.record(Source::TrustBundle, "two", bundle.as_bytes(), day(1));
        expiries.record(Source::TlsCert, "a", pem(5).as_bytes(), day(1));
        let expired = |source, at| expiries.summary(source, day(at)).expired;
        for (at, bundles, own) in [(1, 0, 0), (6, 0, 1), (11, 1, 1), (31, 2, 1)] {
            assert_eq!((expired(Source::TrustBundle, at), expired(Source::TlsCert, at)), (bundles, own), "{at}");
        }
        let earliest = expiries.summary(Source::TrustBundle, day(1)).earliest.unwrap();
        assert!(earliest > day(8) && earliest < day(11), "{earliest}");

        expiries.record(Source::TlsCert, "a", pem(60).as_bytes(), day(31));
        assert_eq!(expired(Source::TlsCert, 31), 0, "it was replaced");
        expiries.forget(Source::TrustBundle, "two");
        assert_eq!(expiries.summary(Source::TrustBundle, day(31)), Summary::default());
    }

    #[test]
    fn certificate_expired_in_use_is_logged_once() {
        let expiries = Expiries::default();
        let pem = create_authority("ca", 5, day(0)).unwrap().certificate;
        expiries.record(Source::Secret, "default/tls", pem.as_bytes(), day(1));
        let is_logged = || expiries.lock().values().all(|used| used.is_logged);
        expiries.check(day(2));
        assert!(!is_logged());
        expiries.check(day(7));
        assert!(is_logged());
        expiries.record(Source::Secret, "default/tls", b"no pem", day(7));
        assert_eq!(expiries.summary(Source::Secret, day(7)).expired, 0);
    }
}
