//! Secrets of the type `kubernetes.io/tls`, and the identities in them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use apiserver::expiry::{Expiries, Source};
use contract::tls::TlsIdentity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use crate::informer_cache::InformerCache;
use crate::service_backends::BackendResolveError;
use types::settings::SERVING;

pub(crate) const CERTIFICATE: &str = "tls.crt";
pub(crate) const KEY: &str = "tls.key";
/// The key of the public certificate.
pub(crate) const CA_CERT_KEY: &str = "ca.crt";
/// The Secret with the authority that signs certificates of our class, and the ConfigMap that publishes it.
pub(crate) const AUTHORITY: &str = "sluicegate-domain-authority";

/// Whether that Secret or ConfigMap is the authority's.
pub(crate) fn is_authority(ns: &str, name: &str) -> bool {
    (ns, name) == (SERVING, AUTHORITY)
}

/// The value of a key in a Secret; empty if it has none.
pub(crate) fn secret_data<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| &bytes.0[..]).unwrap_or_default()
}

/// Identities that were read from Secrets, by namespace and name, each with the version of its Secret.
#[derive(Debug, Default)]
pub struct TlsIdentityCache {
    identities: Mutex<HashMap<(String, String), (String, TlsIdentity)>>,
}

impl TlsIdentityCache {
    /// The certificate in a Secret.
    pub(crate) fn identity(
        &self,
        secrets: &InformerCache<Secret>,
        ns: &str,
        name: &str,
        expiries: &Expiries,
    ) -> Result<TlsIdentity, BackendResolveError> {
        let secret = secrets.get(ns, name).ok_or_else(|| BackendResolveError {
            reason: "SecretNotFound",
            message: format!("Secret \"{ns}/{name}\" not found."),
        })?;
        let version = secret.metadata.resource_version.clone().unwrap_or_default();
        let mut known = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ns.to_owned(), name.to_owned());
        if let Some((_, identity)) = known.get(&key).filter(|(read, _)| *read == version) {
            return Ok(identity.clone());
        }
        let chain = secret_data(&secret, CERTIFICATE);
        let read = TlsIdentity::from_pem(chain, secret_data(&secret, KEY));
        let identity = read.map_err(|why| BackendResolveError {
            reason: "SecretInvalid",
            message: format!("Secret \"{ns}/{name}\": tls.crt and tls.key: {why}."),
        })?;
        expiries.record(Source::Secret, &format!("{ns}/{name}"), chain, Timestamp::now());
        known.insert(key, (version, identity.clone()));
        Ok(identity)
    }

    /// The Secret is gone, and what was read from it.
    pub(crate) fn forget(&self, ns: &str, name: &str, expiries: &Expiries) {
        expiries.forget(Source::Secret, &format!("{ns}/{name}"));
        let mut known = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&(ns.to_owned(), name.to_owned()));
    }
}
