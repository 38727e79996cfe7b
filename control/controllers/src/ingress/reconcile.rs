//! Computes an Ingress's status: values in, values out.

use std::net::SocketAddr;

use jiff::Timestamp;

use crate::listeners::{CLUSTER_LOCAL_NAME, ListenerAddresses, PUBLIC_NAME};
use crate::publish::HostConflict;
use types::networking::ingress::{
    CONDITIONS, Ingress, IngressStatus, LOAD_BALANCER_READY, LoadBalancerIngress, LoadBalancerStatus,
    NETWORK_CONFIGURED,
};
use types::shared::{HasConditions, Status};

/// How far an Ingress came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressOutcome {
    /// The cores route by this, and each share has a ready endpoint.
    Programmed,
    /// They do; this backend has no endpoint yet.
    NoEndpoints(String),
    /// The previous routes, if any, stay.
    NotConfigured { reason: &'static str, message: String },
    /// Another object owns one of the hosts.
    HostConflict(HostConflict),
}

#[must_use]
pub fn status(
    ingress: &Ingress,
    outcome: &IngressOutcome,
    listeners: ListenerAddresses,
    now: Timestamp,
) -> IngressStatus {
    let mut status = ingress.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match outcome {
        IngressOutcome::Programmed => {
            conditions.mark_true(NETWORK_CONFIGURED);
            conditions.mark_true(LOAD_BALANCER_READY);
        }
        IngressOutcome::NoEndpoints(key) => {
            conditions.mark_true(NETWORK_CONFIGURED);
            // This condition does not report whether a backend that once answered still does.
            if !ingress.is_ready() {
                let message = format!("Waiting for {key} to have a ready endpoint.");
                conditions.mark_unknown(LOAD_BALANCER_READY, "NoEndpoints", &message);
            }
        }
        IngressOutcome::NotConfigured { reason, message } => {
            conditions.mark_false(NETWORK_CONFIGURED, reason, message);
        }
        IngressOutcome::HostConflict(HostConflict { host, owner }) => {
            let message = format!("The host {host} belongs to {owner}, which had it first.");
            conditions.mark_false(NETWORK_CONFIGURED, "NotOwned", &message);
        }
    }
    if matches!(outcome, IngressOutcome::Programmed | IngressOutcome::NoEndpoints(_)) {
        status.public_load_balancer = Some(load_balancer(PUBLIC_NAME, listeners.public));
        status.private_load_balancer = Some(load_balancer(CLUSTER_LOCAL_NAME, listeners.cluster_local));
    }
    status.base = Status {
        observed_generation: ingress.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

fn load_balancer(name: &str, address: Option<SocketAddr>) -> LoadBalancerStatus {
    // Clients cannot connect to an unspecified address.
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
    use types::networking::ingress::IngressSpec;
    use types::shared::{Condition, ConditionStatus};

    fn find<'a>(status: &'a IngressStatus, kind: &str) -> &'a Condition {
        status.base.conditions.iter().find(|c| c.kind == kind).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// X-KI-17, X-KI-18: ready once a backend has an endpoint, and it stays so; the status names where it is served.
    #[test]
    fn an_ingress_is_ready_once_its_backends_answered() {
        let mut ingress = Ingress::new("ns", "a", IngressSpec::default());
        ingress.metadata.generation = Some(1);
        let listeners = ListenerAddresses {
            public: "127.0.0.1:80".parse().ok(),
            cluster_local: "0.0.0.0:81".parse().ok(),
            cluster_local_https: None,
            https: None,
            events: None,
        };
        let mut step = |outcome: &IngressOutcome| {
            let status = status(&ingress, outcome, listeners, at(1));
            ingress.status = Some(status.clone());
            status
        };
        let empty = IngressOutcome::NoEndpoints("service/ns/s:80".to_owned());
        let first = step(&empty);
        assert_eq!(find(&first, "Ready").reason, "NoEndpoints");
        assert_eq!(find(&first, NETWORK_CONFIGURED).status, ConditionStatus::True);
        assert_eq!(find(&step(&IngressOutcome::Programmed), "Ready").status, ConditionStatus::True);
        let later = step(&empty);
        assert_eq!(find(&later, "Ready").status, ConditionStatus::True);
        assert_eq!(later.public_load_balancer.unwrap().ingress[0].ip, "127.0.0.1");
        assert_eq!(listeners.by_status_name(CLUSTER_LOCAL_NAME), Some("127.0.0.1:81".parse().ok()));
        assert_eq!(ListenerAddresses::default().by_status_name(PUBLIC_NAME), Some(None));
        assert_eq!(listeners.by_status_name("up.example.com"), None);
        let private = &later.private_load_balancer.unwrap().ingress[0];
        assert_eq!((private.ip.as_str(), private.domain_internal.as_str()), ("", CLUSTER_LOCAL_NAME));

        let taken = HostConflict { host: "a".to_owned(), owner: "ns/b".to_owned() };
        let ready = find(&step(&IngressOutcome::HostConflict(taken)), "Ready").clone();
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "NotOwned"));
        assert_eq!(ready.message, "The host a belongs to ns/b, which had it first.");
    }
}
