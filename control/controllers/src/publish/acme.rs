//! What ACME needs of the table: the public hosts without a certificate, and routes for HTTP-01 challenges (RFC 8555, section 8.3).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use contract::table::{Backend, Endpoint, EndpointAddress, NoEndpointPolicy, Protocol, RequestTimeouts};
use contract::tls::CertificateStore;

use super::Publisher;
use super::challenge_route::ChallengeRoute;
use super::routing_model::RoutingModel;

/// Requests for `path` at `host` go to `responder`, also those without TLS, until the challenge is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeChallenge {
    /// Lower case.
    pub host: String,
    pub path: String,
    pub responder: SocketAddr,
}

impl Publisher {
    /// Counts changes of the model: equal counts have equal answers.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// The exact hosts of public routes that no certificate covers, apart from those that `owner` brings.
    #[must_use]
    pub fn hosts_without_certificate(&self, owner: &str) -> BTreeSet<String> {
        let model = self.lock();
        let mut others = CertificateStore::default();
        others.merge(&model.operator_certificates);
        for (_, shown) in model.object_certificates.iter().filter(|(name, _)| *name != owner) {
            shown.public.iter().for_each(|(host, identity)| others.insert(host, identity.clone()));
        }
        model.public_hosts().filter(|host| !host.contains('*') && !others.covers(host)).map(str::to_owned).collect()
    }

    /// Replaces all challenges. Published at once, unless there is no table yet.
    pub fn set_acme_challenges(&self, challenges: &[AcmeChallenge]) {
        let mut model = self.lock();
        let added = challenges.iter().map(|challenge| model.challenge_route(challenge)).collect();
        model.challenges = added;
        model.changes += 1;
        self.publish(&mut model);
    }

    /// Publishes what was set before at once, unless there is no table yet.
    pub fn publish_now(&self) {
        let mut model = self.lock();
        self.publish(&mut model);
    }
}

impl RoutingModel {
    /// Hosts of `--route`, and of objects whose rules are public.
    fn public_hosts(&self) -> impl Iterator<Item = &str> {
        let public = self.routes.iter().filter(|(owner, _)| !self.private_hosts.contains_key(&***owner));
        let rules = public.flat_map(|(_, rules)| rules).filter(|rule| rule.listener.is_none() && !rule.cluster_local);
        let of_objects = rules.flat_map(|rule| rule.hosts.iter().map(|host| &**host));
        self.static_routes.keys().map(String::as_str).chain(of_objects)
    }

    fn challenge_route(&mut self, challenge: &AcmeChallenge) -> ChallengeRoute {
        let endpoint: Arc<Endpoint> = self.endpoint(EndpointAddress::Ip(challenge.responder), true);
        let backend = Backend {
            key: format!("acme/{}", challenge.host).into(),
            endpoints: vec![endpoint].into(),
            concurrency_max: 0,
            when_empty: NoEndpointPolicy::Refuse,
            protocol: Protocol::Http1,
            tls: None,
            timeouts: RequestTimeouts::EXTERNAL,
            proxy_protocol: None,
            load: Arc::default(),
        };
        ChallengeRoute { host: challenge.host.clone(), path: challenge.path.clone(), backend: Arc::new(backend) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use contract::table::{RouteRequest, RoutingTable};

    use super::*;
    use crate::publish::{HostRule, ObjectCertificates, WeightedBackend};
    use contract::tls::TlsIdentity;

    const PATH: &str = "/.well-known/acme-challenge/t1";

    fn rule(host: &str) -> HostRule {
        HostRule { https_redirect: Some(443), ..HostRule::new([host], vec![WeightedBackend::new("ns/r", 100)]) }
    }

    fn identity(host: &str) -> TlsIdentity {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        TlsIdentity::from_pem(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes()).unwrap()
    }

    #[test]
    fn hosts_without_certificate_are_public_exact_and_uncovered() {
        let publisher = Publisher::new(Arc::new(|_| {}));
        let local = HostRule { cluster_local: true, ..rule("inside.test") };
        publisher.set_route("ns/a", vec![rule("a.test"), rule("*.wild.test"), rule("b.test"), local]).unwrap();
        publisher.set_route("ns/c", vec![rule("c.test"), rule("d.test")]).unwrap();
        let mut given = CertificateStore::default();
        given.insert("b.test", identity("b.test"));
        publisher.set_certificates(given);
        let bring = |owner: &str, host: &str| {
            let public = vec![(host.to_owned(), identity(host))];
            publisher.set_object_certificates(owner, ObjectCertificates { public, ..ObjectCertificates::default() });
        };
        bring("ns/c", "c.test");
        bring("acme", "a.test");
        assert_eq!(publisher.hosts_without_certificate("acme"), ["a.test", "d.test"].map(str::to_owned).into());
    }

    #[test]
    fn challenge_is_served_ahead_of_redirect_until_it_is_removed() {
        let tables: Arc<Mutex<Vec<RoutingTable>>> = Arc::default();
        let published = Arc::clone(&tables);
        let publisher = Publisher::new(Arc::new(move |table| published.lock().unwrap().push(table)));
        publisher.set_route("ns/a", vec![rule("a.test")]).unwrap();
        publisher.start();
        let responder = "127.0.0.1:9".parse().unwrap();
        let challenge = |host: &str| AcmeChallenge { host: host.into(), path: PATH.into(), responder };
        publisher.set_acme_challenges(&[challenge("a.test"), challenge("new.test")]);
        let last = || tables.lock().unwrap().last().unwrap().clone();
        let (with, request) = (last(), RouteRequest::internal("a.test", PATH));
        for host in ["a.test", "new.test"] {
            let route = with.route(host).unwrap();
            let branch = route.branch(&request).unwrap();
            assert_eq!(
                (&*branch.splits[0].backend.key, route.redirect(Some(branch))),
                (&*format!("acme/{host}"), None)
            );
        }
        assert_eq!(with.route("a.test").unwrap().redirect(None), Some(443), "other paths are redirected as before");
        publisher.set_acme_challenges(&[]);
        assert!(last().route("new.test").is_none() && last().route("a.test").unwrap().branch(&request).is_none());
    }
}
