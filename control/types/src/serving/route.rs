//! Route: a host name, and the split of its requests between Revisions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::traffic::{self, TrafficParent, TrafficTarget};
use super::{GROUP, VERSION, annotations, durable_requests, traffic_policy};
use crate::conditions::ConditionSet;
use crate::duck_types::DuckType;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::shared::{Addressable, Status};

pub const ALL_TRAFFIC_ASSIGNED: &str = "AllTrafficAssigned";
pub const INGRESS_READY: &str = "IngressReady";
pub const CERTIFICATE_PROVISIONED: &str = "CertificateProvisioned";
pub const CONDITIONS: ConditionSet =
    ConditionSet { dependents: &[ALL_TRAFFIC_ASSIGNED, INGRESS_READY, CERTIFICATE_PROVISIONED] };

kind! {
    /// `serving.knative.dev/v1` Route.
    Route { spec: RouteSpec, status: RouteStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RouteSpec {
    /// How requests are divided over Revisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficTarget>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RouteStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where the Route is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where events for the Route go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// How requests are divided now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficTarget>,
}

impl ResourceStrategy for Route {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Route",
        plural: "routes",
        singular: "route",
        short_names: &["rt"],
        categories: &["all", "knative", "serving"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[column("URL", ".status.url"), READY, REASON],
        duck_types: &[DuckType::Addressable],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        for target in &mut self.spec.traffic {
            target.set_defaults();
        }
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::set_user(&mut self.metadata, before.map(|b| &b.metadata), changed, requester);
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        annotations::validate_name(&self.metadata, problems);
        annotations::validate_owner_label(&self.metadata, annotations::SERVICE, "Service", problems);
        annotations::validate_rollout_duration(&self.metadata, problems);
        annotations::validate_visibility(&self.metadata, before.map(|b| &b.metadata), problems);
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::validate_user(&self.metadata, before.map(|b| &b.metadata), changed, problems);
        traffic::validate(&self.spec.traffic, TrafficParent::Route, problems);
        traffic_policy::validate(&self.metadata, &self.spec.traffic, problems);
        durable_requests::validate(&self.metadata, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-RTE-05: one word selects the visibility, and a typo in it is rejected unless it was there before.
    #[test]
    fn a_visibility_that_means_nothing_is_refused() {
        let with = |value: &str| {
            let mut route = Route::new("default", "a", RouteSpec::default());
            route.metadata.labels = Some([(annotations::VISIBILITY.to_owned(), value.to_owned())].into());
            route
        };
        let found = |now: &Route, before: Option<&Route>| {
            let mut problems = FieldErrors::default();
            now.validate(before, &mut problems);
            problems.list.into_iter().filter(|problem| problem.field.contains("labels")).count()
        };
        assert_eq!(["cluster-local", "", "local"].map(|value| found(&with(value), None)), [0, 1, 1]);
        assert_eq!(found(&with("local"), Some(&with("local"))), 0);
        assert_eq!(found(&with("local"), Some(&with("cluster-local"))), 1);
    }

    /// SRV-ROUTE-05 (AMB-03): a stand-alone Route has to say where its traffic goes.
    #[test]
    fn a_route_without_targets_is_refused() {
        let route = Route::new("default", "a", RouteSpec::default());
        let mut problems = FieldErrors::default();
        route.validate(None, &mut problems);
        assert_eq!(problems.list[0].message, "Traffic targets sum to 0, want 100");
    }
}
