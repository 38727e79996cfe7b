//! Computes a Route's status: values in, values out.

use jiff::Timestamp;

use super::rollout::{self, TrafficDivision};
use super::traffic::TrafficError;
use crate::publish::HostConflict;
use crate::route_hosts::{self as hosts, RouteNaming};
use crate::route_rules::NOT_CONFIGURED;
use types::serving::route::{
    ALL_TRAFFIC_ASSIGNED, CERTIFICATE_PROVISIONED, CONDITIONS, INGRESS_READY, Route, RouteStatus,
};
use types::serving::traffic::TrafficTarget;
use types::shared::{ConditionStatus, Status};

/// The newest Revision has not got its whole share yet.
pub const ROLLOUT_IN_PROGRESS: &str = "RolloutInProgress";

/// How far a Route came.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteOutcome {
    /// The cores route by this.
    Assigned(TrafficDivision<TrafficTarget>),
    /// The previous routes, if any, stay.
    Unassigned(TrafficError),
    /// Another Route has one of the hosts.
    HostConflict(HostConflict),
    /// A core Service of this name is in the way.
    ServiceConflict(String),
    /// An annotation makes no sense; what was routed before still is.
    InvalidAnnotation(String),
}

impl RouteOutcome {
    /// Why the Route is not ready to serve its hosts. `None`: it serves them, or they are another's.
    #[must_use]
    pub fn unready_reason(&self) -> Option<&'static str> {
        match self {
            Self::Assigned(_) | Self::HostConflict(_) => None,
            Self::Unassigned(why) => Some(why.reason),
            Self::ServiceConflict(_) => Some("NotOwned"),
            Self::InvalidAnnotation(_) => Some(NOT_CONFIGURED),
        }
    }
}

#[must_use]
pub fn status(route: &Route, outcome: &RouteOutcome, naming: RouteNaming<'_>, now: Timestamp) -> RouteStatus {
    let mut status = route.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    let usual = naming.network.http_protocol;
    naming.tls.mark_with_cluster_local(
        naming.cluster_local_certificates,
        &mut conditions,
        CERTIFICATE_PROVISIONED,
        usual,
    );
    match outcome {
        RouteOutcome::Assigned(division) => {
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
        RouteOutcome::Unassigned(why) => {
            match why.verdict {
                ConditionStatus::False => conditions.mark_false(ALL_TRAFFIC_ASSIGNED, why.reason, &why.message),
                _ => conditions.mark_unknown(ALL_TRAFFIC_ASSIGNED, why.reason, &why.message),
            }
            if conditions.status_of(INGRESS_READY) != ConditionStatus::True {
                conditions.mark_unknown(INGRESS_READY, NOT_CONFIGURED, "Ingress has not yet been reconciled.");
            }
        }
        RouteOutcome::HostConflict(taken) => {
            conditions.mark_true(ALL_TRAFFIC_ASSIGNED);
            let HostConflict { host, owner } = taken;
            conditions.mark_false(
                INGRESS_READY,
                "NotOwned",
                &format!("The host {host} belongs to the Route {owner}, which had it first."),
            );
        }
        RouteOutcome::InvalidAnnotation(why) => {
            conditions.mark_true(ALL_TRAFFIC_ASSIGNED);
            conditions.mark_unknown(INGRESS_READY, NOT_CONFIGURED, why);
        }
        // SRV-OWN-03
        RouteOutcome::ServiceConflict(name) => {
            conditions.mark_true(ALL_TRAFFIC_ASSIGNED);
            let why =
                format!("There is an existing Service \"{name}\" that the Route does not own: rename or delete it.");
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
