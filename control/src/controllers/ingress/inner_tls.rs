//! TLS between us and what Ingresses send to, where `system-internal-tls` asks for it: Knative's activators and
//! queue-proxies show certificates of an authority of the cluster's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use dataplane::table::Protocol;
use dataplane::tls::Trust;

use super::backends::Unresolved;
use super::item;
use crate::controllers::world::World;
use crate::kinds::networking::ingress::HttpPath;
use crate::kinds::settings::SERVING;

/// The Secret of the operator's namespace with the authority, in [`CA`].
const SECRET: &str = "routing-serving-certs";
const CA: &str = "ca.crt";
/// Whom an activator proves to be.
const ROUTING: &str = "kn-routing";
/// ... and the queue-proxies of a namespace, whose name follows.
const USER: &str = "kn-user-";

/// Whom backends have to prove to be, made once so that connections are kept.
#[derive(Debug, Default)]
pub struct InnerTrusts {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// All authorities in PEM.
    authorities: String,
    /// By namespace, and whether they speak HTTP/2.
    trusts: HashMap<(String, bool), Arc<Trust>>,
}

impl InnerTrusts {
    fn of(&self, authorities: String, namespace: &str, protocol: Protocol) -> Result<Arc<Trust>, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.authorities != authorities {
            *known = Known { authorities, trusts: HashMap::new() };
        }
        let speaks_http2 = protocol == Protocol::H2c;
        let key = (namespace.to_owned(), speaks_http2);
        if let Some(trust) = known.trusts.get(&key) {
            return Ok(Arc::clone(trust));
        }
        let user = format!("{USER}{}", namespace.to_ascii_lowercase());
        let made = Trust::of_any(known.authorities.as_bytes(), &[&user, ROUTING], speaks_http2);
        let made = Arc::new(made.map_err(|why| why.to_string())?);
        known.trusts.insert(key, Arc::clone(&made));
        Ok(made)
    }
}

/// Whether what a path sends to is reached by TLS. A path that rewrites the host leads back to the gateway.
pub(super) fn is_wanted(world: &World, path: &HttpPath) -> bool {
    world.settings().network.tls_for.backends && path.rewrite_host.is_empty()
}

/// Whom the backends in `namespace` have to prove to be.
pub(super) fn trust(world: &World, namespace: &str, protocol: Protocol) -> Result<Arc<Trust>, Unresolved> {
    let made = world.ingress.inner_trusts.of(authorities(world), namespace, protocol);
    made.map_err(|why| Unresolved {
        reason: "NoTrustChain",
        message: format!(
            "system-internal-tls: {why}: give an authority under {CA} in the Secret \"{SERVING}/{SECRET}\", or in a \
             ConfigMap there with the label networking.knative.dev/trust-bundle."
        ),
    })
}

fn authorities(world: &World) -> String {
    let secret = world.ingress.secrets.get(SERVING, SECRET);
    let own = secret.as_ref().and_then(|secret| secret.data.as_ref()?.get(CA));
    let own = own.map(|pem| String::from_utf8_lossy(&pem.0).into_owned());
    own.into_iter().chain(world.maps.serving_bundles()).collect::<Vec<_>>().join("\n")
}

/// Whether a Secret says whom to believe.
pub(super) fn is_concerned(ns: &str, secret: &str) -> bool {
    (ns, secret) == (SERVING, SECRET)
}

/// Others are believed now.
pub fn look_at_all(world: &World) {
    let all = world.ingress.ingresses.all();
    all.iter().filter(|ingress| ingress.is_ours()).for_each(|ingress| world.look_at(item(ingress)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-RTE-07: a connection is kept by whom it believes, so that has to be the same object.
    #[test]
    fn the_same_namespace_has_one_trust_until_the_authorities_change() {
        let pem = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap().cert.pem();
        let (trusts, one, other) = (InnerTrusts::default(), pem("one"), pem("other"));
        let of = |pem: &str, ns: &str, protocol| trusts.of(pem.to_owned(), ns, protocol).unwrap();
        let first = of(&one, "ns", Protocol::Http1);
        assert_eq!(first, of(&one, "ns", Protocol::Http1));
        assert_ne!(first, of(&one, "ns", Protocol::H2c));
        assert_ne!(first, of(&one, "other", Protocol::Http1));
        assert_ne!(first, of(&other, "ns", Protocol::Http1));
        assert!(trusts.of(String::new(), "ns", Protocol::Http1).is_err());
    }
}
