//! Service, Configuration, Revision, Route: from a manifest to a table and back.

use kube::api::PostParams;
use serde_json::{Value, json};
use sluicegate_control::kinds::serving::configuration::Configuration;
use sluicegate_control::kinds::serving::revision::Revision;
use sluicegate_control::kinds::serving::route::Route;
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::kinds::shared::{ConditionStatus, HasConditions, controller};

use crate::control_plane::{NS, TestControlPlane, in_a_control_plane, splits};

pub(crate) fn hello(image: &str) -> Value {
    json!({
        "metadata": {"name": "hello", "namespace": NS, "labels": {"team": "a"}},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}}
    })
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"image": image}]}}}})
}

fn latest_ready(service: &Service) -> Option<&str> {
    service.status.as_ref()?.latest_ready_revision_name.as_deref()
}

/// SRV-SVC-01, SRV-SVC-03, SRV-SVC-08, SRV-SVC-13, SRV-SVC-16..20, SRV-OWN-01, COND-12: a manifest with
/// nothing but an image becomes children, an instance, a table, and only then Ready.
#[test]
fn a_service_becomes_ready_with_its_children_and_its_host() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        let service = control_plane.until_ready::<Service>("hello").await;

        // Checked right after Ready was seen: traffic flows already.
        assert_eq!(control_plane.splits("hello.default.test:8080"), [("default/hello-00001".into(), 100)]);
        assert_eq!(control_plane.splits("hello.default.svc.cluster.local").len(), 1);
        let endpoints =
            control_plane.table(|t| t.route("hello.default.test").unwrap().splits[0].backend.endpoints.len());
        assert_eq!(endpoints, 1);

        let status = service.status.clone().unwrap();
        assert_eq!(status.url.as_deref(), Some("http://hello.default.test:8080"));
        assert_eq!(status.address.unwrap().url.as_deref(), Some("http://hello.default.svc.cluster.local"));
        assert_eq!(status.latest_created_revision_name.as_deref(), Some("hello-00001"));
        assert_eq!(status.latest_ready_revision_name.as_deref(), Some("hello-00001"));
        assert_eq!(status.traffic.iter().filter_map(|t| t.percent).sum::<i64>(), 100);
        let kinds: Vec<_> = status.base.conditions.iter().map(|c| c.kind.as_str()).collect();
        assert_eq!(kinds, ["ConfigurationsReady", "Ready", "RoutesReady"]);

        let configuration = control_plane.api::<Configuration>().get("hello").await.unwrap();
        let route = control_plane.api::<Route>().get("hello").await.unwrap();
        for meta in [&configuration.metadata, &route.metadata] {
            assert_eq!(controller(meta).unwrap().uid, *service.metadata.uid.as_ref().unwrap());
            assert_eq!(meta.labels.as_ref().unwrap()["serving.knative.dev/service"], "hello");
            assert_eq!(meta.labels.as_ref().unwrap()["team"], "a");
        }
        assert_eq!(configuration.spec.template, service.spec.template);
    });
}

/// SRV-CFG-03, SRV-CFG-04, SRV-CFG-05, SRV-CFG-07, SRV-CFG-08: what a Revision carries, and what not.
#[test]
fn a_revision_carries_its_origin_and_the_templates_labels_only() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let mut manifest = hello("v1");
        manifest["spec"]["template"]["metadata"] = json!({"labels": {"from": "template"}});
        control_plane.create::<Service>(manifest).await;
        control_plane.until_ready::<Service>("hello").await;
        let revision = control_plane.api::<Revision>().get("hello-00001").await.unwrap();
        let labels = revision.metadata.labels.unwrap();
        assert_eq!(labels["serving.knative.dev/configuration"], "hello");
        assert_eq!(labels["serving.knative.dev/configurationGeneration"], "1");
        assert_eq!(labels["serving.knative.dev/service"], "hello");
        assert_eq!(labels["from"], "template");
        assert!(!labels.contains_key("team"));
        let status = revision.status.unwrap();
        assert_eq!((status.actual_replicas, status.desired_replicas), (Some(1), Some(1)));
        assert_eq!(status.container_statuses[0].name, "user-container");
    });
}

/// SRV-CFG-01, SRV-API-02, SRV-ROUTE-02: a changed template makes one Revision, a changed label none.
#[test]
fn a_template_change_makes_one_revision_and_moves_the_traffic() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.patch::<Service>("hello", image("v2")).await;
        control_plane.until::<Service>("hello", |s| s.is_ready() && latest_ready(s) == Some("hello-00002")).await;
        assert_eq!(control_plane.splits("hello.default.test"), [("default/hello-00002".into(), 100)]);

        control_plane.patch::<Service>("hello", json!({"metadata": {"labels": {"x": "y"}}})).await;
        let label = |c: &Configuration| c.metadata.labels.as_ref().is_some_and(|l| l.contains_key("x"));
        control_plane.until::<Configuration>("hello", label).await;
        control_plane.until_ready::<Service>("hello").await;
        assert_eq!(control_plane.api::<Revision>().list(&Default::default()).await.unwrap().items.len(), 2);
    });
}

/// SRV-ROUTE-01, SRV-ROUTE-10, SRV-TT-04: weights and tags reach the table; a tag at 0 percent has its URL.
#[test]
fn traffic_is_split_and_tagged_as_written() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.patch::<Service>("hello", image("v2")).await;
        control_plane.until::<Service>("hello", |s| latest_ready(s) == Some("hello-00002")).await;
        let traffic = json!({"spec": {"traffic": [
            {"revisionName": "hello-00001", "percent": 90, "tag": "old"},
            {"latestRevision": true, "percent": 10},
            {"revisionName": "hello-00002", "tag": "next"}
        ]}});
        control_plane.patch::<Service>("hello", traffic).await;
        let tagged = |s: &Service| s.is_ready() && s.status.as_ref().is_some_and(|s| s.traffic.len() == 3);
        let service = control_plane.until::<Service>("hello", tagged).await;
        assert_eq!(
            control_plane.splits("hello.default.test"),
            [("default/hello-00001".into(), 90), ("default/hello-00002".into(), 10)]
        );
        assert_eq!(control_plane.splits("next-hello.default.test"), [("default/hello-00002".into(), 100)]);
        let urls: Vec<_> = service.status.unwrap().traffic.into_iter().map(|t| t.url).collect();
        assert_eq!(urls[2].as_deref(), Some("http://next-hello.default.test:8080"));
        assert_eq!(urls[1], None);
    });
}

/// SRV-CFG-10: the latest ready one stays while newer ones fail; the Service reports it and continues serving.
#[test]
fn a_failing_revision_takes_no_traffic_and_is_shown() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.patch::<Service>("hello", image("broken")).await;
        control_plane.until_not_ready::<Service>("hello", "RevisionFailed").await;
        let configuration = control_plane.api::<Configuration>().get("hello").await.unwrap().status.unwrap();
        assert_eq!(configuration.latest_created_revision_name.as_deref(), Some("hello-00002"));
        assert_eq!(configuration.latest_ready_revision_name.as_deref(), Some("hello-00001"));
        assert_eq!(control_plane.splits("hello.default.test"), [("default/hello-00001".into(), 100)]);
        let revision = control_plane.api::<Revision>().get("hello-00002").await.unwrap();
        let healthy = revision.condition("ContainerHealthy").unwrap();
        assert_eq!((healthy.status, healthy.reason.as_str()), (ConditionStatus::False, "ExitCode3"));
        assert!(healthy.message.contains("bad flag"));
    });
}

/// SRV-CFG-02: the author's name is the Revision's.
#[test]
fn a_revision_has_the_name_that_its_author_gave() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let mut manifest = hello("v1");
        manifest["spec"]["template"]["metadata"] = json!({"name": "hello-mine"});
        control_plane.create::<Service>(manifest).await;
        let service = control_plane.until_ready::<Service>("hello").await;
        assert_eq!(latest_ready(&service), Some("hello-mine"));
    });
}

/// SRV-CFG-09: a name that another Configuration's Revision has fails this one, and nothing is taken over.
#[test]
fn a_taken_revision_name_fails_the_configuration() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let named = |configuration: &str, name: &str| {
            json!({
                "metadata": {"name": configuration, "namespace": NS},
                "spec": {"template": {"metadata": {"name": name}, "spec": {"containers": [{"image": "v1"}]}}}
            })
        };
        control_plane.create::<Configuration>(named("a", "a-b-one")).await;
        control_plane.until_ready::<Configuration>("a").await;
        control_plane.create::<Configuration>(named("a-b", "a-b-one")).await;
        control_plane.until_not_ready::<Configuration>("a-b", "RevisionFailed").await;
        let revision = control_plane.api::<Revision>().get("a-b-one").await.unwrap();
        assert_eq!(controller(&revision.metadata).unwrap().name, "a");

        control_plane.delete::<Configuration>("a").await;
        control_plane.until_ready::<Configuration>("a-b").await;
    });
}

/// SRV-CFG-09: while another Revision has the name that the author chose, the Service says so, and no traffic moves
/// to that Revision.
#[test]
fn a_service_whose_revisions_name_is_taken_leaves_its_traffic_alone() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let template =
            |name: &str, image: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"image": image}]}});
        let mut first = hello("v1");
        first["spec"]["template"] = template("hello-one", "v1");
        control_plane.create::<Service>(first).await;
        control_plane.until_ready::<Service>("hello").await;
        let second = json!({"spec": {"template": template("hello-two", "v1")}});
        control_plane.patch::<Service>("hello", second).await;
        control_plane.until_ready::<Service>("hello").await;

        let clash = json!({"spec": {
            "template": template("hello-one", "v2"), "traffic": [{"revisionName": "hello-one", "percent": 100}]
        }});
        control_plane.patch::<Service>("hello", clash).await;
        let is_reported = |service: &Service| {
            let reported = service.status.iter().flat_map(|status| &status.base.conditions);
            reported.into_iter().any(|c| c.kind == "RoutesReady" && c.reason == "RevisionNameTaken")
        };
        control_plane.until::<Service>("hello", is_reported).await;
        let route = control_plane.api::<Route>().get("hello").await.unwrap();
        assert_eq!(route.status.unwrap().traffic[0].revision_name.as_deref(), Some("hello-two"));

        control_plane.delete::<Revision>("hello-one").await;
        control_plane.until_ready::<Service>("hello").await;
        let route = control_plane.api::<Route>().get("hello").await.unwrap();
        assert_eq!(route.status.unwrap().traffic[0].revision_name.as_deref(), Some("hello-one"));
    });
}

/// SRV-SVC-02, SRV-SVC-04, SRV-SVC-09, SRV-SVC-10: children follow the Service, and drift is undone.
#[test]
fn what_others_change_on_children_is_reset() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        let foreign = json!({"metadata": {"labels": {"stray": "1"}}, "spec": {"traffic": [
            {"revisionName": "hello-00001", "percent": 100}]}});
        let changed = control_plane.patch::<Route>("hello", foreign).await;
        assert!(changed.metadata.labels.unwrap().contains_key("stray"));
        let reset = |r: &Route| {
            !r.metadata.labels.as_ref().unwrap().contains_key("stray")
                && r.spec.traffic[0].configuration_name.as_deref() == Some("hello")
        };
        control_plane.until::<Route>("hello", reset).await;

        let changed = control_plane.patch::<Configuration>("hello", image("v2")).await;
        assert_eq!(changed.spec.template.spec.containers[0].image.as_deref(), Some("v2"));
        let first = |c: &Configuration| c.spec.template.spec.containers[0].image.as_deref() == Some("v1");
        control_plane.until::<Configuration>("hello", first).await;

        control_plane.patch::<Service>("hello", json!({"metadata": {"annotations": {"note": "x"}}})).await;
        let noted = |r: &Route| r.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("note"));
        control_plane.until::<Route>("hello", noted).await;
        control_plane.patch::<Service>("hello", json!({"metadata": {"annotations": {"note": null}}})).await;
        control_plane.until::<Route>("hello", |r| !noted(r)).await;
        control_plane.until_ready::<Service>("hello").await;
    });
}

/// SRV-OWN-02, SRV-OWN-03: a Route with another owner stays as it was, and the Service says so for as long as it
/// exists.
#[test]
fn a_foreign_child_is_left_alone_and_shown() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let foreign = json!({
            "metadata": {"name": "hello", "namespace": NS},
            "spec": {"traffic": [{"revisionName": "elsewhere", "percent": 100}]}
        });
        let before = control_plane.create::<Route>(foreign).await;
        control_plane.create::<Service>(hello("v1")).await;
        let shown = |s: &Service| s.condition("RoutesReady").is_some_and(|c| c.reason == "NotOwned");
        control_plane.until::<Service>("hello", shown).await;
        let after = control_plane.api::<Route>().get("hello").await.unwrap();
        assert_eq!(after.spec, before.spec);
        assert!(controller(&after.metadata).is_none());
        control_plane.delete::<Route>("hello").await;
        control_plane.until_ready::<Service>("hello").await;
    });
}

/// SRV-OWN-04, SRV-API-04, SRV-API-29: with the Service goes all it owns, in the API and in the table.
#[test]
fn deleting_a_service_clears_children_instances_and_hosts() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.delete::<Service>("hello").await;
        control_plane.until_gone::<Revision>("hello-00001").await;
        control_plane.until_gone::<Configuration>("hello").await;
        control_plane.until_gone::<Route>("hello").await;
        control_plane.until_table("without the host", |table| table.route("hello.default.test").is_none()).await;
        control_plane.until_nobody_runs("default/hello-00001").await;
    });
}

/// SRV-API-17, SRV-API-26, SRV-CFG-11, SRV-TT-02: Route and Configuration work without a Service, and the Route moves
/// with what is the latest ready.
#[test]
fn a_route_of_its_own_follows_a_configuration_of_its_own() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let route = json!({
            "metadata": {"name": "front", "namespace": NS},
            "spec": {"traffic": [{"configurationName": "back", "percent": 100}]}
        });
        control_plane.create::<Route>(route).await;
        control_plane.until_not_ready::<Route>("front", "ConfigurationMissing").await;
        let configuration = json!({
            "metadata": {"name": "back", "namespace": NS},
            "spec": {"template": {"spec": {"containers": [{"image": "v1"}]}}}
        });
        control_plane.create::<Configuration>(configuration).await;
        control_plane.until_ready::<Route>("front").await;
        assert_eq!(control_plane.splits("front.default.test"), [("default/back-00001".into(), 100)]);
        let next = json!({"spec": {"template": {"spec": {"containers": [{"image": "v2"}]}}}});
        control_plane.patch::<Configuration>("back", next).await;
        let moved = [("default/back-00002".to_owned(), 100)];
        control_plane.until_table("with the next", |table| splits(table, "front.default.test") == moved).await;
    });
}

/// SRV-CFG-06: what a Configuration's own metadata says later does not come into Revisions that are there.
#[test]
fn a_revision_keeps_its_metadata_when_the_configuration_changes_its_own() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        let before = control_plane.until::<Revision>("hello-00001", |_| true).await;
        let label = json!({"metadata": {"labels": {"team": "blue"}, "annotations": {"note": "later"}}});
        control_plane.patch::<Configuration>("hello", label).await;
        control_plane
            .until::<Configuration>("hello", |c| c.metadata.labels.as_ref().is_some_and(|l| l.contains_key("team")))
            .await;
        // Whatever that sets off is done when a change behind it is.
        control_plane.patch::<Service>("hello", image("v2")).await;
        control_plane.until::<Service>("hello", |service| latest_ready(service) == Some("hello-00002")).await;
        let after = control_plane.until::<Revision>("hello-00001", |_| true).await;
        let of = |revision: &Revision| revision.metadata.labels.clone().unwrap_or_default();
        assert!(!of(&after).contains_key("team"), "{after:?}");
        let note = after.metadata.annotations.as_ref().and_then(|all| all.get("note"));
        assert_eq!((note, after.metadata.uid), (None, before.metadata.uid));
    });
}

/// COND-12, SRV-ROUTE-06, SRV-ROUTE-07: a status never promises weights that the table does not have yet.
#[test]
fn weights_are_in_the_table_before_they_are_in_the_status() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.patch::<Service>("hello", image("v2")).await;
        control_plane.until::<Service>("hello", |s| s.is_ready() && latest_ready(s) == Some("hello-00002")).await;
        let targets = |first: i64| {
            json!([{"revisionName": "hello-00001", "percent": first},
                   {"revisionName": "hello-00002", "percent": 100 - first}])
        };
        let route = json!({"metadata": {"name": "own", "namespace": NS}, "spec": {"traffic": targets(1)}});
        control_plane.create::<Route>(route).await;
        for first in 1..30 {
            control_plane.patch::<Route>("own", json!({"spec": {"traffic": targets(first)}})).await;
            let shown = |r: &Route| r.is_ready() && r.status.as_ref().unwrap().traffic[0].percent == Some(first);
            control_plane.until::<Route>("own", shown).await;
            assert_eq!(control_plane.splits("own.default.test")[0], ("default/hello-00001".into(), first as u32));
        }
    });
}

/// AMB-06: an image that nothing runs is shown as such.
#[test]
fn an_image_without_a_runner_is_not_ready_with_that_reason() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("ghcr.io/acme/unknown:1")).await;
        control_plane.until_not_ready::<Service>("hello", "RevisionFailed").await;
        let revision = control_plane.api::<Revision>().get("hello-00001").await.unwrap();
        let available = revision.condition("ResourcesAvailable").unwrap();
        assert_eq!((available.status, available.reason.as_str()), (ConditionStatus::False, "NoRuntime"));
    });
}

/// COND-22, SRV-SVC-15: no status has a new generation with the conditions of the old one.
#[test]
fn the_observed_generation_moves_together_with_the_verdict() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.patch::<Service>("hello", image("slow")).await;
        let seen = |s: &Service| s.status.as_ref().is_some_and(|st| st.base.observed_generation == Some(2));
        let service = control_plane.until::<Service>("hello", seen).await;
        assert_eq!(service.condition("Ready").unwrap().status, ConditionStatus::Unknown);
    });
}

/// APP-40, COND-08: once all is well nothing is written any more.
#[test]
fn a_settled_control_plane_writes_nothing() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        let version =
            async || control_plane.api::<Service>().list(&Default::default()).await.unwrap().metadata.resource_version;
        // Looks that were already in progress may still end.
        let (mut settled, mut quiet) = (version().await, 0);
        for _ in 0..1_000 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            let now = version().await;
            quiet = if now == settled { quiet + 1 } else { 0 };
            settled = now;
            if quiet == 20 {
                break;
            }
        }
        // A write without a change is not stored, and triggers no reconcile that writes.
        let service = control_plane.api::<Service>().get("hello").await.unwrap();
        control_plane.api::<Service>().replace("hello", &PostParams::default(), &service).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(version().await, settled);
    });
}

/// SRV-ROUTE-03, SRV-REV-07: a Revision that lost its traffic is in reserve, keeps no instances for its min-scale,
/// and is active again when a Route names it.
#[test]
fn a_version_without_traffic_is_in_reserve() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let mut manifest = hello("v1");
        manifest["spec"]["template"]["metadata"] = json!({"annotations": {"autoscaling.knative.dev/min-scale": "2"}});
        control_plane.create::<Service>(manifest).await;
        control_plane.until_ready::<Service>("hello").await;
        let in_state = |wanted: &'static str, replicas: i32| {
            move |r: &Revision| {
                let label = &r.metadata.labels.as_ref().unwrap()["serving.knative.dev/routingState"];
                label == wanted && r.status.as_ref().is_some_and(|s| s.desired_replicas == Some(replicas))
            }
        };
        control_plane.until::<Revision>("hello-00001", in_state("active", 2)).await;
        control_plane.patch::<Service>("hello", image("v2")).await;
        control_plane.until::<Revision>("hello-00002", in_state("active", 2)).await;
        let reserved =
            |r: &Revision| r.metadata.labels.as_ref().unwrap()["serving.knative.dev/routingState"] == "reserve";
        control_plane.until::<Revision>("hello-00001", reserved).await;
        let pinned = json!({"spec": {"traffic": [{"revisionName": "hello-00001", "percent": 100}]}});
        control_plane.patch::<Service>("hello", pinned).await;
        control_plane.until::<Revision>("hello-00001", in_state("active", 2)).await;
        control_plane.until::<Revision>("hello-00002", reserved).await;
    });
}
