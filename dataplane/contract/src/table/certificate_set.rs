//! The TLS certificates of the table.

use super::RoutingTable;
use crate::tls::TlsIdentity;

impl RoutingTable {
    /// The certificate for a client that asks for `name`; `inside`: over a cluster-local listener.
    #[must_use]
    pub fn identity(&self, name: Option<&str>, cluster_local: bool) -> Option<&TlsIdentity> {
        let own = if cluster_local { self.inner_certificates.named(name) } else { None };
        own.or_else(|| self.certificates.find(name))
    }

    /// Whether a connection that was opened for `name` may carry requests for `host`: both have the same certificate.
    #[must_use]
    pub fn covers(&self, name: &str, host: &str, cluster_local: bool) -> bool {
        if name.eq_ignore_ascii_case(host) {
            return true;
        }
        match (self.identity(Some(name), cluster_local), self.identity(Some(host), cluster_local)) {
            (Some(shown), Some(own)) => shown.has_same_chain(own),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tls::CertificateStore;

    fn identity(name: &str) -> TlsIdentity {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        TlsIdentity::from_pem(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes()).unwrap()
    }

    fn certificates(named: &[(&str, &TlsIdentity)]) -> Arc<CertificateStore> {
        let mut certificates = CertificateStore::default();
        named.iter().for_each(|(host, identity)| certificates.insert(host, (*identity).clone()));
        Arc::new(certificates)
    }

    #[test]
    fn connection_covers_hosts_with_the_same_certificate() {
        let [both, other, cluster_local_identity] = ["x", "c", "i"].map(identity);
        let table = RoutingTable {
            certificates: certificates(&[("a.test", &both), ("b.test", &both), ("c.test", &other)]),
            inner_certificates: certificates(&[
                ("a.ns", &cluster_local_identity),
                ("a.ns.svc", &cluster_local_identity),
            ]),
            ..RoutingTable::default()
        };
        for (name, host, cluster_local, covered) in [
            ("a.test", "A.test", false, true),
            ("a.test", "b.test", false, true),
            ("a.test", "c.test", false, false),
            ("a.test", "d.test", false, false),
            ("a.ns", "a.ns.svc", true, true),
            ("a.ns", "a.ns.svc", false, false),
            ("a.test", "b.test", true, true),
            ("a.ns", "a.test", true, false),
        ] {
            assert_eq!(
                table.covers(name, host, cluster_local),
                covered,
                "{name} for {host}, cluster-local: {cluster_local}"
            );
        }
    }

    /// X-RTE-07: cluster-local certificates are only for cluster-local clients, which also get the public ones.
    #[test]
    fn cluster_local_clients_get_their_own_certificates_first() {
        let [any, cluster_local_identity, public] = ["any", "inner", "public"].map(identity);
        let table = RoutingTable {
            certificates: certificates(&[("*", &any), ("a.test", &public)]),
            inner_certificates: certificates(&[("a.ns", &cluster_local_identity)]),
            ..RoutingTable::default()
        };
        for (name, cluster_local, wanted) in [
            (Some("a.ns"), true, &cluster_local_identity),
            (Some("a.ns"), false, &any),
            (Some("a.test"), true, &public),
            (Some("b.test"), true, &any),
            (None, true, &any),
        ] {
            assert_eq!(table.identity(name, cluster_local), Some(wanted), "{name:?}, cluster-local: {cluster_local}");
        }
    }
}
