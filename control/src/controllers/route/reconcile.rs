//! What a Route's status says: values in, values out.

use jiff::Timestamp;

use super::hosts::{self, Naming};
use super::rollout::{self, Division};
use super::traffic::Unassigned;
use crate::kinds::serving::route::{
    ALL_TRAFFIC_ASSIGNED, CERTIFICATE_PROVISIONED, CONDITIONS, INGRESS_READY, Route, RouteStatus,
};
use crate::kinds::serving::traffic::TrafficTarget;
use crate::kinds::shared::{Status, Verdict};
use crate::publish::HostTaken;

/// The newest Revision has not got its whole share yet.
pub const ROLLOUT_IN_PROGRESS: &str = "RolloutInProgress";

/// What is routed, if anything, is what was routed before.
pub const NOT_CONFIGURED: &str = "IngressNotConfigured";

/// How far a Route came.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The cores route by this.
    Flowing(Division<TrafficTarget>),
    /// What was routed before, if anything, still is.
    Unassigned(Unassigned),
    /// Another Route has one of the hosts.
    Taken(HostTaken),
    /// A core Service of this name is in the way.
    Foreign(String),
    /// An annotation makes no sense; what was routed before still is.
    Misnoted(String),
}

#[must_use]
pub fn status(route: &Route, outcome: &Outcome, naming: Naming<'_>, now: Timestamp) -> RouteStatus {
    let mut status = route.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    let usual = naming.network.http_protocol;
    naming.tls.tell_with(naming.inside, &mut conditions, CERTIFICATE_PROVISIONED, usual);
    match outcome {
        Outcome::Flowing(division) => {
            conditions.mark_true(ALL_TRAFFIC_ASSIGNED);
            status.traffic.clone_from(&division.targets);
            let annotations = &mut status.base.annotations;
            if division.shares.is_empty() {
                conditions.mark_true(INGRESS_READY);
                annotations.remove(rollout::STATE);
            } else {
                conditions.mark_unknown(
                    INGRESS_READY,
                    ROLLOUT_IN_PROGRESS,
                    "A gradual rollout of the latest revision(s) is in progress.",
                );
                let state = serde_json::to_string(&division.shares).unwrap_or_default();
                annotations.insert(rollout::STATE.to_owned(), state);
            }
        }
        Outcome::Unassigned(why) => {
            match why.verdict {
                Verdict::False => conditions.mark_false(ALL_TRAFFIC_ASSIGNED, why.reason, &why.message),
                _ => conditions.mark_unknown(ALL_TRAFFIC_ASSIGNED, why.reason, &why.message),
            }
            if conditions.verdict(INGRESS_READY) != Verdict::True {
                conditions.mark_unknown(
                    INGRESS_READY,
                    NOT_CONFIGURED,
                    "Ingress has not yet been reconciled.",
                );
            }
        }
        Outcome::Taken(taken) => {
            conditions.mark_true(ALL_TRAFFIC_ASSIGNED);
            let HostTaken { host, owner } = taken;
            conditions.mark_false(
                INGRESS_READY,
                "NotOwned",
                &format!("The host {host} belongs to the Route {owner}, which had it first."),
            );
        }
        Outcome::Misnoted(why) => {
            conditions.mark_true(ALL_TRAFFIC_ASSIGNED);
            conditions.mark_unknown(INGRESS_READY, NOT_CONFIGURED, why);
        }
        // SRV-OWN-03
        Outcome::Foreign(name) => {
            conditions.mark_true(ALL_TRAFFIC_ASSIGNED);
            let why = format!(
                "There is an existing Service \"{name}\" that the Route does not own: rename or delete it."
            );
            conditions.mark_false(INGRESS_READY, "NotOwned", &why);
        }
    }
    status.url = Some(hosts::url(route, None, naming));
    status.address = Some(hosts::address(route, naming));
    status.base = Status {
        observed_generation: route.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}
