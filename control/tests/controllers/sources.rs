//! Revisions with variables and files from other objects.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use sluicegate_control::kinds::serving::revision::{RESOURCES_AVAILABLE, Revision};
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::kinds::shared::HasConditions;

use crate::control_plane::{NS, TestControlPlane, in_a_control_plane};

fn service(container: &Value, volumes: &Value) -> Value {
    let mut container = container.clone();
    container["image"] = "v1".into();
    json!({
        "metadata": {"name": "hello", "namespace": NS},
        "spec": {"template": {
            "metadata": {"annotations": {"runtime.sluicegate.dev/volumes": "env"}},
            "spec": {"containers": [container], "volumes": volumes}
        }}
    })
}

/// COND-10, COND-18: what is missing is said where a kubelet's refusal is said, and its coming is noticed.
#[test]
fn a_revision_waits_for_its_config_map_and_names_it() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let container = json!({"envFrom": [{"configMapRef": {"name": "settings"}}]});
        control_plane.create::<Service>(service(&container, &json!([]))).await;
        let refused = control_plane.until_not_ready::<Revision>("hello-00001", "CreateContainerConfigError").await;
        let resources = refused.condition(RESOURCES_AVAILABLE).unwrap();
        assert_eq!(resources.message, "configmap \"settings\" not found");
        assert_eq!(control_plane.autoscaler.status("default/hello-00001").desired, 0);

        control_plane.create::<ConfigMap>(json!({"metadata": {"name": "settings"}, "data": {"A": "1"}})).await;
        control_plane.until_ready::<Service>("hello").await;
    });
}

#[test]
fn a_secret_that_goes_away_stops_nobody_who_runs() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Secret>(json!({"metadata": {"name": "keys"}, "stringData": {"token": "t"}})).await;
        let container = json!({"volumeMounts": [{"name": "keys", "mountPath": "/keys"}]});
        let volumes = json!([{"name": "keys", "secret": {"secretName": "keys"}}]);
        control_plane.create::<Service>(service(&container, &volumes)).await;
        control_plane.until_ready::<Service>("hello").await;

        control_plane.delete::<Secret>("keys").await;
        control_plane.create::<Secret>(json!({"metadata": {"name": "other"}, "stringData": {"token": "t"}})).await;
        control_plane.patch::<Service>("hello", json!({"metadata": {"labels": {"looked": "again"}}})).await;
        control_plane.until::<Revision>("hello-00001", |r| r.is_ready()).await;
        assert_eq!(control_plane.autoscaler.status("default/hello-00001").actual, 1);
    });
}
