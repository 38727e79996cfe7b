//! TLS to the backends of Ingresses, where `system-internal-tls` requires it: Knative's activators and
//! queue-proxies have certificates of the cluster's authority.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use contract::table::Protocol;
use contract::tls::TlsClientConfig;

use crate::context::ControllerContext;
use crate::service_backends::BackendResolveError;
use types::networking::ingress::HttpIngressPath;
use types::settings::SERVING;

/// The Secret of the operator's namespace with the authority, in [`CA`].
const SECRET: &str = "routing-serving-certs";
const CA: &str = "ca.crt";
/// The name in an activator's certificate.
const ACTIVATOR_NAME: &str = "kn-routing";
/// ... and the queue-proxies of a namespace, whose name follows.
const QUEUE_PROXY_PREFIX: &str = "kn-user-";

/// The names that backends must prove, built once so that connections are reused.
#[derive(Debug, Default)]
pub struct InternalTlsTrusts {
    state: Mutex<InternalTlsState>,
}

#[derive(Debug, Default)]
struct InternalTlsState {
    /// All authorities in PEM.
    authorities: String,
    /// Configurations by namespace, and by whether they use HTTP/2.
    by_namespace: HashMap<(String, bool), Arc<TlsClientConfig>>,
}

impl InternalTlsTrusts {
    fn trust_for(
        &self,
        authorities: String,
        namespace: &str,
        protocol: Protocol,
    ) -> Result<Arc<TlsClientConfig>, String> {
        let mut known = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if known.authorities != authorities {
            *known = InternalTlsState { authorities, by_namespace: HashMap::new() };
        }
        let speaks_http2 = protocol == Protocol::H2c;
        let key = (namespace.to_owned(), speaks_http2);
        if let Some(trust) = known.by_namespace.get(&key) {
            return Ok(Arc::clone(trust));
        }
        let user = format!("{QUEUE_PROXY_PREFIX}{}", namespace.to_ascii_lowercase());
        let made = TlsClientConfig::of_any(known.authorities.as_bytes(), &[&user, ACTIVATOR_NAME], speaks_http2);
        let made = Arc::new(made.map_err(|why| why.to_string())?);
        known.by_namespace.insert(key, Arc::clone(&made));
        Ok(made)
    }
}

/// Whether what a path sends to is reached by TLS. A path that rewrites the host leads back to the gateway.
pub(super) fn is_required(context: &ControllerContext, path: &HttpIngressPath) -> bool {
    context.settings().network.auto_tls.system_internal_tls && path.rewrite_host.is_empty()
}

/// The names that the backends in `namespace` must prove.
pub(super) fn trust(
    context: &ControllerContext,
    trusts: &InternalTlsTrusts,
    namespace: &str,
    protocol: Protocol,
) -> Result<Arc<TlsClientConfig>, BackendResolveError> {
    let made = trusts.trust_for(authorities(context), namespace, protocol);
    made.map_err(|why| BackendResolveError {
        reason: "CABundleNotFound",
        message: format!(
            "system-internal-tls: {why}: give an authority under {CA} in the Secret \"{SERVING}/{SECRET}\", or in a \
             ConfigMap there with the label networking.knative.dev/trust-bundle."
        ),
    })
}

fn authorities(context: &ControllerContext) -> String {
    let secret = context.caches.secrets.get(SERVING, SECRET);
    let own = secret.as_ref().and_then(|secret| secret.data.as_ref()?.get(CA));
    let own = own.map(|pem| String::from_utf8_lossy(&pem.0).into_owned());
    own.into_iter().chain(context.config_maps.serving_bundles()).collect::<Vec<_>>().join("\n")
}

/// Whether a Secret contains trusted authorities.
pub(super) fn is_authority_secret(ns: &str, secret: &str) -> bool {
    (ns, secret) == (SERVING, SECRET)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-RTE-07: connections are pooled by their trust configuration, so that has to be the same object.
    #[test]
    fn the_same_namespace_has_one_trust_until_the_authorities_change() {
        let pem = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap().cert.pem();
        let (trusts, one, other) = (InternalTlsTrusts::default(), pem("one"), pem("other"));
        let of = |pem: &str, ns: &str, protocol| trusts.trust_for(pem.to_owned(), ns, protocol).unwrap();
        let first = of(&one, "ns", Protocol::Http1);
        assert_eq!(first, of(&one, "ns", Protocol::Http1));
        assert_ne!(first, of(&one, "ns", Protocol::H2c));
        assert_ne!(first, of(&one, "other", Protocol::Http1));
        assert_ne!(first, of(&other, "ns", Protocol::Http1));
        assert!(trusts.trust_for(String::new(), "ns", Protocol::Http1).is_err());
    }
}
