//! The field managers of our writes in `managedFields`: the names of upstream's programs, so that
//! `kubectl apply --server-side` names a familiar one in a conflict.

use kube::Resource;
use kube::api::{PatchParams, PostParams};

/// The controllers of serving, eventing, messaging and flows.
pub const CONTROLLER: &str = "controller";
/// Looks after Brokers and their Triggers.
const BROKERS: &str = "mtchannel_broker";
const CHANNELS: &str = "channel_controller";
const AUTOSCALER: &str = "autoscaler";
/// Shows what runs on a host.
const KUBELET: &str = "kubelet";
/// Counts it.
const CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// The field manager of the status of `K`, and for Pods of everything.
fn status_manager<K: Resource<DynamicType = ()>>() -> &'static str {
    match &*K::kind(&()) {
        "Broker" | "Trigger" => BROKERS,
        "InMemoryChannel" => CHANNELS,
        "PodAutoscaler" | "Metric" => AUTOSCALER,
        "Pod" | "Node" => KUBELET,
        "Deployment" | "ReplicaSet" | "Job" | "CronJob" | "Endpoints" | "EndpointSlice" => CONTROLLER_MANAGER,
        _ => CONTROLLER,
    }
}

/// For writes of whole objects.
pub fn object_params<K: Resource<DynamicType = ()>>() -> PostParams {
    // The autoscaler's objects are made by the controller of what they scale.
    let manager = match status_manager::<K>() {
        AUTOSCALER => CONTROLLER,
        other => other,
    };
    PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() }
}

/// For writes of statuses.
pub fn status_params<K: Resource<DynamicType = ()>>() -> PostParams {
    PostParams { field_manager: Some(status_manager::<K>().to_owned()), ..PostParams::default() }
}

/// For patches.
pub fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::autoscaling::metric::Metric;
    use types::eventing::trigger::Trigger;
    use types::serving::revision::Revision;

    #[test]
    fn field_manager_of_kind_is_upstreams() {
        let name = |parameters: PostParams| parameters.field_manager.unwrap();
        assert_eq!(name(object_params::<Revision>()), "controller");
        assert_eq!(name(status_params::<Revision>()), "controller");
        assert_eq!(name(status_params::<Trigger>()), "mtchannel_broker");
        assert_eq!(
            (name(object_params::<Metric>()), name(status_params::<Metric>())),
            ("controller".into(), "autoscaler".into())
        );
        assert_eq!(name(object_params::<k8s_openapi::api::core::v1::Pod>()), "kubelet");
    }
}
