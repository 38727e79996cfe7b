//! What an Ingress's status says: values in, values out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use jiff::Timestamp;

use crate::kinds::networking::ingress::{
    CONDITIONS, Ingress, IngressStatus, LOAD_BALANCER_READY, LoadBalancerIngress, LoadBalancerStatus,
    NETWORK_CONFIGURED,
};
use crate::kinds::shared::{HasConditions, Status};
use crate::publish::HostTaken;

/// The names under which a cluster would know our listeners.
pub(super) const PUBLIC_NAME: &str = "sluicegate.knative-serving.svc.cluster.local";
pub(super) const PRIVATE_NAME: &str = "sluicegate-private.knative-serving.svc.cluster.local";

/// How far an Ingress came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The cores route by this, and each share has somebody who answers.
    Flowing,
    /// They do; this backend has no endpoint yet.
    Empty(String),
    /// What was routed before, if anything, still is.
    Unconfigured { reason: &'static str, message: String },
    /// Somebody else has one of the hosts.
    Taken(HostTaken),
}

/// Where requests are taken in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Listeners {
    pub public: Option<SocketAddr>,
    pub private: Option<SocketAddr>,
    /// ... and for TLS.
    pub private_https: Option<SocketAddr>,
    /// For TLS.
    pub https: Option<SocketAddr>,
}

impl Listeners {
    /// The listener that an Ingress's status calls `host`: `None` if none is called so, and the inner one if it
    /// is off. Whoever sends to it with another Host goes round once more; each round makes the head longer,
    /// so one that leads back to itself ends at the head's limit.
    #[must_use]
    pub fn named(self, host: &str) -> Option<Option<SocketAddr>> {
        let address = match host {
            PUBLIC_NAME => self.public,
            PRIVATE_NAME => self.private,
            _ => return None,
        };
        Some(address.map(|mut address| {
            match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
                _ => {}
            }
            address
        }))
    }
}

#[must_use]
pub fn status(ingress: &Ingress, outcome: &Outcome, listeners: Listeners, now: Timestamp) -> IngressStatus {
    let mut status = ingress.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match outcome {
        Outcome::Flowing => {
            conditions.mark_true(NETWORK_CONFIGURED);
            conditions.mark_true(LOAD_BALANCER_READY);
        }
        Outcome::Empty(key) => {
            conditions.mark_true(NETWORK_CONFIGURED);
            // Whether a backend that once answered still does is not what this condition tells.
            if !ingress.is_ready() {
                let message = format!("Waiting for {key} to have a ready endpoint.");
                conditions.mark_unknown(LOAD_BALANCER_READY, "NoEndpoints", &message);
            }
        }
        Outcome::Unconfigured { reason, message } => {
            conditions.mark_false(NETWORK_CONFIGURED, reason, message);
        }
        Outcome::Taken(HostTaken { host, owner }) => {
            let message = format!("The host {host} belongs to {owner}, which had it first.");
            conditions.mark_false(NETWORK_CONFIGURED, "NotOwned", &message);
        }
    }
    if matches!(outcome, Outcome::Flowing | Outcome::Empty(_)) {
        status.public_load_balancer = Some(point(PUBLIC_NAME, listeners.public));
        status.private_load_balancer = Some(point(PRIVATE_NAME, listeners.private));
    }
    status.base = Status {
        observed_generation: ingress.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

fn point(name: &str, address: Option<SocketAddr>) -> LoadBalancerStatus {
    // An address that means "all of them" leads nobody anywhere.
    let ip = address.map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
    let ingress = LoadBalancerIngress {
        ip: ip.map(|ip| ip.to_string()).unwrap_or_default(),
        domain_internal: name.to_owned(),
        ..LoadBalancerIngress::default()
    };
    LoadBalancerStatus { ingress: vec![ingress] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::networking::ingress::IngressSpec;
    use crate::kinds::shared::{Condition, Verdict};

    fn find<'a>(status: &'a IngressStatus, kind: &str) -> &'a Condition {
        status.base.conditions.iter().find(|c| c.kind == kind).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// X-KI-17, X-KI-18: ready once somebody answers, and it stays so; where it is served is named.
    #[test]
    fn an_ingress_is_ready_once_its_backends_answered() {
        let mut ingress = Ingress::new("ns", "a", IngressSpec::default());
        ingress.metadata.generation = Some(1);
        let listeners = Listeners {
            public: "127.0.0.1:80".parse().ok(),
            private: "0.0.0.0:81".parse().ok(),
            private_https: None,
            https: None,
        };
        let mut step = |outcome: &Outcome| {
            let status = status(&ingress, outcome, listeners, at(1));
            ingress.status = Some(status.clone());
            status
        };
        let empty = Outcome::Empty("service/ns/s:80".to_owned());
        let first = step(&empty);
        assert_eq!(find(&first, "Ready").reason, "NoEndpoints");
        assert_eq!(find(&first, NETWORK_CONFIGURED).status, Verdict::True);
        assert_eq!(find(&step(&Outcome::Flowing), "Ready").status, Verdict::True);
        let later = step(&empty);
        assert_eq!(find(&later, "Ready").status, Verdict::True);
        assert_eq!(later.public_load_balancer.unwrap().ingress[0].ip, "127.0.0.1");
        assert_eq!(listeners.named(PRIVATE_NAME), Some("127.0.0.1:81".parse().ok()));
        assert_eq!(Listeners::default().named(PUBLIC_NAME), Some(None));
        assert_eq!(listeners.named("up.example.com"), None);
        let private = &later.private_load_balancer.unwrap().ingress[0];
        assert_eq!((private.ip.as_str(), private.domain_internal.as_str()), ("", PRIVATE_NAME));

        let taken = HostTaken { host: "a".to_owned(), owner: "ns/b".to_owned() };
        let ready = find(&step(&Outcome::Taken(taken)), "Ready").clone();
        assert_eq!((ready.status, ready.reason.as_str()), (Verdict::False, "NotOwned"));
        assert_eq!(ready.message, "The host a belongs to ns/b, which had it first.");
    }
}
