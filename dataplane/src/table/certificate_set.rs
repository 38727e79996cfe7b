//! What clients are shown by TLS, and what that is good for.

use super::RoutingTable;
use crate::tls::TlsIdentity;

impl RoutingTable {
    /// What a client is shown who asks for `name`, from inside or not.
    #[must_use]
    pub fn identity(&self, name: Option<&str>, inside: bool) -> Option<&TlsIdentity> {
        let own = if inside { self.inner_certificates.named(name) } else { None };
        own.or_else(|| self.certificates.find(name))
    }

    /// Whether a connection that was opened for `name` may carry requests for `host`: what it was shown is what
    /// `host` would show.
    #[must_use]
    pub fn covers(&self, name: &str, host: &str, inside: bool) -> bool {
        if name.eq_ignore_ascii_case(host) {
            return true;
        }
        match (self.identity(Some(name), inside), self.identity(Some(host), inside)) {
            (Some(shown), Some(own)) => shown.shows_the_same(own),
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
    fn a_connection_carries_what_its_certificate_is_for() {
        let [both, other, inner] = ["x", "c", "i"].map(identity);
        let table = RoutingTable {
            certificates: certificates(&[("a.test", &both), ("b.test", &both), ("c.test", &other)]),
            inner_certificates: certificates(&[("a.ns", &inner), ("a.ns.svc", &inner)]),
            ..RoutingTable::default()
        };
        for (name, host, inside, covered) in [
            ("a.test", "A.test", false, true),
            ("a.test", "b.test", false, true),
            ("a.test", "c.test", false, false),
            ("a.test", "d.test", false, false),
            ("a.ns", "a.ns.svc", true, true),
            ("a.ns", "a.ns.svc", false, false),
            ("a.test", "b.test", true, true),
            ("a.ns", "a.test", true, false),
        ] {
            assert_eq!(table.covers(name, host, inside), covered, "{name} for {host}, inside: {inside}");
        }
    }

    /// X-RTE-07: what is for callers inside is shown to nobody else; they are shown what others are, too.
    #[test]
    fn callers_inside_are_shown_their_own_certificates_first() {
        let [any, inner, public] = ["any", "inner", "public"].map(identity);
        let table = RoutingTable {
            certificates: certificates(&[("*", &any), ("a.test", &public)]),
            inner_certificates: certificates(&[("a.ns", &inner)]),
            ..RoutingTable::default()
        };
        for (name, inside, wanted) in [
            (Some("a.ns"), true, &inner),
            (Some("a.ns"), false, &any),
            (Some("a.test"), true, &public),
            (Some("b.test"), true, &any),
            (None, true, &any),
        ] {
            assert_eq!(table.identity(name, inside), Some(wanted), "{name:?}, inside: {inside}");
        }
    }
}
