//! Rollouts from one version to the next.

use serde_json::{Value, json};
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::kinds::shared::HasConditions;

use crate::control_plane::{NS, TestControlPlane, in_a_control_plane};

/// SRV-CFG-10: traffic moves to a new version only when as many of its instances are ready as
/// the old one has; the table never shows less.
#[test]
fn a_new_version_takes_over_with_the_strength_of_the_old() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let template = |image: &str, annotations: Value| {
            json!({"spec": {"template": {
                "metadata": {"annotations": annotations}, "spec": {"containers": [{"image": image}]}
            }}})
        };
        let mut first = template("v1", json!({"autoscaling.knative.dev/min-scale": "3"}));
        first["metadata"] = json!({"name": "hello", "namespace": NS});
        control_plane.create::<Service>(first).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.until_table("with three instances", |t| strength(t) == Some(3)).await;

        control_plane
            .patch::<Service>("hello", template("v2", json!({"autoscaling.knative.dev/min-scale": null})))
            .await;
        control_plane
            .until::<Service>("hello", |s| {
                s.is_ready() && s.status.as_ref().unwrap().latest_ready_revision_name.as_deref() == Some("hello-00002")
            })
            .await;
        control_plane
            .until_table("of the second version", |t| serving(t).as_deref() == Some("default/hello-00002"))
            .await;
        assert!(
            control_plane.always(|t| serving(t).as_deref() != Some("default/hello-00002") || strength(t) >= Some(3))
        );
    });
}

type PublishedTable = dataplane::table::RoutingTable;

fn serving(table: &PublishedTable) -> Option<String> {
    Some(table.route("hello.default.test")?.splits[0].backend.key.to_string())
}

/// Ready instances of the Revision that serves.
fn strength(table: &PublishedTable) -> Option<usize> {
    Some(table.route("hello.default.test")?.splits[0].backend.endpoints.len())
}
