//! Pods: the running instances for clients of Kubernetes. Written by a controller of ours; clients
//! read them, read logs, and delete one to have it restarted.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, PrinterColumn, RATIO, column};
use crate::role_rules::{DefaultRole, RoleRule, STREAM, VIEW};
use crate::schema;

/// The supported fields of a container; the rest of Kubernetes' fields mean nothing here.
const CONTAINER: [&str; 10] =
    ["name", "image", "command", "args", "ports", "env", "envFrom", "volumeMounts", "resources", "workingDir"];
const SPEC: [&str; 4] = ["containers", "nodeName", "restartPolicy", "terminationGracePeriodSeconds"];

/// The row of pods.
#[must_use]
pub fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<Pod>().derived() }
}

/// Kubernetes' whole schema of a pod is larger than all others together.
fn narrow_schema() -> Value {
    let mut schema = schema::of::<Pod>();
    narrow_spec(&mut schema["properties"]["spec"]);
    schema
}

/// Leaves of a pod's spec what is shown.
pub(super) fn narrow_spec(spec: &mut Value) {
    schema::retain_properties(spec, &SPEC);
    schema::retain_properties(&mut spec["properties"]["containers"]["items"], &CONTAINER);
}

impl ResourceStrategy for Pod {
    const META: KindMeta = KindMeta {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        user_creatable: false,
        columns: &[
            PrinterColumn { format: RATIO, ..column("Ready", ".status.containerStatuses[*].ready") },
            column("Status", ".status.reason|.status.phase"),
            PrinterColumn { format: "integer", ..column("Restarts", ".status.containerStatuses[0].restartCount") },
            AGE,
            PrinterColumn { priority: 1, ..column("IP", ".status.podIP") },
            PrinterColumn { priority: 1, ..column("Node", ".spec.nodeName") },
            PrinterColumn { priority: 1, ..column("Nominated Node", ".status.nominatedNodeName|=<none>") },
            PrinterColumn { priority: 1, ..column("Readiness Gates", "=<none>") },
        ],
        role_rules: &[
            VIEW.on(&["", "log", "status"]),
            RoleRule::new(DefaultRole::Edit, &["delete", "deletecollection"]),
            RoleRule::new(DefaultRole::Edit, STREAM).on(&["attach", "exec", "portforward"]),
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
