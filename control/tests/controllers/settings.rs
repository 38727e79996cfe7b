//! The operator's ConfigMaps.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use sluicegate_control::kinds::serving::revision::Revision;
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::kinds::sources::SourceStatus;
use sluicegate_control::kinds::sources::api_server::ApiServerSource;
use sluicegate_control::kinds::sources::container::ContainerSource;
use sluicegate_control::kinds::sources::sink_binding::SinkBinding;

use crate::control_plane::{TestControlPlane, in_a_control_plane};
use crate::serving::hello;

/// X-AS: `config-autoscaler` is there from the start, refuses what it cannot mean, and is obeyed at once.
#[test]
fn the_operators_scaling_is_checked_and_followed_live() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let maps: Api<ConfigMap> = Api::namespaced(control_plane.client.clone(), "knative-serving");
        let fresh = maps.get("config-autoscaler").await.unwrap();
        assert!(fresh.data.unwrap()["_example"].contains("stable-window"));

        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        let patch = |value: &str| Patch::Merge(json!({"data": {"min-scale": value}}));
        let refused = maps.patch("config-autoscaler", &PatchParams::default(), &patch("many")).await.unwrap_err();
        assert!(refused.to_string().contains("data[min-scale]"), "{refused}");

        maps.patch("config-autoscaler", &PatchParams::default(), &patch("3")).await.unwrap();
        control_plane
            .until_table("with three instances", |table| {
                table.route("hello.default.test").is_some_and(|r| r.splits[0].backend.endpoints.len() == 3)
            })
            .await;
    });
}

/// SRV-REV-08: an unused Revision is deleted once config-gc says so, and the one in use never is.
#[test]
fn revisions_out_of_use_are_deleted_as_config_gc_says() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        let second = json!({"spec": {"template": {"spec": {"containers": [{"image": "v2"}]}}}});
        control_plane.patch::<Service>("hello", second).await;
        control_plane
            .until::<Service>("hello", |s| {
                s.status.as_ref().and_then(|s| s.latest_ready_revision_name.as_deref()) == Some("hello-00002")
            })
            .await;
        assert!(control_plane.api::<Revision>().get_opt("hello-00001").await.unwrap().is_some());

        let maps: Api<ConfigMap> = Api::namespaced(control_plane.client.clone(), "knative-serving");
        let all_go = Patch::Merge(json!({"data": {
            "retain-since-create-time": "0s", "retain-since-last-active-time": "0s", "min-non-active-revisions": "0"
        }}));
        maps.patch("config-gc", &PatchParams::default(), &all_go).await.unwrap();
        control_plane.until_gone::<Revision>("hello-00001").await;
        control_plane.until_ready::<Service>("hello").await;
        assert!(control_plane.api::<Revision>().get_opt("hello-00002").await.unwrap().is_some());
    });
}

/// X-FEA-02: the settings decide where a reference leads, for sources as for all other objects.
#[test]
fn sink_of_source_follows_changed_settings() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<ConfigMap>(json!({"metadata": {"name": "box"}})).await;
        let sink = json!({"ref": {"apiVersion": "v1", "kind": "ConfigMap", "name": "box"}});
        let metadata = json!({"name": "one"});
        let resources = json!([{"apiVersion": "v1", "kind": "Event"}]);
        let template = json!({"spec": {"containers": [{"name": "a", "image": "a"}]}});
        let subject = json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "other"});
        let spec = json!({"sink": sink, "resources": resources, "serviceAccountName": "default"});
        control_plane.create::<ApiServerSource>(json!({"metadata": metadata, "spec": spec})).await;
        let spec = json!({"sink": sink, "template": template});
        control_plane.create::<ContainerSource>(json!({"metadata": metadata, "spec": spec})).await;
        let spec = json!({"sink": sink, "subject": subject});
        control_plane.create::<SinkBinding>(json!({"metadata": metadata, "spec": spec})).await;

        let is_looked_at = |status: &Option<SourceStatus>| status.is_some();
        control_plane.until::<ApiServerSource>("one", |one| is_looked_at(&one.status)).await;
        control_plane.until::<ContainerSource>("one", |one| is_looked_at(&one.status)).await;
        control_plane.until::<SinkBinding>("one", |one| is_looked_at(&one.status)).await;

        let maps: Api<ConfigMap> = Api::namespaced(control_plane.client.clone(), "knative-eventing");
        let url = "http://sinks.test/{{ .Name }}";
        let mapping = Patch::Merge(json!({"data": {"ConfigMap.v1": url}}));
        maps.patch("config-kreference-mapping", &PatchParams::default(), &mapping).await.unwrap();
        let feature = Patch::Merge(json!({"data": {"kreference-mapping": "enabled"}}));
        maps.patch("config-features", &PatchParams::default(), &feature).await.unwrap();

        let leads_there = |status: &Option<SourceStatus>| {
            status.as_ref().and_then(|status| status.sink_uri.as_deref()) == Some("http://sinks.test/box")
        };
        control_plane.until::<ApiServerSource>("one", |one| leads_there(&one.status)).await;
        control_plane.until::<ContainerSource>("one", |one| leads_there(&one.status)).await;
        control_plane.until::<SinkBinding>("one", |one| leads_there(&one.status)).await;
    });
}
