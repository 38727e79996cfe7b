//! The hosts of Routes: their owners, their names, and the Routes that reach a Revision.

use k8s_openapi::api::core::v1::{ConfigMap, Service as CoreService};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use sluicegate_control::kinds::serving::configuration::Configuration;
use sluicegate_control::kinds::serving::revision::Revision;
use sluicegate_control::kinds::serving::route::Route;
use sluicegate_control::kinds::serving::service::Service;

use crate::control_plane::{NS, TestControlPlane, in_a_control_plane};

/// SRV-REQ-04 (AMB-05): the second Route with the same host is not ready and steals nothing.
#[test]
fn a_host_stays_with_its_first_route() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let configuration = json!({
            "metadata": {"name": "back", "namespace": NS},
            "spec": {"template": {"spec": {"containers": [{"image": "v1"}]}}}
        });
        control_plane.create::<Configuration>(configuration).await;
        let route = |name: &str, tag: Value| {
            json!({
                "metadata": {"name": name, "namespace": NS},
                "spec": {"traffic": [{"configurationName": "back", "percent": 100, "tag": tag}]}
            })
        };
        control_plane.create::<Route>(route("a", json!("b"))).await;
        control_plane.until_ready::<Route>("a").await;
        control_plane.create::<Route>(route("b-a", Value::Null)).await;
        control_plane.until_not_ready::<Route>("b-a", "NotOwned").await;
        control_plane.until_ready::<Route>("a").await;

        control_plane.delete::<Route>("a").await;
        control_plane.until_ready::<Route>("b-a").await;
    });
}

/// AMB-05, COND-11, COND-12: who was refused a host has it as soon as the first one drops the tag, with all that is
/// its own.
#[test]
fn a_host_that_a_tag_had_goes_to_the_route_that_waits_for_it() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(tagged("q0", json!("x"))).await;
        control_plane.until_ready::<Service>("q0").await;
        control_plane.create::<Service>(tagged("x-q0", Value::Null)).await;
        control_plane.until_not_ready::<Route>("x-q0", "NotOwned").await;
        let untagged = json!({"spec": {"traffic": [{"latestRevision": true, "percent": 100}]}});
        control_plane.patch::<Service>("q0", untagged).await;
        control_plane.until_ready::<Service>("x-q0").await;
        assert_eq!(control_plane.splits("x-q0.default.test"), [("default/x-q0-00001".into(), 100)]);
        let owns = |service: &CoreService| {
            let mut owners = service.metadata.owner_references.iter().flatten();
            owners.any(|owner| owner.kind == "Route" && owner.name == "x-q0")
        };
        control_plane.until::<CoreService>("x-q0", owns).await;
    });
}

fn tagged(name: &str, tag: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": NS},
        "spec": {
            "template": {"spec": {"containers": [{"image": "v1"}]}},
            "traffic": [{"latestRevision": true, "percent": 100, "tag": tag}]
        }
    })
}

/// COND-12: a Route whose tag and name make more than a label is not ready, and continues as it was.
#[test]
fn unresolvable_tag_is_reported_and_changes_nothing() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let name = "n".repeat(50);
        control_plane.create::<Service>(tagged(&name, json!("short"))).await;
        control_plane.until_ready::<Service>(&name).await;
        let host = format!("short-{name}.default.test");
        let long = tagged(&name, json!("t".repeat(20)))["spec"]["traffic"].clone();
        control_plane.patch::<Service>(&name, json!({"spec": {"traffic": long}})).await;
        control_plane.until_not_ready::<Route>(&name, "InvalidDomain").await;
        assert_eq!(control_plane.splits(&host).len(), 1);
        control_plane
            .patch::<Service>(&name, json!({"spec": {"traffic": [{"latestRevision": true, "percent": 100}]}}))
            .await;
        control_plane.until_ready::<Service>(&name).await;
        control_plane.until_table("without the tag", |table| table.route(&host).is_none()).await;
    });
}

/// X-RTE-02: hosts follow the labels that the operator's template speaks of.
#[test]
fn a_host_follows_the_labels_of_its_service() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let maps: Api<ConfigMap> = Api::namespaced(control_plane.client.clone(), "knative-serving");
        let template = "{{.Name}}.{{index .Labels \"team\"}}.{{.Domain}}";
        let patch = Patch::Merge(json!({"data": {"domain-template": template}}));
        maps.patch("config-network", &PatchParams::default(), &patch).await.unwrap();
        control_plane.create::<Service>(tagged("app", Value::Null)).await;
        control_plane.until_not_ready::<Route>("app", "InvalidDomain").await;
        for team in ["red", "blue"] {
            control_plane.patch::<Service>("app", json!({"metadata": {"labels": {"team": team}}})).await;
            let url = format!("http://app.{team}.test:8080");
            let shows = |s: &Service| s.status.as_ref().is_some_and(|s| s.url.as_deref() == Some(&*url));
            control_plane.until::<Service>("app", shows).await;
            control_plane
                .until_table("with the team", |table| table.route(&format!("app.{team}.test")).is_some())
                .await;
        }
        assert!(control_plane.table(|table| table.route("app.red.test").is_none()));
    });
}

/// X-RTE-12: a Revision lists the Routes that send to it, however they refer to it, or none.
#[test]
fn a_revision_lists_the_routes_that_send_to_it() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(tagged("app", Value::Null)).await;
        control_plane.until_ready::<Service>("app").await;
        let listed = |wanted: Option<&'static str>| {
            move |revision: &Revision| {
                let annotations = revision.metadata.annotations.as_ref();
                let routes = annotations.and_then(|all| all.get("serving.knative.dev/routes"));
                routes.map(String::as_str) == wanted
            }
        };
        control_plane.until::<Revision>("app-00001", listed(Some("app"))).await;
        let to = |name: &str, target: Value| json!({"metadata": {"name": name, "namespace": NS}, "spec": {"traffic": [target]}});
        control_plane.create::<Route>(to("zoo", json!({"revisionName": "app-00001", "percent": 100}))).await;
        control_plane.create::<Route>(to("any", json!({"configurationName": "app", "percent": 100}))).await;
        control_plane.until::<Revision>("app-00001", listed(Some("any,app,zoo"))).await;
        let next = json!({"spec": {"template": {"spec": {"containers": [{"image": "v2"}]}}}});
        control_plane.patch::<Service>("app", next).await;
        control_plane.until::<Revision>("app-00001", listed(Some("zoo"))).await;
        control_plane.until::<Revision>("app-00002", listed(Some("any,app"))).await;
        control_plane.delete::<Route>("zoo").await;
        control_plane.until::<Revision>("app-00001", listed(None)).await;
    });
}
