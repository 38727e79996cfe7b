//! TLS configurations towards backends. Connections are pooled by the configuration, so each is the same object as long as a
//! backend uses it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use contract::tls::{ApplicationProtocol, CertificateAuthorities, SubjectName, TlsClientConfig, TrustError};
use rustls::RootCertStore;

/// Entries from which on those that no backend uses are removed.
const SWEEP_AT: usize = 64;

/// What a configuration is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BackendTrust {
    pub(crate) authorities: BackendAuthorities,
    /// Sent to the backend.
    pub(crate) server_name: String,
    /// Names of which its certificate has one; without any, the server name.
    pub(crate) names: Vec<SubjectName>,
    pub(crate) protocol: ApplicationProtocol,
}

/// Who may sign the certificates of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum BackendAuthorities {
    /// The authorities of this host.
    System,
    /// PEM.
    Certificates(Vec<u8>),
}

#[derive(Debug, Default)]
pub(crate) struct BackendTrustCache {
    state: Mutex<BackendTrustState>,
}

#[derive(Debug, Default)]
struct BackendTrustState {
    configs: HashMap<BackendTrust, Weak<TlsClientConfig>>,
    sweep_at: usize,
}

impl BackendTrustCache {
    /// The configuration of `trust`. `system` reads the authorities of this host.
    pub(crate) fn config(
        &self,
        trust: BackendTrust,
        system: impl FnOnce() -> RootCertStore,
    ) -> Result<Arc<TlsClientConfig>, TrustError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = state.configs.get(&trust).and_then(Weak::upgrade) {
            return Ok(config);
        }
        let BackendTrust { authorities, server_name, names, protocol } = &trust;
        let roots = match authorities {
            BackendAuthorities::System => system(),
            BackendAuthorities::Certificates(pem) => {
                let mut roots = RootCertStore::empty();
                CertificateAuthorities::read(pem, &mut roots)?;
                roots
            }
        };
        let config = Arc::new(TlsClientConfig::for_subject(roots, server_name, names.clone(), *protocol)?);
        if state.configs.len() >= state.sweep_at.max(SWEEP_AT) {
            state.configs.retain(|_, config| config.strong_count() > 0);
            state.sweep_at = state.configs.len() * 2;
        }
        state.configs.insert(trust, Arc::downgrade(&config));
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(pem: &str, server_name: &str) -> BackendTrust {
        BackendTrust {
            authorities: BackendAuthorities::Certificates(pem.as_bytes().to_vec()),
            server_name: server_name.to_owned(),
            names: Vec::new(),
            protocol: ApplicationProtocol::Http1,
        }
    }

    #[test]
    fn equal_trust_is_one_configuration_while_in_use() {
        let cache = BackendTrustCache::default();
        let pem = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap().cert.pem();
        let of = |trust: BackendTrust| cache.config(trust, RootCertStore::empty);
        let first = of(trust(&pem, "a.test")).unwrap();
        assert_eq!(first, of(trust(&pem, "a.test")).unwrap());
        assert_ne!(first, of(trust(&pem, "b.test")).unwrap());
        let names = vec![SubjectName::Uri("spiffe://a/b".into())];
        assert_ne!(first, of(BackendTrust { names, ..trust(&pem, "a.test") }).unwrap());
        let system = BackendTrust { authorities: BackendAuthorities::System, ..trust("", "a.test") };
        assert!(matches!(of(system), Err(TrustError::NoAuthorities)));
        assert!(of(trust("nonsense", "a.test")).is_err());
        for n in 0..500 {
            drop(of(trust(&pem, &format!("h{n}.test"))).unwrap());
        }
        assert!(cache.state.lock().unwrap().configs.len() <= 2 * SWEEP_AT);
    }
}
