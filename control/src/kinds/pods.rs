//! Pods: the running instances as Kubernetes' clients know them. Written by a controller of ours; clients
//! look, read logs, and delete one to have it started anew.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::column;
use super::core::{AGE, CORE};
use crate::kind::{Column, Entry, KindMeta, Problems, RATIO, Requester, Resource};
use crate::schema;

/// What of a container is shown; the rest of Kubernetes' fields mean nothing here.
const CONTAINER: [&str; 10] = [
    "name",
    "image",
    "command",
    "args",
    "ports",
    "env",
    "envFrom",
    "volumeMounts",
    "resources",
    "workingDir",
];
const SPEC: [&str; 4] = ["containers", "nodeName", "restartPolicy", "terminationGracePeriodSeconds"];

/// The row of pods.
#[must_use]
pub fn entry() -> Entry {
    Entry { schema: narrow_schema, ..Entry::of::<Pod>().derived() }
}

/// Kubernetes' whole schema of a pod is larger than all others together.
fn narrow_schema() -> Value {
    let mut schema = schema::of::<Pod>();
    narrow_spec(&mut schema["properties"]["spec"]);
    schema
}

/// Leaves of a pod's spec what is shown.
pub(super) fn narrow_spec(spec: &mut Value) {
    schema::keep_properties(spec, &SPEC);
    schema::keep_properties(&mut spec["properties"]["containers"]["items"], &CONTAINER);
}

impl Resource for Pod {
    const META: KindMeta = KindMeta {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        developers_create: false,
        columns: &[
            Column { format: RATIO, ..column("Ready", ".status.containerStatuses[*].ready") },
            column("Status", ".status.reason|.status.phase"),
            Column { format: "integer", ..column("Restarts", ".status.containerStatuses[0].restartCount") },
            AGE,
            Column { priority: 1, ..column("IP", ".status.podIP") },
            Column { priority: 1, ..column("Node", ".spec.nodeName") },
            Column { priority: 1, ..column("Nominated Node", ".status.nominatedNodeName|=<none>") },
            Column { priority: 1, ..column("Readiness Gates", "=<none>") },
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {}

    fn validate(&self, _: Option<&Self>, _: &mut Problems) {}
}
