//! Computes a Service's children and status: values in, values out.

use std::sync::Arc;

use jiff::Timestamp;

use crate::latest_revision::{LatestRevision, adopt};
use types::conditions::ConditionManager;
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::serving::route::Route;
use types::serving::service::{CONDITIONS, CONFIGURATIONS_READY, ROUTES_READY, Service, ServiceStatus};
use types::shared::{ConditionStatus, HasConditions, Status, name};

/// The name that the author gave to the template's Revision, if another Revision has it.
pub fn conflicting_revision_name(
    configuration: &Configuration,
    find: impl FnOnce(&str) -> Option<Arc<Revision>>,
) -> Option<String> {
    let name = configuration.spec.template.explicit_name()?;
    let is_taken = matches!(adopt(configuration, find(name)?), LatestRevision::Failed(_));
    is_taken.then(|| name.to_owned())
}

/// The Service's status; `None` for a child that is not owned. `taken` is the name that its Revision cannot have.
#[must_use]
pub fn status(
    service: &Service,
    configuration: Option<&Configuration>,
    route: Option<&Route>,
    taken: Option<&str>,
    now: Timestamp,
) -> ServiceStatus {
    let mut status = service.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    let name = name(&service.metadata);

    match configuration {
        Some(configuration) => {
            mirror(&mut conditions, CONFIGURATIONS_READY, configuration, "Configuration");
            let from = configuration.status.clone().unwrap_or_default();
            status.latest_created_revision_name = from.latest_created_revision_name;
            status.latest_ready_revision_name = from.latest_ready_revision_name;
        }
        None => not_owned(&mut conditions, CONFIGURATIONS_READY, "Configuration", name),
    }
    match route {
        Some(route) => {
            mirror(&mut conditions, ROUTES_READY, route, "Route");
            let from = route.status.clone().unwrap_or_default();
            (status.url, status.address, status.traffic) = (from.url, from.address, from.traffic);
            let latest = status.latest_ready_revision_name.as_deref();
            if conditions.status_of(ROUTES_READY) == ConditionStatus::True && !traffic_has_migrated(&status, latest) {
                conditions.mark_unknown(
                    ROUTES_READY,
                    "TrafficNotMigrated",
                    "Traffic is not yet migrated to the latest revision.",
                );
            }
        }
        None => not_owned(&mut conditions, ROUTES_READY, "Route", name),
    }
    if let Some(taken) = taken.filter(|_| route.is_some()) {
        let why = format!(
            "The revision name \"{taken}\" is taken by a conflicting Revision, so traffic will not be migrated"
        );
        conditions.mark_false(ROUTES_READY, "RevisionNameTaken", &why);
    }
    status.base = Status {
        observed_generation: service.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

fn traffic_has_migrated(status: &ServiceStatus, latest: Option<&str>) -> bool {
    let floating = status.traffic.iter().filter(|target| target.latest_revision == Some(true));
    floating.map(|target| target.revision()).all(|revision| revision == latest)
}

/// A child's verdict counts only if the child has seen its current spec.
fn mirror<K: HasConditions>(conditions: &mut ConditionManager<'_>, kind: &str, child: &K, what: &str) {
    match child.ready() {
        None => conditions.mark_unknown(
            kind,
            "OutOfDate",
            &format!("The {what} is still working to reflect the latest desired specification."),
        ),
        Some(ready) => match ready.status {
            ConditionStatus::True => conditions.mark_true(kind),
            ConditionStatus::False => conditions.mark_false(kind, reason(&ready.reason), &ready.message),
            ConditionStatus::Unknown => conditions.mark_unknown(kind, &ready.reason, &ready.message),
        },
    }
}

/// A False condition has a reason (COND-18), also when the child's condition has none.
fn reason(reason: &str) -> &str {
    if reason.is_empty() { "NotReady" } else { reason }
}

fn not_owned(conditions: &mut ConditionManager<'_>, kind: &str, what: &str, name: &str) {
    conditions.mark_false(kind, "NotOwned", &format!("There is an existing {what} \"{name}\" that we do not own."));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::configuration::children::desired_revision;
    use crate::owned_child::{ChildAction, decide};
    use crate::service::children::{desired_configuration, desired_route};

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": {
                "name": "hello", "namespace": "ns", "uid": "u1", "generation": 1, "labels": {"team": "a"},
                "annotations": {
                    "note": "x",
                    "serving.knative.dev/rollout-duration": "10s",
                    "kubectl.kubernetes.io/last-applied-configuration": "{}"
                }
            },
            "spec": {
                "template": {"spec": {"containers": [{"image": "a"}]}},
                "traffic": [{"latestRevision": true, "percent": 90}, {"revisionName": "hello-1", "percent": 10}]
            }
        }))
        .unwrap()
    }

    fn take(to: &mut Configuration, from: Configuration) {
        to.spec = from.spec;
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1).unwrap()
    }

    /// A child whose status is for its current spec.
    fn settled<K: serde::de::DeserializeOwned + serde::Serialize>(child: &K, status: serde_json::Value) -> K {
        let mut json = serde_json::to_value(child).unwrap();
        json["metadata"]["generation"] = 3.into();
        json["status"] = status;
        json["status"]["observedGeneration"] = 3.into();
        serde_json::from_value(json).unwrap()
    }

    fn ready(word: &str) -> serde_json::Value {
        json!([{"type": "Ready", "status": word, "reason": "Because", "message": "of that"}])
    }

    fn find<'a>(status: &'a ServiceStatus, kind: &str) -> &'a types::shared::Condition {
        status.base.conditions.iter().find(|c| c.kind == kind).unwrap()
    }

    /// SRV-SVC-02, SRV-SVC-03, SRV-SVC-05, SRV-SVC-06: what the children get, and what is kept from them.
    #[test]
    fn children_inherit_labels_annotations_template_and_traffic() {
        let service = service();
        let configuration = desired_configuration(&service);
        let route = desired_route(&service);
        let keys = |map: &Option<std::collections::BTreeMap<String, String>>| {
            map.iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        assert_eq!(keys(&configuration.metadata.labels), ["serving.knative.dev/service", "team"]);
        assert_eq!(keys(&configuration.metadata.annotations), ["note", "serving.knative.dev/routes"]);
        assert_eq!(keys(&route.metadata.annotations), ["note", "serving.knative.dev/rollout-duration"]);
        assert_eq!(configuration.spec.template, service.spec.template);
        assert_eq!(route.spec.traffic[0].configuration_name.as_deref(), Some("hello"));
        assert_eq!(route.spec.traffic[1].configuration_name, None);
    }

    /// SRV-OWN-02, SRV-SVC-04: created when absent, kept when equal, reset when changed, untouched when foreign.
    #[test]
    fn a_child_is_created_kept_reset_or_left_alone() {
        let service = service();
        let wanted = desired_configuration(&service);
        let of = |existing: Option<&Configuration>| decide(&service.metadata, existing, wanted.clone(), take);

        assert_eq!(of(None), ChildAction::Create(wanted.clone()));
        assert_eq!(of(Some(&wanted)), ChildAction::Keep(wanted.clone()));

        let mut drifted = wanted.clone();
        drifted.spec.template.spec.timeout_seconds = Some(9);
        drifted.metadata.labels.get_or_insert_default().insert("stray".into(), "1".into());
        assert_eq!(of(Some(&drifted)), ChildAction::Replace(wanted.clone()));

        let mut foreign = wanted.clone();
        foreign.metadata.owner_references = None;
        assert_eq!(of(Some(&foreign)), ChildAction::NotOwned);
    }

    /// SRV-SVC-07, SRV-SVC-08, SRV-OWN-03: each state of the children and the reason that it gives.
    #[test]
    fn the_status_mirrors_the_children() {
        let service = service();
        let (configuration, route) = (desired_configuration(&service), desired_route(&service));
        let good = settled(&configuration, json!({"latestReadyRevisionName": "hello-2", "conditions": ready("True")}));
        let traffic = |revision: &str| {
            json!({
                "url": "http://hello", "conditions": ready("True"),
                "traffic": [{"revisionName": revision, "latestRevision": true, "percent": 100}]
            })
        };
        let flowing = settled(&route, traffic("hello-2"));

        let all_ready = status(&service, Some(&good), Some(&flowing), None, now());
        assert_eq!(find(&all_ready, "Ready").status, ConditionStatus::True);
        assert_eq!(all_ready.url.as_deref(), Some("http://hello"));
        assert_eq!(all_ready.latest_ready_revision_name.as_deref(), Some("hello-2"));

        let behind = status(&service, Some(&configuration), Some(&flowing), None, now());
        // A fresh child has no generation and no status yet.
        assert_eq!(find(&behind, CONFIGURATIONS_READY).reason, "OutOfDate");
        let old = status(&service, Some(&good), Some(&settled(&route, traffic("hello-1"))), None, now());
        assert_eq!(find(&old, ROUTES_READY).reason, "TrafficNotMigrated");
        assert_eq!(find(&old, "Ready").status, ConditionStatus::Unknown);
        let failed = settled(&configuration, json!({"conditions": ready("False")}));
        let failed = status(&service, Some(&failed), Some(&flowing), None, now());
        assert_eq!(
            (find(&failed, "Ready").status, find(&failed, "Ready").reason.as_str()),
            (ConditionStatus::False, "Because")
        );
        let foreign = status(&service, Some(&good), None, None, now());
        assert_eq!(find(&foreign, ROUTES_READY).reason, "NotOwned");
    }

    /// SRV-CFG-09: traffic stays where it is while another Revision has the name that the author chose.
    #[test]
    fn conflicting_name_is_reported_on_routes() {
        let mut service = service();
        service.spec.template.metadata.name = Some("hello-one".into());
        let (mut configuration, route) = (desired_configuration(&service), desired_route(&service));
        configuration.metadata.uid = Some("u2".into());
        let made = desired_revision(&configuration, false, now());
        let taken =
            |found: Option<&Revision>| conflicting_revision_name(&configuration, |_| found.cloned().map(Arc::new));
        assert_eq!(taken(None), None);
        assert_eq!(taken(Some(&made)), None);
        let mut other = made.clone();
        other.spec.timeout_seconds = Some(9);
        assert_eq!(taken(Some(&other)).as_deref(), Some("hello-one"));

        let status = status(&service, Some(&configuration), Some(&route), Some("hello-one"), now());
        let reported = find(&status, ROUTES_READY);
        assert_eq!((reported.status, reported.reason.as_str()), (ConditionStatus::False, "RevisionNameTaken"));
        assert!(reported.message.contains("\"hello-one\""), "{}", reported.message);
    }
}
