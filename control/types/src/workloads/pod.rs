//! Pods: programs that run as instances of this host. Clients write their own; those of Revisions are written by a
//! controller, and clients look, read logs, and delete one to have it started again.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{is_of_revision, pod_defaults, pod_rules, warnings_of};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::node::NODE;
use crate::printer_column::{AGE, PrinterColumn, RATIO, column};
use crate::role_rules::{DefaultRole, EDIT, RoleRule, STREAM, VIEW};
use crate::schema;

/// What of a container is offered; the rest of Kubernetes' fields mean nothing here.
const CONTAINER: [&str; 19] = [
    "name",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "ports",
    "env",
    "envFrom",
    "volumeMounts",
    "resources",
    "workingDir",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "securityContext",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "restartPolicy",
    "lifecycle",
];
const SPEC: [&str; 26] = [
    "containers",
    "initContainers",
    "volumes",
    "nodeName",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "imagePullSecrets",
    "securityContext",
    "enableServiceLinks",
    "dnsPolicy",
    "dnsConfig",
    "hostname",
    "subdomain",
    "hostNetwork",
    "hostUsers",
    "hostAliases",
    "schedulerName",
    "priorityClassName",
    "affinity",
    "nodeSelector",
    "tolerations",
    "topologySpreadConstraints",
];
/// Fields of a spec that are large and have no effect here.
const OPAQUE: [&str; 3] = ["affinity", "topologySpreadConstraints", "dnsConfig"];
const VOLUME: [&str; 6] = ["name", "configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"];

/// The service account of a Pod that names none.
const ACCOUNT_DEFAULT: &str = "default";

/// The row of pods.
pub(super) fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<Pod>() }.with_warnings(|pod| warnings_of(&pod["spec"], "spec"))
}

/// Kubernetes' whole schema of a pod is larger than all others together.
fn narrow_schema() -> Value {
    let mut schema = schema::of::<Pod>();
    narrow_spec(&mut schema["properties"]["spec"]);
    schema
}

/// Leaves of a pod's spec what is offered.
pub(super) fn narrow_spec(spec: &mut Value) {
    schema::retain_properties(spec, &SPEC);
    let properties = &mut spec["properties"];
    for list in ["containers", "initContainers"] {
        schema::retain_properties(&mut properties[list]["items"], &CONTAINER);
        properties[list]["items"]["properties"]["lifecycle"] = schema::anything();
    }
    schema::retain_properties(&mut properties["volumes"]["items"], &VOLUME);
    OPAQUE.iter().for_each(|field| properties[*field] = schema::anything());
}

impl ResourceStrategy for Pod {
    const META: KindMeta = KindMeta {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        has_status: true,
        columns: &[
            PrinterColumn { format: RATIO, ..column("Ready", ".status.containerStatuses[*].ready") },
            column(
                "Status",
                ".status.reason|.status.initContainerStatuses[*].state.waiting.reason\
                 |.status.containerStatuses[*].state.waiting.reason\
                 |.status.containerStatuses[*].state.terminated.reason|.status.phase",
            ),
            PrinterColumn { format: "integer", ..column("Restarts", ".status.containerStatuses[0].restartCount|=0") },
            AGE,
            PrinterColumn { priority: 1, ..column("IP", ".status.podIP|=<none>") },
            PrinterColumn { priority: 1, ..column("Node", ".spec.nodeName|=<none>") },
            PrinterColumn { priority: 1, ..column("Nominated Node", ".status.nominatedNodeName|=<none>") },
            PrinterColumn { priority: 1, ..column("Readiness Gates", "=<none>") },
        ],
        role_rules: &[
            VIEW.on(&["", "log", "status"]),
            EDIT,
            RoleRule::new(DefaultRole::Edit, STREAM).on(&["attach", "exec", "portforward"]),
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        // Those of Revisions are what their controller makes them.
        if requester.internal && is_of_revision(&self.metadata) {
            return;
        }
        let spec = self.spec.get_or_insert_default();
        pod_defaults::set_spec_defaults(spec);
        spec.enable_service_links.get_or_insert(true);
        let account = spec.service_account_name.get_or_insert_with(|| ACCOUNT_DEFAULT.into()).clone();
        spec.service_account = Some(account);
        if let Some(was) = before.and_then(|before| before.spec.as_ref()) {
            // A client that applies its manifest does not name the node.
            if spec.node_name.is_none() {
                spec.node_name.clone_from(&was.node_name);
            }
        } else {
            // There is one node, so nothing is to be scheduled.
            spec.node_name = Some(NODE.into());
            let phase = &mut self.status.get_or_insert_default().phase;
            phase.get_or_insert_with(|| "Pending".into());
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        if is_of_revision(&self.metadata) {
            return;
        }
        let Some(spec) = &self.spec else { return problems.add("spec", "Required value") };
        pod_rules::validate(spec, "spec", problems);
        if let Some(before) = before.and_then(|before| before.spec.as_ref())
            && with_mutable_fields(before, spec) != *spec
        {
            problems.add(
                "spec",
                "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
                 `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                 existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                 previously negative)",
            );
        }
    }
}

/// `before` with the fields of `after` that may change.
fn with_mutable_fields(before: &PodSpec, after: &PodSpec) -> PodSpec {
    let mut spec = before.clone();
    spec.active_deadline_seconds = after.active_deadline_seconds;
    spec.tolerations.clone_from(&after.tolerations);
    for (one, other) in spec.containers.iter_mut().zip(&after.containers) {
        one.image.clone_from(&other.image);
    }
    let others = after.init_containers.iter().flatten();
    for (one, other) in spec.init_containers.iter_mut().flatten().zip(others) {
        one.image.clone_from(&other.image);
    }
    spec
}
