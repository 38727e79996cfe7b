//! Instances as Pods.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use sluicegate_control::kinds::serving::service::Service;

use crate::control_plane::{TestControlPlane, in_a_control_plane};
use crate::serving::hello;

async fn pods(control_plane: &TestControlPlane) -> Vec<Pod> {
    let of_it = ListParams::default().labels("serving.knative.dev/service=hello");
    control_plane.api::<Pod>().list(&of_it).await.unwrap().items
}

/// The Pods, once they are as `wanted`.
async fn until(control_plane: &TestControlPlane, what: &str, wanted: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
    for _ in 0..3_000 {
        let pods = pods(control_plane).await;
        if wanted(&pods) {
            return pods;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no Pods {what}: {:#?}", pods(control_plane).await)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// RT-LIFE-12: a Pod for each instance, owned by the Revision; one that is deleted is restarted, and all go with
/// their Service.
#[test]
fn instances_are_pods_and_deleted_one_restarts() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("v1")).await;
        let running = until(&control_plane, "are ready", |pods| pods.len() == 1 && is_ready(&pods[0])).await;
        let owner = &running[0].metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Revision", "hello-00001"));

        let first = running[0].metadata.name.clone().unwrap();
        control_plane.delete::<Pod>(&first).await;
        let other =
            |pods: &[Pod]| pods.len() == 1 && is_ready(&pods[0]) && pods[0].metadata.name.as_ref() != Some(&first);
        until(&control_plane, "have another name", other).await;

        control_plane.delete::<Service>("hello").await;
        until(&control_plane, "are gone", <[Pod]>::is_empty).await;
    });
}

/// An instance that fails and fails again stays one Pod, which counts and says how it ended.
#[test]
fn a_crash_loop_is_one_pod_that_counts_its_restarts() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Service>(hello("broken")).await;
        let of = |pod: &Pod| pod.status.clone().unwrap().container_statuses.unwrap().remove(0);
        let pods = until(&control_plane, "were restarted", |pods| pods.len() == 1 && of(&pods[0]).restart_count >= 2);
        let pods = pods.await;
        let container = of(&pods[0]);
        let last = container.state.and_then(|state| state.waiting).and_then(|waiting| waiting.message);
        let ended = container.last_state.and_then(|state| state.terminated);
        let said = last.or(ended.and_then(|ended| ended.message)).unwrap();
        assert!(said.contains("bad flag"), "{said}");
    });
}
